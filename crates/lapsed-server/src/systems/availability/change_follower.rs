//! Follows notifications from the stores: the application changed its own tables, settings were
//! changed, or a provider may have fallen silent.
//!
//! Notifications only make reactions faster. Whatever is missed is found later: by comparing mirror
//! and truth, by reading the settings once a minute, and by the next pass.

use std::sync::Arc;
use std::time::Duration;

use lapsed_availability::Availability;
use lapsed_core::Name;
use lapsed_core::schedule::StopSignal;
use lapsed_core::sweep::{Cursor, PassMode, Sweeper};
use lapsed_postgres::{ChangeEvent, ChangeListener};
use lapsed_redis::MirrorEvent;
use tokio::sync::mpsc::Receiver;

use crate::node::{ReconcileOrder, Reconciler};
use lapsed::availability::ChangeSources;

/// How long changes are collected before they are applied, so that an application that changes many
/// providers at once causes few calls.
const GATHER: Duration = Duration::from_millis(20);

/// The most providers that one call refreshes.
const GATHERED_MAX: usize = 500;

/// The shortest time between two passes that notifications cause.
const EARLY: Duration = Duration::from_secs(1);

/// Applies the notifications for one system.
pub struct ChangeFollower {
    pub availability: Arc<Availability>,
    pub sweeper: Arc<Sweeper>,
    pub reconciler: Option<Arc<Reconciler>>,
}

impl ChangeFollower {
    /// Follows the notifications of both stores until `stop` is signalled.
    pub async fn listen(self, sources: ChangeSources, stop: StopSignal) {
        let truth = self.follow_truth(sources.truth.listen(), &stop);
        let mirror = self.follow_mirror(sources.mirror.listen(), &stop);
        let both = futures::future::join(truth, mirror);
        tokio::select! {
            _ = both => {}
            _ = stop.stopped() => {}
        }
    }

    async fn follow_truth(&self, mut listener: ChangeListener, stop: &StopSignal) {
        while !stop.is_stopped() {
            let mut gathered = Gathered::default();
            gathered.add(listener.next().await);
            let until = tokio::time::Instant::now() + GATHER;
            while gathered.providers.len() < GATHERED_MAX
                && let Ok(event) = tokio::time::timeout_at(until, listener.next()).await
            {
                gathered.add(event);
            }
            self.follow(gathered, stop).await;
        }
    }

    async fn follow(&self, gathered: Gathered, stop: &StopSignal) {
        if gathered.settings {
            self.availability.settings_changed().await;
        }
        if gathered.gap {
            self.compare(stop).await;
        } else if !gathered.providers.is_empty()
            && let Err(error) = self.availability.refresh(&gathered.providers).await
        {
            tracing::warn!(%error, "the application's changes were not applied to the mirror; the next \
                comparison of mirror and truth applies them");
        }
    }

    /// Compares mirror and truth, because notifications may have been missed.
    async fn compare(&self, stop: &StopSignal) {
        let Some(reconciler) = &self.reconciler else { return };
        let order = ReconcileOrder { act: PassMode::Reclaim, after: Cursor::default(), list: 0 };
        // The observer has already put the result into the log and the metrics.
        let _ = reconciler.run(order, stop, &mut |_| {}).await;
    }

    async fn follow_mirror(&self, mut events: Receiver<MirrorEvent>, stop: &StopSignal) {
        while let Some(event) = events.recv().await {
            match event {
                MirrorEvent::Silent(_) => self.pass_early(&mut events, stop).await,
                // Reading the settings again is right after every other event.
                _ => self.availability.settings_changed().await,
            }
        }
    }

    /// Runs one early pass for all providers whose heartbeats expired at about the same time. It examines
    /// all providers, and its guard is that of every pass.
    async fn pass_early(&self, events: &mut Receiver<MirrorEvent>, stop: &StopSignal) {
        let mut settings = false;
        while let Ok(event) = events.try_recv() {
            settings |= !matches!(event, MirrorEvent::Silent(_));
        }
        if settings {
            self.availability.settings_changed().await;
        }
        if self.sweeper.leads() != Some(false) {
            self.sweeper.pass(PassMode::Reclaim, 0, stop).await;
        }
        tokio::time::sleep(EARLY).await;
    }
}

/// Notifications that arrived at about the same time.
#[derive(Default)]
struct Gathered {
    providers: Vec<Name>,
    settings: bool,
    gap: bool,
}

impl Gathered {
    fn add(&mut self, event: ChangeEvent) {
        match event {
            ChangeEvent::Provider(id) if !self.providers.contains(&id) => self.providers.push(id),
            ChangeEvent::Provider(_) => {}
            ChangeEvent::Setting(_) => self.settings = true,
            // After a gap, and after an event that this version does not know, everything is compared.
            _ => {
                self.gap = true;
                self.settings = true;
            }
        }
    }
}
