//! A registry whose keys the application writes itself.
//!
//! There is no index of owners here, so a pass begins by reading everything, in bounded
//! pages: each distinct owner is asked for once, and what has no heartbeat is remembered as suspect.
//! The guard is the same script as for what is written through lapsed: owner *and* heartbeat are
//! re-checked in the step that removes the entry, and whether the owner was ever seen alive.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::owner::{Beat, Claim, Incarnation, OwnerInfo, OwnerStore};
use lapsed_core::receipt::{Reason, Receipt};
use lapsed_core::registry::{
    AdoptedOwnerState, FoundEntry, Holder, RegisterAnswer, RegistryStore, TakePolicy,
};
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Census, Cursor, Outcome, PageRequest, PassMode, Suspect,
    SuspectPage, Sweep, Tidied, TidyLimits,
};
use lapsed_core::system::Restored;
use lapsed_core::{Error, Name, Result, SystemId};

use super::RegistryLayout;
use super::entries::restored;
use super::observe::ObservedOwner;
use super::reclaim::group;
use super::survey::Survey;
use crate::Redis;
use crate::names::{Template, fingerprint};
use crate::owners::OwnerService;
use crate::script;
use crate::system_context::{Args, SystemContext};

/// A registry whose keys the application writes itself.
pub struct AdoptedRegistry {
    pub(super) owners: OwnerService,
    pub(super) heartbeat: Template,
    /// Identifies the configuration under which owners are observed.
    pub(super) fingerprint: String,
    /// The result of the last scan.
    pub(super) last: Mutex<Arc<Survey>>,
    /// Held by the one that scans because the last scan is too old.
    pub(super) looking: tokio::sync::Mutex<()>,
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
        redis.register_context(&context, vec![layout.registry_key.clone()]);
        let ttl_ms = context.threshold_ms();
        let owners = OwnerService { context, heartbeat: None, ttl_ms };
        let heartbeat = layout.heartbeat_key;
        let fingerprint = fingerprint(&[&layout.registry_key, &heartbeat.of("{owner}")]);
        AdoptedRegistry {
            owners,
            heartbeat,
            fingerprint,
            last: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
        }
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

    fn info(&self, owner: &Name, observed: &ObservedOwner, held: u64, now_ms: u64) -> OwnerInfo {
        OwnerInfo {
            owner: owner.clone(),
            incarnation: Incarnation(0),
            ttl_ms: self.owners.ttl_ms,
            started_ms: 0,
            due_ms: observed.deadline_ms(now_ms, self.owners.ttl_ms),
            held,
            ended: None,
        }
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

    /// Lists the owners that a recent scan found.
    async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        if after.is_some() {
            return Ok(Vec::new());
        }
        let seen = self.recent_survey().await?;
        let owners: Vec<(Name, u64)> =
            seen.held.iter().take(limit).map(|(name, held)| (name.clone(), *held)).collect();
        let names: Vec<Name> = owners.iter().map(|(name, _)| name.clone()).collect();
        let observed = self.observe(&names, PassMode::DryRun).await?;
        let pairs = owners.into_iter().zip(&observed.owners);
        Ok(pairs.map(|((name, held), one)| self.info(&name, one, held, observed.now_ms)).collect())
    }

    async fn owner(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        let owners = std::slice::from_ref(&claim.owner);
        let observed = self.observe(owners, PassMode::DryRun).await?;
        let held = self.survey_seen().held.get(&claim.owner).copied().unwrap_or(0);
        if observed.owners[0].left_ms.is_none() && held == 0 {
            return Ok(None);
        }
        Ok(Some(self.info(&claim.owner, &observed.owners[0], held, observed.now_ms)))
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

    /// Counts from a recent scan, with newer heartbeats where they are cheap to read.
    async fn census(&self) -> Result<Census> {
        let seen = self.recent_survey().await?;
        self.count(&seen).await
    }

    async fn survey(&self, act: PassMode) -> Result<Option<Census>> {
        let seen = self.survey_all(act).await?;
        Ok(Some(self.count(&seen).await?))
    }

    async fn confirm_adoption(&self) -> Result<u64> {
        self.confirm().await
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
        let (survey, record) = (self.survey_seen(), self.record_key());
        for group in &groups {
            let last = group.places.last().map(|at| &batch.suspects[*at].key);
            let takes_last = last.is_some_and(|key| survey.is_last_of(&group.owner, key));
            let forget = if takes_last { record.clone() } else { shard.prefix.key("meta") };
            let heartbeat = self.heartbeat.of(group.owner.as_str());
            args = args.key(record.clone()).key(forget).key(heartbeat);
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
        let distinct: BTreeSet<&Name> = owners.iter().flatten().collect();
        let names: Vec<Name> = distinct.into_iter().cloned().collect();
        let observed = self.observe(&names, PassMode::DryRun).await?;
        let now_ms = observed.now_ms;
        let known: HashMap<&Name, ObservedOwner> = names.iter().zip(observed.owners).collect();
        let found = |owner: Name| {
            let due_ms = known[&owner].deadline_ms(now_ms, self.owners.ttl_ms);
            let holder = Holder { owner, incarnation: Incarnation(0) };
            FoundEntry { holder, registered_ms: None, due_ms, ended: None, now_ms }
        };
        Ok(owners.into_iter().map(|owner| owner.map(found)).collect())
    }

    async fn adopted_owner_state(&self, owner: &Name) -> Result<Option<AdoptedOwnerState>> {
        let observed = self.observe(std::slice::from_ref(owner), PassMode::DryRun).await?;
        Ok(Some(observed.owners[0].life(observed.now_ms, self.owners.ttl_ms)))
    }

    async fn entries(&self, _: &Claim, _: Option<&Name>, _: usize) -> Result<Vec<Name>> {
        Err(self.unsupported_in_adopt("entries"))
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
        let args = context.with_base(shard, args);
        let words: Vec<String> = context.change(shard, &script::REGISTRY_RESTORE, args).await?;
        restored(&words, &receipt)
            .ok_or_else(|| context.unexpected_answer(&script::REGISTRY_RESTORE))
    }
}

/// Why an owner that is not alive is suspect.
pub(super) const REASON: Reason = Reason::OwnerDead;
