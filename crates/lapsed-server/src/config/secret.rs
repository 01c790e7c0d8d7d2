//! Secrets: text that must not appear in an error, in the log, or in `{:?}`.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};

use super::ConfigError;

/// The longest token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 512;

/// Text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: &str) -> Secret {
        Secret(text.to_owned())
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Checks that the token can be sent in a header; `key` is the key's name in errors.
    pub fn check_token(&self, key: &str) -> Result<(), ConfigError> {
        let printable = self.0.chars().all(|c| c.is_ascii_graphic());
        if self.0.is_empty() || self.0.len() > TOKEN_BYTES_MAX || !printable {
            return Err(ConfigError(format!(
                "`{key}`: a token must be 1 to {TOKEN_BYTES_MAX} visible ASCII characters"
            )));
        }
        Ok(())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(...)")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
        deserializer.deserialize_any(SecretVisitor)
    }
}

/// Reads the secret by hand, because serde's message about a value of the wrong type would contain
/// the value.
struct SecretVisitor;

impl Visitor<'_> for SecretVisitor {
    type Value = Secret;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token in quotes")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Secret, E> {
        Ok(Secret::new(text))
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Secret, E> {
        Err(E::custom("a token is text: write it in quotes"))
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Secret, E> {
        Err(E::custom("a token is text: write it in quotes"))
    }
}
