//! Fills the mirror from the truth: at the start, after an absence of the mirror, and after it lost
//! its data.
//!
//! Seeding compares page by page, like reconciling, within a named attempt. If the mirror loses its
//! data in between, the attempt is void and starts again, so a seeded mirror has received every
//! page. Toggles in between have higher versions and win in any order. Heartbeats get the age that
//! the truth knows: dead providers are not revived (C1), and live ones have a whole threshold to
//! send a heartbeat again, because the mirror was away.

use crate::operations::Availability;
use crate::reconcile::ReconcilePosition;
use lapsed_core::error::{Error, Result};
use lapsed_core::sweep::PassMode;

/// How often a void attempt is repeated before it is given up.
const TRIES: usize = 3;

const PAGE: usize = 500;

impl Availability {
    /// Fills the mirror with what the truth has, and lets it answer. Safe at any time, also if
    /// several processes do it.
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
            what: "it lost its data repeatedly while it was being seeded".to_owned(),
        })
    }

    /// Runs one attempt; `false`: it is void.
    async fn seed_once(&self, attempt: &str) -> Result<bool> {
        let mut place = Some(ReconcilePosition::start());
        while let Some(from) = place {
            let page = self.compare(from, PAGE, PassMode::Reclaim, Some(attempt)).await?;
            let Some(page) = page else { return Ok(false) };
            place = page.next;
        }
        self.background("end_seed", self.parts.mirror.end_seed(attempt)).await
    }

    /// Seeds the mirror if it is not seeded; returns whether it is now.
    pub async fn ensure_seeded(&self) -> Result<bool> {
        let stale_ms = self.settings().await?.stale_ms();
        let presence = self.background("presence", self.parts.mirror.presence(stale_ms)).await?;
        if !presence.seeded {
            self.seed().await?;
        }
        Ok(true)
    }
}
