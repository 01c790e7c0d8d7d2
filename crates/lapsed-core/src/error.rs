//! The public error: few kinds, each telling the caller what to do next.
//!
//! A lost race is not here: it is an [`Outcome`](crate::sweep::Outcome). What *is* here has not
//! answered the question that was asked, and each variant's doc says what has and has not changed.

use crate::owner::Lost;

/// The result of every operation of the library.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, by what the caller should do about it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Try again later.
    ///
    /// **Effect**: a read changed nothing. A write that was sent and not answered may have been
    /// carried out; repeating it is safe, because every write of this library is idempotent or
    /// guarded, but for the two that count: see `connect` and `disconnect` of
    /// [`SessionsStore`](crate::sessions::SessionsStore).
    #[error("{store} is unavailable: {what}")]
    Unavailable {
        /// Which store, as the configuration names it.
        store: String,
        /// What happened and, where there is something to do, what to do.
        what: String,
    },
    /// The store asks for fewer requests. Wait, then try again.
    ///
    /// **Effect**: nothing changed.
    #[error("{store} is throttling: {what}")]
    Throttled {
        store: String,
        /// What the store said.
        what: String,
    },
    /// The caller no longer holds what it acts on: it was declared dead, or it retired.
    ///
    /// **Effect**: nothing changed, and nothing that this incarnation sends will change anything.
    #[error("{0}")]
    Lost(Box<Lost>),
    /// The input cannot be right. Mend it before trying again.
    ///
    /// **Effect**: nothing changed.
    #[error("{0}")]
    Invalid(String),
    /// The store holds what this version cannot read.
    ///
    /// **Effect**: nothing changed; nothing was repaired or removed.
    #[error("{store} cannot be read: {what}")]
    Corrupt { store: String, what: String },
    /// This store cannot do this operation.
    ///
    /// **Effect**: nothing changed.
    #[error("{store} does not support {operation}")]
    Unsupported {
        /// What was asked for.
        operation: String,
        store: String,
    },
}

impl Error {
    /// A short, stable word for metrics and the `type` of an HTTP problem.
    pub fn kind(&self) -> &'static str {
        match self {
            Error::Unavailable { .. } => "unavailable",
            Error::Throttled { .. } => "throttled",
            Error::Lost(_) => "lost",
            Error::Invalid(_) => "invalid",
            Error::Corrupt { .. } => "corrupt",
            Error::Unsupported { .. } => "unsupported",
        }
    }

    /// The error for a call that had no answer within `ms` milliseconds.
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
