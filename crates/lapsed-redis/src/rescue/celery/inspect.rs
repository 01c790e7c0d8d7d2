//! Asks the workers, as `celery inspect` does: a question on the channel of the remote control, answers in a list of the asker's own.
//!
//! The answer to `PUBLISH` is how many listen. Only if as many answered is anything known about what nobody claims; answers
//! are counted and not names, because two workers may share one. The binding and the list are removed after each question, also if
//! it fails. A process that dies in between leaves them behind, and the next look that acts removes them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lapsed_core::Result;
use lapsed_core::sweep::PassMode;
use redis::IntoConnectionInfo;
use serde_json::json;

use super::json;
use super::message::SEPARATOR;
use crate::rescue::reader::Reader;

/// How many ids one question names.
const IDS_MAX: usize = 500;

/// How long answers are waited for.
const WAIT: Duration = Duration::from_secs(2);

/// How often it is looked whether all have answered.
const POLL: Duration = Duration::from_millis(15);

/// A worker's heartbeat comes every 2 s.
pub(super) const HEARTBEATS: Duration = Duration::from_millis(2_500);

/// After this time a reply binding of lapsed belongs to a process that is gone.
const ABANDONED_MS: u64 = 60_000;

const REPLY_EXCHANGE: &str = "reply.celery.pidbox";

/// The remote control of the workers of one database.
pub(super) struct RemoteControl<'a> {
    reader: &'a Reader<'a>,
    /// `global_keyprefix`, which stands before keys and channels.
    prefix: &'a str,
    /// `/0.`, what stands before the names of channels.
    fanout: String,
}

/// What one question brought.
#[derive(Default)]
struct Answers {
    listeners: u64,
    /// The name of each node, and the text of its answer.
    from: Vec<(String, String)>,
}

/// What the workers said about some messages.
#[derive(Default)]
pub(super) struct Round {
    pub listeners: u64,
    /// The smallest number of answers to one of the questions.
    pub answers: u64,
    pub nodes: BTreeSet<String>,
    /// The node that claims each id.
    pub claims: HashMap<String, String>,
    /// This user may not ask.
    pub is_refused: bool,
}

impl Round {
    /// Whether all that listen have answered everything.
    pub fn is_complete(&self) -> bool {
        !self.is_refused && self.answers >= self.listeners
    }
}

/// Who was heard on the channel of events.
#[derive(Default)]
pub(super) struct Heard {
    /// Nodes on the channel of this database.
    pub here: BTreeSet<String>,
    /// Nodes on channels of other databases or other prefixes.
    pub elsewhere: BTreeSet<String>,
}

