//! The failures of one request, by what they mean for the caller.

use lapsed_core::Error;
use object_store::client::{HttpError, HttpErrorKind};

use crate::http::ServerFault;
use crate::requests::BudgetSpent;

/// The address of a cloud's instance metadata. It is used if there are no other credentials.
const METADATA: &str = "169.254.169.254";

/// The failure of one request, by what it means for the caller.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The object does not exist.
    Missing,
    /// The condition of a conditional request did not hold.
    Condition,
    /// The store asks for fewer requests.
    Throttled(String),
    Budget(String),
    /// The request may or may not have been carried out.
    Doubt(String),
    /// A retry would fail, too: wrong credentials, or a missing bucket.
    Refused(String),
}

impl Failure {
    /// Whether a retry may succeed.
    pub(crate) fn passes(&self) -> bool {
        matches!(self, Failure::Throttled(_) | Failure::Doubt(_))
    }

    /// The error that the caller of `call` gets.
    pub(crate) fn into_error(self, store: &str, call: &str) -> Error {
        let store = store.to_owned();
        match self {
            Failure::Throttled(what) | Failure::Budget(what) => Error::Throttled { store, what },
            Failure::Doubt(what) => Error::Unavailable {
                store,
                what: format!("no good answer to `{call}`; it may have been carried out: {what}"),
            },
            Failure::Refused(what) => Error::Unavailable { store, what },
            Failure::Missing | Failure::Condition => Error::Unavailable {
                store,
                what: format!("an answer to `{call}` that makes no sense"),
            },
        }
    }

    /// What an error of the client means for a request to `bucket`.
    pub(crate) fn of(error: &object_store::Error, bucket: &str) -> Failure {
        use object_store::Error as E;
        if let Some(spent) = find::<BudgetSpent>(error) {
            return Failure::Budget(spent.to_string());
        }
        if let Some(http) = find::<HttpError>(error) {
            return Failure::in_doubt(http);
        }
        let words = chain(error);
        let no_bucket = words.contains("NoSuchBucket") || words.contains("ContainerNotFound");
        match error {
            // The bucket is missing, not the object, so that nothing is known about the object.
            E::NotFound { .. } if no_bucket => {
                Failure::Refused(format!("there is no bucket {bucket:?}; make it, or mend the URL"))
            }
            E::NotFound { .. } => Failure::Missing,
            E::AlreadyExists { .. } | E::Precondition { .. } | E::NotModified { .. } => {
                Failure::Condition
            }
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => Failure::Refused(format!(
                "the credentials are not accepted for {bucket:?}: {}",
                code(&words)
            )),
            _ if words.contains(METADATA) => Failure::Refused(format!(
                "no credentials for {bucket:?}: none are configured, none are in the environment, and \
                 this host has no role that grants them ({words})"
            )),
            _ => Failure::Refused(code(&words).to_owned()),
        }
    }

    /// The failure of a request that had no answer, or an unreadable one.
    pub(crate) fn in_doubt(error: &HttpError) -> Failure {
        if let Some(spent) = find::<BudgetSpent>(error) {
            return Failure::Budget(spent.to_string());
        }
        match find::<ServerFault>(error) {
            Some(fault) if fault.is_throttling() => Failure::Throttled(fault.to_string()),
            Some(fault) => Failure::Doubt(fault.to_string()),
            None if error.kind() == HttpErrorKind::Connect => {
                Failure::Doubt(format!("no server answers there ({})", chain(error)))
            }
            None if error.kind() == HttpErrorKind::Timeout => {
                Failure::Doubt("no answer in time".to_owned())
            }
            None => Failure::Doubt(chain(error)),
        }
    }
}

/// The first error of the type `E` among the causes of `error`.
fn find<'e, T: std::error::Error + 'static>(
    error: &'e (dyn std::error::Error + 'static),
) -> Option<&'e T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// The error and all its causes in one line.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut words = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let more = error.to_string();
        if !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        next = error.source();
    }
    words
}

/// The code in the body of an S3 or Azure error; the whole text if it has none.
fn code(words: &str) -> &str {
    let called = words.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    called.map_or(words, |(code, _)| code)
}

#[cfg(test)]
mod tests {
    use super::{Failure, code};

    #[test]
    fn missing_credentials_are_reported() {
        let what = "Error performing PUT http://169.254.169.254/latest/api/token: 403 Forbidden";
        let error = object_store::Error::Generic { store: "S3", source: what.into() };
        let failure = Failure::of(&error, "b");
        let Failure::Refused(words) = &failure else { panic!("{failure:?}") };
        assert!(words.starts_with("no credentials for \"b\""), "{words}");
    }

    #[test]
    fn an_error_is_called_what_the_store_calls_it() {
        assert_eq!(code("x <Error><Code>AccessDenied</Code></Error> y"), "AccessDenied");
        assert_eq!(code("no code"), "no code");
    }
}
