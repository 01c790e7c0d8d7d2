//! Filling the mirror from the truth: at the start, after it came back, when it lost its data.
//!
//! Seeding is comparing page by page, as reconciling is, with a name for the attempt: if the mirror loses
//! its data in the middle, the attempt is void and begins again, so that a mirror that says it is
//! seeded has seen every page. Toggles meanwhile have higher versions and win in any order. Beats are as
//! old as the truth knows them to be: the dead are not revived (C1), and the living have a whole
//! threshold to beat again, because the mirror was away.

use crate::operations::Availability;
use crate::reconcile::Place;
use lapsed_core::error::{Error, Result};
use lapsed_core::sweep::PassMode;

/// How often an attempt begins again before it gives up for now.
const TRIES: usize = 3;

const PAGE: usize = 500;

impl Availability {
    /// Makes sure that the mirror has what the truth has, and lets it answer. Safe at any time, and beside
    /// others that do the same.
    pub async fn seed(&self) -> Result<()> {
        for _ in 0..TRIES {
            let attempt = self.background("begin_seed", self.parts.mirror.begin_seed()).await?;
            if self.seed_once(&attempt).await? {
                self.counters.seeds.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                tracing::info!(system = %self.parts.id, "the mirror is seeded");
                return Ok(());
            }
        }
        Err(Error::Unavailable {
            store: format!("the mirror of {}", self.parts.id),
            what: "it lost its data again and again while it was being seeded".to_owned(),
        })
    }

    /// `false`: the attempt is void.
    async fn seed_once(&self, attempt: &str) -> Result<bool> {
        let mut place = Some(Place::start());
        while let Some(from) = place {
            let page = self.compare(from, PAGE, PassMode::Reclaim, Some(attempt)).await?;
            let Some(page) = page else { return Ok(false) };
            place = page.next;
        }
        self.background("end_seed", self.parts.mirror.end_seed(attempt)).await
    }

    /// Seeds it if it is not; whether it is now.
    pub async fn ensure_seeded(&self) -> Result<bool> {
        let stale_ms = self.settings().await?.stale_ms();
        let presence = self.background("presence", self.parts.mirror.presence(stale_ms)).await?;
        if !presence.seeded {
            self.seed().await?;
        }
        Ok(true)
    }
}