impl<'a> RemoteControl<'a> {
    pub fn new(reader: &'a Reader<'a>, prefix: &'a str) -> RemoteControl<'a> {
        let place: &str = &reader.connection.place;
        let database = place.into_connection_info().map_or(0, |info| info.redis_settings().db());
        RemoteControl { reader, prefix, fanout: format!("/{database}.") }
    }

    pub fn channel(&self) -> String {
        format!("{}{}celery.pidbox", self.prefix, self.fanout)
    }

    fn binding(&self) -> String {
        format!("{}_kombu.binding.{REPLY_EXCHANGE}", self.prefix)
    }

    /// Asks who claims these ids. Without ids, who is there.
    pub async fn claims(&self, ids: &[&str]) -> Result<Round> {
        let mut round = Round { answers: u64::MAX, ..Round::default() };
        let pages: Vec<&[&str]> = match ids.is_empty() {
            true => vec![&[]],
            false => ids.chunks(IDS_MAX).collect(),
        };
        for page in pages {
            let arguments = json!({ "ids": page });
            self.ask_into(&mut round, "query_task", arguments, claimed_ids).await?;
        }
        Ok(round)
    }

    /// Asks for tasks that wait for a time, which `query_task` does not know before Celery 5.7.
    pub async fn add_scheduled(&self, round: &mut Round) -> Result<()> {
        self.ask_into(round, "scheduled", json!({}), scheduled_ids).await
    }

    /// The tasks that a worker may keep for a while without telling anybody, because their rate is limited.
    pub async fn rate_limited(&self) -> Result<Option<BTreeSet<String>>> {
        let arguments = json!({ "taskinfoitems": ["rate_limit"] });
        let Some(answers) = self.ask("registered", arguments).await? else { return Ok(None) };
        if (answers.from.len() as u64) < answers.listeners {
            return Ok(None);
        }
        let limited = |text: &String| {
            let tasks = json::elements(text, json::whole(text)).unwrap_or_default();
            let tasks = tasks.into_iter().filter_map(|task| json::string(text, task));
            let named = tasks.filter_map(|task| Some(task.split_once(" [")?.0.to_owned()));
            named.collect::<Vec<_>>()
        };
        Ok(Some(answers.from.iter().flat_map(|(_, text)| limited(text)).collect()))
    }

    /// Whether a worker acknowledges tasks before it runs them.
    pub async fn acknowledges_early(&self) -> Result<bool> {
        let answers = self.ask("active", json!({ "safe": true })).await?.unwrap_or_default();
        Ok(answers.from.iter().any(|(_, text)| {
            let tasks = json::elements(text, json::whole(text)).unwrap_or_default();
            let is_early = |task| json::member(text, task, "acknowledged");
            tasks.into_iter().filter_map(is_early).any(|value| &text[value] == "true")
        }))
    }

    /// Listens for heartbeats of workers. `None`: this user may not.
    pub async fn hear(&self) -> Option<Heard> {
        let heard: Mutex<BTreeMap<String, BTreeSet<String>>> = Mutex::default();
        let pattern = format!("{}*celeryev/worker.heartbeat", super::escaped(self.prefix));
        let end = self.reader.clock.sleep(HEARTBEATS);
        let is_heard = self.reader.connection.hear(&pattern, end, |channel, payload| {
            if let Some(node) = heartbeat_of(payload) {
                let mut heard = heard.lock().expect("no holder of this lock panics");
                heard.entry(channel.to_owned()).or_default().insert(node);
            }
        });
        if !is_heard.await {
            return None;
        }
        let mut heard = heard.into_inner().expect("no holder of this lock panics");
        let own = format!("{}{}celeryev/worker.heartbeat", self.prefix, self.fanout);
        let here = heard.remove(&own).unwrap_or_default();
        Some(Heard { here, elsewhere: heard.into_values().flatten().collect() })
    }

    async fn ask_into(
        &self,
        round: &mut Round,
        method: &str,
        arguments: serde_json::Value,
        ids: fn(&str) -> Option<Vec<String>>,
    ) -> Result<()> {
        let Some(answers) = self.ask(method, arguments).await? else {
            round.is_refused = true;
            return Ok(());
        };
        let mut understood = 0;
        for (node, text) in answers.from {
            let Some(ids) = ids(&text) else { continue };
            understood += 1;
            round.nodes.insert(node.clone());
            round.claims.extend(ids.into_iter().map(|id| (id, node.clone())));
        }
        round.listeners = round.listeners.max(answers.listeners);
        round.answers = round.answers.min(understood);
        Ok(())
    }

    /// `None`: this user may not ask.
    async fn ask(&self, method: &str, arguments: serde_json::Value) -> Result<Option<Answers>> {
        let (clock, now_ms) = (self.reader.clock, self.reader.now_ms().await?);
        let own = format!("lapsed-{now_ms}-{:016x}", clock.random());
        let binding = [own.as_str(), "", &format!("{own}.{REPLY_EXCHANGE}")].join(SEPARATOR);
        let list = format!("{}{own}.{REPLY_EXCHANGE}", self.prefix);
        let question = question(method, arguments, &own, now_ms);
        let answers = self.ask_over(&binding, &list, &question).await;
        self.remove(&binding, &list).await?;
        answers
    }

    /// Removes a reply binding and its list.
    async fn remove(&self, member: &str, list: &str) -> Result<()> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("SREM").arg(self.binding()).arg(member);
        pipeline.cmd("DEL").arg(list);
        let _: Vec<Option<u64>> = self.reader.connection.query_each("SREM", &pipeline, 2).await?;
        Ok(())
    }

    async fn ask_over(&self, binding: &str, list: &str, question: &str) -> Result<Option<Answers>> {
        let connection = self.reader.connection;
        let mut pipeline = redis::pipe();
        pipeline.cmd("SADD").arg(self.binding()).arg(binding);
        pipeline.cmd("PUBLISH").arg(self.channel()).arg(question);
        let done: Vec<Option<u64>> = connection.query_each("PUBLISH", &pipeline, 2).await?;
        let [Some(_), Some(listeners)] = done[..] else { return Ok(None) };
        let clock = self.reader.clock;
        let until = clock.mono() + WAIT;
        while clock.mono() < until
            && self.reader.one::<u64>("LLEN", &[list.as_bytes()]).await? < listeners
        {
            clock.sleep(POLL).await;
        }
        let replies: Vec<Vec<u8>> =
            self.reader.one("LRANGE", &[list.as_bytes(), b"0", b"-1"]).await?;
        let from = replies.iter().filter_map(|reply| answer_in(reply)).flatten().collect();
        Ok(Some(Answers { listeners, from }))
    }

