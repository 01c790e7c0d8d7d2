//! The keys of a mirror, as the application names them.

use lapsed_core::{Error, Result};

use crate::names::{Template, hash_tag};

/// The keys of a mirror, as the application names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorLayout {
    /// The set of online providers.
    pub online_key: String,
    /// The set of deactivated providers.
    pub deactivated_key: String,
    /// How many sessions a provider has: a number as text.
    pub capacity_key: Template,
    /// When a provider last beat: ISO 8601, UTC.
    pub heartbeat_key: Template,
    /// The beacon's snapshot, as JSON.
    pub snapshot_key: String,
    /// The channel on which changed settings are announced.
    pub invalidate_channel: String,
    /// Whether a separate key expires with each provider's heartbeat, so that [`RedisMirror::listen`] is notified.
    /// The server must be configured to notify: `notify-keyspace-events Ex`.
    ///
    /// [`RedisMirror::listen`]: crate::RedisMirror::listen
    pub instant: bool,
}

impl Default for MirrorLayout {
    fn default() -> Self {
        Self::under("")
    }
}

impl MirrorLayout {
    /// The default names with `prefix` before each, also before the channel's name.
    pub fn under(prefix: &str) -> Self {
        let key = |what: &str| format!("{prefix}{what}");
        let template =
            |what: &str| Template::new(&key(what), "provider").expect("the place is in the text");
        MirrorLayout {
            online_key: key("mitras:online"),
            deactivated_key: key("mitras:deactivated"),
            capacity_key: template("mitra:capacity:{provider}"),
            heartbeat_key: template("mitra:heartbeat:{provider}"),
            snapshot_key: key("availability:snapshot"),
            invalidate_channel: key("config:invalidate"),
            instant: false,
        }
    }

    /// The names of all keys, each with its field. `{provider}` stands for the id of a provider.
    pub fn names(&self) -> [(&'static str, String); 5] {
        [
            ("online_key", self.online_key.clone()),
            ("deactivated_key", self.deactivated_key.clone()),
            ("capacity_key", self.capacity_key.of("{provider}")),
            ("heartbeat_key", self.heartbeat_key.of("{provider}")),
            ("snapshot_key", self.snapshot_key.clone()),
        ]
    }

    /// Two fields that name the same key, if there are such.
    pub fn same_key(&self) -> Option<(&'static str, &'static str)> {
        let names = self.names();
        names.iter().enumerate().find_map(|(at, (field, key))| {
            let other = names[..at].iter().find(|(_, before)| before == key);
            other.map(|(other, _)| (*other, *field))
        })
    }

    /// Refuses a layout that cannot work.
    pub(super) fn check(&self, is_cluster: bool) -> Result<()> {
        let names = self.names();
        if let Some((one, other)) = self.same_key() {
            return Err(Error::Invalid(format!(
                "`{one}` and `{other}` are the same key: each needs a key of its own"
            )));
        }
        if !is_cluster {
            return Ok(());
        }
        if self.instant {
            return Err(Error::Invalid(
                "`instant` does not work on a cluster, where each node reports only its own keys; \
                 without it those who fall silent are found by the next pass"
                    .to_owned(),
            ));
        }
        self.check_slots(&names)
    }

    /// On a cluster a script works in one slot, and every decision is one script.
    fn check_slots(&self, names: &[(&str, String); 5]) -> Result<()> {
        let tag = hash_tag(&self.online_key);
        let plain = [&self.deactivated_key, &self.snapshot_key].map(|key| Some(hash_tag(key)));
        let filled = [self.capacity_key.shared_tag(), self.heartbeat_key.shared_tag()];
        if plain.iter().chain(&filled).all(|other| *other == Some(tag)) {
            return Ok(());
        }
        let listed: Vec<String> =
            names.iter().map(|(name, key)| format!("`{name}` ({key})")).collect();
        Err(Error::Invalid(format!(
            "on a cluster, all keys of a mirror must lie in one slot, so that who is online and when \
             they beat can be judged in one step: {}. Give all of them the same hash tag, for example \
             with the prefix `{{mitras}}:`",
            listed.join(", ")
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trap_x6_a_cluster_needs_one_hash_tag_and_says_so() {
        let usual = MirrorLayout::default();
        assert!(usual.check(false).is_ok());
        let refused = usual.check(true).unwrap_err().to_string();
        assert!(refused.contains("hash tag") && refused.contains("mitra:heartbeat"), "{refused}");
        let tagged = MirrorLayout::under("{mitras}:");
        assert!(tagged.check(true).is_ok());
        let mixed =
            MirrorLayout { snapshot_key: "availability:snapshot".to_owned(), ..tagged.clone() };
        assert!(mixed.check(true).is_err());
        let instant = MirrorLayout { instant: true, ..tagged };
        assert!(instant.check(true).unwrap_err().to_string().contains("instant"));
        assert!(instant.check(false).is_ok());
    }

    #[test]
    fn two_keys_of_one_name_are_refused() {
        let usual = MirrorLayout::default();
        let online_key = usual.deactivated_key.clone();
        assert!(MirrorLayout { online_key, ..usual.clone() }.check(false).is_err());
        let capacity_key = usual.heartbeat_key.clone();
        assert!(MirrorLayout { capacity_key, ..usual }.check(false).is_err());
    }
}
