//! Applies provider states from the truth to the mirror, and forgets providers that are gone.

use std::collections::HashSet;

use lapsed_availability::MirrorUpdate;
use lapsed_core::{Name, Result};

use super::{Inner, NAMES_A_CALL};
use crate::script;

/// How many states one script call applies; each has several keys.
const STATES_A_CALL: usize = 250;

/// Parts of at most `most`, in none of which `key` comes twice.
fn parts<T>(all: &[T], most: usize, key: impl Fn(&T) -> &Name) -> Vec<&[T]> {
    let (mut parts, mut from, mut seen) = (Vec::new(), 0, HashSet::new());
    for (at, one) in all.iter().enumerate() {
        if at - from == most || !seen.insert(key(one)) {
            parts.push(&all[from..at]);
            (from, seen) = (at, HashSet::from([key(one)]));
        }
    }
    parts.push(&all[from..]);
    parts
}

impl Inner {
    pub(super) async fn apply(
        &self,
        updates: &[MirrorUpdate],
        attempt: Option<&str>,
    ) -> Result<Option<u64>> {
        let mut newer = 0;
        for part in parts(updates, STATES_A_CALL, |updates| &updates.state.id) {
            match self.apply_some(part, attempt).await? {
                Some(some) => newer += some,
                None => return Ok(None),
            }
        }
        Ok(Some(newer))
    }

    async fn apply_some(
        &self,
        updates: &[MirrorUpdate],
        attempt: Option<&str>,
    ) -> Result<Option<u64>> {
        let mut args = self.args(8).arg(attempt.unwrap_or_default());
        args = self.capacities(self.heartbeats(args)).arg(&self.alive).arg(self.stale_ms());
        for MirrorUpdate { state, beat_ms } in updates {
            args = args
                .arg(&state.id)
                .arg(state.version)
                .arg(state.epoch)
                .arg(u8::from(state.online))
                .arg(u8::from(state.active))
                .arg(state.sessions)
                .arg(beat_ms.map_or(String::new(), |beat_ms| beat_ms.to_string()));
        }
        self.context.run_with_keys(&script::MIRROR_APPLY, args).await
    }

    pub(super) async fn forget(&self, ids: &[(Name, Option<u64>)]) -> Result<u64> {
        let mut gone = 0;
        for part in parts(ids, NAMES_A_CALL, |(id, _)| id) {
            let args = self.capacities(self.heartbeats(self.args(8))).arg(&self.alive);
            let args = part.iter().fold(args, |args, (id, version)| {
                args.arg(id).arg(version.map_or(String::new(), |version| version.to_string()))
            });
            let some: u64 = self.context.run_with_keys(&script::MIRROR_FORGET, args).await?;
            gone += some;
        }
        Ok(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_occurs_twice_in_one_part() {
        let names = |text: &str| -> Vec<Name> {
            text.chars().map(|c| Name::new(&c.to_string()).unwrap()).collect()
        };
        let all = names("abcabdx");
        let cut: Vec<String> = parts(&all, 3, |name| name)
            .iter()
            .map(|part| part.iter().map(Name::as_str).collect())
            .collect();
        assert_eq!(cut, ["abc", "abd", "x"]);
        let all = names("aab");
        let cut: Vec<usize> = parts(&all, 3, |name| name).iter().map(|part| part.len()).collect();
        assert_eq!(cut, [1, 2]);
        assert_eq!(parts(&[], 3, |name| name).len(), 1, "an empty call asks, too");
    }
}
