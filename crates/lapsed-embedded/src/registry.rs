//! `registry` on the embedded store.

mod entries;
pub(crate) mod load;
mod owners;
mod reclaim;
mod suspects;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lapsed::owner::{Claim, Lost};
use lapsed::registry::rules::Guard;
use lapsed::{Error, Result, SystemId};

use crate::Inner;
use crate::book::Book;
use crate::fault::Tried;
use crate::held::Held;
use crate::slot::Slot;
use crate::tables::Tables;
use crate::vigil::Vigil;

/// The most keys named in a `Lost`.
const LOST_KEYS_MAX: usize = 1_000;

/// One registry on an embedded store.
pub struct EmbeddedRegistry {
    inner: Arc<Inner>,
    core: Arc<Core>,
}

/// What the jobs on the writer's thread work with.
pub(crate) struct Core {
    pub id: SystemId,
    pub tables: Tables,
    pub book: Book,
    pub held: Held,
    threshold: Duration,
    pub vigil: Arc<Vigil>,
    pub guard: Arc<dyn Guard>,
    /// Until when the operator has waived the store-away grace.
    release_until_ms: AtomicU64,
    /// Whose turn it is to be mirrored.
    mirror_from: AtomicU64,
}

/// Whom a claim means.
enum Meant {
    Life(Arc<Slot>),
    /// A name never seen, and no incarnation claimed.
    Nobody,
    /// An incarnation that is not that owner's, or not remembered.
    Stranger,
}

impl EmbeddedRegistry {
    pub(crate) fn open(inner: Arc<Inner>, id: SystemId, threshold: Duration) -> Result<Self> {
        let core = Core {
            tables: Tables::of(&id),
            book: Book::new(),
            held: Held::new(),
            threshold,
            vigil: inner.vigil.clone(),
            guard: inner.guard.clone(),
            release_until_ms: AtomicU64::new(0),
            mirror_from: AtomicU64::new(0),
            id,
        };
        core.vigil.mind_ttl(threshold.as_millis() as u64);
        core.load(&inner.disk)?;
        Ok(EmbeddedRegistry { inner, core: Arc::new(core) })
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Runs a job that needs nothing but the core.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Core, &mut crate::tx::Tx<'_>) -> Tried<T> + Send + 'static,
        done: impl FnOnce(&T) + Send + 'static,
    ) -> Result<T> {
        let core = self.core.clone();
        self.inner.writer.write(move |tx| work(&core, tx), done).await
    }
}

impl Core {
    /// The store's clock, and since when everybody could beat; 0 while the grace is waived.
    pub(crate) fn look(&self) -> (u64, u64) {
        let (now_ms, back_ms) = self.vigil.look();
        (now_ms, self.spared_from(now_ms, back_ms))
    }

    fn spared_from(&self, now_ms: u64, back_ms: u64) -> u64 {
        if now_ms < self.release_until_ms.load(Ordering::Acquire) { 0 } else { back_ms }
    }

    /// `back_ms` while it matters: within a threshold, and if anybody who lives was there before it.
    /// A store that was empty then has nobody to spare.
    fn cut_off_until(&self, now_ms: u64, back_ms: u64) -> u64 {
        let over = now_ms >= back_ms + self.threshold.as_millis() as u64;
        let was_there = |slot: &Slot| slot.end().is_none() && slot.started_ms < back_ms;
        if over || !self.book.any(was_there) { 0 } else { back_ms }
    }

    /// How many are past their deadline and live on by the grace alone.
    fn spared(&self, now_ms: u64, back_ms: u64) -> u64 {
        let is_spared = |slot: &Slot| {
            slot.end().is_none()
                && !slot.is_pending()
                && slot.deadline_ms() <= now_ms
                && slot.due_ms(back_ms) > now_ms
        };
        self.book.count(is_spared)
    }

    /// The operator waives (or no longer waives) the grace: deadlines may have shortened.
    pub fn release_until(&self, until_ms: u64) {
        self.release_until_ms.store(until_ms, Ordering::Release);
        let (now_ms, back_ms) = self.look();
        self.book.due().refile(now_ms, back_ms);
    }

    fn meant(&self, claim: &Claim) -> Meant {
        let newest = self.book.newest(claim.owner.as_str());
        match (newest, claim.incarnation) {
            (Some(slot), None) => Meant::Life(slot),
            (None, None) => Meant::Nobody,
            (Some(slot), Some(i)) if slot.incarnation == i.0 => Meant::Life(slot),
            (_, Some(i)) => match self.book.life(i.0) {
                Some(slot) if slot.name == claim.owner => Meant::Life(slot),
                _ => Meant::Stranger,
            },
        }
    }
}

/// The answer to somebody who is not remembered.
fn stranger(claim: &Claim) -> Error {
    let (owner, incarnation) = (claim.owner.clone(), claim.incarnation);
    let lost =
        Lost { owner, incarnation, ending: None, ended_ms: None, held: Vec::new(), held_total: 0 };
    lost.into()
}
