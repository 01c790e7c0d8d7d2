//! One system on a server or cluster: its shards, its keys, and when the server was last known to answer.
//!
//! Whether the server was unreachable is judged from both sides. Every script that declares an owner dead checks
//! the server's own run (`run_id`, uptime, role). What the server cannot know (that it stood still, or could not
//! be reached) this process knows: every request that may declare an owner dead says when the server was last
//! known to answer, and the script refuses it if that was longer ago than the gap. So a request that was under
//! way while the server stood still is refused, in whatever order the server resumes its work.
//!
//! For everybody else an absence counts only if this process waited for the server without standing still itself, and
//! nobody else reached the server meanwhile. Each probe notes on the server that somebody did.
//!
//! A server's clock that went further than this process's monotonic clock was set forward, perhaps because the machine
//! was suspended: deadlines passed in a time that no owner could use. It looks the same if only this process's machine was
//! suspended. What others noted tells the two apart: if the clock was set, the first probe after that finds that nobody had
//! reached the server for as long.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures::future::try_join_all;
use lapsed_core::clock::Clock;
use lapsed_core::request::{self, RequestId};
use lapsed_core::sweep::PassMode;
use lapsed_core::{Error, Name, Result, SystemId};
use redis::FromRedisValue;

use crate::connection::RedisConnection;
use crate::names::{Prefix, shard_of};
use crate::own_stalls::measured;
use crate::script::{self, Script};

/// Bounds of the silence between two answers that does not yet count as an absence of the server.
const GAP_MIN: Duration = Duration::from_millis(250);
const GAP_MAX: Duration = Duration::from_secs(5);

/// How many keys every script of a system shares; see `base` in `prelude.lua`.
pub(crate) const BASE: [&str; 11] = [
    "meta",
    "lives",
    "names",
    "due",
    "ended",
    "deaths",
    "past",
    "counts",
    "receipts",
    "batches",
    "batches_at",
];

/// Keys and arguments of one script call, besides the base keys.
#[derive(Default)]
pub(crate) struct Args {
    pub keys: Vec<String>,
    pub args: Vec<Vec<u8>>,
}

impl Args {
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.keys.push(key.into());
        self
    }

    pub fn arg(mut self, arg: impl ToString) -> Self {
        self.args.push(arg.to_string().into_bytes());
        self
    }

    pub fn bytes(mut self, arg: &[u8]) -> Self {
        self.args.push(arg.to_vec());
        self
    }

    pub fn names(mut self, names: &[Name]) -> Self {
        self.args.extend(names.iter().map(|name| name.as_str().as_bytes().to_vec()));
        self
    }
}

/// One shard: a set of keys that lie in one slot.
pub(crate) struct Shard {
    pub index: usize,
    /// The application's key whose slot all keys of this shard share.
    pub anchor: String,
    pub prefix: Prefix,
    base: Vec<String>,
    presence: ServerPresence,
}

/// When the server of one shard last answered, and whether an absence is still to be recorded.
#[derive(Default)]
struct ServerPresence {
    /// The server's clock at its last timely answer.
    seen_ms: AtomicU64,
    /// This process's monotonic clock when that answer was requested.
    seen_at: Mutex<Duration>,
    /// When the first of the probes was sent that were not answered in time, if `record_absence` has not run since.
    away_since: Mutex<Option<Duration>>,
    /// The time of return that the server has recorded lies in the future, and must be recorded again.
    is_record_wrong: AtomicBool,
    /// `record_run` has run: the server remembers its `run_id`.
    run_recorded: AtomicBool,
}

impl ServerPresence {
    /// A failure shorter than this is no absence, and other processes may not have probed the server
    /// meanwhile.
    fn forget_if_shorter(&self, now: Duration, least: Duration) {
        let mut away_since = self.away_since.lock().expect(LOCK);
        *away_since = away_since.filter(|since| now - *since >= least);
    }

    /// How far the server's clock went since its last timely answer, in milliseconds, if that is more by at least `gap` than
    /// the monotonic clock allows. The last answer was read no earlier than it was requested, and this one no later than at
    /// `received`, so that a process that stood still in between finds no jump.
    fn jump_ms(&self, now_ms: u64, received: Duration, gap: Duration) -> Option<u64> {
        let seen_at = *self.seen_at.lock().expect(LOCK);
        let seen_ms = Some(self.seen_ms.load(Ordering::Acquire)).filter(|seen_ms| *seen_ms > 0)?;
        let went_ms = now_ms.saturating_sub(seen_ms);
        let passed_ms = received.saturating_sub(seen_at).as_millis() as u64;
        (went_ms > passed_ms + gap.as_millis() as u64).then_some(went_ms)
    }

