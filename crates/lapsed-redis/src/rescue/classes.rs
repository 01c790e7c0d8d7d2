//! Classes of jobs that are not put back when their worker dies: which the configuration names.

use lapsed_core::Result;

use super::RescuedInflight;
use super::profile::HeldJob;
use super::reader::Reader;

/// The letters of a batch's jobs, as `rescue_reclaim.lua` reads them.
const QUARANTINED: char = 'q';
const FREE: char = '-';

/// Whether a name fits a pattern, in which `*` stands for any characters.
fn is_match(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|left| {
            left.char_indices().any(|(at, _)| is_match(rest, &left[at..])) || is_match(rest, "")
        }),
    }
}

impl RescuedInflight {
    /// One letter for each job; empty if no class is in quarantine. A job whose class cannot be read is free.
    pub(super) async fn quarantine_letters(&self, jobs: &[&HeldJob]) -> Result<String> {
        let patterns = &self.layout.quarantine;
        if patterns.is_empty() {
            return Ok(String::new());
        }
        let connection = &self.context().connection;
        let reader = Reader { connection, clock: &*self.context().clock };
        let classes = self.profile.classes(&reader, jobs).await?;
        let letter = |class: Option<String>| {
            let class = class.unwrap_or_default();
            match patterns.iter().any(|pattern| is_match(pattern, &class)) {
                true => QUARANTINED,
                false => FREE,
            }
        };
        Ok(classes.into_iter().map(letter).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name) in [
            ("a.b", "a.b"),
            ("a.*", "a.b"),
            ("*", "a"),
            ("*b", "a.b"),
            ("a*c*", "abc"),
            ("a*", "a"),
        ] {
            assert!(is_match(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("a.b", "a.bc"), ("a.*", "b.a"), ("*b", "bc"), ("", "a"), ("é*", "e")]
        {
            assert!(!is_match(pattern, name), "{pattern} {name}");
        }
    }
}
