//! Sets silent providers offline: found by reading all online providers in bounded pages, decided
//! by the mirror in one step, carried out by the truth.
//!
//! There is deliberately no index of deadlines: every heartbeat would have to update it, and
//! heartbeats are more frequent than passes. Any error of the mirror ends the pass before anything
//! is decided (C4).

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;

use crate::LOCK;
use crate::caches::IsPending;
use crate::operations::Availability;
use crate::rules::AvailabilitySettings;
use crate::{Flip, Flipped, MassBeats, OnlineBeat, Presence, ProviderState, SeenBeat};
use lapsed_core::error::{Error, Result};
use lapsed_core::name::{Name, SystemId};
use lapsed_core::owner::Incarnation;
use lapsed_core::receipt::{Reason, Receipt};
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Census, Cursor, Outcome, PageRequest, PassMode, Refusal, Suspect,
    SuspectPage, Sweep, Tidied, TidyLimits,
};

/// How many providers one call reads.
const LOOK: usize = 500;

/// Longer than any provider has been silent: a hundred years.
const FOREVER_MS: u64 = 100 * 365 * 24 * 3_600 * 1_000;

/// After how long the log tells again of heartbeats that were written at once: ten minutes.
const MASS_TOLD_AGAIN_MS: u64 = 600_000;

/// Largest number of pending-offline providers of earlier passes that one pass continues with.
const PENDING_OFFLINE_MAX: usize = 10_000;

/// Result of reading all online providers.
struct Look {
    census: Census,
    suspects: Vec<(Suspect, IsPending)>,
    mass_beats: Option<MassBeats>,
    /// Providers whose heartbeat may be dated in the future.
    ahead: Vec<Name>,
}

impl Availability {
    async fn look_around(&self) -> Result<Look> {
        let settings = self.settings().await?;
        let stale_ms = settings.stale_ms();
        let presence = self.background("presence", self.parts.mirror.presence(stale_ms)).await?;
        if !presence.seeded {
            self.unseeded.notify_one();
            return Ok(unseeded(&presence));
        }
        let mut suspects = Vec::new();
        for (id, pending) in self
            .background("pending_offline", self.parts.mirror.pending_offline(PENDING_OFFLINE_MAX))
            .await?
        {
            let deadline_ms = pending.beat_ms.saturating_add(stale_ms).min(pending.decided_ms);
            suspects.push((suspect(id, pending.epoch, deadline_ms), true));
        }
        let pending_offline = suspects.len() as u64;
        let (mut online, mut ahead, mut mass_beats) = (0, Vec::new(), None);
        let mut after = settings.require_ping.then(Cursor::default);
        while let Some(from) = after {
            let page = self.parts.mirror.beats(&from, LOOK, stale_ms);
            let Some(page) = self.background("beats", page).await? else {
                self.unseeded.notify_one();
                return Ok(unseeded(&presence));
            };
            online += page.examined;
            ahead.extend(page.ahead);
            suspects.extend(
                page.beats.into_iter().filter_map(|one| overdue(one, stale_ms, page.now_ms)),
            );
            mass_beats = mass_beats.or(page.mass_beats);
            after = page.next;
        }
        suspects.sort_by(|(a, _), (b, _)| (a.deadline_ms, &a.key).cmp(&(b.deadline_ms, &b.key)));
        suspects.dedup_by(|(a, _), (b, _)| a.key == b.key);
        let census = self.count(&presence, &suspects, pending_offline, online.max(presence.online));
        Ok(Look { census, suspects, mass_beats, ahead })
    }

    fn count(
        &self,
        presence: &Presence,
        suspects: &[(Suspect, IsPending)],
        pending_offline: u64,
        online: u64,
    ) -> Census {
        let overdue = (suspects.len() as u64).saturating_sub(pending_offline);
        let oldest_ms = suspects.first().map_or(presence.now_ms, |(first, _)| first.deadline_ms);
        // If nobody is online there is nobody to be spared, and a provider that comes online sends
        // a heartbeat.
        let back_ms = if online + pending_offline > 0 { presence.back_ms } else { 0 };
        let away = back_ms > 0;
        Census {
            now_ms: presence.now_ms,
            store: presence.incarnation.clone(),
            back_ms,
            population: online + pending_offline,
            suspects: if away { 0 } else { suspects.len() as u64 },
            orphans: if away { 0 } else { pending_offline },
            orphans_spared: if away { pending_offline } else { 0 },
            owners_live: online.saturating_sub(if away { 0 } else { overdue }),
            owners_overdue: if away { 0 } else { overdue },
            owners_spared: if away { overdue } else { 0 },
            owners_died_recently: presence.died_recently,
            oldest_late_ms: presence.now_ms.saturating_sub(oldest_ms),
            ..Census::default()
        }
    }

