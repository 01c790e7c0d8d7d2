//! A batch of providers: names from the set of online providers, and the one transaction that reads them all.
//!
//! The names are a guess at who is online and prove nothing: they only say which keys to read. The
//! transaction asks, besides, whatever proves that the answer means something, so that all of it is of one
//! instant: in which run of the server the mirror was seeded and which one this is, which of its keys are
//! there, who of the roll is online, and how many are in all. Nothing in it writes.

use lapsed_core::Name;
use redis::{Pipeline, Value};

use super::Inner;

/// Names of providers, and the transaction that reads their state.
pub(super) struct ProviderBatch {
    /// The names in order, each once; `None`: a member that cannot be a name.
    pub names: Vec<Option<Name>>,
    members: Vec<Vec<u8>>,
    /// Whether and where the set continues after these names.
    pub after: PageEnd,
    /// Whether the query also reads which of them are deactivated; usually none is.
    pub asks_deactivated: bool,
    pub pipeline: Pipeline,
}

/// Where a page of a set ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PageEnd {
    /// The page is the whole set.
    Whole,
    /// The page is the last one of several.
    Last,
    /// The set continues at this cursor.
    Continues(String),
}

/// The answer of the server for one batch.
pub(super) struct BatchReading {
    /// Whether the mirror was seeded in this run of the server, and has lost nothing since.
    pub is_seeded: bool,
    /// The number of online providers.
    pub online: u64,
    /// The number of deactivated providers, online or not.
    pub deactivated: u64,
    pub now_ms: i64,
    is_online: Vec<Value>,
    is_deactivated: Vec<Value>,
    /// The heartbeats of all providers, followed by the numbers of sessions of all providers.
    texts: Vec<Value>,
}

impl ProviderBatch {
    pub fn new(
        inner: &Inner,
        mut members: Vec<Vec<u8>>,
        after: PageEnd,
        asks_deactivated: bool,
    ) -> ProviderBatch {
        members.sort_unstable();
        members.dedup();
        let names = members.iter().map(|member| Name::from_bytes(member).ok()).collect();
        let pipeline = pipeline(inner, &members, asks_deactivated);
        ProviderBatch { names, members, after, asks_deactivated, pipeline }
    }

    /// The same names, with a query for which of them are deactivated.
    pub fn asking_deactivated(&self, inner: &Inner) -> ProviderBatch {
        ProviderBatch::new(inner, self.members.clone(), self.after.clone(), true)
    }

    /// The index of the answer in the pipeline.
    pub fn answer_at(&self) -> usize {
        self.pipeline.len() - 1
    }

    /// Reads the answers; `None`: one of them is an error, or of another shape.
    pub fn read(&self, answers: Vec<Value>) -> Option<BatchReading> {
        let mut answers = answers.into_iter();
        let meta = list(answers.next()?)?;
        let info = answers.next()?;
        let (online, deactivated) = (int(&answers.next()?)?, int(&answers.next()?)?);
        let has_versions = int(&answers.next()?)? == 1;
        let now_ms = clock(&list(answers.next()?)?)?;
        let mut rest: Vec<Vec<Value>> = answers.map(list).collect::<Option<_>>()?;
        let there = [online > 0, deactivated > 0, has_versions];
        let mut reading = BatchReading {
            is_seeded: is_seeded(&meta, run_id(&info)?, there)?,
            online,
            deactivated,
            now_ms,
            is_online: Vec::new(),
            is_deactivated: Vec::new(),
            texts: Vec::new(),
        };
        let all = self.members.len();
        if all > 0 {
            reading.texts = rest.pop().filter(|texts| texts.len() == 2 * all)?;
            if self.asks_deactivated {
                reading.is_deactivated = rest.pop().filter(|flags| flags.len() == all)?;
            }
            reading.is_online = rest.pop().filter(|flags| flags.len() == all)?;
        }
        rest.is_empty().then_some(reading)
    }
}

impl BatchReading {
    pub fn is_online(&self, at: usize) -> bool {
        self.is_online.get(at).and_then(int) == Some(1)
    }

    pub fn is_deactivated(&self, at: usize) -> bool {
        self.is_deactivated.get(at).and_then(int) == Some(1)
    }

