//! Background work besides the passes: keeping the mirror seeded and up to date, and copying
//! heartbeats to the truth.

use std::time::Duration;

use futures::future::{Either, select};

use crate::LOCK;
use crate::operations::Availability;
use crate::{PAGE_MAX, SeenBeat};
use lapsed_core::clock::jittered;
use lapsed_core::error::Result;
use lapsed_core::name::Name;
use lapsed_core::schedule::StopSignal;
use lapsed_core::sweep::Cursor;

/// How often the mirror is checked.
const WATCH: Duration = Duration::from_secs(1);

/// How long a reading of the truth's clock is used: two clocks diverge by less than a tenth of a
/// second in that time.
const TRUTH_TIME_FOR: Duration = Duration::from_secs(600);

/// Largest number of heartbeats in one statement.
const BEATS_MAX: usize = 20_000;

impl Availability {
    /// Watches the mirror until `stop` says so: seeds it if it is not seeded, and writes the
    /// updates that it missed.
    pub async fn watch(&self, stop: &StopSignal) {
        let mut complained = false;
        loop {
            let looked = self.look_after().await;
            if let (Err(error), false) = (&looked, complained) {
                tracing::warn!(system = %self.parts.id, %error,
                    "the mirror cannot be kept right for now; reads go to the truth");
            }
            complained = looked.is_err();
            // Every read of a mirror that is not seeded wakes this loop; the pause keeps it from
            // calling a truth that does not answer at that rate.
            let asked = match complained {
                true => Either::Left(std::future::pending()),
                false => Either::Right(Box::pin(self.unseeded.notified())),
            };
            let nap = select(asked, self.parts.clock.sleep(WATCH));
            if let Either::Left(_) = select(Box::pin(stop.stopped()), nap).await {
                return;
            }
        }
    }

    /// Checks the mirror once.
    pub async fn look_after(&self) -> Result<()> {
        self.ensure_seeded().await?;
        let behind = self.take_behind();
        for (at, ids) in behind.chunks(PAGE_MAX).enumerate() {
            let refreshed = self.refresh(ids).await;
            if !matches!(refreshed, Ok(true)) {
                self.owe(&behind[at * PAGE_MAX..]);
                return refreshed.map(|_| ());
            }
        }
        Ok(())
    }

    /// Copies the mirror's heartbeats to the truth regularly until `stop` says so, while `leads` is
    /// true.
    pub async fn mirror_beats_every(
        &self,
        every: Duration,
        stop: &StopSignal,
        leads: impl Fn() -> bool,
    ) {
        loop {
            let nap = self.parts.clock.sleep(jittered(&*self.parts.clock, every, 0.1));
            if let Either::Left(_) = select(Box::pin(stop.stopped()), nap).await {
                return;
            }
            if leads()
                && let Err(error) = self.mirror_beats().await
            {
                // The next round writes the newest heartbeats.
                tracing::warn!(system = %self.parts.id, %error, "heartbeats were not written to the truth");
            }
        }
    }

    /// Copies the mirror's heartbeats to the truth in one statement, only forward in time; returns
    /// how many moved.
    pub async fn mirror_beats(&self) -> Result<u64> {
        let (mut moved, mut after) = (0, Some(Cursor::default()));
        // Read before the heartbeats, so that a slow transfer makes them older, never newer.
        let (truth_ms, known) = (self.truth_time().await?, self.parts.clock.mono());
        let mut read: Vec<AgedBeat> = Vec::new();
        while let Some(from) = after {
            // Counted from the request, because the answer may have been slow.
            let at = self.parts.clock.mono();
            let page = self.parts.mirror.beats(&from, PAGE_MAX, 0);
            let Some(page) = self.background("beats", page).await? else { break };
            read.extend(page.beats.into_iter().filter_map(|one| match one.beat {
                SeenBeat::At(beat_ms) => {
                    Some(AgedBeat { id: one.id, age_ms: page.now_ms.saturating_sub(beat_ms), at })
                }
                SeenBeat::Missing(_) | SeenBeat::Unreadable => None,
            }));
            after = page.next;
            if read.len() >= BEATS_MAX || (after.is_none() && !read.is_empty()) {
                let passed_ms = (self.parts.clock.mono() - known).as_millis() as u64;
                moved += self.note_beats(std::mem::take(&mut read), truth_ms + passed_ms).await?;
            }
        }
        self.counters.beats_noted.fetch_add(moved, std::sync::atomic::Ordering::Relaxed);
        Ok(moved)
    }

    /// A lower bound of the truth's clock: its last reading plus the time since. It is read rarely,
    /// so that a round of heartbeats is one statement.
    async fn truth_time(&self) -> Result<u64> {
        let now = self.parts.clock.mono();
        let known = *self.truth_time.lock().expect(LOCK);
        if let Some((truth_ms, at)) = known.filter(|(_, at)| now < *at + TRUTH_TIME_FOR) {
            return Ok(truth_ms + (now - at).as_millis() as u64);
        }
        let truth_ms = self.calls.quiet("info", self.store().info()).await?.now_ms;
        *self.truth_time.lock().expect(LOCK) = Some((truth_ms, self.parts.clock.mono()));
        Ok(truth_ms)
    }

    async fn note_beats(&self, read: Vec<AgedBeat>, at_ms: u64) -> Result<u64> {
        let now = self.parts.clock.mono();
        // They have aged while the others were read.
        let aged = |one: AgedBeat| (one.id, one.age_ms + (now - one.at).as_millis() as u64);
        let beats: Vec<(Name, u64)> = read.into_iter().map(aged).collect();
        self.calls.quiet("note_beats", self.parts.truth.note_beats(&beats, at_ms)).await
    }
}

/// A heartbeat, and its age at a time of this process's clock.
struct AgedBeat {
    id: Name,
    age_ms: u64,
    at: Duration,
}
