//! The trace of a run, line by line. The last lines are printed with a failure; a hash of all lines
//! shows that a seed repeats exactly.

use std::collections::VecDeque;
use std::fmt;

/// How many lines a failure shows.
const TAIL: usize = 40;

/// The trace of one run.
#[derive(Debug)]
pub struct Trace {
    tail: VecDeque<String>,
    hash: u64,
    lines: u64,
    printed: bool,
}

impl Trace {
    /// An empty trace; with `printed`, every line also goes to stdout.
    pub fn new(printed: bool) -> Self {
        Trace {
            tail: VecDeque::with_capacity(TAIL),
            hash: 0xcbf2_9ce4_8422_2325,
            lines: 0,
            printed,
        }
    }

    pub fn note(&mut self, at_ms: u64, who: &str, what: fmt::Arguments<'_>) {
        let line = format!("[{at_ms:>7} ms] {who:<12} {what}");
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.lines += 1;
        if self.printed {
            println!("{line}");
        }
        if self.tail.len() == TAIL {
            self.tail.pop_front();
        }
        self.tail.push_back(line);
    }

    pub fn tail(&self) -> Vec<String> {
        self.tail.iter().cloned().collect()
    }

    /// A hash of all lines, and how many there were.
    pub fn digest(&self) -> (u64, u64) {
        (self.hash, self.lines)
    }
}