    /// Whether there is something to record.
    fn is_unsettled(&self) -> bool {
        self.away_since.lock().expect(LOCK).is_some()
            || self.is_record_wrong.load(Ordering::Acquire)
    }
}

/// The answer of a script that is carried out once for a request.
struct Step<T> {
    /// Whether a repetition gets this answer.
    is_kept: bool,
    answer: T,
}

/// One system on one server or cluster.
pub(crate) struct SystemContext {
    pub id: SystemId,
    pub connection: RedisConnection,
    pub clock: Arc<dyn Clock>,
    pub threshold: Duration,
    pub shards: Vec<Shard>,
}

impl SystemContext {
    /// `anchors`: the application's key of each shard. Spawns the task that probes the server.
    pub fn new(
        connection: RedisConnection,
        clock: Arc<dyn Clock>,
        id: SystemId,
        threshold: Duration,
        anchors: Vec<String>,
    ) -> Arc<SystemContext> {
        let shards = anchors.into_iter().enumerate().map(|(index, anchor)| {
            let prefix = Prefix::beside(&anchor, &id);
            let base = BASE.iter().map(|what| prefix.key(what)).collect();
            Shard { index, anchor, prefix, base, presence: ServerPresence::default() }
        });
        let shards = shards.collect();
        let context = Arc::new(SystemContext { id, connection, clock, threshold, shards });
        tokio::spawn(probe_while_used(Arc::downgrade(&context)));
        context
    }

    pub fn place(&self) -> String {
        self.connection.place.to_string()
    }

    pub fn threshold_ms(&self) -> u64 {
        self.threshold.as_millis() as u64
    }

    /// How long the server may be silent before that counts as an absence.
    pub fn gap(&self) -> Duration {
        (self.threshold / 2).clamp(GAP_MIN, GAP_MAX)
    }

    /// How long after one probe the next is sent.
    fn pause(&self) -> Duration {
        (self.gap() / 2).min(Duration::from_secs(1))
    }

    pub fn shard(&self, key: &str) -> &Shard {
        &self.shards[shard_of(key, self.shards.len())]
    }

    /// Groups keys by shard: for each shard the indexes of its keys in `keys`. Shards without keys are left out.
    pub fn group_by_shard(&self, keys: &[Name]) -> Vec<(&Shard, Vec<usize>)> {
        let mut dealt: Vec<(&Shard, Vec<usize>)> =
            self.shards.iter().map(|shard| (shard, Vec::new())).collect();
        for (index, key) in keys.iter().enumerate() {
            dealt[shard_of(key.as_str(), self.shards.len())].1.push(index);
        }
        dealt.retain(|(_, places)| !places.is_empty());
        dealt
    }

    /// Runs a script on one shard, with the base keys in front.
    pub async fn run<T: FromRedisValue>(
        &self,
        shard: &Shard,
        script: &Script,
        args: Args,
    ) -> Result<T> {
        let keys: Vec<&str> = shard.base.iter().chain(&args.keys).map(String::as_str).collect();
        let args: Vec<&[u8]> = args.args.iter().map(Vec::as_slice).collect();
        self.connection.run(script, &keys, &args).await
    }

    /// Runs a script without the base keys, which saves the server time in frequent calls. What changes
    /// something for a caller goes through [`change`](Self::change).
    pub async fn run_with_keys<T: FromRedisValue>(&self, script: &Script, args: Args) -> Result<T> {
        let keys: Vec<&str> = args.keys.iter().map(String::as_str).collect();
        let args: Vec<&[u8]> = args.args.iter().map(Vec::as_slice).collect();
        self.connection.run(script, &keys, &args).await
    }

    /// Runs a script that is carried out once for a request, without the base keys.
    pub async fn run_once<T: FromRedisValue>(
        &self,
        shard: &Shard,
        script: &Script,
        request: &RequestId,
        args: Args,
    ) -> Result<T> {
        Ok(self.run_step(shard, script, request, args).await?.answer)
    }

