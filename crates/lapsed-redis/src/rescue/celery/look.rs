//! One look: who answers, which messages nobody claims, and which of them are orphans.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use lapsed_core::sweep::PassMode;
use lapsed_core::{Name, Result};

use super::delivered::{Delivered, DeliveredPage, Places};
use super::history::{History, HistoryKeys, Unclaimed, Verdict, Witnessed};
use super::inspect::{Heard, RemoteControl, Round};
use super::message::{Message, SEPARATOR, list_of, queues_for, redelivered};
use super::{BINDING, PIDBOX, unknown_layout};
use crate::rescue::profile::{HeldJob, LookRequest, Seen, SeenWorker};
use crate::rescue::reader::Reader;

/// The score of a claimed message is renewed when it is this old. kombu looks for old ones every 10 s at most.
const RENEW_AFTER_S: f64 = 10.0;

/// How many scores are renewed by one command.
const RENEW_BATCH: usize = 500;

/// How much of orphaned messages one look reads at most; once they are back, the next look reads others.
const BYTES_MAX: usize = 32 << 20;

/// How many messages are looked at, to find out whether there are tasks of Celery among them.
const SAMPLE: usize = 500;

/// How many messages are read by one request.
const VALUES_BATCH: usize = 200;

/// The owner of orphans of which nobody knows whose they were.
const NOBODY: &str = "a worker that is gone";

const EARLY: &str = "a worker acknowledges tasks before it runs them (`task_acks_late` is off): a running task is lost with its worker, and nothing can rescue it. Set `task_acks_late = True` and `task_reject_on_worker_lost = True`";

/// A message that is put back, if nothing has changed.
struct Orphan<'a> {
    delivered: &'a Delivered,
    owner: String,
    /// When its worker was last known to live; 0: that is not known.
    alive_ms: u64,
    /// Since when it may be put back.
    from_ms: u64,
}

pub(super) struct Look<'a> {
    pub reader: &'a Reader<'a>,
    pub request: LookRequest<'a>,
    /// The prefix of the application's keys and channels, `global_keyprefix`.
    pub prefix: &'a str,
    /// The application's `priority_steps`, lowest first.
    pub steps: &'a [u8],
    pub places: &'a Places,
}

