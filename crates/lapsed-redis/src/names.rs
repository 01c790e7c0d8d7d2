//! Key names, and the cluster slot that a key belongs to.
//!
//! Everything of one shard of a system lies in the slot of the key that the application reads (the
//! registry's hash, the set of disconnected sessions): lapsed's own keys carry that key's hash tag,
//! or the whole key as their tag when it has none. Nothing needs to be renamed for a cluster.

use lapsed_core::{Error, Result, SystemId};

/// The slots of a cluster.
const SLOTS: u16 = 16_384;

/// The part of `key` that decides its slot.
pub(crate) fn hash_tag(key: &str) -> &str {
    let Some((_, rest)) = key.split_once('{') else { return key };
    match rest.split_once('}') {
        Some((tag, _)) if !tag.is_empty() => tag,
        _ => key,
    }
}

/// The slot of `key`.
pub fn slot(key: &str) -> u16 {
    crc16(hash_tag(key).as_bytes()) % SLOTS
}

/// The largest number of shards that one native registry or one native sessions system can be spread over.
pub const SHARDS_MAX: u16 = 64;

/// Which of `shards` holds the entry `key`: its slot, modulo their number.
pub fn shard_of(key: &str, shards: usize) -> usize {
    crc16(key.as_bytes()) as usize % usize::from(SLOTS) % shards
}

/// Refuses a number of shards that is not between 1 and [`SHARDS_MAX`].
pub(crate) fn check_shards(shards: usize) -> Result<()> {
    if (1..=usize::from(SHARDS_MAX)).contains(&shards) {
        return Ok(());
    }
    Err(Error::Invalid(format!("`shards` must be between 1 and {SHARDS_MAX}")))
}

/// CRC16/XMODEM, as the cluster specification has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => (crc << 1) ^ 0x1021,
        })
    })
}

/// A key of the application's with a place for a name, like `instance:heartbeat:{owner}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    before: String,
    after: String,
}

impl Template {
    /// `place` is the word in braces; `None` when `text` has no such place.
    pub fn new(text: &str, place: &str) -> Option<Template> {
        let (before, after) = text.split_once(&format!("{{{place}}}"))?;
        Some(Template { before: before.to_owned(), after: after.to_owned() })
    }

    /// The key for one name.
    pub fn of(&self, name: &str) -> String {
        format!("{}{name}{}", self.before, self.after)
    }

    /// The text before the name and the text after it.
    pub(crate) fn parts(&self) -> (&str, &str) {
        (&self.before, &self.after)
    }

    /// The name in such a key.
    pub fn name_in<'k>(&self, key: &'k str) -> Option<&'k str> {
        key.strip_prefix(self.before.as_str())?.strip_suffix(self.after.as_str())
    }

    /// The pattern for SCAN, in which special characters of the key are escaped.
    pub fn pattern(&self) -> String {
        let escape = |text: &str| {
            let special = |c: char| matches!(c, '*' | '?' | '[' | ']' | '\\' | '^');
            text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
        };
        let (before, after): (String, String) = (escape(&self.before), escape(&self.after));
        format!("{before}*{after}")
    }

    /// The hash tag that all its keys share, if there is one.
    pub fn shared_tag(&self) -> Option<&str> {
        let tag = hash_tag(&self.before);
        (tag != self.before).then_some(tag)
    }

    /// The template with `prefix` before it.
    pub fn prefixed(&self, prefix: &str) -> Template {
        Template { before: format!("{prefix}{}", self.before), after: self.after.clone() }
    }
}

/// The keys of lapsed's own in one shard.
#[derive(Clone, Debug)]
pub(crate) struct Prefix(String);

/// A short text that identifies key names: equal for equal names, and different for others.
pub(crate) fn fingerprint(keys: &[&str]) -> String {
    let digest = redis::Script::new(&keys.join("\n")).get_hash().to_owned();
    digest.chars().take(16).collect()
}

impl Prefix {
    /// The prefix of lapsed's own keys beside `anchor`, the application's key.
    pub fn beside(anchor: &str, id: &SystemId) -> Prefix {
        Prefix(format!("lapsed:{{{}}}:{id}:", hash_tag(anchor)))
    }

    pub fn key(&self, what: &str) -> String {
        format!("{}{what}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapsed_core::Kind;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot("{user1000}.following"), slot("{user1000}.followers"));
        assert_eq!(hash_tag("foo{}{bar}"), "foo{}{bar}");
        assert_eq!(hash_tag("foo{{bar}}zap"), "{bar");
    }

    #[test]
    fn the_number_of_shards_is_at_least_one_and_at_most_the_limit() {
        let most = usize::from(SHARDS_MAX);
        assert!(check_shards(1).is_ok() && check_shards(most).is_ok());
        for refused in [0, most + 1] {
            let error = check_shards(refused).unwrap_err().to_string();
            assert!(error.contains("between 1 and 64"), "{error}");
        }
    }

    #[test]
    fn own_keys_are_in_the_slot_of_the_application_key() {
        let id = SystemId::new(Kind::Registry, "devices").unwrap();
        for anchor in ["connections:registry", "{conn}:registry"] {
            assert_eq!(slot(&Prefix::beside(anchor, &id).key("due")), slot(anchor), "{anchor}");
        }
    }

    #[test]
    fn a_template_makes_keys_and_finds_the_name_in_them() {
        let template = Template::new("instance:heartbeat:{owner}", "owner").unwrap();
        assert_eq!(template.of("i-1"), "instance:heartbeat:i-1");
        assert_eq!(template.name_in("instance:heartbeat:i-1"), Some("i-1"));
        assert_eq!(template.shared_tag(), None);
        let tagged = Template::new("{c}:hb:{owner}", "owner").unwrap();
        assert_eq!((tagged.of("x").as_str(), tagged.shared_tag()), ("{c}:hb:x", Some("c")));
        assert_eq!(Template::new("a*b:{s}", "s").unwrap().pattern(), "a\\*b:*");
    }
}
