//! The names of the application's keys and tables.

use lapsed_postgres::Layout;
use lapsed_redis::MirrorLayout;

use crate::config::ConfigError;
use crate::config::common::{Section, plan_key};
use crate::config::origin::{Origin, Settings};
use crate::stores::template;

/// The tables of the truth, and their columns.
pub type Tables = Layout;

/// The placeholder of a provider's id in the name of a key.
pub const PLACE: &str = "{provider}";

/// The keys of the mirror. All begin with the same prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorKeys {
    /// The prefix of every key.
    pub prefix: String,
    /// The set of the providers that are online.
    pub online: String,
    /// The set of the providers that are deactivated.
    pub deactivated: String,
    /// The key of the number of sessions that a provider has; `{provider}` stands for its id.
    pub capacity: String,
    /// The key of the time of a provider's last heartbeat; `{provider}` stands for its id.
    pub heartbeat: String,
    pub snapshot: String,
    /// The channel on which changes of the settings are announced.
    pub invalidate: String,
    /// Whether keyspace notifications cause early passes.
    pub instant: bool,
}

/// The key names as they are written in the configuration; `None` if not given.
#[derive(Default)]
pub struct KeysSection {
    pub prefix: Option<String>,
    pub online: Option<String>,
    pub deactivated: Option<String>,
    pub capacity: Option<String>,
    pub heartbeat: Option<String>,
    pub snapshot: Option<String>,
    pub invalidate: Option<String>,
    pub instant: Option<bool>,
}

impl KeysSection {
    /// The configuration key of the first name that is given, if any.
    pub fn first(&self) -> Option<&'static str> {
        let keys = [
            ("prefix", self.prefix.is_some()),
            ("online_key", self.online.is_some()),
            ("deactivated_key", self.deactivated.is_some()),
            ("capacity_key", self.capacity.is_some()),
            ("heartbeat_key", self.heartbeat.is_some()),
            ("snapshot_key", self.snapshot.is_some()),
            ("invalidate_channel", self.invalidate.is_some()),
            ("instant", self.instant.is_some()),
        ];
        keys.into_iter().find(|(_, given)| *given).map(|(key, _)| key)
    }

    /// Determines all key names; those that are not given are those of the original application.
    pub fn plan(
        self,
        section: &Section<'_>,
        settings: &mut Settings,
    ) -> Result<MirrorKeys, ConfigError> {
        let prefix = settings.pick(section, "prefix", self.prefix, String::new());
        let mut key = |key: &str, given, usual: &str, place| {
            let name = plan_key(section, key, given, usual, place, settings)?;
            Ok(format!("{prefix}{name}"))
        };
        let keys = MirrorKeys {
            online: key("online_key", self.online, "mitras:online", None)?,
            deactivated: key("deactivated_key", self.deactivated, "mitras:deactivated", None)?,
            capacity: key("capacity_key", self.capacity, "mitra:capacity:{provider}", Some(PLACE))?,
            heartbeat: key(
                "heartbeat_key",
                self.heartbeat,
                "mitra:heartbeat:{provider}",
                Some(PLACE),
            )?,
            snapshot: key("snapshot_key", self.snapshot, "availability:snapshot", None)?,
            invalidate: key("invalidate_channel", self.invalidate, "config:invalidate", None)?,
            instant: settings.pick(section, "instant", self.instant, false),
            prefix,
        };
        keys.check(section)?;
        Ok(keys)
    }
}

impl MirrorKeys {
    /// The layout that the Redis mirror is opened with.
    pub fn on_redis(&self) -> lapsed_core::Result<MirrorLayout> {
        Ok(MirrorLayout {
            online_key: self.online.clone(),
            deactivated_key: self.deactivated.clone(),
            capacity_key: template("capacity_key", &self.capacity, "provider")?,
            heartbeat_key: template("heartbeat_key", &self.heartbeat, "provider")?,
            snapshot_key: self.snapshot.clone(),
            invalidate_channel: self.invalidate.clone(),
            instant: self.instant,
        })
    }

    /// The names of all keys, each with its configuration key.
    pub fn names(&self) -> [(&'static str, String); 5] {
        [
            ("online_key", self.online.clone()),
            ("deactivated_key", self.deactivated.clone()),
            ("capacity_key", self.capacity.clone()),
            ("heartbeat_key", self.heartbeat.clone()),
            ("snapshot_key", self.snapshot.clone()),
        ]
    }

    /// Refuses key names that are used twice.
    fn check(&self, section: &Section<'_>) -> Result<(), ConfigError> {
        let all = self.names();
        for (index, (key, name)) in all.iter().enumerate() {
            if let Some((other, _)) = all[..index].iter().find(|(_, other)| other == name) {
                return Err(section.wrong(key, &format!("is the same key as `{other}`")));
            }
        }
        Ok(())
    }

    pub fn describe(&self) -> String {
        format!("`{}` and the keys beside it", self.online)
    }
}

/// Refuses table names that cannot work, and records those that differ from the defaults.
pub fn check_tables(
    section: &Section<'_>,
    tables: &Tables,
    settings: &mut Settings,
) -> Result<(), ConfigError> {
    tables.check().map_err(|error| {
        let text = error.to_string();
        match text.split_once(' ') {
            Some((key, what)) => section.wrong(&format!("tables.{key}"), what),
            None => section.wrong("tables", &text),
        }
    })?;
    for (key, name) in section.strings_below("tables") {
        let origin = section.line_of(&key).map_or(Origin::Default, Origin::File);
        settings.note(&key, &name, origin);
    }
    Ok(())
}
