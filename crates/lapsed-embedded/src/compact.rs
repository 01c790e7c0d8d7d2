//! Rows that are written often, as bytes: a version byte, then numbers of variable length and texts
//! with their length in front.
//!
//! Until format 2 these rows were JSON, which begins with `{`. No version is that byte, so a reader
//! tells both apart, and a row is rewritten when it changes. What is rare in a row is JSON inside.

use lapsed_core::Name;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::fault::{Fault, Tried};

/// The version that is written.
const VERSION: u8 = 1;
/// The version of a row that is a block of receipts.
const BLOCK: u8 = 2;

/// Builds a row, one part after the other.
pub(crate) struct RowWriter(Vec<u8>);

impl RowWriter {
    pub fn new() -> Self {
        let mut row = Vec::with_capacity(96);
        row.push(VERSION);
        RowWriter(row)
    }

    /// A block of receipts.
    pub fn block() -> Self {
        RowWriter(vec![BLOCK])
    }

    /// Goes on with a row that was finished.
    pub fn append_to(row: Vec<u8>) -> Self {
        RowWriter(row)
    }

    /// A number: seven bits a byte, the lowest first; the highest bit says that more follow.
    pub fn number(mut self, mut value: u64) -> Self {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }

    pub fn text(self, text: &str) -> Self {
        let mut row = self.number(text.len() as u64);
        row.0.extend_from_slice(text.as_bytes());
        row
    }

    pub fn option<T>(self, value: Option<T>, some: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            None => self.number(0),
            Some(value) => some(self.number(1), value),
        }
    }

    pub fn json<T: Serialize>(self, value: &T) -> Tried<Self> {
        Ok(self.text(&serde_json::to_string(value)?))
    }

    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Reads a row in the order in which it was written.
pub(crate) struct RowReader<'r>(&'r [u8]);

impl<'r> RowReader<'r> {
    /// `None`: the row is JSON, as an older version wrote it.
    pub fn new(row: &'r [u8]) -> Tried<Option<Self>> {
        match row.split_first() {
            Some((&VERSION, rest)) => Ok(Some(RowReader(rest))),
            Some((b'{', _)) => Ok(None),
            _ => Err(Fault::row("a row has a version that is not known")),
        }
    }

    /// `None`: the row is no block of receipts.
    pub fn block(row: &'r [u8]) -> Option<Self> {
        row.strip_prefix(&[BLOCK]).map(RowReader)
    }

    pub fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    pub fn number(&mut self) -> Tried<u64> {
        let (mut value, mut shift) = (0u64, 0);
        loop {
            let (byte, rest) = self.0.split_first().ok_or_else(cut_off)?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if shift > 63 || (bits << shift) >> shift != bits {
                return Err(Fault::row("a number of a row is too large"));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
            shift += 7;
        }
    }

    pub fn text(&mut self) -> Tried<&'r str> {
        let length = usize::try_from(self.number()?).map_err(|_| cut_off())?;
        let (text, rest) = self.0.split_at_checked(length).ok_or_else(cut_off)?;
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| Fault::row("a text of a row is not UTF-8"))
    }

    pub fn name(&mut self) -> Tried<Name> {
        let text = self.text()?;
        Name::new(text).map_err(|error| Fault::row(format!("a row has no name: {error}")))
    }

    pub fn option<T>(&mut self, some: impl FnOnce(&mut Self) -> Tried<T>) -> Tried<Option<T>> {
        match self.number()? {
            0 => Ok(None),
            1 => Ok(Some(some(self)?)),
            _ => Err(Fault::row("a row is neither with nor without a value")),
        }
    }

    pub fn json<T: DeserializeOwned>(&mut self) -> Tried<T> {
        Ok(serde_json::from_str(self.text()?)?)
    }

    /// `value`, if the row ends here.
    pub fn finish<T>(self, value: T) -> Tried<T> {
        if self.0.is_empty() {
            Ok(value)
        } else {
            Err(Fault::row("a row is longer than its content"))
        }
    }
}

fn cut_off() -> Fault {
    Fault::row("a row is cut off")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_row_is_read_as_it_was_written(
            number in any::<u64>(), text in ".{0,300}", value in any::<Option<u64>>()) {
            let row = RowWriter::new().number(number).text(&text);
            let row = row.option(value, RowWriter::number).json(&text).unwrap().finish();
            let mut reader = RowReader::new(&row).unwrap().unwrap();
            prop_assert_eq!(reader.number().unwrap(), number);
            prop_assert_eq!(reader.text().unwrap(), &text);
            prop_assert_eq!(reader.option(RowReader::number).unwrap(), value);
            prop_assert_eq!(reader.json::<String>().unwrap(), text);
            prop_assert!(reader.finish(()).is_ok());
        }

        #[test]
        fn any_bytes_are_read_or_refused(row in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Some(mut reader)) = RowReader::new(&row) {
                let _ = reader.number();
                let _ = reader.text();
                let _ = reader.option(RowReader::name);
            }
        }
    }

    #[test]
    fn rows_of_older_versions_are_told_apart() {
        assert!(RowReader::new(b"{\"token\":1}").unwrap().is_none());
        assert!(RowReader::new(b"").is_err());
        assert!(RowReader::new(b"\x09").is_err());
    }
}
