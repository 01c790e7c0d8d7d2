//! Presets: a configuration for each of the five systems as its original has it, with that original's
//! names, defaults and variables, on a store that carries it.
//!
//! Invariant: what is written is read by the same parser as any other file before it is handed out,
//! so a preset that `check` would refuse is an error here and no file.

use clap::ValueEnum;
use lapsed_core::Kind;

use crate::config::{Config, ConfigError, Overrides};

/// Whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// Connections, and the instance that holds each.
    Registry,
    /// Chat sessions with a reference count and a grace.
    Chatpulse,
    /// Providers: who can take work now.
    Mitra,
    /// Leases and transaction decisions.
    Lockd,
    /// Jobs in flight, as the gem has them.
    SidekiqAsyncHttp,
}

/// A family of stores that a preset has a text for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Embedded,
    Redis,
    Postgres,
    Object,
}

impl Family {
    /// Of that address.
    fn of(url: &str) -> Option<Family> {
        let scheme = url.split_once(':')?.0;
        match scheme {
            "embedded" => Some(Family::Embedded),
            "postgres" | "postgresql" => Some(Family::Postgres),
            "s3" | "az" | "gs" => Some(Family::Object),
            _ if scheme.starts_with("redis") || scheme.starts_with("valkey") => Some(Family::Redis),
            _ => None,
        }
    }

    /// What its addresses look like.
    pub fn example(self) -> &'static str {
        match self {
            Family::Embedded => "embedded:./lapsed-data",
            Family::Redis => "redis://127.0.0.1:6379/0",
            Family::Postgres => "postgres://lapsed@127.0.0.1/app",
            Family::Object => "s3://my-bucket/locks",
        }
    }
}

/// The mirror of availability unless told.
const MIRROR: &str = "redis://127.0.0.1:6379/0";

/// What is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    pub preset: Preset,
    pub store: String,
    pub mirror: Option<String>,
}

impl Preset {
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Registry => "registry",
            Preset::Chatpulse => "chatpulse",
            Preset::Mitra => "mitra",
            Preset::Lockd => "lockd",
            Preset::SidekiqAsyncHttp => "sidekiq-async-http",
        }
    }

    /// Which kind of system it is.
    pub fn kind(self) -> Kind {
        match self {
            Preset::Registry => Kind::Registry,
            Preset::Chatpulse => Kind::Sessions,
            Preset::Mitra => Kind::Availability,
            Preset::Lockd => Kind::Leases,
            Preset::SidekiqAsyncHttp => Kind::Inflight,
        }
    }

    /// In one line.
    pub fn about(self) -> &'static str {
        match self {
            Preset::Registry => "connections, and the instance that holds each",
            Preset::Chatpulse => "chat sessions, kept for a grace after the last one left",
            Preset::Mitra => "providers: who can take work now",
            Preset::Lockd => "leases on keys, and transaction decisions",
            Preset::SidekiqAsyncHttp => {
                "HTTP requests of Sidekiq jobs, put back when their process died"
            }
        }
    }

    /// The families of stores that it is written for, the usual one first.
    pub fn families(self) -> &'static [Family] {
        match self {
            Preset::Registry | Preset::Chatpulse | Preset::SidekiqAsyncHttp => {
                &[Family::Redis, Family::Embedded]
            }
            Preset::Mitra => &[Family::Postgres, Family::Embedded],
            Preset::Lockd => &[Family::Object, Family::Embedded],
        }
    }

    /// Its store unless told.
    pub fn usual_store(self) -> &'static str {
        self.families()[0].example()
    }

    fn template(self, family: Family) -> &'static str {
        match (self, family) {
            (Preset::Registry, Family::Redis) => include_str!("preset/registry-redis.toml"),
            (Preset::Registry, _) => include_str!("preset/registry-embedded.toml"),
            (Preset::Chatpulse, Family::Redis) => include_str!("preset/chatpulse-redis.toml"),
            (Preset::Chatpulse, _) => include_str!("preset/chatpulse-embedded.toml"),
            (Preset::Mitra, Family::Postgres) => include_str!("preset/mitra-postgres.toml"),
            (Preset::Mitra, _) => include_str!("preset/mitra-embedded.toml"),
            (Preset::Lockd, Family::Object) => include_str!("preset/lockd-object.toml"),
            (Preset::Lockd, _) => include_str!("preset/lockd-embedded.toml"),
            (Preset::SidekiqAsyncHttp, Family::Redis) => include_str!("preset/sidekiq-redis.toml"),
            (Preset::SidekiqAsyncHttp, _) => include_str!("preset/sidekiq-embedded.toml"),
        }
    }

    /// The family of that address, if the preset is written for it; of a variable, the usual one.
    fn family(self, url: &str) -> Result<Family, ConfigError> {
        let url = if url.starts_with("${") { self.usual_store() } else { url };
        let known = Family::of(url).filter(|family| self.families().contains(family));
        known.ok_or_else(|| {
            let examples: Vec<_> = self.families().iter().map(|family| family.example()).collect();
            ConfigError(format!(
                "--store: `{}` cannot be on that store; give for example {}",
                self.name(),
                examples.join(" or ")
            ))
        })
    }
}

