//! `sessions` on Redis and Valkey: on the application's own keys, with indexes beside them when it
//! writes through lapsed (*native*), or as it writes them itself (*adopt*).
//!
//! The same scripts serve both. What differs: in *native* a reference belongs to an incarnation and `idle`
//! says to the millisecond since when no client is connected; in *adopt* a reference is a number, and
//! the application's own set of the disconnected is the index.

mod counts;
mod index;
mod observe;
mod operations;
mod reclaim;
mod store;
mod suspects;

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::{Error, Result, SystemId};

use crate::Redis;
use crate::names::{Template, check_shards, hash_tag};
use crate::owners::OwnerService;
use crate::suspect_prefetch::SuspectPrefetch;
use crate::system_context::{Shard, SystemContext};
use crate::write_probe::PROBE;

/// Who writes the sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// All clients write through lapsed.
    Native,
    /// The application writes its own keys.
    Adopt,
}

/// The keys of sessions, as the application names them.
#[derive(Clone, Debug)]
pub struct SessionsLayout {
    pub session_key: Template,
    /// The key of the number of references: `ref_count:{session}`.
    pub ref_count_key: Template,
    /// The key of a broadcaster's current session: `broadcaster:{broadcaster}`.
    pub broadcaster_key: Template,
    /// The set of sessions without references: `disconnected_sessions`.
    pub disconnected_key: String,
    /// How long a session without references is kept.
    pub grace: Duration,
    /// How long an owner's heartbeat lasts, by default.
    pub heartbeat_ttl: Duration,
    /// The number of slots over which the sessions are spread (native only).
    pub shards: usize,
}

impl SessionsLayout {
    /// The key names that the configuration file has by default, in one shard.
    pub fn new(heartbeat_ttl: Duration, grace: Duration) -> SessionsLayout {
        let template =
            |text: &str, place| Template::new(text, place).expect("the place is in the text");
        SessionsLayout {
            session_key: template("session:{session}", "session"),
            ref_count_key: template("ref_count:{session}", "session"),
            broadcaster_key: template("broadcaster:{broadcaster}", "broadcaster"),
            disconnected_key: "disconnected_sessions".to_owned(),
            grace,
            heartbeat_ttl,
            shards: 1,
        }
    }

    fn anchors(&self) -> Vec<String> {
        match self.shards {
            0 | 1 => vec![self.disconnected_key.clone()],
            many => (0..many).map(|shard| format!("{}/{shard}", self.disconnected_key)).collect(),
        }
    }

    /// Whether all keys are in the slot of the set of disconnected sessions without an added tag.
    fn is_of_one_slot(&self) -> bool {
        let tag = Some(hash_tag(&self.disconnected_key));
        [&self.session_key, &self.ref_count_key, &self.broadcaster_key]
            .iter()
            .all(|template| template.shared_tag() == tag)
    }

    fn check_adopted(&self, is_cluster: bool) -> Result<()> {
        if self.shards > 1 {
            return Err(Error::Invalid(
                "`shards` is for mode = \"native\": what the application writes is as it is".into(),
            ));
        }
        if !is_cluster || self.is_of_one_slot() {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "on a cluster, `session_key`, `ref_count_key`, `broadcaster_key` and `disconnected_key` \
             ({}) must lie in one slot, so that a session can be judged and deleted in one step. \
             Give all of them the same hash tag, for example `{{chat}}:session:{{session}}` and \
             `{{chat}}:disconnected_sessions`, or use mode = \"native\"",
            self.disconnected_key
        )))
    }
}

/// Sessions on Redis or Valkey. Clones share them.
#[derive(Clone)]
pub struct RedisSessions {
    inner: Arc<Inner>,
}

struct Inner {
    owners: OwnerService,
    layout: SessionsLayout,
    mode: Mode,
    /// Whether keys begin with their shard's tag, so that they are in its slot.
    tagged: bool,
    /// Suspects that were read and are not served yet.
    prefetch: SuspectPrefetch,
}

impl Redis {
    /// Opens sessions that are written through lapsed.
    pub fn sessions(&self, id: SystemId, layout: SessionsLayout) -> Result<RedisSessions> {
        check_shards(layout.shards)?;
        Ok(RedisSessions::open(self, id, layout, Mode::Native))
    }

    /// Opens sessions whose keys the application writes itself.
    pub fn adopted_sessions(&self, id: SystemId, layout: SessionsLayout) -> Result<RedisSessions> {
        layout.check_adopted(self.is_cluster())?;
        Ok(RedisSessions::open(self, id, layout, Mode::Adopt))
    }
}

impl RedisSessions {
    fn open(redis: &Redis, id: SystemId, layout: SessionsLayout, mode: Mode) -> Self {
        let threshold = match mode {
            Mode::Native => layout.grace.max(layout.heartbeat_ttl),
            Mode::Adopt => layout.grace,
        };
        let (connection, clock) = (redis.connection().clone(), redis.clock().clone());
        let context = SystemContext::new(connection, clock, id, threshold, layout.anchors());
        let spread = redis.is_cluster() && !layout.is_of_one_slot();
        let tagged = layout.shards > 1 || spread;
        let anchor = &context.shards[0].anchor;
        let templates = [&layout.session_key, &layout.ref_count_key, &layout.broadcaster_key];
        let written = templates.iter().map(|template| match tagged {
            true => format!("{{{}}}:{}", hash_tag(anchor), template.of(PROBE)),
            false => template.of(PROBE),
        });
        redis.register_context(&context, written.chain([anchor.clone()]).collect());
        let ttl_ms = layout.heartbeat_ttl.as_millis() as u64;
        let owners = OwnerService { context, heartbeat: None, ttl_ms };
        RedisSessions {
            inner: Arc::new(Inner {
                owners,
                layout,
                mode,
                tagged,
                prefetch: SuspectPrefetch::default(),
            }),
        }
    }

    fn owners(&self) -> &OwnerService {
        &self.inner.owners
    }

    fn context(&self) -> &Arc<SystemContext> {
        &self.inner.owners.context
    }

    fn is_native(&self) -> bool {
        self.inner.mode == Mode::Native
    }

    fn grace_ms(&self) -> u64 {
        self.inner.layout.grace.as_millis() as u64
    }

    fn key(&self, shard: &Shard, template: &Template, name: &str) -> String {
        match self.inner.tagged {
            true => format!("{{{}}}:{}", hash_tag(&shard.anchor), template.of(name)),
            false => template.of(name),
        }
    }

    fn session(&self, shard: &Shard, id: &str) -> String {
        self.key(shard, &self.inner.layout.session_key, id)
    }

    fn ref_count(&self, shard: &Shard, id: &str) -> String {
        self.key(shard, &self.inner.layout.ref_count_key, id)
    }

    /// The key of a broadcaster's current session; a placeholder if there is no broadcaster.
    fn pointer(&self, shard: &Shard, broadcaster: &str) -> String {
        match broadcaster.is_empty() {
            true => none(shard),
            false => self.key(shard, &self.inner.layout.broadcaster_key, broadcaster),
        }
    }

    /// The key of since when a session has no references, to the millisecond.
    fn idle(&self, shard: &Shard) -> String {
        if self.is_native() { shard.prefix.key("idle") } else { none(shard) }
    }
}

/// The key that a script takes for "no key here": `meta`.
fn none(shard: &Shard) -> String {
    shard.prefix.key("meta")
}

/// The key of how many references each incarnation has to one session.
fn refs(shard: &Shard, id: &str) -> String {
    shard.prefix.key(&format!("refs:{id}"))
}
