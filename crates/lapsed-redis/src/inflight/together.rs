//! Jobs that several take at the same time, and claims that several complete: in one call each.

use futures::future::{BoxFuture, FutureExt};
use lapsed_core::inflight::{Finish, Finished, JobTicket};
use lapsed_core::owner::Claim;
use lapsed_core::{Name, Result};

use super::native::NativeInflight;
use super::operations::{JOBS_A_CALL, Words};
use crate::holdings::held;
use crate::joint::{Ask, Question};
use crate::owners::inc_of;
use crate::script;

/// So many jobs for one life; `inc` is the life that the call expects to be meant.
#[derive(Clone)]
pub(super) struct Take {
    pub claim: Claim,
    pub inc: String,
    pub queue: Name,
    pub limit: usize,
}

impl Question for Take {
    const MOST: usize = JOBS_A_CALL;

    fn weight(&self) -> usize {
        self.limit
    }

    fn goes_with(&self, other: &Self) -> bool {
        self.queue == other.queue
    }
}

impl Ask<Take, Words> for NativeInflight {
    fn ask(&self, takes: Vec<Take>) -> BoxFuture<'static, Result<Vec<Words>>> {
        let jobs = self.clone();
        async move { jobs.take_for(&takes).await }.boxed()
    }
}

/// Claims of one caller, all of them with the life that they are of.
#[derive(Clone)]
pub(super) struct Complete(pub Vec<JobTicket>);

impl Question for Complete {
    const MOST: usize = JOBS_A_CALL;

    fn weight(&self) -> usize {
        self.0.len()
    }

    fn goes_with(&self, _: &Self) -> bool {
        true
    }
}

impl Ask<Complete, Vec<Finished>> for NativeInflight {
    fn ask(&self, all: Vec<Complete>) -> BoxFuture<'static, Result<Vec<Vec<Finished>>>> {
        let jobs = self.clone();
        async move {
            let sizes: Vec<usize> = all.iter().map(Question::weight).collect();
            let tickets: Vec<JobTicket> = all.into_iter().flat_map(|one| one.0).collect();
            let mut finished = jobs.finish_some(&tickets, &Finish::Complete).await?.into_iter();
            Ok(sizes.into_iter().map(|size| finished.by_ref().take(size).collect()).collect())
        }
        .boxed()
    }
}

impl NativeInflight {
    /// One call; all of one queue.
    async fn take_for(&self, takes: &[Take]) -> Result<Vec<Words>> {
        let Some(Take { queue, .. }) = takes.first() else { return Ok(Vec::new()) };
        let script = &script::INFLIGHT_TAKE;
        let mut args = self.job_keys().key(self.queue_key(queue));
        args = args.arg(self.format().as_str()).arg(queue).arg(takes.len());
        for Take { claim, inc, limit, .. } in takes {
            args = args.key(held(self.shard(), inc));
            args = args.arg(&claim.owner).arg(inc_of(claim)).arg(inc).arg(limit);
        }
        let answers: Vec<Words> = self.ground().run_bare(script, args).await?;
        if answers.len() != takes.len() {
            return Err(self.ground().nonsense(script));
        }
        Ok(answers)
    }
}
