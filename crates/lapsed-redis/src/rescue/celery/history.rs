//! Who claimed which message in earlier looks, and which workers there were. Passes that act keep it on the server, so that several
//! daemons and single commands share it.
//!
//! It is needed because a message that nobody claims is not always one whose worker is dead. A worker that was told to stop
//! (SIGTERM) leaves the remote control at once and then works on until its tasks have ended, with its messages in `unacked`. It
//! removes its name from the binding of the remote control; a killed worker cannot. So a message is an orphan if the worker that
//! claimed it last is gone and its name is still bound, and is left alone if the worker took its name away.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use lapsed_core::Result;

use super::inspect::Heard;
use crate::names::Prefix;
use crate::rescue::reader::Reader;

/// The fields of the hash that nodes are noted in begin with this; `WATCH` is another field.
const NODE: &str = "node:";
const WATCH: &str = "watch";

/// Looks that are further apart than this did not watch the workers in between.
const WATCH_GAP_MS: u64 = 20_000;

/// How much the clock of a worker's host and the server's clock may differ, and how long a look may take.
const DOUBT_MS: u64 = 10_000;

/// How often the limit must have passed while workers were watched, before a message that nobody was seen with is taken for
/// one of a worker that died before that.
const WATCHED_LIMITS: u64 = 10;

/// The same if no trace of such a worker is left, because another one was started under its name.
const UNTRACED_LIMITS: u64 = 150;

/// Nodes that did not answer for this long are forgotten.
const FORGET_MS: u64 = 86_400_000;

/// Commands in one pipeline.
const PIPELINE: usize = 500;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NodeRecord {
    /// When it last answered.
    answered_ms: u64,
    /// When it was first found to have left the remote control by itself; 0: it has not.
    left_ms: u64,
    /// When it was first found gone without having left; 0: it is not.
    gone_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    /// When that node was first seen with the message.
    since_ms: u64,
    node: String,
}

/// What is known of one message that nobody claims.
pub(super) struct Unclaimed<'a> {
    pub tag: &'a str,
    /// When it was delivered, by the worker's clock; 0 if that is not known.
    pub delivered_ms: u64,
    /// Whether a worker may keep such a task without telling, because its rate is limited.
    pub is_rate_limited: bool,
}

/// What one look saw of the workers.
pub(super) struct Witnessed<'a> {
    pub now_ms: u64,
    pub limit: Duration,
    /// Names of the workers that answered in this look.
    pub answering: &'a BTreeSet<String>,
    /// Nodes whose name is bound to the remote control.
    pub bound: &'a BTreeSet<String>,
    /// Whose heartbeats were heard; `None` if nobody could listen.
    pub heard: Option<&'a Heard>,
    /// Whether waiting counts: a dry run reports what a daemon would find after it has waited.
    pub waits: bool,
}

/// Whether a message that nobody claims is an orphan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Of that worker, if it is known which; not before that time, because the workers must be watched for long enough.
    Orphan(Option<String>, u64),
    /// Of a worker that answers again under its name, which is another process now.
    OrphanOfEarlier(String),
    /// Its worker was told to stop, and may still work on it.
    Stopping,
    /// A living worker may hold it back because of the rate limit of the task.
    RateLimited,
    /// A worker that does not answer shows another sign of life.
    HeardOnly,
    /// This user may not listen for heartbeats.
    NotListened,
    /// Workers were not watched for long enough.
    Waiting,
}

/// Where the history of one application is kept.
#[derive(Clone, Debug)]
pub(super) struct HistoryKeys {
    pub claims: String,
    pub nodes: String,
}

