//! Combines concurrent takes into one call, and concurrent completions into another.

use std::sync::PoisonError;

use futures::future::{BoxFuture, FutureExt};
use lapsed_core::inflight::{Finish, Finished, JobTicket};
use lapsed_core::owner::Claim;
use lapsed_core::request::RequestId;
use lapsed_core::{Name, Result};

use super::native::NativeInflight;
use super::operations::{AnswerWords, JOBS_A_CALL};
use crate::call_batcher::{BatchExecutor, BatchableCall};
use crate::held_entries::held_key;
use crate::owners::incarnation_arg;
use crate::script;

/// One call of a take that may be repeated; the calls of one take are numbered from 1.
#[derive(Clone)]
pub(super) struct RequestedCall {
    pub request: RequestId,
    pub number: usize,
}

/// A take of up to `limit` jobs for one incarnation; `inc` is the incarnation that the caller expects.
#[derive(Clone)]
pub(super) struct TakeCall {
    pub requested: Option<RequestedCall>,
    pub claim: Claim,
    pub inc: String,
    pub queue: Name,
    pub limit: usize,
}

impl BatchableCall for TakeCall {
    const WEIGHT_MAX: usize = JOBS_A_CALL;

    fn weight(&self) -> usize {
        self.limit
    }

    fn can_join(&self, other: &Self) -> bool {
        self.queue == other.queue
    }
}

impl BatchExecutor<TakeCall, AnswerWords> for NativeInflight {
    fn execute(&self, takes: Vec<TakeCall>) -> BoxFuture<'static, Result<Vec<AnswerWords>>> {
        let jobs = self.clone();
        async move { jobs.take_for(&takes).await }.boxed()
    }
}

/// Claims of one caller, all of them with the incarnation that they are of.
#[derive(Clone)]
pub(super) struct Complete(pub Vec<JobTicket>);

impl BatchableCall for Complete {
    const WEIGHT_MAX: usize = JOBS_A_CALL;

    fn weight(&self) -> usize {
        self.0.len()
    }

    fn can_join(&self, _: &Self) -> bool {
        true
    }
}

impl BatchExecutor<Complete, Vec<Finished>> for NativeInflight {
    fn execute(&self, all: Vec<Complete>) -> BoxFuture<'static, Result<Vec<Vec<Finished>>>> {
        let jobs = self.clone();
        async move {
            let sizes: Vec<usize> = all.iter().map(BatchableCall::weight).collect();
            let tickets: Vec<JobTicket> = all.into_iter().flat_map(|one| one.0).collect();
            let mut finished = jobs.finish_some(&tickets, &Finish::Complete).await?.into_iter();
            Ok(sizes.into_iter().map(|size| finished.by_ref().take(size).collect()).collect())
        }
        .boxed()
    }
}

/// How many delivered takes are forgotten with one call, and how many wait for that at most. Those beyond
/// are forgotten by their age.
const DELIVERED_A_CALL: usize = 100;
const DELIVERED_MAX: usize = 10_000;

impl NativeInflight {
    /// Notes a take that is to be forgotten with the next call.
    pub(super) fn note_delivered(&self, key: &Name) {
        let mut delivered = self.inner.delivered.lock().unwrap_or_else(PoisonError::into_inner);
        if delivered.len() < DELIVERED_MAX {
            delivered.push(key.clone());
        }
    }

    fn some_delivered(&self) -> Vec<Name> {
        let mut delivered = self.inner.delivered.lock().unwrap_or_else(PoisonError::into_inner);
        let first = delivered.len().saturating_sub(DELIVERED_A_CALL);
        delivered.split_off(first)
    }

    /// Takes jobs for several callers in one call; all takes are of one queue.
    async fn take_for(&self, takes: &[TakeCall]) -> Result<Vec<AnswerWords>> {
        let Some(TakeCall { queue, .. }) = takes.first() else { return Ok(Vec::new()) };
        let script = &script::INFLIGHT_TAKE;
        let mut args = self.job_keys().key(self.queue_key(queue));
        args = args.key(self.key("requests")).key(self.key("requests_at"));
        args = args.arg(self.format().as_str()).arg(queue).arg(takes.len());
        for TakeCall { requested, claim, inc, limit, .. } in takes {
            args = args.key(held_key(self.shard(), inc));
            args = args.arg(&claim.owner).arg(incarnation_arg(claim)).arg(inc).arg(limit);
            args = match requested {
                None => args.arg("").arg("").arg("").arg(0),
                Some(RequestedCall { request, number }) => {
                    let args = args.arg(&request.key).arg(&request.attempt);
                    args.arg(&request.fingerprint).arg(number)
                }
            };
        }
        let delivered = self.some_delivered();
        args = delivered.iter().fold(args, |args, key| args.arg(key));
        let answers = self.context().run_with_keys(script, args).await;
        if answers.is_err() {
            delivered.iter().for_each(|key| self.note_delivered(key));
        }
        let answers: Vec<AnswerWords> = answers?;
        if answers.len() != takes.len() {
            return Err(self.context().unexpected_answer(script));
        }
        Ok(answers)
    }
}
