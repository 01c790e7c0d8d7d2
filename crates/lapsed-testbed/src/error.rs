//! One error for everything that can go wrong around a server under test: words for a human.

use std::{fmt, io};

/// What went wrong, in words. `Debug` prints the same words, so that an `unwrap` in a test shows a
/// server's log with its line breaks.
pub struct TestbedError(String);

pub type TestbedResult<T> = std::result::Result<T, TestbedError>;

impl TestbedError {
    pub(crate) fn new(words: impl Into<String>) -> Self {
        Self(words.into())
    }

    /// Puts what was being done in front.
    pub(crate) fn during(self, what: impl fmt::Display) -> Self {
        Self(format!("{what}: {}", self.0))
    }
}

impl fmt::Display for TestbedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TestbedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for TestbedError {}

impl From<io::Error> for TestbedError {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<rustix::io::Errno> for TestbedError {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.to_string())
    }
}