    /// Runs a script that changes something for a caller, without the base keys. If the caller has a key for its
    /// request, the script is carried out once for it. The calls of one script on one shard must follow each
    /// other: only their order tells the steps of a request apart.
    pub async fn change<T: FromRedisValue>(
        &self,
        shard: &Shard,
        script: &Script,
        args: Args,
    ) -> Result<T> {
        let (Some(current), Some(once)) = (request::current(&self.id), script::once_of(script))
        else {
            return self.run_with_keys(script, args).await;
        };
        let kind = format!("{}/{}", script.name, shard.index);
        let done = self.run_step(shard, once, &current.step(&kind)?, args).await?;
        if done.is_kept {
            current.step_is_done(&kind);
        }
        Ok(done.answer)
    }

    async fn run_step<T: FromRedisValue>(
        &self,
        shard: &Shard,
        script: &Script,
        request: &RequestId,
        args: Args,
    ) -> Result<Step<T>> {
        let args = args.key(shard.prefix.key("requests")).key(shard.prefix.key("requests_at"));
        let args = args.arg(&request.key).arg(&request.fingerprint);
        let words: Vec<redis::Value> = self.run_with_keys(script, args).await?;
        let is = |word: &redis::Value, text: &[u8]| matches!(word, redis::Value::BulkString(bytes) if bytes == text);
        match &words[..] {
            [word] if is(word, b"reused") => Err(request.reused()),
            [kept, answer] => {
                let answer = T::from_redis_value(answer.clone())
                    .map_err(|_| self.unexpected_answer(script))?;
                Ok(Step { is_kept: is(kept, b"1"), answer })
            }
            _ => Err(self.unexpected_answer(script)),
        }
    }

    /// The base keys in front of those of a call.
    pub fn with_base(&self, shard: &Shard, mut args: Args) -> Args {
        args.keys.splice(0..0, shard.base.iter().cloned());
        args
    }

    /// Runs a script on every shard concurrently; the answers are in the order of the shards.
    pub async fn run_all<T: FromRedisValue>(
        &self,
        script: &Script,
        args: impl Fn(&Shard) -> Args,
    ) -> Result<Vec<T>> {
        try_join_all(self.shards.iter().map(|shard| self.run(shard, script, args(shard)))).await
    }

    /// The server's clock when it was last known to answer in time, after every absence is recorded. A dry run
    /// writes nothing, so it does not probe; 0: not known.
    pub async fn last_seen_for(&self, shard: &Shard, act: PassMode) -> Result<u64> {
        match act.reclaims() {
            true => self.seen_ms(shard).await,
            false if !shard.presence.run_recorded.load(Ordering::Acquire) => Ok(0),
            false => Ok(shard.presence.seen_ms.load(Ordering::Acquire)),
        }
    }

    /// The server's clock at its last answer, for calls that change something. Probes a server whose last answer is not recent.
    pub async fn seen_ms(&self, shard: &Shard) -> Result<u64> {
        if !shard.presence.run_recorded.load(Ordering::Acquire) {
            let _: u64 = self.run(shard, &script::RECORD_RUN, Args::default()).await?;
            shard.presence.run_recorded.store(true, Ordering::Release);
        }
        let seen_at = *shard.presence.seen_at.lock().expect(LOCK);
        let is_fresh = shard.presence.seen_ms.load(Ordering::Acquire) > 0
            && self.clock.mono().saturating_sub(seen_at) < self.gap() / 2;
        if !is_fresh || shard.presence.is_unsettled() {
            self.probe(shard).await?;
        }
        Ok(shard.presence.seen_ms.load(Ordering::Acquire))
    }

    /// An upper bound of the server's clock now, if one is known: the clock at the last answer, plus the time since
    /// that request was sent.
    pub fn server_time_at_most(&self, shard: &Shard) -> Option<u64> {
        let (seen_ms, seen_at) = {
            let seen_at = shard.presence.seen_at.lock().expect(LOCK);
            (shard.presence.seen_ms.load(Ordering::Acquire), *seen_at)
        };
        let passed = self.clock.mono().saturating_sub(seen_at);
        (seen_ms > 0).then(|| seen_ms + passed.as_millis() as u64)
    }

    /// Takes the recorded time of the server's return. If it lies in the future, the server's clock was set back
    /// since. The time of the absence is then lost: it ends now, because otherwise the brake would hold until
    /// the clock reaches that time again.
    pub fn check_return_time(&self, shard: &Shard, back_ms: u64, now_ms: u64) {
        if back_ms > now_ms {
            shard.presence.is_record_wrong.store(true, Ordering::Release);
        }
    }

