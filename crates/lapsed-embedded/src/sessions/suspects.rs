//! Suspects: first the references of overdue and ended owners, then the sessions whose grace period
//! is over.

use lapsed_core::owner::Incarnation;
use lapsed_core::receipt::Reason;
use lapsed_core::sweep::{Census, PageRequest, Suspect, SuspectPage};
use lapsed_core::{Name, Result};

use crate::owners::suspects::{ScanPosition, place};
use crate::sessions::{Core, EmbeddedSessions};
use crate::tables::SessionRow;

/// The incarnation of a suspect that is a session and not a reference.
pub(super) const NOBODY: Incarnation = Incarnation(0);

impl Core {
    /// Sessions without references since before this time are orphans. Until a whole grace period
    /// has passed since the store came back, there are none.
    pub(super) fn due_before(&self) -> u64 {
        let (now_ms, back_ms) = self.look();
        if self.spares_all(now_ms, back_ms) { 0 } else { self.out_of_grace(now_ms) }
    }

    fn spares_all(&self, now_ms: u64, back_ms: u64) -> bool {
        now_ms < back_ms + self.grace_ms
    }

    /// Sessions without references since before this time are orphans, apart from absences of the
    /// store.
    fn out_of_grace(&self, now_ms: u64) -> u64 {
        (now_ms + 1).saturating_sub(self.grace_ms)
    }
}

impl EmbeddedSessions {
    pub(super) fn suspects_page(&self, request: &PageRequest) -> Result<SuspectPage> {
        let start = place(&request.after)?;
        let (owners, orphans): (_, Option<&ScanPosition>) = match &start {
            Some(place) if place.1 == NOBODY.0 => (None, Some(place)),
            start => (Some(start.as_ref()), None),
        };
        let mut page = match owners {
            Some(start) => self.owner_service.page(start, request)?,
            None => SuspectPage { last: true, ..SuspectPage::default() },
        };
        // While the brake holds, no sessions are deleted either.
        if !page.last || request.undeclared_max == Some(0) {
            return Ok(page);
        }
        let left = request.limit - page.suspects.len();
        let orphans = self.orphan_suspects(orphans, left)?;
        page.last = orphans.len() < left;
        page.examined += orphans.len() as u64;
        page.suspects.extend(orphans);
        Ok(page)
    }

    fn orphan_suspects(&self, start: Option<&ScanPosition>, limit: usize) -> Result<Vec<Suspect>> {
        let grace_ms = self.core.grace_ms;
        let after = start.map(|(deadline, _, id)| (deadline.saturating_sub(grace_ms), id.clone()));
        let orphans = self.core.waiting.lock().page(self.core.due_before(), after, limit);
        let rows = self.rows(orphans.iter().map(|(_, id, _)| id))?;
        let suspect = |((since_ms, id, disconnected), row): ((u64, Name, bool), Option<_>)| {
            let broadcaster = row.and_then(|row: SessionRow| row.profile.broadcaster_user_id);
            Suspect {
                owner: broadcaster.unwrap_or_else(|| id.clone()),
                key: id,
                incarnation: NOBODY,
                deadline_ms: since_ms + grace_ms,
                reason: if disconnected { Reason::Orphaned } else { Reason::NeverConnected },
            }
        };
        Ok(orphans.into_iter().zip(rows).map(suspect).collect())
    }

    pub(super) fn count(&self) -> Census {
        let (now_ms, back_ms) = self.core.look();
        let (sessions, (count, oldest_ms)) = {
            let mut waiting = self.core.waiting.lock();
            (waiting.sessions(), waiting.orphans(self.core.out_of_grace(now_ms)))
        };
        let census = self.owner_service.census(sessions);
        if self.core.spares_all(now_ms, back_ms) {
            let back_ms = if count > 0 { back_ms } else { census.back_ms };
            return Census { orphans_spared: count, back_ms, ..census };
        }
        let (orphans, grace_ms) = (count, self.core.grace_ms);
        let late_ms =
            oldest_ms.map_or(0, |since_ms| census.now_ms.saturating_sub(since_ms + grace_ms));
        Census {
            suspects: census.suspects + orphans,
            orphans,
            oldest_late_ms: census.oldest_late_ms.max(late_ms),
            ..census
        }
    }
}
