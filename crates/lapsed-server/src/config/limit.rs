//! Rate limits in the configuration.

use serde::Deserialize;

use super::ConfigError;

/// A rate limit: `per_second` requests per second, and `burst` at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    pub per_second: u32,
    pub burst: u32,
}

/// A rate limit as it is written in the file.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimitSection {
    per_second: u32,
    burst: Option<u32>,
}

impl RateLimitSection {
    /// Checks the values; `key` is the key's name in errors.
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