    /// Warns that an application fills the mirror itself, at most once in `MASS_TOLD_AGAIN_MS`.
    fn tell_of_mass_beats(&self, found: Option<MassBeats>) {
        let Some(MassBeats { at_ms, beats, of }) = found else { return };
        let mut survey = self.survey.lock().expect(LOCK);
        if survey.told_mass_ms > 0 && at_ms < survey.told_mass_ms + MASS_TOLD_AGAIN_MS {
            return;
        }
        survey.told_mass_ms = at_ms;
        tracing::warn!(system = %self.parts.id, beats, of, at_ms,
            "heartbeats were written at once, by no ping: an application that fills the mirror itself \
             keeps silent providers online; switch its reseeding off");
    }

    /// Dates heartbeats of the future to the present of each store, so that they count for one threshold and not
    /// until that date. An application whose clock is ahead writes such heartbeats.
    async fn clamp_beats(&self, ids: &[Name]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let mirrored = self.background("clamp", self.parts.mirror.clamp_beats(ids)).await?;
        let in_truth = self.calls.quiet("clamp", self.parts.truth.clamp_beats(ids)).await?;
        if mirrored + in_truth > 0 {
            tracing::warn!(system = %self.parts.id, mirrored, in_truth,
                "heartbeats were dated in the future and count from now on; is the clock of the application right?");
        }
        Ok(())
    }

    /// Reads the settings now, because a decision must not be based on cached ones.
    async fn current_settings(&self) -> Result<AvailabilitySettings> {
        self.settings_now().await
    }

    /// Providers for which the truth has a fresh heartbeat that the mirror does not have, because
    /// the mirror could not be reached or written. The truth would not set them offline, but once
    /// they are pending offline in the mirror, they would be told that they are offline. So their
    /// heartbeats are written to the mirror instead.
    ///
    /// Providers that are already pending offline are excluded: for them only a refusal by the
    /// truth starts a new epoch.
    async fn alive_by_the_truth(
        &self,
        batch: &Batch,
        settings: &AvailabilitySettings,
    ) -> Result<BTreeSet<Name>> {
        let undeclared: Vec<Name> = {
            let survey = self.survey.lock().expect(LOCK);
            let declared: BTreeSet<&Name> = survey
                .suspects
                .iter()
                .filter(|(_, pending_offline)| *pending_offline)
                .map(|(one, _)| &one.key)
                .collect();
            let keys = batch.suspects.iter().map(|suspect| &suspect.key);
            keys.filter(|key| !declared.contains(key)).cloned().collect()
        };
        // A provider that is suspected by old settings is not, if heartbeats are no longer
        // required.
        if undeclared.is_empty() || !settings.require_ping {
            return Ok(undeclared.into_iter().collect());
        }
        let states = self.calls.quiet("read", self.parts.truth.read(&undeclared)).await?;
        let alive = states.into_iter().filter(|state| {
            state.online && state.beat_age_ms.is_some_and(|age_ms| age_ms < settings.stale_ms())
        });
        let (mut ids, mut ahead) = (Vec::new(), Vec::new());
        for state in alive {
            // A heartbeat of the future has no age, either.
            ahead.extend((state.beat_age_ms == Some(0)).then(|| state.id.clone()));
            ids.push(state.id);
        }
        let alive: Vec<Name> = ids;
        if batch.act == PassMode::Reclaim {
            self.clamp_beats(&ahead).await?;
        }
        if batch.act == PassMode::Reclaim && !alive.is_empty() {
            self.refresh(&alive).await?;
        }
        Ok(alive.into_iter().collect())
    }

