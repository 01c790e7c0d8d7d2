//! What is leased: keys in namespaces, the tokens of a key, and the names of transactions.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::name::Name;
use crate::receipt::Reason;

/// Longest key or transaction id, in bytes. Escaped, it must still fit into the name of an object.
pub const KEY_BYTES_MAX: usize = 256;

/// Prefix of the transaction's id where a suspect or a receipt names a decision.
pub const DECISIONS: &str = ".txn-decisions";

/// A fencing token. Each token of a key is larger than every earlier token of that key.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct LeaseToken(pub u64);

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A namespace: 1 to 64 letters, digits, `_`, `-` and `.`, not beginning with `.`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// Checks `text`; the error says which rule it breaks.
    pub fn new(text: &str) -> Result<Self> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let fits = (1..=64).contains(&text.len()) && !text.starts_with('.');
        if fits && text.chars().all(plain) {
            return Ok(Namespace(Arc::from(text)));
        }
        Err(Error::Invalid(format!(
            "the namespace {text:?} must be 1 to 64 letters, digits, `_`, `-` or `.`, and must not \
             begin with `.`"
        )))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Namespace {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        Namespace::new(&text)
    }
}

impl From<Namespace> for String {
    fn from(namespace: Namespace) -> String {
        namespace.0.as_ref().to_owned()
    }
}

/// The namespace of a key that is written without one.
pub const NAMESPACE: &str = "default";

/// The key of a lease. It is written `namespace/key`, or `key` alone in the namespace
/// [`NAMESPACE`]. The key may contain anything but control characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseKey {
    pub namespace: Namespace,
    pub key: Name,
}

impl LeaseKey {
    pub fn new(namespace: &str, key: &str) -> Result<Self> {
        Ok(LeaseKey { namespace: Namespace::new(namespace)?, key: short(key, "a key")? })
    }

    /// The name under which suspects and receipts refer to this key.
    pub fn subject(&self) -> Name {
        Name::new(&self.to_string()).expect("a namespace and a key of at most 256 bytes are a name")
    }
}

impl fmt::Display for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.key)
    }
}

impl FromStr for LeaseKey {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let (namespace, key) = text.split_once('/').unwrap_or((NAMESPACE, text));
        LeaseKey::new(namespace, key)
    }
}

/// Checks the id of a transaction: a name of at most 256 bytes.
pub fn txn(text: &str) -> Result<Name> {
    short(text, "the id of a transaction")
}

fn short(text: &str, what: &str) -> Result<Name> {
    let name = Name::new(text)?;
    if text.len() <= KEY_BYTES_MAX {
        return Ok(name);
    }
    Err(Error::Invalid(format!(
        "{what} has at most {KEY_BYTES_MAX} bytes; this one has {}",
        text.len()
    )))
}

/// What a suspect or a receipt of this system refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    Lease(LeaseKey),
    Decision(Name),
}

impl Subject {
    /// Parses the key of a suspect or a receipt.
    pub fn parse(key: &str) -> Result<Subject> {
        match key.split_once('/') {
            Some((DECISIONS, id)) => Ok(Subject::Decision(txn(id)?)),
            _ => Ok(Subject::Lease(key.parse()?)),
        }
    }

    /// The name under which suspects and receipts refer to it.
    pub fn name(&self) -> Name {
        match self {
            Subject::Lease(key) => key.subject(),
            Subject::Decision(txn) => Name::new(&format!("{DECISIONS}/{txn}"))
                .expect("an id of at most 256 bytes with a prefix is a name"),
        }
    }

    /// The reason that its receipt gives.
    pub fn reason(&self) -> Reason {
        match self {
            Subject::Lease(_) => Reason::LeaseExpired,
            Subject::Decision(_) => Reason::DecisionExpired,
        }
    }
}
