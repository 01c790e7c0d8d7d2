//! Entry point for fuzzing: reads arbitrary bytes as an item of the stream of receipts.

use crate::receipt_item::{Field, ReceiptItem, StreamItem};
use crate::receipts::removed_of;

/// An item: its id, then names and values, each after its length (a byte, and two of a value).
pub fn receipts(bytes: &[u8]) {
    let Some(item) = item(bytes) else { return };
    let Some(opened) = ReceiptItem::read(&item) else { return };
    for (place, row) in opened.rows.iter().enumerate() {
        assert!(opened.seq(place) <= opened.last, "a number above that of its item");
        removed_of(row);
    }
}

fn item(bytes: &[u8]) -> Option<StreamItem> {
    let (id, mut rest) = after_length(bytes, 1)?;
    let mut fields: Vec<Field> = Vec::new();
    while !rest.is_empty() {
        let (name, more) = after_length(rest, 1)?;
        let (value, more) = after_length(more, 2)?;
        fields.push((name.to_vec(), value.to_vec()));
        rest = more;
    }
    Some((String::from_utf8(id.to_vec()).ok()?, fields))
}

fn after_length(bytes: &[u8], width: usize) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_at_checked(width)?;
    let length = length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    rest.split_at_checked(length)
}
