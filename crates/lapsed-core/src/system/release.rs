//! Graceful end of an owner, the same in every system that has owners.
//!
//! One O(1) step ends the incarnation, which makes its entries invalid at once. The entries are
//! then removed in batches, by the same guarded reclaim as those of dead owners. If the process
//! crashes in between, the sweep finds the ended owner and removes the rest.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::owner::{Claim, Incarnation, OwnerInfo};
use crate::receipt::Receipt;
use crate::sweep::{Batch, BatchId, Outcome, PassMode, Suspect, Sweep};
use crate::system::store_caller::StoreCaller;

/// What a retired owner held and no longer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReleasedHoldings {
    /// The incarnation that has ended.
    pub incarnation: Incarnation,
    /// How many entries were removed (or put back on their queues), each with its receipt.
    pub reclaimed: u64,
    /// How many references were dropped from entries that stay, without a receipt.
    pub released: u64,
}

impl ReleasedHoldings {
    pub(crate) fn none_of(incarnation: Incarnation) -> Self {
        ReleasedHoldings { incarnation, reclaimed: 0, released: 0 }
    }
}

/// Lets go of what one ended life holds, `held_by` page by page.
///
/// `sweeper` becomes part of the batches' ids. Together with the incarnation it is unique, and its
/// batches are numbered one after the other.
pub(crate) async fn let_go<F>(
    calls: &StoreCaller,
    sweep: &dyn Sweep,
    ended: &OwnerInfo,
    sweeper: &str,
    held_by: impl Fn(Claim) -> F,
) -> Result<ReleasedHoldings>
where
    F: Future<Output = Result<Vec<Suspect>>>,
{
    let sweeper: Arc<str> = Arc::from(format!("{sweeper}/retire-{}", ended.incarnation));
    let mut done = ReleasedHoldings::none_of(ended.incarnation);
    for number in 1.. {
        let owner = Claim::exact(ended.owner.clone(), ended.incarnation);
        let suspects = calls.call("suspects", held_by(owner)).await?;
        if suspects.is_empty() {
            break;
        }
        let id = BatchId { sweeper: sweeper.clone(), number };
        let (receipts, released) = reclaim_now(calls, sweep, id, suspects).await?;
        receipts.iter().for_each(|receipt| calls.observer.reclaimed(receipt));
        done.reclaimed += receipts.len() as u64;
        done.released += released;
        if receipts.is_empty() && released == 0 {
            break;
        }
    }
    Ok(done)
}

/// Reclaims one batch. If its answer is lost, reads the receipts that it wrote, so that they are
/// counted.
async fn reclaim_now(
    calls: &StoreCaller,
    sweep: &dyn Sweep,
    id: BatchId,
    suspects: Vec<Suspect>,
) -> Result<(Vec<Receipt>, u64)> {
    let batch = Batch { id: id.clone(), suspects, act: PassMode::Reclaim, term: None };
    match calls.call("reclaim", sweep.reclaim(batch)).await {
        Ok(answer) => {
            let is_released = |outcome: &&Outcome| matches!(outcome, Outcome::Released);
            let released = answer.outcomes.iter().filter(is_released).count() as u64;
            Ok((answer.outcomes.into_iter().filter_map(Outcome::receipt).collect(), released))
        }
        Err(Error::Unavailable { .. }) => Ok((calls.call("settle", sweep.settle(&id)).await?, 0)),
        Err(error) => Err(error),
    }
}