impl Chosen {
    /// The file, which the parser accepts. Never repeats an address in an error: it may hold a
    /// password.
    pub fn text(&self) -> Result<String, ConfigError> {
        let family = self.preset.family(&self.store)?;
        let mirrored = self.preset == Preset::Mitra && family == Family::Postgres;
        if self.mirror.is_some() && !mirrored {
            let what = "--mirror goes with `--preset mitra` and a store in Postgres only";
            return Err(ConfigError(what.to_owned()));
        }
        let mirror = self.mirror.as_deref().unwrap_or(MIRROR);
        let text = self.preset.template(family);
        let text =
            text.replace("@STORE@", &quoted(&self.store)).replace("@MIRROR@", &quoted(mirror));
        Config::parse(&text, &Overrides::default(), &|name| self.stand_in(name))?;
        Ok(text)
    }

    /// A variable that is not set yet is no mistake: something stands in for whatever it will be.
    fn stand_in(&self, variable: &str) -> Option<String> {
        let start = format!("${{{variable}");
        let urls = [Some(self.store.as_str()), self.mirror.as_deref()];
        let url = urls.into_iter().flatten().find(|url| url.contains(&start))?;
        let whole = if url == self.store { self.preset.usual_store() } else { MIRROR };
        let stands = if url.starts_with(&start) { whole } else { "unset" };
        Some(std::env::var(variable).unwrap_or_else(|_| stands.to_owned()))
    }

    /// Whether a password would be written into the file.
    pub fn has_password(&self) -> bool {
        let shown = |url: &str| {
            let Some((authority, _)) =
                url.split_once("://").and_then(|(_, rest)| rest.split_once('@'))
            else {
                return false;
            };
            authority
                .split_once(':')
                .is_some_and(|(_, word)| !word.is_empty() && !word.contains("${"))
        };
        shown(&self.store) || self.mirror.as_deref().is_some_and(shown)
    }
}

/// As a text of TOML.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(preset: Preset, store: &str) -> Chosen {
        Chosen { preset, store: store.to_owned(), mirror: None }
    }

    #[test]
    fn every_preset_is_accepted_on_every_store_it_is_written_for() {
        for preset in Preset::value_variants() {
            for family in preset.families() {
                let text = chosen(*preset, family.example()).text().unwrap();
                let config = Config::parse(&text, &Overrides::default(), &|_| None).unwrap();
                let kinds: Vec<_> = config.systems.iter().map(|s| s.common().id.kind).collect();
                assert_eq!(kinds, [preset.kind()], "{preset:?} on {family:?}");
                assert!(text.lines().filter(|line| line.contains('#')).count() > 5, "{text}");
            }
        }
    }

    #[test]
    fn another_store_is_refused_with_one_that_would_do() {
        let told = chosen(Preset::Lockd, "redis://:secret@127.0.0.1/0").text().unwrap_err().0;
        assert!(told.contains("s3://") && !told.contains("secret"), "{told}");
        let mirror = Some("redis://127.0.0.1".to_owned());
        let told =
            Chosen { mirror, ..chosen(Preset::Registry, "embedded:x") }.text().unwrap_err().0;
        assert!(told.contains("--mirror"), "{told}");
    }

    #[test]
    fn variables_stay_variables_and_passwords_are_noticed() {
        let open = chosen(Preset::Registry, "redis://:${REDIS_PASSWORD}@127.0.0.1:6379/0");
        assert!(open.text().unwrap().contains("${REDIS_PASSWORD}"));
        assert!(!open.has_password());
        assert!(chosen(Preset::Registry, "${REDIS_URL}").text().unwrap().contains("${REDIS_URL}"));
        assert!(chosen(Preset::Registry, "redis://:hunter2@127.0.0.1:6379/0").has_password());
        assert!(!chosen(Preset::Registry, "embedded:./data").has_password());
    }
}
