//! Maps errors of the server and of the connection to [`lapsed_core::Error`].

use lapsed_core::Error;
use tokio_postgres::error::SqlState;

/// A call that failed: the error for the caller, and whether its connection can be used again.
#[derive(Debug)]
pub(crate) struct CallError {
    pub error: Error,
    /// The server rolled the transaction back because of a concurrent one (deadlock, serialization failure):
    /// it may be retried at once.
    pub conflict: bool,
    /// The connection can carry another call, once the transaction is rolled back.
    pub connected: bool,
    /// The server refused what a row should become (a constraint, a trigger of the application): other rows may be
    /// changed all the same.
    pub of_row: bool,
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        CallError { error, conflict: false, connected: true, of_row: false }
    }
}

impl From<CallError> for Error {
    fn from(failure: CallError) -> Self {
        failure.error
    }
}

/// The result of one step of a call.
pub(crate) type CallResult<T> = std::result::Result<T, CallError>;

/// The error for a failed call. Its text says what happened and, where the operator can act, what to do.
pub(crate) fn call_error(place: &str, call: &str, error: &tokio_postgres::Error) -> CallError {
    let Some(db) = error.as_db_error() else {
        let error = unavailable(
            place,
            format!("`{call}`: {}; it may have been carried out", error_chain(error)),
        );
        return CallError { error, conflict: false, connected: false, of_row: false };
    };
    let code = db.code();
    let message = match db.detail() {
        Some(detail) => format!("{} ({detail})", db.message()),
        None => db.message().to_owned(),
    };
    CallError {
        error: kind(place, call, code, &message),
        conflict: [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED]
            .contains(code),
        // FATAL and worse end the connection; a plan that no longer fits is remembered by it.
        connected: matches!(db.severity(), "ERROR") && *code != SqlState::FEATURE_NOT_SUPPORTED,
        of_row: ["22", "23", "44", "P0"].iter().any(|class| code.code().starts_with(class)),
    }
}

/// The error for a call that had no answer in time.
pub(crate) fn timed_out(place: &str, call: &str, ms: u128) -> CallError {
    let error = Error::timed_out(place, call, ms);
    CallError { error, conflict: false, connected: false, of_row: false }
}

fn kind(place: &str, call: &str, code: &SqlState, message: &str) -> Error {
    let class = code.code().get(..2).unwrap_or_default();
    match code.code() {
        "42P01" | "42703" | "3F000" | "42883" => Error::Corrupt {
            store: place.to_owned(),
            what: format!(
                "`{call}`: {message}. `lapsed schema apply` makes the tables that are missing; if they \
                 are there under other names, the configuration must say so"
            ),
        },
        "42501" => unavailable(
            place,
            format!(
                "this user lacks a permission for `{call}`: {message}. Grant it; lapsed continues automatically"
            ),
        ),
        "3D000" => unavailable(place, format!("{message}: make it with CREATE DATABASE")),
        "25006" => unavailable(
            place,
            format!(
                "it takes no writes: {message}. lapsed must talk to the primary \
                 (target_session_attrs=read-write in its address finds it among several hosts)"
            ),
        ),
        "57014" => unavailable(
            place,
            format!("`{call}` reached the statement's time limit ({message}); nothing was changed"),
        ),
        "55P03" => unavailable(
            place,
            format!(
                "`{call}` timed out waiting for another transaction's lock ({message}); nothing was \
                 changed"
            ),
        ),
        "23502" => Error::Invalid(format!(
            "{place}: `{call}`: {message}. The table has columns that lapsed cannot fill: let the \
             application make this row"
        )),
        _ => match class {
            "08" | "40" | "53" | "57" | "58" | "28" | "XX" | "F0" | "55" => {
                unavailable(place, format!("`{call}`: {message}"))
            }
            "22" | "23" => Error::Invalid(format!("{place}: `{call}`: {message}")),
            "0A" => unavailable(place, format!("`{call}`: {message}; it will be tried again")),
            "42" => Error::Corrupt {
                store: place.to_owned(),
                what: format!(
                    "`{call}`: {message} ({}). Are the names of the tables and columns right?",
                    code.code()
                ),
            },
            _ => unavailable(place, format!("`{call}` failed: {message} ({})", code.code())),
        },
    }
}

pub(crate) fn unavailable(place: &str, what: String) -> Error {
    Error::Unavailable { store: place.to_owned(), what }
}

/// The error for an answer that does not have the shape that the statement promises.
pub(crate) fn unexpected_answer(place: &str, call: &str, what: impl std::fmt::Display) -> Error {
    let what = format!("its answer to `{call}` makes no sense here: {what}");
    Error::Corrupt { store: place.to_owned(), what }
}

/// The message of an error and of its causes, which the client library leaves out.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut error_chain = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let more = inner.to_string();
        if !error_chain.contains(&more) {
            error_chain = format!("{error_chain}: {more}");
        }
        cause = inner.source();
    }
    error_chain
}
