//! Presets: ready-made configurations, one for each application that a kind of system was modelled
//! on, with the key names, defaults and environment variables of that application.
//!
//! Invariant: the text of a preset is read by the configuration parser before it is handed out, so
//! a preset that `lapsed check` would refuse is an error here and writes no file.

use std::ffi::OsStr;
use std::sync::LazyLock;

use clap::ValueEnum;
use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use lapsed_core::Kind;

use crate::config::store::{StoreDriver, driver_at};
use crate::config::{ConfigError, Overrides};
use crate::node::Config;
use crate::systems::{self, Preset, SystemKind};

/// The address of the mirror's store unless the user gives another one.
const MIRROR: &str = "redis://127.0.0.1:6379/0";

/// A preset and the addresses that the user chose for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    pub preset: &'static Preset,
    pub store: String,
    pub mirror: Option<String>,
}

/// All presets, in the order in which they are listed.
pub static PRESETS: LazyLock<Vec<&'static Preset>> = LazyLock::new(|| {
    let mut all: Vec<_> = systems::KINDS.iter().flat_map(|kind| kind.presets()).collect();
    all.sort_by_key(|preset| preset.order);
    all
});

impl ValueEnum for &'static Preset {
    fn value_variants<'a>() -> &'a [Self] {
        &PRESETS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name).help(self.help))
    }
}

/// The presets as values of an option. A name that a preset had before is refused with what to use
/// instead.
#[derive(Clone)]
pub struct PresetParser;

impl TypedValueParser for PresetParser {
    type Value = &'static Preset;

    fn parse_ref(
        &self,
        command: &clap::Command,
        option: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Self::Value, clap::Error> {
        match value.to_str().and_then(renamed) {
            Some(told) => {
                let told = format!("{told}\n");
                Err(clap::Error::raw(ErrorKind::InvalidValue, told).with_cmd(command))
            }
            None => EnumValueParser::<Self::Value>::new().parse_ref(command, option, value),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(PRESETS.iter().filter_map(ValueEnum::to_possible_value)))
    }
}

/// What to say to a user who types a name that a preset had before.
pub fn renamed(name: &str) -> Option<&'static str> {
    let mut former = systems::KINDS.iter().flat_map(|kind| kind.former_presets());
    former.find(|(old, _)| *old == name).map(|(_, told)| *told)
}

/// Names of presets are unique, so that two presets are the same if their names are.
impl PartialEq for Preset {
    fn eq(&self, other: &Preset) -> bool {
        self.name == other.name
    }
}

impl Eq for Preset {}

impl Preset {
    /// Example addresses of the stores that this preset is written for, the default store first.
    pub fn examples(&self) -> Vec<&'static str> {
        let examples = self.templates.iter().filter_map(|(driver, _)| StoreDriver::named(driver));
        examples.map(|driver| driver.example).collect()
    }

    /// The address of the store that is used unless the user gives another one.
    pub fn usual_store(&self) -> &'static str {
        self.examples().first().copied().unwrap_or_default()
    }

    /// The driver of the store at `url`, and the preset's text for it; an error if the preset is
    /// not written for that driver. If `url` begins with an environment variable, the default
    /// store's are used.
    fn template(&self, url: &str) -> Result<(&'static str, &'static str), ConfigError> {
        let url = if url.starts_with("${") { self.usual_store() } else { url };
        let driver = driver_at(url).ok();
        let written = driver.and_then(|driver| {
            self.templates.iter().find(|(name, _)| *name == driver.name).copied()
        });
        written.ok_or_else(|| {
            ConfigError(format!(
                "--store: `{}` cannot be on that store; give for example {}",
                self.name,
                self.examples().join(" or ")
            ))
        })
    }
}