    /// Lets the mirror decide and the truth carry it out.
    async fn declare(
        &self,
        batch: &Batch,
        settings: &AvailabilitySettings,
    ) -> Result<Vec<Outcome>> {
        let at_ms = self.background("time", self.parts.mirror.now_ms()).await?;
        let decided = self.parts.mirror.decide(batch, settings.stale_ms());
        let decided = self.background("decide", decided).await?;
        let mut flips = Vec::new();
        for (suspect, decided) in batch.suspects.iter().zip(&decided) {
            let Ok(pending) = decided else { continue };
            let silent_ms = pending.decided_ms.saturating_sub(pending.beat_ms);
            flips.push(Flip {
                id: suspect.key.clone(),
                epoch: pending.epoch,
                silent_ms: (pending.beat_ms > 0).then_some(silent_ms),
                decided_ago_ms: at_ms.saturating_sub(pending.decided_ms),
            });
        }
        let carried = match (batch.act.reclaims(), flips.is_empty()) {
            (false, _) => flips.iter().map(|_| Outcome::Reclaimed(None)).collect(),
            (true, true) => Vec::new(),
            (true, false) => self.carry_out(batch, &flips, settings.stale_ms()).await?,
        };
        let mut carried = carried.into_iter();
        let outcomes = decided.into_iter().map(|decided| match decided {
            Ok(_) => carried.next().unwrap_or(Outcome::InDoubt),
            Err(refusal) => Outcome::Refused(refusal),
        });
        Ok(outcomes.collect())
    }

    /// Lets the truth carry out the mirror's decisions, and updates the mirror with the results.
    async fn carry_out(
        &self,
        batch: &Batch,
        flips: &[Flip],
        stale_ms: u64,
    ) -> Result<Vec<Outcome>> {
        let at_ms = self.mirror_time().await;
        let flipped = self.parts.truth.flip(batch, flips, stale_ms);
        let flipped = self.calls.quiet("flip", flipped).await?;
        let (mut outcomes, mut states, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        for (flip, flipped) in flips.iter().zip(flipped) {
            outcomes.push(match flipped {
                Flipped::Offline(receipt, state) => {
                    states.push(state);
                    Outcome::Reclaimed(Some(receipt))
                }
                Flipped::Left(refusal, Some(state)) => {
                    let outcome = left(refusal, &state);
                    states.push(state);
                    outcome
                }
                Flipped::Left(_, None) => {
                    unknown.push(flip.id.clone());
                    Outcome::Gone
                }
            });
        }
        self.tell(states, at_ms).await;
        if !unknown.is_empty() {
            self.forget(&unknown).await;
        }
        Ok(outcomes)
    }

    /// Lets the truth refuse the mirror's decisions about providers for which it has a heartbeat,
    /// however old. That starts a new epoch, in which they are not pending offline. It sets nobody
    /// offline.
    pub(super) async fn void_pending_offline(&self, ids: &[Name]) -> Result<()> {
        let looked = self.background("look", self.parts.mirror.look(ids)).await?;
        let flips = looked.seen.into_iter().filter_map(|seen| {
            let epoch = seen.pending_offline?.epoch;
            Some(Flip { id: seen.id, epoch, silent_ms: None, decided_ago_ms: 0 })
        });
        let flips: Vec<Flip> = flips.collect();
        if flips.is_empty() {
            return Ok(());
        }
        let id = self.next_batch();
        let batch = Batch { id, suspects: Vec::new(), act: PassMode::Reclaim, term: None };
        self.carry_out(&batch, &flips, FOREVER_MS).await.map(|_| ())
    }

    /// Removes ids that the truth does not know from the mirror, on a best-effort basis;
    /// reconciling does it too.
    async fn forget(&self, ids: &[Name]) {
        let forgetting = async {
            let looked = self.parts.mirror.look(ids).await?;
            let gone: Vec<_> =
                looked.seen.into_iter().map(|seen| (seen.id, seen.version)).collect();
            self.parts.mirror.forget(&gone).await
        };
        let _ = self.background("forget", forgetting).await;
    }
}

/// A mirror that is not seeded counts as just back, so that nobody is judged by it.
fn unseeded(presence: &Presence) -> Look {
    let census = Census {
        now_ms: presence.now_ms,
        store: presence.incarnation.clone(),
        back_ms: presence.now_ms,
        uncounted: true,
        ..Census::default()
    };
    Look { census, suspects: Vec::new(), mass_beats: None, ahead: Vec::new() }
}

fn suspect(id: Name, epoch: u64, deadline_ms: u64) -> Suspect {
    Suspect {
        owner: id.clone(),
        key: id,
        incarnation: Incarnation(epoch),
        deadline_ms,
        reason: Reason::HeartbeatStale,
    }
}

/// A heartbeat that cannot be parsed is not a death; it is left for a person to look at.
fn overdue(one: OnlineBeat, stale_ms: u64, now_ms: u64) -> Option<(Suspect, IsPending)> {
    let deadline_ms = match one.beat {
        SeenBeat::At(beat_ms) => beat_ms.saturating_add(stale_ms),
        SeenBeat::Missing(Some(since_ms)) => since_ms.saturating_add(stale_ms),
        // Listed so that the pass records since when it is missing.
        SeenBeat::Missing(None) => now_ms,
        SeenBeat::Unreadable => return None,
    };
    Some((suspect(one.id, one.epoch, deadline_ms), false))
}

fn left(refusal: Refusal, state: &ProviderState) -> Outcome {
    match (refusal, state.online) {
        (Refusal::Moved, false) => Outcome::Gone,
        _ => Outcome::Refused(refusal),
    }
}

fn place(cursor: &Cursor) -> Result<Option<(u64, String)>> {
    let Some(text) = &cursor.0 else { return Ok(None) };
    let split = || {
        let (deadline_ms, key) = text.split_once(':')?;
        Some((deadline_ms.parse().ok()?, key.to_owned()))
    };
    match split() {
        Some(place) => Ok(Some(place)),
        None => Err(Error::Invalid(format!("{text:?} is not a cursor of this sweep"))),
    }
}

#[async_trait]
impl Sweep for Availability {
    fn system(&self) -> &SystemId {
        &self.parts.id
    }