    /// Probes whether the server accepts heartbeats and answers in time. When it does again, the absence is recorded,
    /// unless this process itself stood still, or others reached the server meanwhile.
    async fn probe(&self, shard: &Shard) -> Result<()> {
        let (sent, gap) = (self.clock.mono(), self.gap());
        let args = ["due", "lives", "names", "nothing", "meta"].iter();
        let args = args.fold(Args::default(), |args, what| args.key(shard.prefix.key(what)));
        // A process that could not reach the server cannot report that others could.
        let notes =
            shard.presence.run_recorded.load(Ordering::Acquire) && !shard.presence.is_unsettled();
        let interval = (self.pause() / 2).as_millis().to_string();
        let args = args.arg(gap.as_millis()).arg(if notes { interval } else { String::new() });
        let probe = self.run_with_keys(&script::PROBE, args);
        let (answer, stood_still) = measured::<Result<u64>>(&*self.clock, gap / 8, probe).await;
        let waited = (self.clock.mono() - sent).saturating_sub(stood_still);
        // An error after this process stood still may come from its own time limit.
        let failed = answer.is_err() && stood_still < gap / 4;
        if failed || waited > gap {
            shard.presence.away_since.lock().expect(LOCK).get_or_insert(sent);
        }
        let mut now_ms = answer?;
        let received = self.clock.mono();
        shard.presence.forget_if_shorter(received, gap / 2);
        let jump_ms = shard.presence.jump_ms(now_ms, received, gap);
        if shard.presence.is_unsettled() || jump_ms.is_some() {
            now_ms = self.record_absence(shard, jump_ms).await?;
        }
        // Both change under one lock, because `server_time_at_most` combines them.
        let mut seen_at = shard.presence.seen_at.lock().expect(LOCK);
        *seen_at = sent;
        shard.presence.seen_ms.store(now_ms, Ordering::Release);
        Ok(())
    }

    /// Tells the server that it was absent. `jump_ms`: how far its clock went, if it was set forward. Until the server has
    /// answered, its last timely answer stays what it was, so that the next probe finds the same. Returns the server's clock.
    async fn record_absence(&self, shard: &Shard, jump_ms: Option<u64>) -> Result<u64> {
        let since = *shard.presence.away_since.lock().expect(LOCK);
        let is_wrong = shard.presence.is_record_wrong.load(Ordering::Acquire);
        let waited = since.map_or(Duration::ZERO, |since| self.clock.mono() - since);
        let waited_ms = jump_ms.unwrap_or(0).max(waited.as_millis() as u64);
        let waited = if is_wrong { String::new() } else { waited_ms.to_string() };
        let args = Args::default().arg(waited);
        let (now_ms, recorded): (u64, u64) = self.run(shard, &script::RECORD_ABSENCE, args).await?;
        *shard.presence.away_since.lock().expect(LOCK) = None;
        shard.presence.is_record_wrong.store(false, Ordering::Release);
        match (recorded, jump_ms) {
            (0, _) => tracing::warn!(system = %self.id, store = %self.connection.place,
                "this process could not reach the server for a while, but others could; nobody has to wait for it"),
            (_, Some(jump_ms)) => {
                tracing::warn!(system = %self.id, store = %self.connection.place, jump_ms,
                "the clock of the server was set forward; every owner gets a whole threshold from now on")
            }
            (_, None) => tracing::warn!(system = %self.id, store = %self.connection.place,
                "the server was unreachable; every owner gets a whole threshold from now on"),
        }
        Ok(now_ms)
    }

    /// The error for an answer of another shape than the script promises.
    pub fn unexpected_answer(&self, script: &Script) -> Error {
        self.connection.unexpected_answer(script.name)
    }
}

const LOCK: &str = "no holder of this lock panics";

/// Probes every shard about twice per gap, until the system's last handle is dropped.
async fn probe_while_used(context: Weak<SystemContext>) {
    loop {
        let Some(strong) = context.upgrade() else { return };
        for shard in &strong.shards {
            if let Err(error) = strong.probe(shard).await {
                tracing::debug!(system = %strong.id, %error, "the server does not answer");
            }
        }
        let pause = strong.clock.sleep(strong.pause());
        drop(strong);
        pause.await;
    }
}
