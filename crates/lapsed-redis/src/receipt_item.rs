//! One item of the stream of receipts: what a batch took from one incarnation, or all sessions of a part of it.
//!
//! `n` tells how many, and `v` is the list, packed: of a registry its keys; of sessions six values each
//! (id, broadcaster, deadline, reason, whether its broadcaster pointed to it, fields). Of jobs the list is
//! `w`: three values each (id, what became of it, what is kept of it). Items of before had a field `k` for
//! each instead, followed by what belongs to it; they stay readable.

use std::collections::HashMap;

use lapsed_core::receipt::Reason;

use crate::msgpack::Packed;

/// A field's name and value. The value of an application's entry may be any bytes.
pub(crate) type Field = (Vec<u8>, Vec<u8>);

/// An item as it is read: its id and its fields, in order.
pub(crate) type StreamItem = (String, Vec<Field>);

/// The part of an item that belongs to one receipt.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReceiptRow {
    pub key: Vec<u8>,
    pub owner: Option<Vec<u8>>,
    pub deadline_ms: Option<u64>,
    pub reason: Option<Vec<u8>>,
    /// For a session: its fields, and whether its broadcaster pointed to it.
    pub session: Option<(Vec<Field>, bool)>,
    /// Other fields of the receipt, as its system wrote them.
    pub rest: Vec<Field>,
}

/// A parsed stream item: one batch's receipts for one incarnation.
pub(crate) struct ReceiptItem {
    /// The number of its last receipt.
    pub last: u64,
    /// The fields that all its receipts share.
    common: HashMap<Vec<u8>, Vec<u8>>,
    pub rows: Vec<ReceiptRow>,
}

impl ReceiptItem {
    /// Reads an item; `None` if lapsed did not write it.
    pub fn read((id, fields): &StreamItem) -> Option<ReceiptItem> {
        let last = id.split('-').next()?.parse().ok()?;
        let mut opened = ReceiptItem { last, common: HashMap::new(), rows: Vec::new() };
        for (name, value) in fields {
            match (name.as_slice(), opened.rows.last_mut()) {
                (b"k", _) => {
                    opened.rows.push(ReceiptRow { key: value.clone(), ..ReceiptRow::default() })
                }
                (name, Some(row)) => row.add(name, value),
                (name, None) => {
                    opened.common.insert(name.to_vec(), value.clone());
                }
            }
        }
        if let Some(packed) = opened.common.remove(b"v".as_slice()) {
            opened.rows = unpack(&packed)?;
        }
        if let Some(packed) = opened.common.remove(b"w".as_slice()) {
            opened.rows = jobs(&packed)?;
        }
        // The receipts are numbered backwards from the last one; no number is below zero.
        let before = opened.rows.len().saturating_sub(1) as u64;
        let back = before.checked_mul(opened.apart())?;
        (back <= last).then_some(opened)
    }

    /// The difference between the numbers of two consecutive receipts.
    fn apart(&self) -> u64 {
        self.number("p").unwrap_or(1)
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.common.get(name.as_bytes())?).ok()
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// The number of each of its receipts.
    pub fn seq(&self, place: usize) -> u64 {
        let after = (self.rows.len() - 1 - place) as u64;
        self.last - after * self.apart()
    }
}

impl ReceiptRow {
    /// The value that the system wrote under `name`.
    pub fn own(&self, name: &str) -> Option<&[u8]> {
        let found = self.rest.iter().find(|(field, _)| field == name.as_bytes());
        found.map(|(_, value)| value.as_slice())
    }

    /// Reads the field that follows a `k`.
    fn add(&mut self, name: &[u8], value: &[u8]) {
        let text = || std::str::from_utf8(value).ok();
        match name {
            b"o" => self.owner = Some(value.to_vec()),
            b"d" => self.deadline_ms = text().and_then(|d| d.parse().ok()),
            b"r" => self.reason = Some(value.to_vec()),
            b"x" => self.session = Some((Vec::new(), value == b"1")),
            _ => match (name.strip_prefix(b"h:"), &mut self.session) {
                (Some(field), Some((fields, _))) => fields.push((field.to_vec(), value.to_vec())),
                _ => self.rest.push((name.to_vec(), value.to_vec())),
            },
        }
    }
}

fn unpack(packed: &[u8]) -> Option<Vec<ReceiptRow>> {
    let packed = Packed::read(packed)?;
    let list = packed.list()?;
    // Six values a session, of which the last are its fields; otherwise keys.
    match list.last()?.list() {
        Some(_) => list.chunks(6).map(session).collect(),
        None => list.iter().map(|key| Some(row(key.bytes()?))).collect(),
    }
}

