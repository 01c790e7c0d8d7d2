//! Requests that may be repeated after their answer was lost.
//!
//! The races that a store closes by keeping what it answered to a request, in the same atomic step as
//! the change:
//! - *The request is carried out after its caller gave up.* The caller then has no answer, but the
//!   change is there. A repetition with the same key gets the kept answer.
//! - *The repetition comes while the first request is under way*, through the same process or through
//!   another one. The steps of a store are serial: one of the two makes the change, the other finds
//!   what was kept.
//! - *The repetition was not a repetition*: the key is the same but the content is not. The fingerprint
//!   differs, and the request is refused with [`Error::KeyReused`].
//! - *The caller gave up, and what it asked for must be undone* (a `take`). Each try of a request has its
//!   own number, the attempt. Undoing refers to one attempt: it changes nothing if another attempt of
//!   the same request was answered, and an attempt that was given up is refused if the store carries
//!   it out only afterwards.
//!
//! Some operations are told the request that they belong to (`start_once`, `take_once`). All others find it
//! in the task that carries them out, see [`current`].

mod current;

pub use current::{CurrentRequest, continued, current};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::name::{Name, SystemId};

/// For how long a store remembers a request, in milliseconds of its clock.
pub const REQUEST_AGE_MS: u64 = 600_000;

/// How many requests of one system a store remembers at most; the oldest are forgotten first.
pub const REQUESTS_MAX: u64 = 100_000;

/// Largest key of a request, in bytes.
pub const REQUEST_KEY_BYTES_MAX: usize = 255;

/// One attempt of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestId {
    /// The same for all attempts of a request, and different for every other request of the system.
    pub key: Name,
    /// A digest of the content, by which a reused key is found out.
    pub fingerprint: String,
    /// Different for every attempt of any process.
    pub attempt: Name,
}

impl RequestId {
    /// A request with the key that its caller chose. `attempt` must be unique.
    pub fn new(key: &str, fingerprint: &str, attempt: &str) -> Result<RequestId> {
        if key.len() > REQUEST_KEY_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "an idempotency key has at most {REQUEST_KEY_BYTES_MAX} bytes; this one has {}",
                key.len()
            )));
        }
        let is_word = |c: char| c.is_ascii_alphanumeric();
        if key.starts_with('!') || !fingerprint.chars().all(is_word) {
            let what = "an idempotency key does not begin with `!`, and its fingerprint consists of letters and digits";
            return Err(Error::Invalid(what.to_owned()));
        }
        let (key, attempt) = (Name::new(key)?, Name::new(attempt)?);
        Ok(RequestId { key, fingerprint: fingerprint.to_owned(), attempt })
    }

    /// A request whose caller chose no key, so that nobody can repeat it.
    pub fn unrepeatable(attempt: &str) -> Result<RequestId> {
        RequestId::new(attempt, "", attempt)
    }

    /// Whether another attempt of the same request may come.
    pub fn is_repeatable(&self) -> bool {
        self.key != self.attempt
    }

    /// One of several steps of this request, each of which is kept by itself; the first is number 1.
    pub fn step(&self, number: usize) -> Result<RequestId> {
        let key = Name::new(&format!("!step/{number}/{}", self.key))?;
        Ok(RequestId { key, ..self.clone() })
    }

    /// The error for a key that came before with other content.
    pub fn reused(&self) -> Error {
        Error::KeyReused { key: self.key.to_string() }
    }

    /// The error for an attempt that comes while the change of another one has no answer yet.
    pub fn overtaken(&self, store: &str) -> Error {
        Error::Unavailable {
            store: store.to_owned(),
            what: "another attempt of this request has changed something; nothing was changed now"
                .to_owned(),
        }
    }

    /// The error for an attempt that the store carries out after it was given up.
    pub fn given_up(&self, store: &str) -> Error {
        Error::Unavailable {
            store: store.to_owned(),
            what: "this attempt of the request was given up before; nothing was changed".to_owned(),
        }
    }
}

/// What a store knows of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptRequest {
    /// Nothing: it never came, or changed nothing, or was forgotten.
    Unknown,
    /// An attempt has changed something, and its answer was never kept: it is under way, or its process was
    /// killed.
    Begun,
    /// It was carried out, and this was answered.
    Answered(String),
}

/// The error of a system that cannot carry out an operation once for a request.
pub(crate) fn not_repeatable(
    system: Option<&SystemId>,
    operation: &str,
    request: &RequestId,
) -> Error {
    let operation = match request.is_repeatable() {
        true => format!("`{operation}` with an idempotency key"),
        false => format!("`{operation}`"),
    };
    let store = system.map_or("this store".to_owned(), |system| format!("the store of {system}"));
    Error::Unsupported { operation, store }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_bounded_and_never_look_like_an_attempt_that_was_given_up() {
        assert!(RequestId::new("order-1", "abc1", "a").unwrap().is_repeatable());
        assert!(!RequestId::unrepeatable("a").unwrap().is_repeatable());
        for key in ["", "!a", "a\nb", &"k".repeat(REQUEST_KEY_BYTES_MAX + 1)] {
            assert!(RequestId::new(key, "", "a").is_err(), "{key:?}");
        }
        assert!(RequestId::new("k", "with:colon", "a").is_err());
    }
}
