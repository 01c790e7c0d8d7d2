//! Makes the mirror agree with the truth, one page at a time, while both are in use.
//!
//! First every provider of the truth is compared with the mirror, then every id in the mirror is
//! looked up in the truth. What differs is written to the mirror with a version that was read or
//! taken after the difference was seen; a toggle in between has a higher version and stays (C2).

use std::collections::BTreeMap;

use async_trait::async_trait;

use crate::operations::{Availability, dated};
use crate::{MirrorEntry, ProviderState, SeenBeat};
use lapsed_core::error::{Error, Result};
use lapsed_core::name::Name;
use lapsed_core::reconcile::{Healed, IndexChange, Reconcile, Reconciled};
use lapsed_core::sweep::{Cursor, PassMode};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReconcilePosition {
    /// Comparing the providers of the truth after this one.
    Truth(Option<Name>),
    /// Looking up the mirror's ids from here on.
    Mirror(Cursor),
}

impl ReconcilePosition {
    pub fn start() -> ReconcilePosition {
        ReconcilePosition::Truth(None)
    }

    fn parse(cursor: &Cursor) -> Result<ReconcilePosition> {
        let Some(text) = &cursor.0 else { return Ok(ReconcilePosition::start()) };
        match text.split_once(':') {
            Some(("t", id)) => Ok(ReconcilePosition::Truth(Some(Name::new(id)?))),
            Some(("m", "")) => Ok(ReconcilePosition::Mirror(Cursor::default())),
            Some(("m", place)) => Ok(ReconcilePosition::Mirror(Cursor(Some(place.to_owned())))),
            _ => Err(Error::Invalid(format!("{text:?} is not a cursor of a reconciliation"))),
        }
    }

    fn cursor(&self) -> Cursor {
        match self {
            ReconcilePosition::Truth(None) => Cursor::default(),
            ReconcilePosition::Truth(Some(id)) => Cursor(Some(format!("t:{id}"))),
            ReconcilePosition::Mirror(Cursor(place)) => {
                Cursor(Some(format!("m:{}", place.as_deref().unwrap_or_default())))
            }
        }
    }
}

/// Result of comparing one page.
#[derive(Debug, Default)]
pub(super) struct Compared {
    pub examined: u64,
    pub changes: Vec<IndexChange>,
    pub left: BTreeMap<String, u64>,
    pub next: Option<ReconcilePosition>,
}

impl Availability {
    /// Compares a page and corrects the mirror unless it is a dry run. `None`: the seeding attempt
    /// is void.
    pub(super) async fn compare(
        &self,
        from: ReconcilePosition,
        limit: usize,
        act: PassMode,
        attempt: Option<&str>,
    ) -> Result<Option<Compared>> {
        match from {
            ReconcilePosition::Truth(after) => self.compare_truth(after, limit, act, attempt).await,
            ReconcilePosition::Mirror(after) => {
                Ok(Some(self.compare_traces(after, limit, act).await?))
            }
        }
    }

    async fn compare_truth(
        &self,
        after: Option<Name>,
        limit: usize,
        act: PassMode,
        attempt: Option<&str>,
    ) -> Result<Option<Compared>> {
        let at_ms = self.background("time", self.parts.mirror.now_ms()).await?;
        let page = self.parts.truth.page(after.as_ref(), limit);
        let states = self.calls.quiet("page", page).await?;
        let last = states.last().filter(|_| states.len() == limit).map(|state| state.id.clone());
        let next = last.map_or(ReconcilePosition::Mirror(Cursor::default()), |id| {
            ReconcilePosition::Truth(Some(id))
        });
        let ids: Vec<Name> = states.iter().map(|state| state.id.clone()).collect();
        let looked = self.background("look", self.parts.mirror.look(&ids)).await?;
        let mut compared =
            Compared { examined: states.len() as u64, next: Some(next), ..Compared::default() };
        let (mut newer, mut again) = (Vec::new(), Vec::new());
        for (state, seen) in states.into_iter().zip(&looked.seen) {
            let differences = differences(&state, seen);
            if differences.is_empty() && is_known(&state, seen) {
                continue;
            }
            compared.changes.extend(differences);
            // A version that the mirror does not have yet is enough. If the mirror has it, or if
            // there is none, a new one must be taken.
            let is_newer = state.version > seen.version.unwrap_or(0);
            match is_newer {
                true => newer.push(state),
                false => again.push((state.id, seen.version.unwrap_or(0))),
            }
        }
        if act == PassMode::DryRun {
            return Ok(Some(compared));
        }
        if !again.is_empty() {
            let refreshed = self.parts.truth.refresh(&again);
            newer.extend(self.calls.quiet("refresh", refreshed).await?);
        }
        let told = dated(newer, at_ms);
        let void = match told.is_empty() && attempt.is_none() {
            true => false,
            false => {
                let applied = self.parts.mirror.apply(&told, attempt);
                self.background("apply", applied).await?.is_none()
            }
        };
        Ok((!void).then_some(compared))
    }