impl Look<'_> {
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Whether these are keys of Celery: its remote control is bound, or a task was delivered.
    pub async fn is_celery(&self) -> Result<bool> {
        if self.reader.kind(self.key(PIDBOX).as_bytes()).await? == "set" {
            for (name, wanted) in [("unacked", "hash"), ("unacked_index", "zset")] {
                let kind = self.reader.kind(self.key(name).as_bytes()).await?;
                if kind != "none" && kind != wanted {
                    return Err(unknown_layout(self.reader, &self.key(name), &kind));
                }
            }
            return Ok(true);
        }
        let unacked = self.key("unacked");
        let mut is_celery = false;
        if self.reader.kind(unacked.as_bytes()).await? == "hash" {
            // Programs that use kombu for other things have no tasks at all, or at most one Celery beside them.
            let (_, page) = self.reader.page("HSCAN", &[unacked.as_bytes()], "0", SAMPLE).await?;
            let values = page.chunks_exact(2).filter_map(|pair| std::str::from_utf8(&pair[1]).ok());
            is_celery = values.into_iter().any(|value| Message::read(value).is_some());
        }
        Ok(is_celery)
    }

    pub async fn run(&self, seen: &mut Seen) -> Result<()> {
        let control = RemoteControl::new(self.reader, self.prefix);
        control.tidy(self.request.act).await?;
        let DeliveredPage { messages: delivered, is_all } = self.delivered(seen).await?;
        let bound = self.bound().await?;
        if bound.is_empty() {
            if !delivered.is_empty() {
                seen.notes.push("no worker has its remote control on (`worker_enable_remote_control`), so nothing can be known of who holds these messages; they are left to `visibility_timeout`".to_owned());
            }
            return Ok(());
        }
        let now_ms = self.reader.now_ms().await?;
        let first = self.round(&control, &delivered.iter().collect::<Vec<_>>()).await?;
        self.add_living(&delivered, &first, now_ms, seen);
        let witnessed = Witnessed {
            now_ms,
            limit: self.request.limit,
            answering: &first.nodes,
            bound: &bound,
            heard: None,
            waits: self.request.act == PassMode::Reclaim,
        };
        let history = self.remember(&delivered, is_all, &first, &witnessed).await?;
        if self.request.own.is_none() && control.acknowledges_early().await? {
            seen.notes.push(EARLY.to_owned());
        }
        let is_free = |one: &&Delivered| !first.claims.contains_key(&one.message.id);
        let free: Vec<&Delivered> = delivered.iter().filter(is_free).collect();
        if !self.is_known(&control, &first, &history, seen).await? || free.is_empty() {
            return Ok(());
        }
        self.second_round(&control, free, &history, witnessed, seen).await
    }

    /// What earlier looks and this one know of the workers. A look that acts writes it down, and renews what is claimed.
    async fn remember(
        &self,
        delivered: &[Delivered],
        is_all: bool,
        round: &Round,
        witnessed: &Witnessed<'_>,
    ) -> Result<History> {
        let keys = self.request.own.map(|own| HistoryKeys::new(own, self.prefix));
        let tags: Vec<&str> = delivered.iter().map(|one| one.tag.as_str()).collect();
        let only = (!is_all).then_some(tags.as_slice());
        let mut history = History::load(self.reader, keys.as_ref(), only).await?;
        history.note_nodes(witnessed, round.is_complete());
        let claimed: Vec<(&Delivered, Option<&str>)> = delivered
            .iter()
            .map(|one| (one, round.claims.get(&one.message.id).map(String::as_str)))
            .collect();
        let claims = claimed.iter().map(|(one, node)| (one.tag.as_str(), *node));
        history.note_claims(witnessed.now_ms, claims);
        if let (PassMode::Reclaim, Some(keys)) = (self.request.act, &keys) {
            history.save(self.reader, keys).await?;
            self.renew(&claimed, witnessed.now_ms).await?;
        }
        Ok(history)
    }

    /// Listens for heartbeats, asks again, and judges what is still not claimed.
    async fn second_round(
        &self,
        control: &RemoteControl<'_>,
        mut free: Vec<&Delivered>,
        history: &History,
        witnessed: Witnessed<'_>,
        seen: &mut Seen,
    ) -> Result<()> {
        let heard = control.hear().await;
        let is_ours = |node: &String| witnessed.bound.contains(node);
        let is_heard =
            |heard: &Heard| !heard.here.is_empty() || heard.elsewhere.iter().any(is_ours);
        if witnessed.answering.is_empty() && heard.as_ref().is_some_and(is_heard) {
            seen.notes.push(format!("nobody answers on `{}`, but workers send heartbeats: nothing is decided. Is `fanout_prefix` set?", control.channel()));
            return Ok(());
        }
        let second = self.round(control, &free).await?;
        let limited = control.rate_limited().await?;
        let (true, Some(limited)) = (second.is_complete(), limited) else {
            seen.notes.push(too_few(&second));
            return Ok(());
        };
        let answering = witnessed.answering.union(&second.nodes).cloned().collect();
        let witnessed = Witnessed { answering: &answering, heard: heard.as_ref(), ..witnessed };
        free.retain(|one| !second.claims.contains_key(&one.message.id));
        self.judge(&free, history, &witnessed, &limited, seen).await
    }

    /// The nodes whose remote control is bound. A killed one stays.
    async fn bound(&self) -> Result<BTreeSet<String>> {
        let key = self.key(PIDBOX);
        if self.reader.kind(key.as_bytes()).await? != "set" {
            return Ok(BTreeSet::new());
        }
        let members = self.reader.set(key.as_bytes()).await?;
        let node = |member: Vec<u8>| {
            let member = String::from_utf8(member).ok()?;
            let queue = member.rsplit(SEPARATOR).next()?;
            Some(queue.strip_suffix(".celery.pidbox")?.to_owned())
        };
        Ok(members.into_iter().filter_map(node).collect())
    }

    /// Asks who claims these messages.
    async fn round(&self, control: &RemoteControl<'_>, of: &[&Delivered]) -> Result<Round> {
        let ids: BTreeSet<&str> = of.iter().map(|one| one.message.id.as_str()).collect();
        let mut round = control.claims(&ids.into_iter().collect::<Vec<_>>()).await?;
        let is_open =
            |one: &&Delivered| one.message.has_eta && !round.claims.contains_key(&one.message.id);
        if of.iter().any(is_open) {
            control.add_scheduled(&mut round).await?;
        }
        Ok(round)
    }

    fn add_living(&self, delivered: &[Delivered], round: &Round, now_ms: u64, seen: &mut Seen) {
        for node in &round.nodes {
            let of_node = |one: &&Delivered| round.claims.get(&one.message.id) == Some(node);
            let held = delivered.iter().filter(of_node).count() as u64;
            let due_ms = now_ms + self.request.limit.as_millis() as u64;
            let worker = SeenWorker { due_ms, held, ..SeenWorker::default() };
            seen.workers.extend(Name::new(node).ok().map(|name| (name, worker)));
        }
    }

    /// Whether the first round says anything about what nobody claims.
    async fn is_known(
        &self,
        control: &RemoteControl<'_>,
        round: &Round,
        history: &History,
        seen: &mut Seen,
    ) -> Result<bool> {
        if !round.is_complete() {
            seen.notes.push(too_few(round));
            return Ok(false);
        }
        if round.listeners > 0 || history.has_answers() {
            return Ok(true);
        }
        // Nobody was ever heard here. Those that subscribe to something may be workers with another prefix.
        let patterns: Option<u64> = self.reader.one("PUBSUB", &[b"NUMPAT"]).await.ok();
        if patterns != Some(0) {
            seen.notes.push(format!("nobody listens on `{}` and no worker ever answered lapsed, but the server has other subscribers: nothing is decided until a worker answers. Is `fanout_prefix` set?", control.channel()));
        }
        Ok(patterns == Some(0))
    }

    /// Puts off Celery's own recovery of what living workers hold. Never sets a score back, and never adds one.
    async fn renew(&self, claimed: &[(&Delivered, Option<&str>)], now_ms: u64) -> Result<()> {
        let now_s = now_ms as f64 / 1_000.0;
        let is_old = |one: &Delivered| one.score.is_some_and(|score| score + RENEW_AFTER_S < now_s);
        let old: Vec<&Delivered> = claimed
            .iter()
            .filter(|(one, node)| node.is_some() && is_old(one))
            .map(|(one, _)| *one)
            .collect();
        for some in old.chunks(RENEW_BATCH) {
            let mut cmd = redis::cmd("ZADD");
            cmd.arg(self.key("unacked_index")).arg("XX").arg("GT");
            for one in some {
                cmd.arg(now_s).arg(&one.tag);
            }
            let _: u64 = self.reader.connection.query("ZADD", &cmd).await?;
        }
        Ok(())
    }

    async fn judge(
        &self,
        free: &[&Delivered],
        history: &History,
        witnessed: &Witnessed<'_>,
        limited: &BTreeSet<String>,
        seen: &mut Seen,
    ) -> Result<()> {
        let mut left: BTreeMap<&'static str, u64> = BTreeMap::new();
        let mut orphans: Vec<Orphan<'_>> = Vec::new();
        for delivered in free.iter().copied() {
            let delivered_ms = delivered.at_ms();
            let is_rate_limited = limited.contains(&delivered.message.task);
            let unclaimed = Unclaimed { tag: &delivered.tag, delivered_ms, is_rate_limited };
            let (owner, alive_ms, from_ms) = match history.judge(&unclaimed, witnessed) {
                Verdict::Orphan(Some(node), from_ms) => {
                    let alive_ms = history.answered_ms(&node).max(delivered_ms);
                    (node, alive_ms, from_ms)
                }
                Verdict::Orphan(None, from_ms) => (NOBODY.to_owned(), delivered_ms, from_ms),
                Verdict::OrphanOfEarlier(node) => {
                    (format!("{node} (before its restart)"), delivered_ms, 0)
                }
                other => {
                    *left.entry(why(&other)).or_default() += 1;
                    continue;
                }
            };
            orphans.push(Orphan { delivered, owner, alive_ms, from_ms });
        }
        for (why, count) in left {
            seen.notes
                .push(format!("{count} messages that no worker claims are left alone: {why}"));
        }
        self.add_orphans(orphans, witnessed.now_ms, seen).await
    }

    async fn add_orphans(
        &self,
        orphans: Vec<Orphan<'_>>,
        now_ms: u64,
        seen: &mut Seen,
    ) -> Result<()> {
        let unacked = self.key("unacked").into_bytes();
        let (mut bytes, mut ids) = (0, HashSet::new());
        let mut routes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut unrouted: BTreeSet<(&str, &str)> = BTreeSet::new();
        for some in orphans.chunks(VALUES_BATCH) {
            let asked: Vec<Vec<Vec<u8>>> = some
                .iter()
                .map(|one| vec![unacked.clone(), one.delivered.tag.clone().into_bytes()])
                .collect();
            let values: Vec<Option<Option<String>>> = self.reader.each("HGET", &asked).await?;
            for (orphan, value) in some.iter().zip(values) {
                let message = &orphan.delivered.message;
                let Some(value) = value.flatten() else { continue };
                let Some(queue) = self.queue_of(message, &mut routes).await? else {
                    unrouted.insert((&message.exchange, &message.routing_key));
                    continue;
                };
                bytes += value.len();
                // Of two deliveries of one task, one is put back now.
                if ids.insert(&message.id) {
                    self.add_orphan(orphan, value, queue, now_ms, seen);
                }
            }
            if bytes > BYTES_MAX {
                break;
            }
        }
        seen.notes.extend(unrouted.into_iter().map(|(exchange, key)| {
            format!("exchange `{exchange}` has no queue, or several, for the routing key `{key}`: such tasks stay in `unacked`")
        }));
        Ok(())
    }

    fn add_orphan(
        &self,
        orphan: &Orphan<'_>,
        value: String,
        queue: Name,
        now_ms: u64,
        seen: &mut Seen,
    ) {
        let Delivered { tag, score, message } = orphan.delivered;
        let (Ok(key), Ok(owner)) = (Name::new(&message.id), Name::new(&orphan.owner)) else {
            seen.notes.push(format!("the task id {:?} cannot be a name", message.id));
            return;
        };
        let Some(again) = redelivered(&value, &self.new_tag()) else { return };
        // A message without a score says nothing about its age.
        let alive_ms = if orphan.alive_ms == 0 { now_ms } else { orphan.alive_ms };
        let due_ms = (alive_ms + self.request.limit.as_millis() as u64).min(now_ms);
        let worker = seen.workers.entry(owner.clone()).or_default();
        (worker.is_silent, worker.due_ms) = (true, worker.due_ms.max(due_ms));
        worker.held += 1;
        let dead_letters = self.request.own.map_or(String::new(), |own| own.key("dead_letters"));
        let list = self.key(&list_of(queue.as_str(), message.priority, self.steps));
        let score = score.map_or(String::new(), |score| score.to_string());
        let (due, from) = (due_ms.to_string(), orphan.from_ms.to_string());
        seen.jobs.push(HeldJob {
            key,
            worker: owner,
            queue,
            keys: vec![self.key("unacked"), self.key("unacked_index"), list, dead_letters],
            words: vec![tag.clone(), value, score, again, due, from],
        });
    }

    /// The queue that a message came from; `None` if its exchange does not tell.
    async fn queue_of(
        &self,
        message: &Message,
        routes: &mut BTreeMap<String, Vec<String>>,
    ) -> Result<Option<Name>> {
        if message.exchange.is_empty() {
            return Ok(Name::new(&message.routing_key).ok());
        }
        if !routes.contains_key(&message.exchange) {
            let key = self.key(&format!("{BINDING}{}", message.exchange));
            let members = match self.reader.kind(key.as_bytes()).await?.as_str() {
                "set" => self.reader.set(key.as_bytes()).await?,
                _ => Vec::new(),
            };
            let members = members.into_iter().filter_map(|one| String::from_utf8(one).ok());
            routes.insert(message.exchange.clone(), members.collect());
        }
        let queues = queues_for(&routes[&message.exchange], &message.routing_key);
        Ok(match (queues.len(), queues.first()) {
            (1, Some(queue)) => Name::new(queue).ok(),
            _ => None,
        })
    }

    /// A delivery tag as kombu makes them, a random UUID.
    fn new_tag(&self) -> String {
        let (a, b) = (self.reader.clock.random(), self.reader.clock.random());
        let (high, low) = (a >> 32, a & 0xffff_ffff);
        let (variant, node) = (0x8000 | (b >> 48 & 0x3fff), b & 0xffff_ffff_ffff);
        format!("{high:08x}-{:04x}-4{:03x}-{variant:04x}-{node:012x}", low >> 16, low & 0xfff)
    }
}

fn too_few(round: &Round) -> String {
    if round.is_refused {
        return "this user may not ask the workers (SADD on `_kombu.binding.reply.celery.pidbox`, PUBLISH), so nothing is decided".to_owned();
    }
    format!(
        "{} of {} listeners answered the remote control: one is busy (`solo` pool), frozen or only listens, so nothing is decided",
        round.answers, round.listeners
    )
}

fn why(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Stopping => {
            "their worker was told to stop and may still work on them; if it was killed meanwhile, Celery delivers them again after `visibility_timeout`"
        }
        Verdict::RateLimited => {
            "a living worker may hold them back because of the rate limit of the task"
        }
        Verdict::HeardOnly => "a worker that does not answer sends heartbeats",
        Verdict::NotListened => {
            "this user may not listen for heartbeats (PSUBSCRIBE), and no worker was seen with them"
        }
        _ => "no worker was seen with them; lapsed watches the workers for a while first",
    }
}
