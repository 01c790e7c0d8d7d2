//! A registry whose keys the application writes itself.
//!
//! There is no index of owners here, so a pass begins with one look at everything, in bounded
//! pages: each distinct owner is asked for once, and what has no heartbeat is remembered as suspect.
//! The guard is the same script as for what is written through lapsed: owner *and* heartbeat are
//! re-checked in the step that removes the entry.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::owner::{Beat, Claim, Incarnation, OwnerInfo, OwnerStore};
use lapsed_core::receipt::{Reason, Receipt};
use lapsed_core::registry::{FoundEntry, Holder, RegisterAnswer, RegistryStore, TakePolicy};
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Census, Cursor, Outcome, PageRequest, Suspect, SuspectPage, Sweep,
    Tidied, TidyLimits,
};
use lapsed_core::system::Restored;
use lapsed_core::{Error, Name, Result, SystemId};

use super::RegistryLayout;
use super::entries::restored;
use super::reclaim::group;
use super::survey::Survey;
use crate::Redis;
use crate::names::Template;
use crate::owners::OwnerService;
use crate::script;
use crate::system_context::{Args, SystemContext};

/// A registry whose keys the application writes itself.
pub struct AdoptedRegistry {
    pub(super) owners: OwnerService,
    pub(super) heartbeat: Template,
    /// What the last look found.
    pub(super) last: Mutex<Arc<Survey>>,
}

impl AdoptedRegistry {
    pub(super) fn open(redis: &Redis, id: SystemId, layout: RegistryLayout) -> Self {
        let context = SystemContext::new(
            redis.connection().clone(),
            redis.clock().clone(),
            id,
            layout.heartbeat_ttl,
            layout.anchors(),
        );
        redis.register_context(&context);
        let ttl_ms = context.threshold_ms();
        let owners = OwnerService { context, heartbeat: None, ttl_ms };
        AdoptedRegistry { owners, heartbeat: layout.heartbeat_key, last: Mutex::default() }
    }

    pub(super) fn context(&self) -> &Arc<SystemContext> {
        &self.owners.context
    }

    pub(super) fn hash(&self) -> &str {
        &self.context().shards[0].anchor
    }

    pub(super) fn survey_seen(&self) -> Arc<Survey> {
        self.last.lock().expect("no holder of this lock panics").clone()
    }

    fn unsupported_in_adopt(&self, operation: &str) -> Error {
        Error::Unsupported {
            operation: format!(
                "`{operation}` while mode = \"adopt\", because the application writes these keys \
                 itself (use mode = \"native\" to write through lapsed)"
            ),
            store: self.context().place(),
        }
    }

    /// How long each owner's heartbeat is still good for, in milliseconds; `None`: there is none.
    pub(super) async fn beats(&self, owners: &[Name]) -> Result<Vec<Option<u64>>> {
        let ask = |owner: &Name| {
            let mut cmd = redis::cmd("PTTL");
            cmd.arg(self.heartbeat.of(owner.as_str()));
            async move { self.context().connection.query::<i64>("PTTL", &cmd).await }
        };
        let left = futures::future::try_join_all(owners.iter().map(ask)).await?;
        // A heartbeat without an end never goes by itself: whoever wrote it so is alive.
        Ok(left
            .into_iter()
            .map(|ms| (ms != -2).then_some(if ms < 0 { u64::MAX } else { ms as u64 }))
            .collect())
    }

    fn info(&self, owner: &Name, left: Option<u64>, held: u64, now_ms: u64) -> OwnerInfo {
        let seen = self.survey_seen().deadline(owner);
        OwnerInfo {
            owner: owner.clone(),
            incarnation: Incarnation(0),
            ttl_ms: self.owners.ttl_ms,
            started_ms: 0,
            due_ms: left
                .map_or(seen.unwrap_or(now_ms).min(now_ms), |left| now_ms.saturating_add(left)),
            held,
            ended: None,
        }
    }

    pub(super) async fn now_ms(&self) -> Result<u64> {
        let shard = &self.context().shards[0];
        self.context().run(shard, &script::SERVER_TIME, Args::default()).await
    }
}

#[async_trait]
impl OwnerStore for AdoptedRegistry {
    async fn start(&self, _owner: &Name, _ttl_ms: u64) -> Result<Beat> {
        Err(self.unsupported_in_adopt("start"))
    }

    async fn beat(&self, _claim: &Claim) -> Result<Beat> {
        Err(self.unsupported_in_adopt("beat"))
    }

    async fn end(&self, _claim: &Claim) -> Result<OwnerInfo> {
        Err(self.unsupported_in_adopt("retire"))
    }

    /// As the last look found them.
    async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        if after.is_some() {
            return Ok(Vec::new());
        }
        let seen = self.survey_or_last().await?;
        let owners: Vec<(Name, u64)> =
            seen.held.iter().take(limit).map(|(name, held)| (name.clone(), *held)).collect();
        let names: Vec<Name> = owners.iter().map(|(name, _)| name.clone()).collect();
        let (now_ms, left) = (self.now_ms().await?, self.beats(&names).await?);
        let pairs = owners.into_iter().zip(left);
        Ok(pairs.map(|((name, held), left)| self.info(&name, left, held, now_ms)).collect())
    }

    async fn owner(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        let left = self.beats(std::slice::from_ref(&claim.owner)).await?[0];
        let held = self.survey_seen().held.get(&claim.owner).copied().unwrap_or(0);
        if left.is_none() && held == 0 {
            return Ok(None);
        }
        Ok(Some(self.info(&claim.owner, left, held, self.now_ms().await?)))
    }
}