    /// Removes ids from the mirror that the truth does not know (any more).
    async fn compare_traces(&self, after: Cursor, limit: usize, act: PassMode) -> Result<Compared> {
        let traces = self.parts.mirror.traces(&after, limit);
        let (ids, next) = self.background("traces", traces).await?;
        // Most pages contain only ids that were compared before; then the truth need not be read.
        let known = match ids.is_empty() {
            true => Vec::new(),
            false => self.calls.quiet("read", self.parts.truth.read(&ids)).await?,
        };
        let mut strangers = ids.clone();
        strangers.retain(|id| !known.iter().any(|state| state.id == *id));
        let mut compared = Compared {
            examined: ids.len() as u64,
            next: next.map(ReconcilePosition::Mirror),
            ..Compared::default()
        };
        if strangers.is_empty() {
            return Ok(compared);
        }
        let looked = self.background("look", self.parts.mirror.look(&strangers)).await?;
        for seen in &looked.seen {
            compared.changes.push(IndexChange {
                key: seen.id.to_string(),
                what: Healed::Removed,
                why: "the truth has no provider with that id".to_owned(),
            });
        }
        if act == PassMode::Reclaim {
            // Read once more, because a provider may have been created meanwhile.
            let again = self.calls.quiet("read", self.parts.truth.read(&strangers)).await?;
            let is_known = |seen: &MirrorEntry| again.iter().any(|state| state.id == seen.id);
            let gone = looked.seen.into_iter().filter(|seen| !is_known(seen));
            let gone: Vec<_> = gone.map(|seen| (seen.id, seen.version)).collect();
            self.background("forget", self.parts.mirror.forget(&gone)).await?;
        }
        Ok(compared)
    }
}

/// Whether version and epoch of the mirror agree with the truth.
fn is_known(state: &ProviderState, seen: &MirrorEntry) -> bool {
    seen.version == Some(state.version) && seen.epoch == state.epoch
}

/// The differences between mirror and truth of one provider. A provider that is pending offline in
/// this epoch counts as offline, because the truth is about to set it offline.
pub(super) fn differences(state: &ProviderState, seen: &MirrorEntry) -> Vec<IndexChange> {
    let mut found = Vec::new();
    let mut differ = |what: Healed, why: String| {
        found.push(IndexChange { key: state.id.to_string(), what, why });
    };
    let pending_offline =
        seen.pending_offline.is_some_and(|pending| pending.epoch == state.epoch && state.online);
    match (state.online && !pending_offline, seen.online) {
        (true, false) => differ(Healed::Added, "online, and not among those online".to_owned()),
        (false, true) => differ(Healed::Removed, "offline, and among those online".to_owned()),
        _ => {}
    }
    match (state.active, seen.deactivated) {
        (true, true) => differ(Healed::Removed, "active, and among those deactivated".to_owned()),
        (false, false) => {
            differ(Healed::Added, "deactivated, and not among those deactivated".to_owned());
        }
        _ => {}
    }
    match seen.sessions {
        Some(sessions) if sessions == state.sessions => {}
        sessions => {
            let counted = sessions.map_or("something else".to_owned(), |n| n.to_string());
            let why = format!("has {} sessions, and {counted} is noted", state.sessions);
            differ(Healed::Corrected, why);
        }
    }
    match (seen.online, seen.beat) {
        (true, SeenBeat::Missing(_)) if state.online && state.beat_age_ms.is_some() => {
            differ(Healed::Added, "online, and its last heartbeat is missing".to_owned());
        }
        (false, SeenBeat::At(_) | SeenBeat::Unreadable) if !state.online || pending_offline => {
            differ(Healed::Removed, "offline, and a heartbeat is left".to_owned());
        }
        _ => {}
    }
    if seen.pending_offline.is_some() && !pending_offline {
        let why = "declared silent in an earlier epoch, and that is still noted".to_owned();
        differ(Healed::Removed, why);
    }
    found
}

#[async_trait]
impl Reconcile for Availability {
    async fn reconcile(&self, after: Cursor, limit: usize, act: PassMode) -> Result<Reconciled> {
        let compared = self.compare(ReconcilePosition::parse(&after)?, limit, act, None).await?;
        let compared = compared.unwrap_or_default();
        Ok(Reconciled {
            examined: compared.examined,
            changes: compared.changes,
            left: compared.left,
            next: compared.next.map(|place| place.cursor()),
        })
    }

    async fn extent(&self) -> Result<u64> {
        // Every provider is compared twice, once from each side.
        Ok(2 * self.calls.quiet("extent", self.parts.truth.extent()).await?)
    }
}