    fn threshold(&self) -> Duration {
        let settings = self.settings_known().unwrap_or_default();
        Duration::from_millis(settings.stale_ms())
    }

    async fn census(&self) -> Result<Census> {
        Ok(self.look_around().await?.census)
    }

    async fn survey(&self, act: PassMode) -> Result<Option<Census>> {
        let Look { census, suspects, mass_beats, ahead } = self.look_around().await?;
        self.tell_of_mass_beats(mass_beats);
        if act == PassMode::Reclaim {
            self.clamp_beats(&ahead).await?;
        }
        if !suspects.is_empty() {
            // What is cached of the brake may be old; the pass reads it again.
            self.forget_brake();
        }
        self.survey.lock().expect(LOCK).suspects = suspects;
        Ok(Some(census))
    }

    async fn suspects(&self, request: PageRequest) -> Result<SuspectPage> {
        if request.undeclared_max == Some(0) {
            return Ok(SuspectPage { last: true, ..SuspectPage::default() });
        }
        let after = place(&request.after)?;
        let survey = self.survey.lock().expect(LOCK);
        let mut undeclared = request.undeclared_max.unwrap_or(usize::MAX);
        let allowed = survey.suspects.iter().filter(|(_, pending_offline)| {
            let allowed = *pending_offline || undeclared > 0;
            undeclared = undeclared.saturating_sub(usize::from(!pending_offline));
            allowed
        });
        let is_after = |suspect: &Suspect| match &after {
            None => true,
            Some((deadline_ms, key)) => {
                (suspect.deadline_ms, suspect.key.as_str()) > (*deadline_ms, key.as_str())
            }
        };
        let page = allowed.map(|(suspect, _)| suspect).filter(|suspect| is_after(suspect));
        let suspects: Vec<Suspect> = page.take(request.limit).cloned().collect();
        let (examined, last) = (suspects.len() as u64, suspects.len() < request.limit);
        Ok(SuspectPage { suspects, examined, last })
    }

    fn after(&self, suspect: &Suspect) -> Cursor {
        Cursor(Some(format!("{}:{}", suspect.deadline_ms, suspect.key)))
    }

    async fn reclaim(&self, batch: Batch) -> Result<BatchAnswer> {
        let settings = self.current_settings().await?;
        let alive = self.alive_by_the_truth(&batch, &settings).await?;
        let spared: Vec<bool> =
            batch.suspects.iter().map(|suspect| alive.contains(&suspect.key)).collect();
        let mut batch = batch;
        batch.suspects.retain(|suspect| !alive.contains(&suspect.key));
        let judged = match batch.suspects.is_empty() {
            true => Vec::new(),
            false => self.declare(&batch, &settings).await?,
        };
        let mut judged = judged.into_iter();
        let outcomes = spared.into_iter().map(|spared| match spared {
            true => Outcome::Refused(Refusal::Alive),
            false => judged.next().unwrap_or(Outcome::InDoubt),
        });
        Ok(BatchAnswer { outcomes: outcomes.collect(), ..BatchAnswer::default() })
    }

    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        self.parts.truth.settle(batch).await
    }

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied> {
        self.parts.truth.tidy(limits).await
    }
}