    /// Removes reply bindings and lists that a process of lapsed left behind when it died.
    pub async fn tidy(&self, act: PassMode) -> Result<()> {
        let binding = self.binding();
        if act != PassMode::Reclaim || self.reader.kind(binding.as_bytes()).await? != "set" {
            return Ok(());
        }
        let now_ms = self.reader.now_ms().await?;
        for member in self.reader.set(binding.as_bytes()).await? {
            let Ok(text) = std::str::from_utf8(&member) else { continue };
            let Some((own, _)) = text.split_once(SEPARATOR) else { continue };
            let at_ms = own.strip_prefix("lapsed-").and_then(|rest| rest.split('-').next());
            let at_ms: Option<u64> = at_ms.and_then(|at| at.parse().ok());
            if at_ms.is_some_and(|at_ms| at_ms + ABANDONED_MS < now_ms) {
                let list = format!("{}{own}.{REPLY_EXCHANGE}", self.prefix);
                self.remove(text, &list).await?;
            }
        }
        Ok(())
    }
}

/// The question as kombu's `pidbox` writes it, but for the body, which needs no base64.
fn question(method: &str, arguments: serde_json::Value, own: &str, now_ms: u64) -> String {
    let body = json!({
        "method": method, "arguments": arguments, "destination": null, "pattern": null, "matcher": null,
        "ticket": own, "reply_to": { "exchange": REPLY_EXCHANGE, "routing_key": own },
    });
    let message = json!({
        "body": body.to_string(), "content-encoding": "utf-8", "content-type": "application/json",
        "headers": { "clock": 1, "expires": now_ms / 1_000 + WAIT.as_secs() + 1 },
        "properties": {
            "delivery_mode": 2, "delivery_info": { "exchange": "celery.pidbox", "routing_key": "" },
            "priority": 0, "delivery_tag": own,
        },
    });
    message.to_string()
}

/// The text in the body of a message.
fn body_of(message: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(message).ok()?;
    let part = |object, name| json::member(text, object, name);
    let body = json::string(text, part(json::whole(text), "body")?)?;
    let encoding = part(json::whole(text), "properties")
        .and_then(|properties| json::string(text, part(properties, "body_encoding")?));
    match encoding.as_deref() {
        Some("base64") => String::from_utf8(STANDARD.decode(body).ok()?).ok(),
        _ => Some(body),
    }
}

/// The node that answered, and the text of its answer. An error is no answer.
fn answer_in(reply: &[u8]) -> Option<Vec<(String, String)>> {
    let body = body_of(reply)?;
    let nodes = json::members(&body, json::whole(&body))?;
    let is_error = |value: &std::ops::Range<usize>| {
        let error = json::member(&body, value.clone(), "error");
        error.is_some_and(|error| body[error].starts_with('"'))
    };
    let nodes: Vec<_> = nodes.into_iter().filter(|(_, value)| !is_error(value)).collect();
    Some(nodes.into_iter().map(|(node, value)| (node, body[value].to_owned())).collect())
}

/// The ids in an answer to `query_task`.
fn claimed_ids(text: &str) -> Option<Vec<String>> {
    let members = json::members(text, json::whole(text))?;
    Some(members.into_iter().map(|(id, _)| id).collect())
}

/// The ids in an answer to `scheduled`.
fn scheduled_ids(text: &str) -> Option<Vec<String>> {
    let waiting = json::elements(text, json::whole(text))?;
    let id = |one| {
        let request = json::member(text, one, "request")?;
        json::string(text, json::member(text, request, "id")?)
    };
    waiting.into_iter().map(id).collect()
}

/// The node that a heartbeat is of.
fn heartbeat_of(payload: &[u8]) -> Option<String> {
    let body = body_of(payload)?;
    json::string(&body, json::member(&body, json::whole(&body), "hostname")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_whatever_python_puts_into_them() {
        let body = r#"{"w1@vm": {"j2": ["active", {"args": [NaN, 1e400]}], "j3": ["ready", {}]}}"#;
        let reply = format!(
            r#"{{"body": "{}", "headers": {{}}, "properties": {{"body_encoding": "base64"}}}}"#,
            STANDARD.encode(body)
        );
        let answers = answer_in(reply.as_bytes()).unwrap();
        assert_eq!(answers[0].0, "w1@vm");
        assert_eq!(claimed_ids(&answers[0].1).unwrap(), ["j2", "j3"]);
        let failed = r#"{"body": "{\"w1\": {\"error\": \"KeyError()\"}}", "properties": {}}"#;
        assert!(answer_in(failed.as_bytes()).unwrap().is_empty());
        let waiting = r#"[{"eta": "2026", "priority": 6, "request": {"id": "e1", "x": NaN}}]"#;
        assert_eq!(scheduled_ids(waiting).unwrap(), ["e1"]);
        assert_eq!(scheduled_ids("[{}]"), None);
    }
}
