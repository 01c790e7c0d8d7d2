//! The library's error: few kinds, each of which tells the caller what to do next.
//!
//! A lost race is not an error but an [`Outcome`](crate::sweep::Outcome). Each variant's
//! documentation says what has and has not changed when it is returned.

use crate::owner::Lost;

/// Result of every operation of the library.
pub type Result<T> = std::result::Result<T, Error>;

/// Kinds of failure, distinguished by what the caller should do.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store did not answer or cannot work now. Try again later.
    ///
    /// **Effect**: a read changed nothing. A write that was sent but not answered may have been
    /// carried out. Repeating it is safe, because every write of this library is idempotent or
    /// guarded. The exceptions, which a [`RequestId`](crate::request::RequestId) makes repeatable, are
    /// in `docs/idempotency.md`.
    #[error("{store} is unavailable: {what}")]
    Unavailable {
        /// The store, as the configuration names it.
        store: String,
        /// What happened and, where the caller can do something about it, what to do.
        what: String,
    },
    /// Another process has this store open, and it serves one process at a time. Talk to that process,
    /// or try again when it has ended.
    ///
    /// **Effect**: nothing changed.
    #[error(
        "{store} is unavailable: it is in use by {holder}; one folder serves one process. Talk to that \
         one over HTTP, stop it, or choose another folder"
    )]
    InUse {
        store: String,
        /// The process that has it open, for example `the process with pid 42`.
        holder: String,
    },
    /// The store asks for fewer requests. Wait, then try again.
    ///
    /// **Effect**: nothing changed.
    #[error("{store} is throttling: {what}")]
    Throttled {
        store: String,
        /// The message of the store.
        what: String,
    },
    /// The caller no longer holds what it acts on, because it was declared dead or has retired.
    ///
    /// **Effect**: nothing changed, and nothing that this incarnation sends will change anything.
    #[error("{0}")]
    Lost(Box<Lost>),
    /// The input is wrong. Correct it before trying again.
    ///
    /// **Effect**: nothing changed.
    #[error("{0}")]
    Invalid(String),
    /// The idempotency key came before, with another content. Use a new key for every new request.
    ///
    /// **Effect**: nothing changed.
    #[error(
        "the idempotency key `{key}` was used before for a request with other content; use a new key \
         for a new request, or repeat the request unchanged"
    )]
    KeyReused { key: String },
    /// The store contains data that this version cannot read.
    ///
    /// **Effect**: nothing changed; nothing was repaired or removed.
    #[error("{store} cannot be read: {what}")]
    Corrupt { store: String, what: String },
    /// This store does not implement the operation.
    ///
    /// **Effect**: nothing changed.
    #[error("{store} does not support {operation}")]
    Unsupported {
        /// Name of the operation.
        operation: String,
        store: String,
    },
}

impl Error {
    /// A short, stable word for metrics and for the `type` of an HTTP problem.
    pub fn kind(&self) -> &'static str {
        match self {
            Error::Unavailable { .. } | Error::InUse { .. } => "unavailable",
            Error::Throttled { .. } => "throttled",
            Error::Lost(_) => "lost",
            Error::Invalid(_) => "invalid",
            Error::KeyReused { .. } => "key_reused",
            Error::Corrupt { .. } => "corrupt",
            Error::Unsupported { .. } => "unsupported",
        }
    }

    /// The error for a call that was not answered within `ms` milliseconds.
    pub fn timed_out(store: &str, call: &str, ms: u128) -> Self {
        Error::Unavailable {
            store: store.to_owned(),
            what: format!("no answer to `{call}` within {ms} ms; it may have been carried out"),
        }
    }
}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Self {
        Error::Lost(Box::new(lost))
    }
}
