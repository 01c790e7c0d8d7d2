//! The names of the application's keys and tables.

use lapsed_postgres::Layout;

use crate::config::ConfigError;
use crate::config::common::{Section, plan_key};
use crate::config::origin::{Origin, Settings};
use crate::stores::plan_template;

pub use lapsed_redis::MirrorLayout;

/// The tables of the truth, and their columns.
pub type Tables = Layout;

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
    ) -> Result<MirrorLayout, ConfigError> {
        let usual = MirrorLayout::default();
        let prefix = settings.pick(section, "prefix", self.prefix, String::new());
        let key = |key: &str, given, usual: &str, settings: &mut Settings| {
            let name = plan_key(section, key, given, usual, None, settings)?;
            Ok::<_, ConfigError>(format!("{prefix}{name}"))
        };
        let of_provider = |key: &str, given, usual, settings: &mut Settings| {
            let name = plan_template(section, key, given, (usual, "provider"), settings)?;
            Ok::<_, ConfigError>(name.prefixed(&prefix))
        };
        let (capacity, heartbeat) = (self.capacity, self.heartbeat);
        let (invalidate, channel) = (self.invalidate, &usual.invalidate_channel);
        let layout = MirrorLayout {
            online_key: key("online_key", self.online, &usual.online_key, settings)?,
            deactivated_key: key(
                "deactivated_key",
                self.deactivated,
                &usual.deactivated_key,
                settings,
            )?,
            capacity_key: of_provider("capacity_key", capacity, &usual.capacity_key, settings)?,
            heartbeat_key: of_provider("heartbeat_key", heartbeat, &usual.heartbeat_key, settings)?,
            snapshot_key: key("snapshot_key", self.snapshot, &usual.snapshot_key, settings)?,
            invalidate_channel: key("invalidate_channel", invalidate, channel, settings)?,
            instant: settings.pick(section, "instant", self.instant, false),
        };
        match layout.same_key() {
            Some((other, key)) => Err(section.wrong(key, &format!("is the same key as `{other}`"))),
            None => Ok(layout),
        }
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
