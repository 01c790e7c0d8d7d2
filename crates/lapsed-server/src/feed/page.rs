//! A page: consecutive receipts, encoded as server-sent events.
//!
//! The `id` of each event is the cursor of a listener that has seen this receipt and all before it
//! in the feed. A listener that has already seen some receipts of a page needs other cursors: the
//! same receipts are then sent with ids of its own, without encoding the receipts again.

use std::ops::Range;

use axum::body::Bytes;
use lapsed_core::receipt::Receipt;

use super::Places;
use crate::node::missing::MissingSystem;

/// One receipt of a page.
struct ReceiptBytes {
    system: usize,
    seq: u64,
    data: Range<usize>,
}

/// The receipts between two sets of places.
pub struct Page {
    pub before: Places,
    pub after: Places,
    pub bytes: Bytes,
    told: Vec<ReceiptBytes>,
}

impl Page {
    /// The receipts of this page that a listener at `places` has not seen, with its own ids. Moves
    /// `places` to the end of the page. `None` if it has seen all of them.
    pub fn rest(&self, names: &[String], places: &mut Places) -> Option<Bytes> {
        let mut writer = PageWriter::new(names, places.clone());
        for ReceiptBytes { system, seq, data } in &self.told {
            if *seq > writer.places[*system] {
                writer.tell(*system, *seq, &self.bytes[data.clone()]);
            }
        }
        // Places also move past receipts that are no longer kept.
        for (place, after) in places.iter_mut().zip(&self.after) {
            *place = (*place).max(*after);
        }
        (!writer.told.is_empty()).then(|| writer.finish().bytes)
    }
}

pub struct PageWriter<'a> {
    names: &'a [String],
    before: Places,
    places: Places,
    bytes: Vec<u8>,
    told: Vec<ReceiptBytes>,
}

impl<'a> PageWriter<'a> {
    /// An empty page for a listener at `places`.
    pub fn new(names: &'a [String], places: Places) -> PageWriter<'a> {
        PageWriter { names, before: places.clone(), places, bytes: Vec::new(), told: Vec::new() }
    }

    /// Adds a receipt of the system with that index.
    pub fn receipt(&mut self, system: usize, receipt: &Receipt) {
        match serde_json::to_vec(receipt) {
            Ok(data) => self.tell(system, receipt.id.seq, &data),
            Err(error) => tracing::error!(receipt = %receipt.id, %error, "receipt not encoded"),
        }
    }

    fn tell(&mut self, system: usize, seq: u64, data: &[u8]) {
        self.places[system] = seq;
        self.bytes.extend_from_slice(b"event: receipt\nid: ");
        write_cursor(&mut self.bytes, self.names, &self.places);
        self.bytes.extend_from_slice(b"\ndata: ");
        let start = self.bytes.len();
        self.bytes.extend_from_slice(data);
        self.told.push(ReceiptBytes { system, seq, data: start..self.bytes.len() });
        self.bytes.extend_from_slice(b"\n\n");
    }

    /// The size of the page so far, in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn finish(self) -> Page {
        let PageWriter { before, places, bytes, told, .. } = self;
        Page { before, after: places, bytes: Bytes::from(bytes), told }
    }
}

/// The first event of a stream. It contains the place of every system, so that a client that loses
/// the stream before the first receipt can resume without a gap.
pub fn greeting(names: &[String], places: &[u64]) -> Bytes {
    let mut id = Vec::new();
    write_cursor(&mut id, names, places);
    let id = String::from_utf8_lossy(&id);
    let data = serde_json::json!({ "cursor": id });
    Bytes::from(format!("event: cursor\ndata: {data}\nid: {id}\n\n"))
}

/// The event that names the systems whose receipts are missing now, because their stores do not
/// answer; the list is empty when all are back. It has no id, because it moves no place.
pub fn missing(systems: &[MissingSystem]) -> Bytes {
    let data = serde_json::json!({ "missing": systems });
    Bytes::from(format!("event: missing\ndata: {data}\n\n"))
}

fn write_cursor(out: &mut Vec<u8>, names: &[String], places: &[u64]) {
    let mut digits = [0; 20];
    for (index, (name, place)) in names.iter().zip(places).enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(name.as_bytes());
        out.push(b':');
        out.extend_from_slice(decimal(*place, &mut digits));
    }
}

/// Formats a number without `core::fmt`, because a cursor is written for every receipt.
fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[start..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(names: &[String], before: Places, told: &[(usize, u64)]) -> Page {
        let mut writer = PageWriter::new(names, before);
        told.iter().for_each(|(system, seq)| writer.tell(*system, *seq, b"{}"));
        writer.finish()
    }

    #[test]
    fn an_id_is_the_cursor_after_its_event() {
        let names = ["a/x".to_owned(), "b/y".to_owned()];
        let page = page(&names, vec![7, 0], &[(0, 8), (1, u64::MAX)]);
        assert_eq!(
            page.bytes,
            "event: receipt\nid: a/x:8,b/y:0\ndata: {}\n\n\
             event: receipt\nid: a/x:8,b/y:18446744073709551615\ndata: {}\n\n"
        );
        let greeting = greeting(&names, &[7, 0]);
        assert_eq!(
            greeting,
            "event: cursor\ndata: {\"cursor\":\"a/x:7,b/y:0\"}\nid: a/x:7,b/y:0\n\n"
        );
    }

    #[test]
    fn what_was_seen_is_not_told_again() {
        let names = ["a/x".to_owned(), "b/y".to_owned()];
        let page = page(&names, vec![0, 0], &[(0, 1), (1, 1), (0, 2), (1, 2)]);
        let mut places = vec![1, 5];
        let rest = page.rest(&names, &mut places);
        assert_eq!(rest.unwrap(), "event: receipt\nid: a/x:2,b/y:5\ndata: {}\n\n");
        assert_eq!(places, [2, 5]);
        assert!(page.rest(&names, &mut places).is_none());
    }
}
