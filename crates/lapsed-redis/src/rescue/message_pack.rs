//! An array of texts and numbers as MessagePack, which the server's Lua reads in one call.

/// An array that grows, and is written out with its length in front.
#[derive(Default)]
pub(super) struct PackedArray {
    count: u32,
    bytes: Vec<u8>,
}

impl PackedArray {
    pub fn push_text(&mut self, text: &str) {
        self.count += 1;
        match text.len() {
            size @ 0..32 => self.bytes.push(0xa0 | size as u8),
            size => {
                self.bytes.push(0xdb);
                self.bytes.extend((size as u32).to_be_bytes());
            }
        }
        self.bytes.extend(text.as_bytes());
    }

    pub fn push_number(&mut self, number: u64) {
        self.count += 1;
        match number {
            0..128 => self.bytes.push(number as u8),
            _ => {
                self.bytes.push(0xcf);
                self.bytes.extend(number.to_be_bytes());
            }
        }
    }

    pub fn into_array(self) -> Vec<u8> {
        let mut array = vec![0xdd];
        array.extend(self.count.to_be_bytes());
        array.extend(self.bytes);
        array
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_numbers_are_written_as_message_pack_has_them() {
        let mut array = PackedArray::default();
        array.push_text("ab");
        array.push_text(&"x".repeat(32));
        array.push_number(127);
        array.push_number(300);
        let mut expected = vec![0xdd, 0, 0, 0, 4, 0xa2, b'a', b'b', 0xdb, 0, 0, 0, 32];
        expected.extend([b'x'; 32]);
        expected.extend([127, 0xcf, 0, 0, 0, 0, 0, 0, 1, 44]);
        assert_eq!(array.into_array(), expected);
    }
}
