//! The errors of commands, each with its exit code.

use std::fmt;
use std::process::ExitCode;

use lapsed_core::Error;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// Exit 2: the usage or the configuration is wrong.
    Usage(String),
    /// Exit 1: the command was valid, but did not succeed.
    Failed(String),
    /// Exits with this code, after printing this message.
    Told(u8, String),
    /// Exits with this code without a message, because everything was printed already.
    Silent(u8),
    /// The reader of our output has closed it, so there is nothing left to print.
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

/// Advice by error message: if a message of a store's client or of the operating system contains
/// the first text, the second is added.
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

/// The advice to print after an error; empty if there is none.
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
