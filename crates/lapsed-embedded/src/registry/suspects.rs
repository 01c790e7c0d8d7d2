//! Who may be dead: read from memory, and what they hold from disk. Nothing of the living.

use std::sync::Arc;

use lapsed::owner::{Ending, Incarnation};
use lapsed::receipt::Reason;
use lapsed::sweep::{Census, Cursor, PageRequest, Suspect, SuspectPage};
use lapsed::{Error, Name, Result};

use crate::registry::EmbeddedRegistry;
use crate::slot::Slot;

/// A suspect of that life.
pub(super) fn suspect(slot: &Slot, deadline_ms: u64, key: Name) -> Suspect {
    let retired = slot.end().is_some_and(|end| end.ending == Ending::Retired);
    Suspect {
        key,
        owner: slot.name.clone(),
        incarnation: Incarnation(slot.incarnation),
        deadline_ms,
        reason: if retired { Reason::OwnerRetired } else { Reason::OwnerDead },
    }
}

/// `deadline:incarnation:key`: the place just after that suspect.
pub(super) fn after(suspect: &Suspect) -> Cursor {
    Cursor(Some(format!("{}:{}:{}", suspect.deadline_ms, suspect.incarnation, suspect.key)))
}

fn place(cursor: &Cursor) -> Result<Option<(u64, u64, Name)>> {
    let Some(text) = &cursor.0 else { return Ok(None) };
    let wrong = || Error::Invalid(format!("{text:?} is not a cursor of this store"));
    let mut parts = text.splitn(3, ':');
    let mut next = || parts.next().ok_or_else(wrong);
    let deadline_ms = next()?.parse().map_err(|_| wrong())?;
    let incarnation = next()?.parse().map_err(|_| wrong())?;
    Ok(Some((deadline_ms, incarnation, Name::new(next()?)?)))
}

impl EmbeddedRegistry {
    pub(super) fn page(&self, request: &PageRequest) -> Result<SuspectPage> {
        let (now_ms, back_ms) = self.core.look();
        let start = place(&request.after)?;
        let from = start.as_ref().map_or((0, 0), |(deadline, i, _)| (*deadline, *i));
        let doomed: Vec<((u64, u64), Arc<Slot>)> = {
            let mut due = self.core.book.due();
            due.advance(now_ms, back_ms);
            due.doomed(from, request.undeclared_max, request.limit, false)
        };
        let mut page = SuspectPage { last: true, ..SuspectPage::default() };
        for (place, slot) in doomed {
            let left = request.limit - page.suspects.len();
            let resumed = start.as_ref().filter(|(deadline, i, _)| (*deadline, *i) == place);
            let keys = self.held_keys(&slot, resumed.map(|(_, _, key)| key), left)?;
            page.last = keys.len() < left;
            page.suspects.extend(keys.into_iter().map(|key| suspect(&slot, place.0, key)));
            if !page.last {
                break;
            }
        }
        page.examined = page.suspects.len() as u64;
        page.last &= page.suspects.len() < request.limit;
        Ok(page)
    }

    pub(super) fn count(&self) -> Census {
        let (now_ms, back_ms) = self.core.look();
        let threshold_ms = self.core.threshold.as_millis() as u64;
        let mut due = self.core.book.due();
        due.advance(now_ms, back_ms);
        let heads = due.heads(now_ms, threshold_ms);
        drop(due);
        let cut_off_until = self.core.cut_off_until(now_ms, back_ms);
        let spared = if cut_off_until == 0 { 0 } else { self.core.spared(now_ms, back_ms) };
        Census {
            now_ms,
            store: self.inner.incarnation.clone(),
            back_ms: cut_off_until,
            population: self.core.held.len(),
            suspects: heads.suspects,
            owners_live: heads.live,
            owners_overdue: heads.overdue,
            owners_spared: spared,
            owners_died_recently: heads.died_recently,
            oldest_late_ms: heads
                .oldest_deadline_ms
                .map_or(0, |deadline| now_ms.saturating_sub(deadline)),
        }
    }
}
