//! The origin of each effective value, as `check` shows it.

use std::fmt;
use std::time::Duration;

use lapsed_core::sweep::policy::SweepMode;
use serde::Serialize;

use super::common::Section;
use super::units::{Every, Limit, show_span};

/// Where an effective value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    /// The value is on this line of the file.
    File(usize),
    /// The value is from this environment variable, which may have overridden the given line of the
    /// file.
    Env(&'static str, Option<usize>),
    /// The value is from this flag, or from the environment variable of that flag.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(line) => write!(f, "line {line}"),
            Origin::Env(name, None) => write!(f, "environment {name}"),
            Origin::Env(name, Some(line)) => write!(f, "environment {name}, over line {line}"),
            Origin::Flag(name) => write!(f, "flag {name} or its environment variable"),
        }
    }
}

impl Serialize for Origin {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One effective value of the configuration, with its origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The name of the key in the configuration.
    pub key: String,
    /// The value, written as in the configuration.
    pub value: String,
    pub origin: Origin,
}

/// A value that can be written as in the configuration.
pub trait Show {
    fn show(&self) -> String;
}

impl Show for Duration {
    fn show(&self) -> String {
        show_span(*self)
    }
}

impl Show for Every {
    fn show(&self) -> String {
        self.0.map_or_else(|| "off".to_owned(), show_span)
    }
}

impl Show for Limit {
    fn show(&self) -> String {
        if self.0.is_zero() { "0s".to_owned() } else { show_span(self.0) }
    }
}

impl Show for SweepMode {
    fn show(&self) -> String {
        self.as_str().to_owned()
    }
}

impl<T: Show> Show for Option<T> {
    fn show(&self) -> String {
        self.as_ref().map_or("none".to_owned(), Show::show)
    }
}

macro_rules! show_as_displayed {
    ($($t:ty),*) => { $(impl Show for $t { fn show(&self) -> String { self.to_string() } })* };
}
show_as_displayed!(u64, u32, usize, u16, f64, bool, String);

/// Collects the effective values while a section is read.
#[derive(Debug, Default)]
pub struct Settings {
    list: Vec<Setting>,
}

impl Settings {
    /// Returns the given value or else the default, and records it with its origin.
    pub fn pick<T: Show>(
        &mut self,
        section: &Section<'_>,
        key: &str,
        given: Option<T>,
        default: T,
    ) -> T {
        let origin = match (&given, section.line_of(key)) {
            (Some(_), Some(line)) => Origin::File(line),
            _ => Origin::Default,
        };
        let value = given.unwrap_or(default);
        self.note(key, &value, origin);
        value
    }

    /// Records a value whose origin is already known.
    pub fn note<T: Show>(&mut self, key: &str, value: &T, origin: Origin) {
        self.list.push(Setting { key: key.to_owned(), value: value.show(), origin });
    }

    /// Records that an environment variable overrides the file or the default.
    pub fn overrule<T: Show>(
        &mut self,
        section: &Section<'_>,
        key: &str,
        value: &T,
        env: &'static str,
    ) {
        if let Some(setting) = self.list.iter_mut().find(|setting| setting.key == key) {
            setting.value = value.show();
            setting.origin = Origin::Env(env, section.line_of(key));
        }
    }

    pub fn finish(self) -> Vec<Setting> {
        self.list
    }
}