#[async_trait]
impl Sweep for AdoptedRegistry {
    fn system(&self) -> &SystemId {
        &self.context().id
    }

    fn threshold(&self) -> Duration {
        self.context().threshold
    }

    /// From the last look, brought up to date where that is cheap.
    async fn census(&self) -> Result<Census> {
        let seen = self.survey_or_last().await?;
        self.count(&seen).await
    }

    async fn survey(&self) -> Result<Option<Census>> {
        let seen = self.survey_all().await?;
        Ok(Some(self.count(&seen).await?))
    }

    async fn suspects(&self, request: PageRequest) -> Result<SuspectPage> {
        let seen = self.survey_or_last().await?;
        Ok(seen.page(&request))
    }

    fn after(&self, suspect: &Suspect) -> Cursor {
        super::survey::after(suspect)
    }

    async fn reclaim(&self, batch: Batch) -> Result<BatchAnswer> {
        let context = self.context();
        let shard = &context.shards[0];
        let groups = group(&batch, 0..batch.suspects.len());
        let seen_ms = context.last_seen_for(shard, batch.act).await?;
        let mut args = Args::default().key(&shard.anchor);
        for group in &groups {
            // No life of its own: the heartbeat is all there is.
            let none = shard.prefix.key("meta");
            args = args.key(none.clone()).key(none).key(self.heartbeat.of(group.owner.as_str()));
        }
        let args = context.batch_args(args, shard, &batch, seen_ms, &groups);
        let words = context.run(shard, &script::REGISTRY_RECLAIM, args).await?;
        let decided = context.decide(shard, &batch, &groups, words).await?;
        let mut outcomes = vec![Outcome::Gone; batch.suspects.len()];
        decided.outcomes.into_iter().for_each(|(at, outcome)| outcomes[at] = outcome);
        Ok(BatchAnswer { outcomes, owners_ended: 0, held: decided.held })
    }

    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        self.context().settle(batch).await
    }

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied> {
        self.owners.tidy(&limits).await
    }
}

#[async_trait]
impl RegistryStore for AdoptedRegistry {
    async fn register(&self, _: &Claim, _: &[Name], _: TakePolicy) -> Result<RegisterAnswer> {
        Err(self.unsupported_in_adopt("register"))
    }

    async fn unregister(&self, _: &Claim, _: &[Name]) -> Result<Vec<bool>> {
        Err(self.unsupported_in_adopt("unregister"))
    }

    async fn find(&self, keys: &[Name]) -> Result<Vec<Option<FoundEntry>>> {
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(self.hash());
        keys.iter().for_each(|key| {
            cmd.arg(key.as_str());
        });
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let values: Vec<Option<Vec<u8>>> = self.context().connection.query("HMGET", &cmd).await?;
        let owners: Vec<Option<Name>> =
            values.into_iter().map(|v| v.and_then(|v| Name::from_bytes(&v).ok())).collect();
        let mut distinct: BTreeMap<Name, Option<u64>> = BTreeMap::new();
        owners.iter().flatten().for_each(|owner| {
            distinct.insert(owner.clone(), None);
        });
        let names: Vec<Name> = distinct.keys().cloned().collect();
        let (left, now_ms) = (self.beats(&names).await?, self.now_ms().await?);
        let left: HashMap<&Name, Option<u64>> = names.iter().zip(left).collect();
        let found = |owner: Name| {
            let due_ms = self.info(&owner, left[&owner], 0, now_ms).due_ms;
            let holder = Holder { owner, incarnation: Incarnation(0) };
            FoundEntry { holder, registered_ms: None, due_ms, ended: None, now_ms }
        };
        Ok(owners.into_iter().map(|owner| owner.map(found)).collect())
    }

    async fn entries(&self, _: &Claim, _: Option<&Name>, _: usize) -> Result<Vec<Name>> {
        Err(self.unsupported_in_adopt("entries"))
    }

    async fn held_by(&self, _: &Claim, _: usize) -> Result<Vec<Suspect>> {
        Ok(Vec::new())
    }

    async fn restore(&self, seq: u64) -> Result<Restored> {
        let context = self.context();
        let shard = &context.shards[0];
        let Some(receipt) = context.one_receipt(seq).await? else {
            return Ok(Restored::Refused { why: context.no_receipt(seq) });
        };
        let args = Args::default()
            .key(&shard.anchor)
            .key(shard.prefix.key("restored"))
            .key(shard.prefix.key("meta"))
            .key(self.heartbeat.of(receipt.owner.as_str()))
            .arg(seq)
            .arg(&receipt.owner)
            .arg(0)
            .arg(&receipt.key);
        let words: Vec<String> = context.run(shard, &script::REGISTRY_RESTORE, args).await?;
        restored(&words, &receipt)
            .ok_or_else(|| context.unexpected_answer(&script::REGISTRY_RESTORE))
    }
}

/// Why an owner that is not alive is suspect.
pub(super) const REASON: Reason = Reason::OwnerDead;
