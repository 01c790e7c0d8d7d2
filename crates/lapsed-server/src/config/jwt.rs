//! `[server.jwt]`: bearer JWTs. The algorithm, the keys, what is required of the claims, and what
//! the bearers may do.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::ConfigError;
use super::bearer_limits::{BearerLimits, LimitLists};
use super::limit::{RateLimit, RateLimitSection};
use super::secret::Secret;
use super::token::{Scope, Scopes};
use super::units::Limit;

/// The shortest secret of HS256, in bytes: as long as its digest (RFC 7518, section 3.2).
const SECRET_BYTES_MIN: usize = 32;

/// The longest tolerated difference between the clocks of the issuer and of this machine.
const LEEWAY_MAX: Duration = Duration::from_secs(300);

const LEEWAY_DEFAULT: Duration = Duration::from_secs(5);

/// The only algorithm that is accepted; what a token says of itself never chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum JwtAlgorithm {
    #[serde(rename = "RS256")]
    Rs256,
    #[serde(rename = "ES256")]
    Es256,
    #[serde(rename = "EdDSA")]
    EdDsa,
    #[serde(rename = "HS256")]
    Hs256,
}

impl JwtAlgorithm {
    /// The name in the header of a token.
    pub fn as_str(self) -> &'static str {
        match self {
            JwtAlgorithm::Rs256 => "RS256",
            JwtAlgorithm::Es256 => "ES256",
            JwtAlgorithm::EdDsa => "EdDSA",
            JwtAlgorithm::Hs256 => "HS256",
        }
    }
}

/// The section as it is written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JwtSection {
    algorithm: JwtAlgorithm,
    key: Option<PathBuf>,
    jwks: Option<PathBuf>,
    secret: Option<Secret>,
    audience: Option<String>,
    issuer: Option<String>,
    owner_claim: Option<String>,
    leeway: Option<Limit>,
    scopes: Vec<Scope>,
    systems: Option<Vec<String>>,
    operations: Option<Vec<String>>,
    rate_limit: Option<RateLimitSection>,
}

/// Where the keys come from.
#[derive(Clone, Debug)]
pub enum JwtKeySource {
    /// A file with one public key in PEM.
    Pem(PathBuf),
    /// A file with a JSON Web Key Set.
    Jwks(PathBuf),
    /// The shared secret of HS256.
    Secret(Secret),
}

/// How bearer JWTs are checked, and what their bearers may do.
#[derive(Clone, Debug)]
pub struct JwtConfig {
    pub algorithm: JwtAlgorithm,
    pub source: JwtKeySource,
    /// The audience that a token must name; without it, a token must name none.
    pub audience: Option<String>,
    /// The issuer that a token must name; without it, any.
    pub issuer: Option<String>,
    /// The claim that names the only owner as which the bearer may act.
    pub owner_claim: String,
    /// How much the issuer's clock may differ from this one.
    pub leeway: Duration,
    pub scopes: Scopes,
    /// The limits of every bearer, without the owner.
    pub limits: BearerLimits,
    /// The rate limit of each subject.
    pub rate_limit: Option<RateLimit>,
}

impl JwtConfig {
    /// Checks the section; `rate_limit` is that of `[server]`, if there is one.
    pub fn plan(
        section: JwtSection,
        rate_limit: Option<RateLimit>,
    ) -> Result<JwtConfig, ConfigError> {
        let wrong = |what: String| ConfigError(format!("`server.jwt`: {what}"));
        let JwtSection { algorithm, key, jwks, secret, systems, operations, .. } = section;
        let source = source(algorithm, key, jwks, secret).map_err(wrong)?;
        if section.scopes.is_empty() {
            return Err(wrong("`scopes` is empty; any of: read, write".to_owned()));
        }
        let scopes = Scopes::of(&section.scopes);
        if scopes.allow(Scope::Act) {
            return Err(wrong(
                "`scopes`: a JWT is good for one owner, and what `act` allows is about all of \
                 them; give operators a token of [[server.tokens]]"
                    .to_owned(),
            ));
        }
        let leeway = section.leeway.map_or(LEEWAY_DEFAULT, |limit| limit.0);
        if leeway > LEEWAY_MAX {
            return Err(wrong("`leeway`: at most 5m; correct the clocks instead".to_owned()));
        }
        let lists = LimitLists { systems, operations, owners: None };
        let limits = BearerLimits::plan(lists).map_err(wrong)?;
        let own =
            section.rate_limit.map(|limit| limit.plan("server.jwt.rate_limit")).transpose()?;
        Ok(JwtConfig {
            algorithm,
            source,
            audience: section.audience,
            issuer: section.issuer,
            owner_claim: section.owner_claim.unwrap_or_else(|| "sub".to_owned()),
            leeway,
            scopes,
            limits,
            rate_limit: own.or(rate_limit),
        })
    }

    /// A description of the setting for `check`.
    pub fn describe(&self) -> String {
        let from = match &self.source {
            JwtKeySource::Pem(file) | JwtKeySource::Jwks(file) => file.display().to_string(),
            JwtKeySource::Secret(_) => "a secret".to_owned(),
        };
        let JwtConfig { scopes, limits, owner_claim, .. } = self;
        let name = self.algorithm.as_str();
        format!("JWTs by {name} with {from}: {scopes}{limits}, as the owner in `{owner_claim}`")
    }

    /// Warnings that do not prevent operation.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.audience.is_none() && self.issuer.is_none() {
            warnings.push(
                "JWTs of any issuer and for no audience are accepted, if the key fits: set \
                 `audience` in [server.jwt]"
                    .to_owned(),
            );
        }
        if !self.limits.limits_operations() {
            warnings.push(
                "bearers of JWTs may read everything in their systems, also what belongs to \
                 others: set `operations` in [server.jwt]"
                    .to_owned(),
            );
        }
        warnings
    }
}

fn source(
    algorithm: JwtAlgorithm,
    key: Option<PathBuf>,
    jwks: Option<PathBuf>,
    secret: Option<Secret>,
) -> Result<JwtKeySource, String> {
    match (algorithm, key, jwks, secret) {
        (JwtAlgorithm::Hs256, None, None, Some(secret)) => {
            match secret.reveal().len() < SECRET_BYTES_MIN {
                true => Err(format!("`secret` must have at least {SECRET_BYTES_MIN} bytes")),
                false => Ok(JwtKeySource::Secret(secret)),
            }
        }
        (JwtAlgorithm::Hs256, ..) => {
            Err("HS256 needs `secret = \"${JWT_SECRET}\"`, and no `key` or `jwks`".to_owned())
        }
        (_, Some(file), None, None) => Ok(JwtKeySource::Pem(file)),
        (_, None, Some(file), None) => Ok(JwtKeySource::Jwks(file)),
        (other, ..) => Err(format!(
            "{} needs `key` (a public key in PEM) or `jwks` (a file of public keys), one of them",
            other.as_str()
        )),
    }
}
