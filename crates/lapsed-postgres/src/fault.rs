//! What the server or the connection says, in the library's few kinds of error.

use lapsed_core::Error;
use tokio_postgres::error::SqlState;

/// What is to be said of a call that failed, and what is to become of its connection.
#[derive(Debug)]
pub(crate) struct Fault {
    pub error: Error,
    /// The server undid the transaction because of somebody else's: it may be tried again at once.
    pub conflict: bool,
    /// The connection is good for another call, once the transaction is undone.
    pub connected: bool,
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault { error, conflict: false, connected: true }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        fault.error
    }
}

/// The result of one step of a call.
pub(crate) type Tried<T> = std::result::Result<T, Fault>;

/// Tells what happened and, where there is something to do, what to do.
pub(crate) fn told(place: &str, call: &str, error: &tokio_postgres::Error) -> Fault {
    let Some(db) = error.as_db_error() else {
        let error =
            unavailable(place, format!("`{call}`: {}; it may have been carried out", words(error)));
        return Fault { error, conflict: false, connected: false };
    };
    let code = db.code();
    let said = match db.detail() {
        Some(detail) => format!("{} ({detail})", db.message()),
        None => db.message().to_owned(),
    };
    Fault {
        error: kind(place, call, code, &said),
        conflict: [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED]
            .contains(code),
        // FATAL and worse end the connection; a plan that no longer fits is remembered by it.
        connected: matches!(db.severity(), "ERROR") && *code != SqlState::FEATURE_NOT_SUPPORTED,
    }
}

/// A call that had no answer in time.
pub(crate) fn late(place: &str, call: &str, ms: u128) -> Fault {
    Fault { error: Error::timed_out(place, call, ms), conflict: false, connected: false }
}

fn kind(place: &str, call: &str, code: &SqlState, said: &str) -> Error {
    let class = code.code().get(..2).unwrap_or_default();
    match code.code() {
        "42P01" | "42703" | "3F000" | "42883" => Error::Corrupt {
            store: place.to_owned(),
            what: format!(
                "`{call}`: {said}. `lapsed schema apply` makes the tables that are missing; if they \
                 are there under other names, the configuration must say so"
            ),
        },
        "42501" => unavailable(
            place,
            format!(
                "this user lacks a permission for `{call}`: {said}. Grant it; lapsed goes on by itself"
            ),
        ),
        "3D000" => unavailable(place, format!("{said}: make it with CREATE DATABASE")),
        "25006" => unavailable(
            place,
            format!(
                "it takes no writes: {said}. lapsed must talk to the primary \
                 (target_session_attrs=read-write in its address finds it among several hosts)"
            ),
        ),
        "57014" => unavailable(
            place,
            format!("it gave up `{call}` after its time limit ({said}); nothing was changed"),
        ),
        "55P03" => unavailable(
            place,
            format!(
                "`{call}` waited too long for somebody else's lock ({said}); nothing was changed"
            ),
        ),
        "23502" => Error::Invalid(format!(
            "{place}: `{call}`: {said}. The table has columns that lapsed cannot fill: let the \
             application make this row"
        )),
        _ => match class {
            "08" | "40" | "53" | "57" | "58" | "28" | "XX" | "F0" | "55" => {
                unavailable(place, format!("`{call}`: {said}"))
            }
            "22" | "23" => Error::Invalid(format!("{place}: `{call}`: {said}")),
            "0A" => unavailable(place, format!("`{call}`: {said}; trying again will do")),
            "42" => Error::Corrupt {
                store: place.to_owned(),
                what: format!(
                    "`{call}`: {said} ({}). Are the names of the tables and columns right?",
                    code.code()
                ),
            },
            _ => unavailable(place, format!("`{call}` failed: {said} ({})", code.code())),
        },
    }
}

pub(crate) fn unavailable(place: &str, what: String) -> Error {
    Error::Unavailable { store: place.to_owned(), what }
}

/// For an answer of another shape than the statement promises.
pub(crate) fn nonsense(place: &str, call: &str, what: impl std::fmt::Display) -> Error {
    let what = format!("its answer to `{call}` makes no sense here: {what}");
    Error::Corrupt { store: place.to_owned(), what }
}

/// The words of an error and of what caused it; the library leaves the second out.
pub(crate) fn words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let more = inner.to_string();
        if !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        cause = inner.source();
    }
    words
}
