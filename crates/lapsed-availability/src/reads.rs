//! The read operations: answered by the mirror, or by the truth if the mirror does not answer;
//! every answer says which.

use crate::counters::ReadKind;
use crate::counters::Source;
use crate::operations::{Availability, Sourced};
use crate::rules::AvailabilitySettings;
use crate::{
    Available, ListedProvider, MirrorBeat, MirrorEntry, OnlineToggle, PAGE_MAX, ProviderBeat,
    ProviderQuery, ProviderState, SeenBeat,
};
use lapsed_core::error::{Error, Result};
use lapsed_core::name::Name;
use lapsed_core::sweep::Cursor;

/// Largest number of mirror pages that are read for one answer while few providers are available.
const LOOKS_MAX: usize = 150;

/// A page of available providers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AvailableFound {
    /// The providers: about as many as requested, without duplicates within the page.
    pub available: Vec<Available>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<Cursor>,
}

/// Status of one provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnStatus {
    /// The provider as the truth lists it.
    pub listed: ListedProvider,
    /// Whether it is online as readers see it.
    pub is_online: bool,
    /// Age of its last heartbeat, as far as it is known.
    pub beat_age_ms: Option<u64>,
    /// Whether it is online, not deactivated and fresh.
    pub is_reachable: bool,
    /// Whether it can take work now.
    pub is_available: bool,
}

impl Availability {
    /// Records heartbeats: one round trip to the mirror, and none to the truth unless a provider is
    /// pending offline. If the truth does not answer then, only those providers get
    /// [`ProviderBeat::Unavailable`]; if there are no others, or if the mirror does not answer either, it is an error.
    /// After an error some may have been recorded; repeating it is safe.
    pub async fn heartbeat(&self, ids: &[Name]) -> Result<Sourced<Vec<ProviderBeat>>> {
        self.calls.activity.note(self.parts.clock.mono());
        let beats = self.gated("beat", self.parts.mirror.beat(ids)).await;
        let (answer, source) = match self.seeded(beats) {
            Some(beats) => self.answered_beats(ids, &beats).await?,
            None => (self.beat_on_truth(ids).await?, Source::Truth),
        };
        answer.iter().for_each(|beat| self.counters.beat(*beat));
        self.counters.read(ReadKind::Heartbeat, source);
        Ok(Sourced { answer, source })
    }

    /// A provider that is pending offline is not offline before the truth says so, and the truth
    /// may refuse because it has a heartbeat that the mirror has not seen. So these heartbeats go
    /// to the truth and are judged there: before the flip, and it will not happen; or after it, and
    /// the answer is `Offline`.
    async fn answered_beats(
        &self,
        ids: &[Name],
        beats: &[MirrorBeat],
    ) -> Result<(Vec<ProviderBeat>, Source)> {
        let pending_offline =
            ids.iter().zip(beats).filter(|(_, beat)| **beat == MirrorBeat::PendingOffline);
        let pending_offline: Vec<Name> = pending_offline.map(|(id, _)| id.clone()).collect();
        let (on_truth, source) = match pending_offline.len() {
            0 => (Vec::new(), Source::Mirror),
            // The mirror has answered the others for good: they do not fail with these.
            some if some < ids.len() => {
                let unavailable = |error: Error| {
                    tracing::debug!(system = %self.parts.id, %error, "beats that only the truth can judge");
                    (vec![ProviderBeat::Unavailable; some], Source::Mirror)
                };
                let on_truth = self.beat_on_truth(&pending_offline).await;
                on_truth.map_or_else(unavailable, |beats| (beats, Source::Truth))
            }
            _ => (self.beat_on_truth(&pending_offline).await?, Source::Truth),
        };
        self.bring_back(pending_offline.into_iter().zip(&on_truth)).await;
        let mut on_truth = on_truth.into_iter();
        let answers = beats.iter().map(|beat| match beat {
            MirrorBeat::Told(beat) => *beat,
            MirrorBeat::PendingOffline => on_truth.next().expect("the truth answers one each"),
        });
        Ok((answers.collect(), source))
    }

