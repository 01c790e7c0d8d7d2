//! Why a command failed, and with which exit code.

use std::fmt;
use std::process::ExitCode;

use lapsed_core::Error;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// Exit 2: wrong usage or configuration.
    Usage(String),
    /// Exit 1: it was right, and did not work.
    Failed(String),
    /// This exit code, and what is to be said.
    Told(u8, String),
    /// This exit code, without a word: all that was to be said was said.
    Silent(u8),
    /// The reader of our output has gone: nothing more to do.
    Closed,
}

impl Failure {
    pub fn failed(what: impl Into<String>) -> Failure {
        Failure::Failed(what.into())
    }

    pub fn usage(what: impl Into<String>) -> Failure {
        Failure::Usage(what.into())
    }

    pub fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Usage(_) => 2,
            Failure::Failed(_) => 1,
            Failure::Silent(code) | Failure::Told(code, _) => *code,
            Failure::Closed => 0,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(what) | Failure::Failed(what) | Failure::Told(_, what) => {
                f.write_str(what)
            }
            Failure::Silent(_) | Failure::Closed => Ok(()),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Invalid(what) => Failure::Usage(what),
            other => Failure::Failed(format!("{other}{}", next_step(&other))),
        }
    }
}

/// By what a store's client or the system says: what to do next.
const NEXT_STEPS: &[(&str, &str)] = &[
    (
        "Connection refused",
        "Is the server running there? Start it, or correct `url` in [store.NAME]",
    ),
    ("failed to lookup", "Is the name of the host right? Correct `url` in [store.NAME]"),
    (
        "WRONGPASS",
        "Correct the password in `url` of [store.NAME], as redis://USER:${PASSWORD}@HOST",
    ),
    ("NOAUTH", "It wants a password: write redis://:${REDIS_PASSWORD}@HOST:PORT in [store.NAME]"),
    ("password authentication failed", "Correct user and password in `url` of [store.NAME]"),
    ("Permission denied", "Let this user write there, or choose another folder with --data DIR"),
    ("folder cannot be made", "Choose another folder with --data DIR, or in `url` of [store.NAME]"),
];

/// After the error, where there is something to do.
fn next_step(error: &Error) -> String {
    let Error::Unavailable { what, .. } = error else { return String::new() };
    let step = NEXT_STEPS.iter().find(|(said, _)| what.contains(said));
    step.map_or(String::new(), |(_, step)| format!(". {step}"))
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Failure::Closed,
            _ => Failure::Failed(error.to_string()),
        }
    }
}
