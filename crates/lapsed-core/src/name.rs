//! Names of owners, entries and systems. A value of these types has been checked, so that no other
//! code has to check it again.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Longest name of an owner or an entry, in bytes.
pub const NAME_BYTES_MAX: usize = 512;

/// The name of an owner or the key of an entry: UTF-8, 1 to 512 bytes, no control characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Arc<str>);

impl Name {
    /// Checks `text`; the error says which rule it breaks.
    pub fn new(text: &str) -> Result<Self> {
        Self::check(text)?;
        Ok(Name(Arc::from(text)))
    }

    /// Whether `text` can be a name; the error says which rule it breaks.
    pub fn check(text: &str) -> Result<()> {
        if text.is_empty() {
            return Err(Error::Invalid("a name must not be empty".to_owned()));
        }
        if text.len() > NAME_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "a name must have at most {NAME_BYTES_MAX} bytes; this one has {}",
                text.len()
            )));
        }
        if let Some(bad) = text.chars().find(|c| c.is_control()) {
            return Err(Error::Invalid(format!(
                "a name must not contain control characters; this one contains {bad:?}"
            )));
        }
        Ok(())
    }

    /// Checks bytes that came from outside, which must also be UTF-8.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::new(text),
            Err(_) => Err(Error::Invalid("a name must be UTF-8".to_owned())),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        Name::new(&text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0.as_ref().to_owned()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Kind {
    /// Keys, such as connections, and the owner that holds each.
    Registry,
    /// Sessions with references, deleted when no client was connected for a grace period.
    Sessions,
    /// Jobs popped from a queue, put back when their worker dies.
    Inflight,
    /// Leases on keys, and the decisions of transactions.
    Leases,
    /// Providers that can take work now, set offline when their heartbeats stop.
    Availability,
}

impl Kind {
    /// Every kind, in the order of the documentation.
    pub const ALL: &[Kind] =
        &[Kind::Registry, Kind::Sessions, Kind::Inflight, Kind::Leases, Kind::Availability];

    /// The word used in configuration, routes and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Registry => "registry",
            Kind::Sessions => "sessions",
            Kind::Inflight => "inflight",
            Kind::Leases => "leases",
            Kind::Availability => "availability",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One system: its kind, and the name that the configuration gives it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SystemId {
    /// The kind, which decides the system's rules.
    pub kind: Kind,
    /// 1 to 64 letters, digits, `_` and `-`.
    pub name: Arc<str>,
}

impl SystemId {
    pub fn new(kind: Kind, name: &str) -> Result<Self> {
        let fits = (1..=64).contains(&name.len());
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if !fits || !name.chars().all(plain) {
            return Err(Error::Invalid(format!(
                "the system name {name:?} must be 1 to 64 letters, digits, `_` or `-`"
            )));
        }
        Ok(SystemId { kind, name: Arc::from(name) })
    }
}

impl fmt::Display for SystemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_printable() {
        assert!(Name::new("imei:356307042441013").is_ok());
        assert!(Name::new(&"é".repeat(256)).is_ok());
        for bad in ["", "a\nb", &"x".repeat(513)] {
            assert!(matches!(Name::new(bad), Err(Error::Invalid(_))), "{bad:?}");
        }
        assert!(matches!(Name::from_bytes(&[0xff, 0xfe]), Err(Error::Invalid(_))));
    }

    #[test]
    fn system_names_fit_into_a_route() {
        assert_eq!(
            SystemId::new(Kind::Registry, "devices").unwrap().to_string(),
            "registry/devices"
        );
        for bad in ["", "a/b", "a b", &"x".repeat(65)] {
            assert!(SystemId::new(Kind::Registry, bad).is_err(), "{bad:?}");
        }
    }
}