    /// Voids the decision about providers whose heartbeat the truth has recorded, on a best-effort
    /// basis. The next pass would do it too, but the brake may delay that, and they can take work
    /// now.
    async fn bring_back(&self, beats: impl Iterator<Item = (Name, &ProviderBeat)>) {
        let noted = beats.filter(|(_, beat)| **beat == ProviderBeat::Noted);
        let noted: Vec<Name> = noted.map(|(id, _)| id).collect();
        if noted.is_empty() {
            return;
        }
        if let Err(error) = self.void_pending_offline(&noted).await {
            tracing::debug!(system = %self.parts.id, %error, "left to the next pass");
        }
    }

    async fn beat_on_truth(&self, ids: &[Name]) -> Result<Vec<ProviderBeat>> {
        self.calls.quiet("beat", self.beats.beat(&*self.parts.truth, ids)).await
    }

    /// About `limit` providers that can take work now, from `after` on.
    pub async fn available(&self, after: &Cursor, limit: usize) -> Result<Sourced<AvailableFound>> {
        let limit = limit.clamp(1, PAGE_MAX);
        let settings = self.settings().await?;
        let after_id = match ListingPosition::parse(after)? {
            ListingPosition::Truth(id) => Some(id),
            ListingPosition::Mirror(cursor) => {
                if let Some(found) = self.available_mirrored(&settings, cursor, limit).await {
                    return Ok(self.from(ReadKind::Available, Source::Mirror, found));
                }
                if after.0.is_some() {
                    return Err(self.broke_off());
                }
                None
            }
        };
        let page = self.parts.truth.available(&settings, after_id.as_ref(), limit);
        let available = self.calls.quiet("available", page).await?;
        let next = available.last().filter(|_| available.len() == limit);
        let next = next.map(|last| ListingPosition::Truth(last.id.clone()).cursor());
        Ok(self.from(ReadKind::Available, Source::Truth, AvailableFound { available, next }))
    }

    /// The same from the mirror; `None`: it does not answer or is not seeded. A page of online
    /// providers may contain no available one, so it reads on until there are enough or the limit
    /// of pages is reached.
    async fn available_mirrored(
        &self,
        settings: &AvailabilitySettings,
        mut after: Cursor,
        limit: usize,
    ) -> Option<AvailableFound> {
        let mut available: Vec<Available> = Vec::new();
        let mut looks = 0;
        loop {
            let page = self.parts.mirror.available(settings, &after, limit, false);
            let page = self.seeded(self.gated("available", page).await)?;
            match available.is_empty() {
                true => available = page.available,
                false => available.extend(page.available),
            }
            looks += 1;
            let next = match page.next {
                Some(next) if available.len() < limit && looks < LOOKS_MAX => {
                    after = next;
                    continue;
                }
                next => next.map(|next| ListingPosition::Mirror(next).cursor()),
            };
            // A single page is already in order.
            if looks > 1 {
                available.sort_by(|a, b| a.id.cmp(&b.id));
                available.dedup_by(|a, b| a.id == b.id);
            }
            return Some(AvailableFound { available, next });
        }
    }

    fn broke_off(&self) -> Error {
        Error::Unavailable {
            store: format!("the mirror of {}", self.parts.id),
            what: "it stopped answering during the listing; start again without `after`".to_owned(),
        }
    }

    /// Whether a provider is online, not deactivated and fresh.
    pub async fn is_reachable(&self, id: &Name) -> Result<Sourced<bool>> {
        let settings = self.settings().await?;
        let (state, source) = self.state(id).await?;
        let answer = state.is_some_and(|state| settings.is_reachable(&state));
        Ok(self.from(ReadKind::Reachable, source, answer))
    }

    /// How many are online and not deactivated.
    pub async fn count_online(&self) -> Result<Sourced<u64>> {
        let online = self.gated("online", self.parts.mirror.count_online()).await;
        if let Some(answer) = self.seeded(online) {
            return Ok(self.from(ReadKind::Online, Source::Mirror, answer));
        }
        let answer = self.calls.quiet("online", self.parts.truth.count_online()).await?;
        Ok(self.from(ReadKind::Online, Source::Truth, answer))
    }

    /// Status of one provider: flags as readers see them, times from the truth.
    pub async fn status(&self, id: &Name) -> Result<Option<Sourced<OwnStatus>>> {
        let Some(listed) = self.describe(id).await? else { return Ok(None) };
        let settings = self.settings().await?;
        let (state, source) = self.state(id).await?;
        let Some(state) = state else { return Ok(None) };
        let status = OwnStatus {
            is_online: state.online,
            beat_age_ms: state.beat_age_ms,
            is_reachable: settings.is_reachable(&state),
            is_available: settings.is_available(&state),
            listed,
        };
        Ok(Some(self.from(ReadKind::Status, source, status)))
    }