impl HistoryKeys {
    /// `application` is the prefix of the application's own keys, `global_keyprefix`.
    pub fn new(own: &Prefix, application: &str) -> HistoryKeys {
        let key = |what: &str| own.key(&format!("{what}{application}"));
        HistoryKeys { claims: key("celery_claims"), nodes: key("celery_nodes") }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct History {
    claims: HashMap<String, Claim>,
    nodes: BTreeMap<String, NodeRecord>,
    /// Since when workers have been watched without a gap, and the last look.
    watch: (u64, u64),
    /// What is to be written, as it was before.
    loaded: Option<Box<History>>,
}

fn numbers(text: &str) -> Option<[u64; 3]> {
    let mut all = text.split(' ').map(|word| word.parse().ok());
    Some([all.next()??, all.next()??, all.next()??])
}

impl History {
    /// What was noted; of messages, only what was noted of `only` these tags.
    pub async fn load(
        reader: &Reader<'_>,
        keys: Option<&HistoryKeys>,
        only: Option<&[&str]>,
    ) -> Result<History> {
        let Some(keys) = keys else { return Ok(History::default()) };
        let mut history = History::default();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut claims = |tag: &[u8], value: &[u8]| {
            let value = text(value);
            if let Some((since, node)) = value.split_once(' ') {
                let since_ms = since.parse().unwrap_or(0);
                history.claims.insert(text(tag), Claim { since_ms, node: node.to_owned() });
            }
        };
        match only {
            None => drop(reader.hash(keys.claims.as_bytes(), claims).await?),
            Some(tags) => {
                let key = keys.claims.as_bytes().to_vec();
                let asked: Vec<Vec<Vec<u8>>> =
                    tags.iter().map(|tag| vec![key.clone(), tag.as_bytes().to_vec()]).collect();
                let values: Vec<Option<Option<Vec<u8>>>> = reader.each("HGET", &asked).await?;
                for (tag, value) in tags.iter().zip(values) {
                    value.flatten().into_iter().for_each(|value| claims(tag.as_bytes(), &value));
                }
            }
        }
        let nodes = |field: &[u8], value: &[u8]| {
            let field = text(field);
            let Some([one, two, three]) = numbers(&text(value)) else { return };
            if let Some(node) = field.strip_prefix(NODE) {
                let record = NodeRecord { answered_ms: one, left_ms: two, gone_ms: three };
                history.nodes.insert(node.to_owned(), record);
            } else if field == WATCH {
                history.watch = (one, two);
            }
        };
        reader.hash(keys.nodes.as_bytes(), nodes).await?;
        history.loaded = Some(Box::new(history.clone()));
        Ok(history)
    }

    /// Whether any worker has answered in an earlier look.
    pub fn has_answers(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// When a worker last answered; 0 if it never did.
    pub fn answered_ms(&self, node: &str) -> u64 {
        self.nodes.get(node).map_or(0, |record| record.answered_ms)
    }

    /// Notes who answered. If all listeners did, those that did not answer are gone, or have left.
    pub fn note_nodes(&mut self, seen: &Witnessed<'_>, is_complete: bool) {
        let (now_ms, (since_ms, last_ms)) = (seen.now_ms, self.watch);
        let is_watched = last_ms > 0 && now_ms.saturating_sub(last_ms) <= WATCH_GAP_MS;
        self.watch = (if is_watched { since_ms } else { now_ms }, now_ms);
        for node in seen.answering {
            let record = self.nodes.entry(node.clone()).or_default();
            (record.answered_ms, record.gone_ms) = (now_ms, 0);
        }
        if !is_complete {
            return;
        }
        for (node, record) in &mut self.nodes {
            if seen.answering.contains(node) || record.gone_ms > 0 {
                continue;
            }
            match seen.bound.contains(node) {
                true => record.gone_ms = now_ms,
                // It may leave, come back and leave again.
                false if record.left_ms < record.answered_ms => record.left_ms = now_ms,
                false => {}
            }
        }
    }

    /// Notes who claims which of these messages, and forgets the messages that are not there any more.
    pub fn note_claims<'a>(
        &mut self,
        now_ms: u64,
        messages: impl Iterator<Item = (&'a str, Option<&'a str>)>,
    ) {
        let mut claims = HashMap::new();
        for (tag, node) in messages {
            let before = self.claims.remove(tag);
            let claim = match (node, before) {
                (Some(node), Some(before)) if before.node == node => Some(before),
                (Some(node), _) => Some(Claim { since_ms: now_ms, node: node.to_owned() }),
                (None, before) => before,
            };
            claims.extend(claim.map(|claim| (tag.to_owned(), claim)));
        }
        self.claims = claims;
    }

    pub fn judge(&self, one: &Unclaimed<'_>, seen: &Witnessed<'_>) -> Verdict {
        match self.claims.get(one.tag) {
            Some(claim) => self.judge_claimed(claim, one, seen),
            None => self.judge_unknown(one, seen),
        }
    }

    fn judge_claimed(&self, claim: &Claim, one: &Unclaimed<'_>, seen: &Witnessed<'_>) -> Verdict {
        let (node, record) =
            (&claim.node, self.nodes.get(&claim.node).copied().unwrap_or_default());
        if record.left_ms >= claim.since_ms && record.left_ms > 0 {
            return Verdict::Stopping;
        }
        if seen.answering.contains(node) {
            return match one.is_rate_limited {
                true => Verdict::RateLimited,
                false => Verdict::OrphanOfEarlier(node.clone()),
            };
        }
        if seen.heard.is_some_and(|heard| heard.here.contains(node)) {
            return Verdict::HeardOnly;
        }
        match record.gone_ms > 0 || seen.bound.contains(node) {
            true => Verdict::Orphan(Some(node.clone()), 0),
            false => Verdict::Stopping,
        }
    }

    /// Nobody was seen with it: it was taken shortly before its worker disappeared, or before lapsed came.
    fn judge_unknown(&self, one: &Unclaimed<'_>, seen: &Witnessed<'_>) -> Verdict {
        let Some(heard) = seen.heard else { return Verdict::NotListened };
        if one.is_rate_limited {
            return Verdict::RateLimited;
        }
        if heard.here.iter().any(|node| !seen.answering.contains(node)) {
            return Verdict::HeardOnly;
        }
        let since_ms = one.delivered_ms.saturating_sub(DOUBT_MS);
        if self.nodes.values().any(|record| record.left_ms > 0 && record.left_ms >= since_ms) {
            return Verdict::Stopping;
        }
        let was_there = |record: &NodeRecord| {
            one.delivered_ms > 0 && record.gone_ms > 0 && record.answered_ms >= since_ms
        };
        let gone = self.nodes.iter().filter(|(_, record)| was_there(record));
        let gone: Vec<&String> = gone.map(|(node, _)| node).collect();
        if !gone.is_empty() {
            return Verdict::Orphan(only(&gone), 0);
        }
        let gone: Vec<&String> = seen.bound.difference(seen.answering).collect();
        let limits = if gone.is_empty() { UNTRACED_LIMITS } else { WATCHED_LIMITS };
        let from_ms = self.watch.0 + limits * seen.limit.as_millis() as u64;
        match seen.now_ms >= from_ms || (!seen.waits && !gone.is_empty()) {
            true => Verdict::Orphan(only(&gone), from_ms),
            false => Verdict::Waiting,
        }
    }

    /// Writes what has changed since it was loaded.
    pub async fn save(&self, reader: &Reader<'_>, keys: &HistoryKeys) -> Result<()> {
        let before = self.loaded.as_deref().cloned().unwrap_or_default();
        let HistoryKeys { claims, nodes } = keys;
        let mut writes: Vec<[String; 4]> = Vec::new();
        let set = |key: &str, field: String, value| ["HSET".into(), key.into(), field, value];
        let delete = |key: &str, field: String| ["HDEL".into(), key.into(), field, String::new()];
        for (tag, claim) in &self.claims {
            if before.claims.get(tag) != Some(claim) {
                let value = format!("{} {}", claim.since_ms, claim.node);
                writes.push(set(claims, tag.clone(), value));
            }
        }
        let gone = before.claims.keys().filter(|tag| !self.claims.contains_key(*tag));
        writes.extend(gone.map(|tag| delete(claims, tag.clone())));
        for (node, record) in &self.nodes {
            let field = format!("{NODE}{node}");
            if record.answered_ms + FORGET_MS < self.watch.1 {
                writes.push(delete(nodes, field));
                continue;
            }
            let NodeRecord { answered_ms, left_ms, gone_ms } = record;
            writes.push(set(nodes, field, format!("{answered_ms} {left_ms} {gone_ms}")));
        }
        let (since_ms, last_ms) = self.watch;
        writes.push(set(nodes, WATCH.to_owned(), format!("{since_ms} {last_ms} 0")));
        for some in writes.chunks(PIPELINE) {
            let mut pipeline = redis::pipe();
            for [verb, key, field, value] in some {
                let cmd = pipeline.cmd(verb).arg(key).arg(field);
                if verb == "HSET" {
                    cmd.arg(value);
                }
            }
            let _: Vec<Option<u64>> =
                reader.connection.query_each("HSET", &pipeline, some.len()).await?;
        }
        Ok(())
    }
}

/// The name, if there is only one.
fn only(names: &[&String]) -> Option<String> {
    match names {
        [one] => Some((*one).clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Three looks, 3 s apart: who answers and who is bound in each. `tag` is claimed by `w1` in the first one.
    fn verdict(looks: &[(&[&str], &[&str])], heard: &[&str], tag: &str) -> Verdict {
        let heard = Heard { here: names(heard), elsewhere: BTreeSet::new() };
        let mut history = History::default();
        let mut now_ms = 1_000_000;
        for (n, (answering, bound)) in looks.iter().enumerate() {
            now_ms += 3_000;
            let (answering, bound) = (names(answering), names(bound));
            let seen = Witnessed {
                now_ms,
                limit: LIMIT,
                answering: &answering,
                bound: &bound,
                heard: Some(&heard),
                waits: true,
            };
            history.note_nodes(&seen, true);
            history.note_claims(now_ms, [("claimed", (n == 0).then_some("w1"))].into_iter());
            if n + 1 == looks.len() {
                let one = Unclaimed { tag, delivered_ms: 1_004_000, is_rate_limited: false };
                return history.judge(&one, &seen);
            }
        }
        unreachable!("there is a last look")
    }

    const BOTH: &[&str] = &["w1", "w2"];

    #[test]
    fn a_killed_worker_leaves_its_name_and_its_messages_are_orphans() {
        let looks: &[(&[&str], &[&str])] = &[(BOTH, BOTH), (&["w2"], BOTH)];
        assert_eq!(verdict(looks, &[], "claimed"), Verdict::Orphan(Some("w1".to_owned()), 0));
        assert_eq!(verdict(looks, &[], "unknown"), Verdict::Orphan(Some("w1".to_owned()), 0));
    }

    #[test]
    fn a_worker_that_was_told_to_stop_keeps_its_messages() {
        let looks: &[(&[&str], &[&str])] = &[(BOTH, BOTH), (&["w2"], &["w2"])];
        assert_eq!(verdict(looks, &[], "claimed"), Verdict::Stopping);
        assert_eq!(verdict(looks, &[], "unknown"), Verdict::Stopping);
        let returned: &[(&[&str], &[&str])] = &[(BOTH, BOTH), (&["w2"], &["w2"]), (BOTH, BOTH)];
        assert_eq!(verdict(returned, &[], "claimed"), Verdict::Stopping);
    }

    #[test]
    fn trap_f3_a_worker_of_the_same_name_does_not_hide_the_death_of_the_first() {
        let looks: &[(&[&str], &[&str])] = &[(BOTH, BOTH), (&["w2"], BOTH), (BOTH, BOTH)];
        assert_eq!(verdict(looks, &[], "claimed"), Verdict::OrphanOfEarlier("w1".to_owned()));
    }

    #[test]
    fn a_worker_that_is_heard_keeps_its_messages() {
        let looks: &[(&[&str], &[&str])] = &[(BOTH, BOTH), (&["w2"], BOTH)];
        assert_eq!(verdict(looks, &["w1"], "claimed"), Verdict::HeardOnly);
        assert_eq!(verdict(looks, &["other"], "unknown"), Verdict::HeardOnly);
    }

    #[test]
    fn a_message_from_before_the_first_look_waits() {
        let looks: &[(&[&str], &[&str])] = &[(&["w2"], BOTH)];
        assert_eq!(verdict(looks, &[], "unknown"), Verdict::Waiting);
        let many: Vec<(&[&str], &[&str])> = vec![(&["w2"], BOTH); 8];
        let from_ms = 1_003_000 + 20_000;
        assert_eq!(verdict(&many, &[], "unknown"), Verdict::Orphan(Some("w1".to_owned()), from_ms));
        let untraced: Vec<(&[&str], &[&str])> = vec![(&["w2"], &["w2"]); 8];
        assert_eq!(verdict(&untraced, &[], "unknown"), Verdict::Waiting);
    }
}
