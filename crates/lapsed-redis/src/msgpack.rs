//! The little of MessagePack that a script's `cmsgpack.pack` writes for lists of texts and numbers:
//! what a receipt keeps, in one piece, because every piece that a script hands over costs it time.

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Packed<'b> {
    Number(u64),
    Bytes(&'b [u8]),
    List(Vec<Packed<'b>>),
}

impl<'b> Packed<'b> {
    /// The one value that `bytes` are; `None` if they are anything else.
    pub fn read(bytes: &'b [u8]) -> Option<Packed<'b>> {
        let mut rest = Reader { bytes };
        let value = rest.value(DEPTH_MAX)?;
        rest.bytes.is_empty().then_some(value)
    }

    pub fn number(&self) -> Option<u64> {
        if let Packed::Number(number) = self { Some(*number) } else { None }
    }

    pub fn bytes(&self) -> Option<&'b [u8]> {
        if let Packed::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    pub fn list(&self) -> Option<&[Packed<'b>]> {
        if let Packed::List(list) = self { Some(list) } else { None }
    }
}

/// Receipts are lists of lists of texts.
const DEPTH_MAX: usize = 4;

struct Reader<'b> {
    bytes: &'b [u8],
}

impl<'b> Reader<'b> {
    fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }

    /// A number of `width` bytes, the largest first.
    fn number(&mut self, width: usize) -> Option<u64> {
        Some(self.take(width)?.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }

    fn text(&mut self, length: u64) -> Option<Packed<'b>> {
        self.take(usize::try_from(length).ok()?).map(Packed::Bytes)
    }

    fn list(&mut self, length: u64, depth: usize) -> Option<Packed<'b>> {
        let depth = depth.checked_sub(1)?;
        (0..length).map(|_| self.value(depth)).collect::<Option<_>>().map(Packed::List)
    }

    fn value(&mut self, depth: usize) -> Option<Packed<'b>> {
        let head = self.take(1)?[0];
        match head {
            0x00..=0x7f => Some(Packed::Number(u64::from(head))),
            0x90..=0x9f => self.list(u64::from(head & 0x0f), depth),
            0xa0..=0xbf => self.text(u64::from(head & 0x1f)),
            0xcc..=0xcf => self.number(1 << (head - 0xcc)).map(Packed::Number),
            // Signed ones: a script writes them for what is below zero only, which nothing here is.
            0xd9..=0xdb => {
                let length = self.number(1 << (head - 0xd9))?;
                self.text(length)
            }
            0xdc..=0xdd => {
                let length = self.number(2 << (head - 0xdc))?;
                self.list(length, depth)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_texts_and_numbers_are_read_whatever_their_size() {
        let long = [b'x'; 300];
        let mut bytes =
            vec![0x94, 0xa2, b'i', b'd', 0xcf, 0, 0, 1, 0xa1, 0xe6, 0, 0, 1, 0x91, 0xa0];
        bytes.extend([0xda, 1, 44]);
        bytes.extend(long);
        let read = Packed::read(&bytes).unwrap();
        let number = 0x0000_01a1_e600_0001;
        let inner = Packed::List(vec![Packed::Bytes(b"")]);
        let wanted = [Packed::Bytes(b"id"), Packed::Number(number), inner, Packed::Bytes(&long)];
        assert_eq!(read.list().unwrap(), wanted);
    }

    #[test]
    fn truncated_input_and_trailing_bytes_are_refused() {
        assert_eq!(Packed::read(&[0x92, 0xa1, b'a']), None);
        assert_eq!(Packed::read(&[0xdd, 0xff, 0xff, 0xff, 0xff]), None);
        assert_eq!(Packed::read(&[0x91; 64]), None);
        assert_eq!(Packed::read(&[0x01, 0x01]), None);
        assert_eq!(Packed::read(&[]), None);
    }
}
