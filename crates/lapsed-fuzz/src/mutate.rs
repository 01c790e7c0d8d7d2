//! Random changes, the same ones every time.

/// A source of chance that repeats.
#[derive(Clone, Debug)]
pub struct FuzzRandom(u64);

impl FuzzRandom {
    /// A generator that returns the same numbers for the same seed.
    pub fn new(seed: u64) -> FuzzRandom {
        FuzzRandom(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Below `end`, which is above zero.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// Values at which readers of numbers and text often fail.
const TRICKY: [&[u8]; 10] = [
    b"18446744073709551615",
    b"-1",
    b"1e309",
    b"null",
    b"\"\\u0000\"",
    b"[[[[[[[[",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\xdf\xff\xff\xff\xff",
    b"../..",
    "\u{202e}é".as_bytes(),
];

/// `input` after a few changes.
pub fn mutate(input: &[u8], chance: &mut FuzzRandom) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=chance.below(4) {
        change(&mut bytes, chance);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, chance: &mut FuzzRandom) {
    let at = chance.below(bytes.len() + 1);
    let until = at + chance.below(bytes.len() + 1 - at);
    match chance.below(6) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..until)),
        2 => {
            bytes.splice(at..at, TRICKY[chance.below(TRICKY.len())].iter().copied()).for_each(drop)
        }
        3 => bytes
            .splice(at..until, TRICKY[chance.below(TRICKY.len())].iter().copied())
            .for_each(drop),
        4 => {
            let copied = bytes[at..until].to_vec();
            bytes.splice(at..at, copied).for_each(drop);
        }
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << chance.below(8);
            }
        }
    }
}
