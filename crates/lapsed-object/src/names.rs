//! The names of objects: keys escaped, times as buckets.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use lapsed_core::leases::{DECISIONS, Namespace};
use lapsed_core::{Error, Result, SystemId};

/// The longest name that is escaped without being shortened: some servers keep each part of a path as a file.
const PLAIN_MAX: usize = 200;
/// How much of a longer name stays readable; a digest stands for the rest.
const HEAD_MAX: usize = 120;

/// Any UTF-8 as one part of an object's name: `[A-Za-z0-9_-]` and `.` but for the first stand for
/// themselves, everything else is percent-encoded. What is too long then is cut and told apart by a digest,
/// after a `~` that nothing else yields.
pub(crate) fn escape(text: &str) -> String {
    let mut name = String::with_capacity(text.len());
    for (at, byte) in text.bytes().enumerate() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-') || (byte == b'.' && at > 0) {
            name.push(byte as char);
        } else {
            name.push_str(&format!("%{byte:02X}"));
        }
    }
    if name.len() > PLAIN_MAX {
        let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        name.truncate(HEAD_MAX);
        name.push('~');
        digest.as_ref()[..16].iter().for_each(|byte| name.push_str(&format!("{byte:02x}")));
    }
    name
}

/// The name that was escaped; `None` if it was shortened, or is not an escaped name.
pub(crate) fn unescape(name: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first == b'~' {
            return None;
        }
        if first != b'%' {
            bytes.push(first);
            rest = after;
            continue;
        }
        let hex = std::str::from_utf8(after.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(hex, 16).ok()?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok()
}

/// The width of a bucket of the index, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketWidth(u64);

impl BucketWidth {
    /// Refuses a width that does not divide a day, so that buckets begin with the day.
    pub(crate) fn new(width: std::time::Duration) -> Result<Self> {
        let seconds = width.as_secs();
        let whole = width.subsec_nanos() == 0 && seconds > 0 && 86_400 % seconds == 0;
        if whole {
            return Ok(BucketWidth(seconds));
        }
        Err(Error::Invalid(format!(
            "the width of a bucket ({width:?}) must be a part of a day without a rest: 1m, 15m, 1h, 1d"
        )))
    }

    /// The width of the buckets in which records wait to be forgotten: wide, so that there are few,
    /// and not wider than half of the time that they wait, or a second.
    pub(crate) fn of_watches(wait: std::time::Duration) -> Self {
        let fits = |seconds: &u64| seconds * 2 <= wait.as_secs();
        BucketWidth([86_400, 3_600, 60].into_iter().find(fits).unwrap_or(1))
    }

    /// The name of the bucket that contains `at_ms`: its beginning in UTC, to the precision that the width
    /// needs.
    pub(crate) fn bucket(self, at_ms: u64) -> String {
        let begin = (at_ms / 1_000 / self.0 * self.0) as i64;
        let at = Timestamp::from_second(begin).unwrap_or(Timestamp::MAX).to_zoned(TimeZone::UTC);
        let format = match self.0 {
            86_400 => "%Y%m%d",
            seconds if seconds % 3_600 == 0 => "%Y%m%d%H",
            seconds if seconds % 60 == 0 => "%Y%m%d%H%M",
            _ => "%Y%m%d%H%M%S",
        };
        at.strftime(format).to_string()
    }

    /// When a bucket is over, whatever width it was made with; `None` if it is not a bucket's name. The
    /// name tells the least it may hold; what this width would put there counts as well.
    pub(crate) fn end_ms(self, name: &str) -> Option<u64> {
        let (begin, span) = read_bucket(name)?;
        let seconds = if begin % self.0 == 0 { span.max(self.0) } else { span };
        Some((begin + seconds) * 1_000)
    }
}

/// When a bucket begins, and the precision of its name, in seconds.
fn read_bucket(name: &str) -> Option<(u64, u64)> {
    let span = match name.len() {
        8 => 86_400,
        10 => 3_600,
        12 => 60,
        14 => 1,
        _ => return None,
    };
    if !name.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part = |from: usize, to: usize| name.get(from..to).and_then(|text| text.parse::<i8>().ok());
    let year = name.get(..4)?.parse::<i16>().ok()?;
    let (hour, minute) = (part(8, 10).unwrap_or(0), part(10, 12).unwrap_or(0));
    let second = part(12, 14).unwrap_or(0);
    let at = DateTime::new(year, part(4, 6)?, part(6, 8)?, hour, minute, second, 0).ok()?;
    let at = at.to_zoned(TimeZone::UTC).ok()?.timestamp().checked_add(0.seconds()).ok()?;
    Some((u64::try_from(at.as_second()).ok()?, span))
}

/// The paths of all objects below the prefix of the store.
#[derive(Clone, Debug)]
pub(crate) struct ObjectPaths {
    prefix: String,
}

impl ObjectPaths {
    /// `prefix` without slashes at its ends; may be empty.
    pub(crate) fn new(prefix: &str) -> Self {
        let prefix = prefix.trim_matches('/');
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        ObjectPaths { prefix }
    }

    /// The path below which everything is stored.
    pub(crate) fn root(&self) -> &str {
        &self.prefix
    }

    /// The path of a key's record.
    pub(crate) fn meta(&self, namespace: &str, name: &str) -> String {
        format!("{}{name}.pb", self.metas(namespace))
    }

    /// The folder of the records of a namespace.
    pub(crate) fn metas(&self, namespace: &str) -> String {
        format!("{}{namespace}/meta/", self.prefix)
    }

    /// The path of a key's index entry, or of a transaction's if the namespace is that of decisions.
    pub(crate) fn entry(&self, namespace: &str, bucket: &str, name: &str) -> String {
        format!("{}{bucket}/{name}", self.index(namespace))
    }

    /// The folder of the index of a namespace.
    pub(crate) fn index(&self, namespace: &str) -> String {
        match namespace {
            DECISIONS => format!("{}{DECISIONS}/e/", self.prefix),
            _ => format!("{}{namespace}/.lease-index/", self.prefix),
        }
    }

    /// The path of a transaction's marker.
    pub(crate) fn marker(&self, name: &str) -> String {
        format!("{}{DECISIONS}/m/{name}", self.prefix)
    }

    /// The path of the token floor, below which no new record of any system starts.
    pub(crate) fn token_floor(&self) -> String {
        format!("{}.lapsed/token-floor", self.prefix)
    }

    /// The path of lapsed's own data of a system.
    pub(crate) fn system(&self, id: &SystemId, what: &str) -> String {
        format!("{}.lapsed/{}-{}/{what}", self.prefix, id.kind, id.name)
    }

    /// The folder in which a probe makes its objects.
    pub(crate) fn probe(&self, random: u64) -> String {
        format!("{}.lapsed/probe/{random:016x}/", self.prefix)
    }
}

/// The namespace that a name directly below the prefix stands for; `None` if it is not a namespace.
pub(crate) fn namespace(name: &str) -> Option<Namespace> {
    Namespace::new(name).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn width(seconds: u64) -> BucketWidth {
        BucketWidth::new(Duration::from_secs(seconds)).unwrap()
    }

    #[test]
    fn any_key_is_one_part_of_a_name() {
        assert_eq!(escape("order-42_x.pb"), "order-42_x.pb");
        assert_eq!(escape("a/b c"), "a%2Fb%20c");
        assert_eq!(escape(".."), "%2E.");
        assert_eq!(unescape("a%2Fb%20c").as_deref(), Some("a/b c"));
        let long = escape(&"ü".repeat(128));
        assert!(long.len() <= PLAIN_MAX && unescape(&long).is_none(), "{long}");
        assert_ne!(long, escape(&("ü".repeat(127) + "ä")));
    }

    #[test]
    fn buckets_are_utc_and_closed_when_they_end() {
        let at_ms = 1_767_871_234_567; // 2026-01-08T11:20:34.567Z
        assert_eq!(width(3_600).bucket(at_ms), "2026010811");
        assert_eq!(width(86_400).bucket(at_ms), "20260108");
        assert_eq!(width(900).bucket(at_ms), "202601081115");
        assert_eq!(width(1).bucket(at_ms), "20260108112034");
        assert_eq!(width(3_600).end_ms("2026010811"), Some(1_767_873_600_000));
        // The bucket was made with another width; its name is enough to know its end.
        assert_eq!(width(60).end_ms("2026010811"), Some(1_767_873_600_000));
        assert_eq!(width(3_600).end_ms("202601081115"), Some(1_767_870_960_000));
        for none in ["", "x", "2026", "2026130811", "20260108ab", "2026010811112"] {
            assert_eq!(width(3_600).end_ms(none), None, "{none}");
        }
        for bad in [0, 7, 86_401] {
            assert!(BucketWidth::new(Duration::from_secs(bad)).is_err());
        }
    }

    proptest! {
        #[test]
        fn escaping_is_undone(text in "\\PC{1,60}") {
            let name = escape(&text);
            let plain = |c: char| c.is_ascii_alphanumeric() || "_-.%~".contains(c);
            prop_assert!(name.chars().all(plain) && !name.starts_with('.'));
            if !name.contains('~') {
                prop_assert_eq!(unescape(&name), Some(text));
            }
        }

        #[test]
        fn a_time_is_in_its_bucket(at_ms in 0u64..4_000_000_000_000, seconds in prop::sample::select(vec![1u64, 60, 900, 3_600, 21_600, 86_400])) {
            let name = width(seconds).bucket(at_ms);
            let end = width(seconds).end_ms(&name).unwrap();
            prop_assert!(at_ms < end && end <= at_ms + seconds * 1_000);
        }
    }
}
