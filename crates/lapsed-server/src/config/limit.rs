//! How often a token may be shown.

use serde::Deserialize;

use super::ConfigError;

/// So many in a second, and so many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    pub per_second: u32,
    pub burst: u32,
}

/// As the file writes it.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimitSection {
    per_second: u32,
    burst: Option<u32>,
}

impl RateLimitSection {
    /// Checks it; `key` is what the error calls it.
    pub fn plan(self, key: &str) -> Result<RateLimit, ConfigError> {
        let burst = self.burst.unwrap_or(self.per_second);
        match self.per_second == 0 || burst == 0 {
            true => Err(ConfigError(format!("`{key}`: must be above 0"))),
            false => Ok(RateLimit { per_second: self.per_second, burst }),
        }
    }
}

impl std::fmt::Display for RateLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} a second, {} at once", self.per_second, self.burst)
    }
}