impl Chosen {
    /// The text of the configuration file, accepted by the parser. Errors never repeat an address,
    /// because it may contain a password.
    pub fn text(&self) -> Result<String, ConfigError> {
        let (driver, text) = self.preset.template(&self.store)?;
        let mirrored = self.preset.mirrored_on == Some(driver);
        if self.mirror.is_some() && !mirrored {
            return Err(ConfigError(mirror_of_none()));
        }
        let mirror = self.mirror.as_deref().unwrap_or(MIRROR);
        let text =
            text.replace("@STORE@", &quoted(&self.store)).replace("@MIRROR@", &quoted(mirror));
        Config::parse(&text, &Overrides::default(), &|name| self.stand_in(name))
            .map_err(|errors| ConfigError(errors.to_string()))?;
        Ok(text)
    }

    /// The value of an environment variable while the text is checked. A variable that is not set
    /// yet is no error: a placeholder takes its place.
    fn stand_in(&self, variable: &str) -> Option<String> {
        let start = format!("${{{variable}");
        let urls = [Some(self.store.as_str()), self.mirror.as_deref()];
        let url = urls.into_iter().flatten().find(|url| url.contains(&start))?;
        let whole = if url == self.store { self.preset.usual_store() } else { MIRROR };
        let stands = if url.starts_with(&start) { whole } else { "unset" };
        Some(std::env::var(variable).unwrap_or_else(|_| stands.to_owned()))
    }

    /// Whether an address contains a password, which would then be written into the file.
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

/// The kind of system that a preset configures.
pub fn kind_of(preset: &Preset) -> Kind {
    let has = |kind: &&&dyn SystemKind| kind.presets().iter().any(|one| one.name == preset.name);
    systems::KINDS.iter().find(has).expect("every preset is one of a kind").kind()
}

/// The error for `--mirror` with a preset that has none; it names the presets that have one.
fn mirror_of_none() -> String {
    let mirrored = PRESETS.iter().filter_map(|preset| {
        let driver = StoreDriver::named(preset.mirrored_on?)?;
        Some(format!("`--preset {}` and a store in {}", preset.name, driver.title))
    });
    format!("--mirror goes with {} only", mirrored.collect::<Vec<_>>().join(", or "))
}

/// `text` as a quoted TOML string.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(preset: &str, store: &str) -> Chosen {
        let preset = <&Preset>::from_str(preset, false).unwrap();
        Chosen { preset, store: store.to_owned(), mirror: None }
    }

    #[test]
    fn every_preset_is_accepted_on_every_store_it_is_written_for() {
        for kind in systems::KINDS {
            for preset in kind.presets() {
                for example in preset.examples() {
                    let text = chosen(preset.name, example).text().unwrap();
                    let config = Config::parse(&text, &Overrides::default(), &|_| None).unwrap();
                    let kinds: Vec<_> = config.systems.iter().map(|s| s.common().id.kind).collect();
                    assert_eq!(kinds, [kind.kind()], "{preset:?} on {example}");
                    assert!(text.lines().filter(|line| line.contains('#')).count() > 5, "{text}");
                }
            }
        }
    }

    #[test]
    fn another_store_is_refused_with_one_that_would_do() {
        let told = chosen("leases", "redis://:secret@127.0.0.1/0").text().unwrap_err().0;
        assert!(told.contains("s3://") && !told.contains("secret"), "{told}");
        let mirror = Some("redis://127.0.0.1".to_owned());
        let told = Chosen { mirror, ..chosen("registry", "embedded:x") }.text().unwrap_err().0;
        assert!(told.contains("--mirror"), "{told}");
    }

    #[test]
    fn variables_stay_variables_and_passwords_are_noticed() {
        let open = chosen("registry", "redis://:${REDIS_PASSWORD}@127.0.0.1:6379/0");
        assert!(open.text().unwrap().contains("${REDIS_PASSWORD}"));
        assert!(!open.has_password());
        assert!(chosen("registry", "${REDIS_URL}").text().unwrap().contains("${REDIS_URL}"));
        assert!(chosen("registry", "redis://:hunter2@127.0.0.1:6379/0").has_password());
        assert!(!chosen("registry", "embedded:./data").has_password());
    }
}
