//! Heartbeats of providers: concurrent calls are combined into one script call.

use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt, try_join_all};
use lapsed_availability::{MirrorBeat, ProviderBeat};
use lapsed_core::{Name, Result};

use super::{Inner, NAMES_A_CALL, RedisMirror};
use crate::call_batcher::{BatchExecutor, BatchableCall};
use crate::script;

/// The heartbeats of one caller.
#[derive(Clone)]
pub(super) struct BeatCall(Arc<[Name]>);

impl BatchableCall for BeatCall {
    const WEIGHT_MAX: usize = NAMES_A_CALL;
    const CALLS_MAX: usize = NAMES_A_CALL;
    /// The server finishes a call before its answer arrives and the next call is made: a third call keeps it
    /// busy.
    const CONCURRENT_MAX: usize = 3;

    fn weight(&self) -> usize {
        self.0.len()
    }

    fn can_join(&self, _: &Self) -> bool {
        true
    }
}

/// Sends the combined heartbeats.
#[derive(Clone)]
struct BeatExecutor(Arc<Inner>);

impl BatchExecutor<BeatCall, Option<Vec<MirrorBeat>>> for BeatExecutor {
    fn execute(
        &self,
        all: Vec<BeatCall>,
    ) -> BoxFuture<'static, Result<Vec<Option<Vec<MirrorBeat>>>>> {
        let inner = self.0.clone();
        async move { inner.beat_for(&all).await }.boxed()
    }
}

impl RedisMirror {
    pub(super) async fn beat_together(&self, ids: &[Name]) -> Result<Option<Vec<MirrorBeat>>> {
        let executor = BeatExecutor(self.inner.clone());
        if ids.len() <= NAMES_A_CALL {
            return self.beats.call(BeatCall(ids.into()), &executor).await;
        }
        let parts =
            ids.chunks(NAMES_A_CALL).map(|part| self.beats.call(BeatCall(part.into()), &executor));
        let parts: Option<Vec<Vec<MirrorBeat>>> = try_join_all(parts).await?.into_iter().collect();
        Ok(parts.map(|parts| parts.concat()))
    }
}

impl Inner {
    /// Sends the heartbeats of all callers in one script call.
    async fn beat_for(&self, all: &[BeatCall]) -> Result<Vec<Option<Vec<MirrorBeat>>>> {
        let [meta, online, deactivated, versions, pending, _, missing, _] = &self.keys;
        let keys = [meta, online, deactivated, versions, missing, pending].map(String::as_str);
        let (before, after) = self.layout.heartbeat_key.parts();
        let stale_ms = self.stale_ms().to_string();
        let sent_ms =
            self.context.server_time_at_most(&self.context.shards[0]).unwrap_or(0).to_string();
        let mut args: Vec<&[u8]> =
            [before, after, &self.alive, &stale_ms, &sent_ms].map(str::as_bytes).to_vec();
        args.extend(all.iter().flat_map(|one| one.0.iter().map(|id| id.as_str().as_bytes())));
        let script = &script::MIRROR_BEAT;
        let codes: Option<String> = self.context.connection.run(script, &keys, &args).await?;
        let Some(codes) = codes else { return Ok(all.iter().map(|_| None).collect()) };
        if codes.len() != args.len() - 5 {
            return Err(self.context.unexpected_answer(script));
        }
        let mut codes = codes.bytes().map(|code| match code {
            b'N' => MirrorBeat::Told(ProviderBeat::Noted),
            b'D' => MirrorBeat::Told(ProviderBeat::Deactivated),
            b'S' => MirrorBeat::PendingOffline,
            _ => MirrorBeat::Told(ProviderBeat::Offline),
        });
        Ok(all.iter().map(|one| Some(codes.by_ref().take(one.0.len()).collect())).collect())
    }
}