    /// Providers with names and counts. Always read from the truth, because it is read rarely.
    pub async fn list(&self, listing: &ProviderQuery) -> Result<Vec<ListedProvider>> {
        let listing = ProviderQuery { limit: listing.limit.clamp(1, PAGE_MAX), ..listing.clone() };
        self.calls.quiet("list", self.parts.truth.list(&listing)).await
    }

    pub async fn describe(&self, id: &Name) -> Result<Option<ListedProvider>> {
        self.calls.quiet("describe", self.parts.truth.describe(id)).await
    }

    /// When a provider was set online and offline, newest first.
    pub async fn log(&self, id: &Name, limit: usize) -> Result<Vec<OnlineToggle>> {
        self.calls.quiet("log", self.parts.truth.log(id, limit.clamp(1, PAGE_MAX))).await
    }

    /// State of one provider as readers see it.
    async fn state(&self, id: &Name) -> Result<(Option<ProviderState>, Source)> {
        let ids = [id.clone()];
        let looking = async {
            let looked = self.parts.mirror.look(&ids).await?;
            let now_ms = looked.now_ms;
            let seen = looked.seen.into_iter().next();
            Ok(looked.seeded.then(|| seen.map(|seen| as_state(seen, now_ms))))
        };
        let seen = self.gated("look", looking).await;
        if let Some(state) = self.seeded(seen) {
            return Ok((state, Source::Mirror));
        }
        let states = self.calls.quiet("read", self.parts.truth.read(&ids)).await?;
        Ok((states.into_iter().next(), Source::Truth))
    }

    /// The answer of a seeded mirror. If it is not seeded, wakes the watcher to seed it, and the
    /// caller reads the truth.
    pub(super) fn seeded<T>(&self, answer: Result<Option<T>>) -> Option<T> {
        match answer {
            Ok(Some(answer)) => Some(answer),
            Ok(None) => {
                self.unseeded.notify_one();
                None
            }
            Err(error) => {
                tracing::debug!(system = %self.parts.id, %error, "asking the truth instead");
                None
            }
        }
    }

    pub(super) fn from<T>(&self, read: ReadKind, source: Source, answer: T) -> Sourced<T> {
        self.counters.read(read, source);
        Sourced { answer, source }
    }
}

/// Converts what a mirror has to a state. A value that cannot be parsed counts as full, or as
/// silent.
pub(super) fn as_state(seen: MirrorEntry, now_ms: u64) -> ProviderState {
    let beat_age_ms = match seen.beat {
        SeenBeat::At(beat_ms) => Some(now_ms.saturating_sub(beat_ms)),
        SeenBeat::Missing(_) | SeenBeat::Unreadable => None,
    };
    ProviderState {
        id: seen.id,
        version: seen.version.unwrap_or(0),
        epoch: seen.epoch,
        online: seen.online,
        active: !seen.deactivated,
        sessions: seen.sessions.unwrap_or(u64::MAX),
        beat_age_ms,
    }
}

/// Position of a listing, in the mirror or in the truth.
enum ListingPosition {
    Mirror(Cursor),
    Truth(Name),
}

impl ListingPosition {
    fn parse(cursor: &Cursor) -> Result<ListingPosition> {
        let Some(text) = &cursor.0 else { return Ok(ListingPosition::Mirror(Cursor::default())) };
        match text.split_once(':') {
            Some(("m", place)) => Ok(ListingPosition::Mirror(Cursor(Some(place.to_owned())))),
            Some(("t", id)) => Ok(ListingPosition::Truth(Name::new(id)?)),
            _ => Err(Error::Invalid(format!(
                "`after` is {text:?}; give what `next` of the page before said"
            ))),
        }
    }

    fn cursor(self) -> Cursor {
        Cursor(Some(match self {
            ListingPosition::Mirror(Cursor(place)) => format!("m:{}", place.unwrap_or_default()),
            ListingPosition::Truth(id) => format!("t:{id}"),
        }))
    }
}