    /// The last heartbeat of a provider, as text; `None`: it has none, or the key has another type.
    pub fn heartbeat(&self, at: usize) -> Option<&[u8]> {
        bytes(self.texts.get(at)?)
    }

    /// The number of sessions of a provider, as text.
    pub fn capacity(&self, at: usize) -> Option<&[u8]> {
        bytes(self.texts.get(self.texts.len() / 2 + at)?)
    }
}

/// The pipeline: MULTI, the queries, EXEC.
fn pipeline(inner: &Inner, members: &[Vec<u8>], asks_deactivated: bool) -> Pipeline {
    let [meta, online, deactivated, versions, ..] = &inner.keys;
    let mut pipeline = redis::pipe();
    pipeline.cmd("MULTI");
    pipeline.cmd("HMGET").arg(meta).arg(&["seeded", "kept", "losses"]);
    pipeline.cmd("INFO").arg("server");
    pipeline.cmd("SCARD").arg(online).cmd("SCARD").arg(deactivated);
    pipeline.cmd("EXISTS").arg(versions).cmd("TIME");
    if !members.is_empty() {
        pipeline.cmd("SMISMEMBER").arg(online).arg(members);
        if asks_deactivated {
            pipeline.cmd("SMISMEMBER").arg(deactivated).arg(members);
        }
        pipeline.cmd("MGET");
        for template in [&inner.layout.heartbeat_key, &inner.layout.capacity_key] {
            let (before, after) = template.parts();
            for member in members {
                pipeline.arg([before.as_bytes(), member, after.as_bytes()].concat());
            }
        }
    }
    pipeline.cmd("EXEC");
    pipeline
}

/// As `is_seeded` of the scripts has it. `there`: which of online, deactivated and versions are there.
fn is_seeded(meta: &[Value], run_id: &[u8], there: [bool; 3]) -> Option<bool> {
    let [seeded, kept, losses] = meta else { return None };
    let Some(seeded) = bytes(seeded) else { return Some(false) };
    let losses = bytes(losses).unwrap_or(b"0");
    let in_this_run = seeded == [run_id, b":", losses].concat();
    let is_there = |key: &u8| (b'2'..=b'4').contains(key) && there[usize::from(key - b'2')];
    Some(in_this_run && bytes(kept).unwrap_or_default().iter().all(is_there))
}

/// The name of this run of the server.
fn run_id(info: &Value) -> Option<&[u8]> {
    let text = std::str::from_utf8(bytes(info)?).ok()?;
    text.split_once("run_id:")?.1.as_bytes().get(..40)
}

fn clock(time: &[Value]) -> Option<i64> {
    let number = |at: usize| std::str::from_utf8(bytes(time.get(at)?)?).ok()?.parse::<i64>().ok();
    Some(number(0)? * 1_000 + number(1)? / 1_000)
}

fn int(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::VerbatimString { text, .. } => Some(text.as_bytes()),
        _ => None,
    }
}

fn list(value: Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(values) => Some(values),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn a_mirror_is_seeded_only_in_the_run_of_the_server_that_seeded_it() {
        let run_id = [b'a'; 40];
        let seeded = text(&format!("{}:3", "a".repeat(40)));
        let all = [true, true, true];
        let ask = |meta: &[Value], there| is_seeded(meta, &run_id, there).unwrap();
        assert!(ask(&[seeded.clone(), text("24"), text("3")], all));
        assert!(ask(&[seeded.clone(), text("24"), text("3")], [true, false, true]));
        assert!(ask(&[seeded.clone(), Value::Nil, text("3")], [false; 3]), "nobody was there");
        assert!(!ask(&[seeded.clone(), text("24"), text("3")], [false, true, true]), "dropped");
        assert!(!ask(&[seeded.clone(), text("234"), text("3")], [true, false, true]));
        assert!(!ask(&[seeded.clone(), text("24"), text("4")], all), "lost since");
        assert!(!ask(&[seeded.clone(), text("24"), Value::Nil], all));
        assert!(!ask(&[Value::Nil, Value::Nil, Value::Nil], all), "never");
        let other = text(&format!("{}:3", "b".repeat(40)));
        assert!(!ask(&[other, text("24"), text("3")], all), "another life");
        assert_eq!(is_seeded(&[], &run_id, all), None);
    }
}