/// Jobs as a script packs them, under the names of before: `j` what became of it, `y` what is kept.
pub(crate) fn jobs(packed: &[u8]) -> Option<Vec<ReceiptRow>> {
    let packed = Packed::read(packed)?;
    let job = |values: &[Packed<'_>]| {
        let [id, note, kept] = values else { return None };
        let rest = [(b"j", note.bytes()?), (b"y", kept.bytes()?)];
        let rest = rest.iter().filter(|(_, value)| !value.is_empty());
        let rest = rest.map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        Some(ReceiptRow { rest, ..row(id.bytes()?) })
    };
    packed.list()?.chunks(3).map(job).collect()
}

fn row(key: &[u8]) -> ReceiptRow {
    ReceiptRow { key: key.to_vec(), ..ReceiptRow::default() }
}

fn session(values: &[Packed<'_>]) -> Option<ReceiptRow> {
    let [id, owner, deadline_ms, reason, pointed, fields] = values else { return None };
    let field = |pair: &[Packed<'_>]| match pair {
        [name, value] => Some((name.bytes()?.to_vec(), value.bytes()?.to_vec())),
        _ => None,
    };
    let fields: Option<Vec<Field>> = fields.list()?.chunks(2).map(field).collect();
    Some(ReceiptRow {
        owner: Some(owner.bytes()?.to_vec()),
        deadline_ms: Some(deadline_ms.number()?),
        reason: Some(reason.bytes()?.to_vec()),
        session: Some((fields?, pointed.number()? == 1)),
        ..row(id.bytes()?)
    })
}

/// Reads the letter under which a reason is stored.
pub(crate) fn reason_of(letter: &str) -> Option<Reason> {
    match letter {
        "d" => Some(Reason::OwnerDead),
        "r" => Some(Reason::OwnerRetired),
        "o" => Some(Reason::Orphaned),
        "n" => Some(Reason::NeverConnected),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(fields: &[(&str, &[u8])]) -> ReceiptItem {
        let own = |(name, value): &(&str, &[u8])| (name.as_bytes().to_vec(), value.to_vec());
        ReceiptItem::read(&("44-0".to_owned(), fields.iter().map(own).collect())).unwrap()
    }

    #[test]
    fn the_old_and_the_new_form_of_a_session_item_read_the_same() {
        let old = item(&[
            ("t", b"9"),
            ("p", b"2"),
            ("k", b"a"),
            ("o", b"b-1"),
            ("d", b"7"),
            ("r", b"o"),
            ("x", b"1"),
            ("h:value", b"\xff"),
        ]);
        let packed = b"\x96\xa1a\xa3b-1\x07\xa1o\x01\x92\xa5value\xa1\xff";
        let new = item(&[("t", b"9"), ("p", b"2"), ("n", b"1"), ("v", packed)]);
        assert_eq!(old.rows, new.rows);
        assert_eq!((old.number("t"), new.number("t"), new.seq(0)), (Some(9), Some(9), 44));
    }

    #[test]
    fn the_old_and_the_new_form_of_a_job_item_read_the_same() {
        let old = [("k", "a"), ("j", "p:7:1:q"), ("k", "b"), ("j", "x:8:0:q"), ("y", "1::::q\nz")];
        let mut fields: Vec<(&str, &[u8])> = vec![("o", b"w-1"), ("p", b"1")];
        fields.extend(old.iter().map(|(name, value)| (*name, value.as_bytes())));
        let packed = b"\x96\xa1a\xa7p:7:1:q\xa0\xa1b\xa7x:8:0:q\xa81::::q\nz";
        let new = item(&[("o", b"w-1"), ("p", b"1"), ("n", b"2"), ("w", packed)]);
        assert_eq!(item(&fields).rows, new.rows);
        assert_eq!((new.seq(0), new.rows[1].own("y")), (43, Some(&b"1::::q\nz"[..])));
        assert_eq!(jobs(b"\x92\xa1a\xa1b"), None, "two of three");
    }

    #[test]
    fn the_old_and_the_new_form_of_a_registry_item_read_the_same() {
        let old = item(&[("o", b"i-1"), ("p", b"2"), ("k", b"a"), ("k", b"b")]);
        let new = item(&[("o", b"i-1"), ("p", b"2"), ("n", b"2"), ("v", b"\x92\xa1a\xa1b")]);
        assert_eq!(old.rows, new.rows);
        assert_eq!((new.text("o"), old.seq(0), new.seq(1)), (Some("i-1"), 42, 44));
    }
}
