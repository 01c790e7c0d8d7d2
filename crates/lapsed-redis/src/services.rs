//! Implements what the engine needs of any store: terms, the operator's settings and receipts.

use std::sync::Arc;

use async_trait::async_trait;
use lapsed_core::leader::Term;
use lapsed_core::notes::NoteStore;
use lapsed_core::receipt::{Receipt, ReceiptQuery};
use lapsed_core::request::{KeptRequest, RequestId};
use lapsed_core::store::{Store, StoreInfo};
use lapsed_core::sweep::brake::BrakeRecord;
use lapsed_core::{Error, Result, SystemId};

use crate::Redis;
use crate::script;
use crate::system_context::{Args, SystemContext};

#[async_trait]
impl Store for Redis {
    async fn info(&self) -> Result<StoreInfo> {
        let anchor = self.contexts().values().next().map(|g| g.shards[0].anchor.clone());
        let anchor = anchor.unwrap_or_else(|| "lapsed".to_owned());
        let info: String = self.connection().run(&script::INFO, &[&anchor], &[]).await?;
        let field = |name: &str| {
            info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap_or("")
        };
        let number = |name: &str| field(name).parse::<u64>().unwrap_or(0);
        let now_ms = number("server_time_usec") / 1_000;
        Ok(StoreInfo {
            engine: match field("valkey_version") {
                "" => format!("redis {}", field("redis_version")),
                version => format!("valkey {version}"),
            },
            place: self.connection().place.to_string(),
            incarnation: field("run_id").to_owned(),
            now_ms,
            // Whole seconds on both sides: see `presence` in prelude.lua.
            back_ms: ((now_ms / 1_000 + 1).saturating_sub(number("uptime_in_seconds")) * 1_000)
                .min(now_ms),
        })
    }

    async fn receipts(&self, system: &SystemId, query: ReceiptQuery) -> Result<Vec<Receipt>> {
        self.context(system)?.receipts(&query).await
    }

    async fn receipt(&self, system: &SystemId, seq: u64) -> Result<Option<Receipt>> {
        let context = self.context(system)?;
        let found = context.receipts_between(context.shard_of_receipt(seq), seq, seq).await?;
        Ok(found.into_iter().find(|receipt| receipt.id.seq == seq))
    }

    async fn campaign(
        &self,
        system: &SystemId,
        candidate: &str,
        ttl_ms: u64,
    ) -> Result<Option<Term>> {
        let context = self.context(system)?;
        let stand = |number: String| Args::default().arg(candidate).arg(ttl_ms).arg(number);
        let won: Vec<u64> =
            context.run(&context.shards[0], &script::CAMPAIGN, stand(String::new())).await?;
        let [number, until_ms] = won[..] else { return Ok(None) };
        // The number is written to every shard before it is used, so that the previous leader is refused
        // everywhere.
        for shard in &context.shards[1..] {
            let accepted: Vec<u64> =
                context.run(shard, &script::CAMPAIGN, stand(number.to_string())).await?;
            if accepted.is_empty() {
                return Ok(None);
            }
        }
        Ok(Some(Term { number, holder: candidate.to_owned(), until_ms }))
    }

    async fn term(&self, system: &SystemId) -> Result<Option<Term>> {
        let context = self.context(system)?;
        let held: Vec<String> =
            context.run(&context.shards[0], &script::TERM, Args::default()).await?;
        let [number, holder, until_ms] = &held[..] else { return Ok(None) };
        let (Ok(number), Ok(until_ms)) = (number.parse(), until_ms.parse()) else {
            return Err(context.unexpected_answer(&script::TERM));
        };
        Ok(Some(Term { number, holder: holder.clone(), until_ms }))
    }

    async fn resign(&self, system: &SystemId, term: u64) -> Result<()> {
        let context = self.context(system)?;
        let _: Vec<u64> = context.run_all(&script::RESIGN, |_| Args::default().arg(term)).await?;
        Ok(())
    }

    async fn brake(&self, system: &SystemId) -> Result<BrakeRecord> {
        let context = self.context(system)?;
        let mut cmd = redis::cmd("HGET");
        cmd.arg(context.shards[0].prefix.key("meta")).arg("brake");
        let record: Option<String> = self.connection().query("HGET", &cmd).await?;
        match record {
            None => Ok(BrakeRecord::default()),
            Some(text) => serde_json::from_str(&text)
                .map_err(|_| context.connection.unexpected_answer("brake")),
        }
    }

    async fn swap_brake(&self, system: &SystemId, next: &BrakeRecord) -> Result<bool> {
        let context = self.context(system)?;
        let waived = next.waived_until_ms();
        let text = serde_json::to_string(next)
            .map_err(|error| Error::Invalid(format!("the brake's record: {error}")))?;
        let args = Args::default().arg(next.version.saturating_sub(1)).arg(&text).arg(waived);
        // The first shard decides; the others only learn how long the grace is waived.
        let swapped: u64 = context.run(&context.shards[0], &script::SWAP_BRAKE, args).await?;
        if swapped == 0 {
            return Ok(false);
        }
        for shard in &context.shards[1..] {
            let mut cmd = redis::cmd("HSET");
            cmd.arg(shard.prefix.key("meta")).arg("waive").arg(waived);
            let _: u64 = self.connection().query("HSET", &cmd).await?;
        }
        Ok(true)
    }

    async fn kept_request(&self, system: &SystemId, request: &RequestId) -> Result<KeptRequest> {
        let context = self.context(system)?;
        let args = Args::default().key(context.shards[0].prefix.key("requests"));
        let args = args.arg(&request.key).arg(&request.fingerprint);
        let kept: Vec<String> = context.run_with_keys(&script::KEPT_ANSWER, args).await?;
        match &kept[..] {
            [] => Ok(KeptRequest::Unknown),
            [answer] => Ok(KeptRequest::Answered(answer.clone())),
            _ => Err(request.reused()),
        }
    }

    async fn keep_answer(
        &self,
        system: &SystemId,
        request: &RequestId,
        answer: &str,
    ) -> Result<()> {
        let context = self.context(system)?;
        let prefix = &context.shards[0].prefix;
        let args = Args::default().key(prefix.key("requests")).key(prefix.key("requests_at"));
        let args = args.arg(&request.key).arg(&request.fingerprint).arg(answer);
        match context.run_with_keys(&script::KEEP_ANSWER, args).await? {
            redis::Value::Int(_) => Ok(()),
            _ => Err(request.reused()),
        }
    }

    fn notes(&self) -> &dyn NoteStore {
        self
    }
}

impl Redis {
    /// The context of a system, if it was opened in this process.
    pub(crate) fn context(&self, system: &SystemId) -> Result<Arc<SystemContext>> {
        self.contexts().get(system).cloned().ok_or_else(|| {
            Error::Invalid(format!("{system} is not open on {}", self.connection().place))
        })
    }
}
