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
    /// Exit 1: a store failed. The name of the store in the configuration is `None` if it is not known.
    Store(Error, Option<String>),
    /// Several faults that were found together, in the order in which they are printed. Exit 2 if all of them are
    /// wrong usage or configuration, else 1.
    Several(Vec<Failure>),
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

    /// All of `faults` as one failure; a single fault stays what it is.
    pub fn several(mut faults: Vec<Failure>) -> Failure {
        match faults.len() {
            1 => faults.remove(0),
            _ => Failure::Several(faults),
        }
    }

    /// The failure of the store called `name` in the configuration.
    pub fn of_store(error: Error, name: &str) -> Failure {
        match Failure::from(error) {
            Failure::Store(error, _) => Failure::Store(error, Some(name.to_owned())),
            other => other,
        }
    }

    /// Names the store that failed, if `name_at` knows the name of the store at its address.
    pub fn name_store(self, name_at: impl Fn(&str) -> Option<String>) -> Failure {
        match self {
            Failure::Store(error, None) => {
                let name = match &error {
                    Error::Unavailable { store, .. } | Error::Corrupt { store, .. } => {
                        name_at(store)
                    }
                    _ => None,
                };
                Failure::Store(error, name)
            }
            other => other,
        }
    }

    /// The messages, one for each fault; none if everything was printed already.
    pub fn messages(&self) -> Vec<String> {
        match self {
            Failure::Several(faults) => faults.iter().flat_map(Failure::messages).collect(),
            Failure::Silent(_) | Failure::Closed => Vec::new(),
            one => vec![one.to_string()],
        }
    }

    pub fn code(&self) -> ExitCode {
        ExitCode::from(self.number())
    }

    fn number(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Failed(_) | Failure::Store(..) => 1,
            Failure::Several(faults) if faults.iter().all(|fault| fault.number() == 2) => 2,
            Failure::Several(_) => 1,
            Failure::Silent(code) | Failure::Told(code, _) => *code,
            Failure::Closed => 0,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(what) | Failure::Failed(what) | Failure::Told(_, what) => {
                f.write_str(what)
            }
            Failure::Store(error, name) => {
                write!(f, "{error}{}", next_step(error, name.as_deref()))
            }
            Failure::Several(_) => f.write_str(&self.messages().join("\n")),
            Failure::Silent(_) | Failure::Closed => Ok(()),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Invalid(what) => Failure::Usage(what),
            other => Failure::Store(other, None),
        }
    }
}

/// Advice by error message: if a message of a store's client or of the operating system contains
/// the first text, the second is added. `{of}` is replaced by the store that it is about.
const NEXT_STEPS: &[(&str, &str)] = &[
    ("Connection refused", "Is the server running there? Start it, or correct `url` {of}"),
    ("failed to lookup", "Is the name of the host right? Correct `url` {of}"),
    (
        "invalid peer certificate",
        "Does this machine trust who signed it? Name the file of that authority's certificate in SSL_CERT_FILE, \
         or correct `url` {of}",
    ),
    ("WRONGPASS", "Correct the password in `url` {of}, as redis://USER:${PASSWORD}@HOST"),
    ("NOAUTH", "It wants a password: write redis://:${REDIS_PASSWORD}@HOST:PORT as the `url` {of}"),
    // What the client of Redis makes of a refusal while it connects, without the server's code.
    (
        "it does not accept user and password",
        "Correct the password in `url` {of}, as redis://USER:${PASSWORD}@HOST",
    ),
    ("password authentication failed", "Correct user and password in `url` {of}"),
    ("Permission denied", "Let this user write there, or choose another folder with --data DIR"),
    ("folder cannot be made", "Choose another folder with --data DIR, or in `url` {of}"),
];

/// The advice to print after an error of the store with this name in the configuration; empty if there is none.
pub fn next_step(error: &Error, name: Option<&str>) -> String {
    let Error::Unavailable { what, .. } = error else { return String::new() };
    let Some((_, step)) = NEXT_STEPS.iter().find(|(said, _)| what.contains(said)) else {
        return String::new();
    };
    let of = name.map_or("of the store".to_owned(), |name| format!("of [store.{name}]"));
    format!(". {}", step.replace("{of}", &of))
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Failure::Closed,
            _ => Failure::Failed(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> Error {
        let what = "Connection refused".to_owned();
        Error::Unavailable { store: "redis://here".to_owned(), what }
    }

    #[test]
    fn a_hint_names_the_store_and_never_a_placeholder() {
        let named = Failure::of_store(refused(), "main").to_string();
        assert!(named.ends_with("correct `url` of [store.main]"), "{named}");
        for (said, _) in NEXT_STEPS {
            let error = Error::Unavailable { store: "x".to_owned(), what: (*said).to_owned() };
            let hint = next_step(&error, None);
            assert!(
                !hint.is_empty() && !hint.contains("NAME]") && !hint.contains("{of}"),
                "{hint}"
            );
        }
        let found = Failure::from(refused())
            .name_store(|place| (place == "redis://here").then(|| "far".to_owned()));
        assert!(found.to_string().contains("[store.far]"), "{found}");
    }

    #[test]
    fn several_faults_keep_their_order_and_the_exit_code_of_the_worst() {
        let wrong = || Failure::usage("a");
        let both = Failure::several(vec![wrong(), Failure::failed("b")]);
        assert_eq!((both.messages(), both.number()), (vec!["a".to_owned(), "b".to_owned()], 1));
        assert_eq!(Failure::several(vec![wrong(), wrong()]).number(), 2);
        assert_eq!(Failure::several(vec![wrong()]).to_string(), "a");
    }
}
