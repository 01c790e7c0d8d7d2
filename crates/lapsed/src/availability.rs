//! Providers that are set offline when their heartbeats stop.

mod assembly;

use std::sync::Arc;
use std::time::Duration;

use lapsed_availability::rules::AvailabilitySettings;
use lapsed_availability::{Availability, ProviderBeat, ProviderProfile};
use lapsed_core::sweep::Cursor;
use lapsed_core::{Kind, Name, Result};

use crate::assembly::Assembly;
use crate::common::{Running, Settings, common_operations, common_settings};
use crate::open::Lapsed;

pub use assembly::{
    AssembledAvailability, AvailabilityRequest, AvailabilitySpec, ChangeSources, default_policy,
};

/// How often heartbeats are copied from the mirror to the truth, unless the configuration says otherwise.
pub const BEATS_EVERY: Duration = Duration::from_secs(60);

/// The most providers that one read asks for.
const PAGE: usize = 1_000;

impl Lapsed {
    /// Providers that are set offline when their heartbeats stop.
    pub fn availability(&self, name: &str) -> AvailabilityBuilder {
        AvailabilityBuilder::new(Settings::new(self, Kind::Availability, name))
    }
}

/// A builder for a system of availability.
#[must_use]
pub struct AvailabilityBuilder {
    settings: Settings,
    mirror: Option<Lapsed>,
}

impl AvailabilityBuilder {
    pub(crate) fn new(settings: Settings) -> Self {
        let settings = settings.with_policy(default_policy);
        AvailabilityBuilder { settings, mirror: None }
    }

    /// The Redis that answers reads; required where the facts are in Postgres. On an embedded store
    /// the memory of this process does that.
    pub fn mirror(mut self, redis: &Lapsed) -> Self {
        self.mirror = Some(redis.clone());
        self
    }

    common_settings!();

    /// What [`start`](Self::start) assembles the system from. The daemon's tests compare its own defaults with this.
    #[doc(hidden)]
    pub fn assembly(&self) -> Result<(Assembly, AvailabilitySpec)> {
        let silence = Duration::from_millis(AvailabilitySettings::default().stale_ms());
        Ok((self.settings.assembly(silence)?, AvailabilitySpec::new(silence)))
    }

    /// Starts the system: fills the mirror; from now on passes run, unless the schedule is manual.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when the name is wrong,
    /// [`Error::Unsupported`](crate::Error::Unsupported) when the stores cannot keep availability,
    /// [`Error::Unavailable`](crate::Error::Unavailable) when they do not answer.
    pub async fn start(self) -> Result<AvailabilitySystem> {
        let (assembly, spec) = self.assembly()?;
        let (store, mirror) = (self.settings.lapsed.store(), self.mirror.as_ref());
        let id = self.settings.id()?;
        let availability =
            assembly.availability(store, mirror.map(Lapsed::store), id, spec)?.system;
        availability.ensure_seeded().await?;
        let services = availability.services();
        let running = self.settings.run(&assembly, availability.clone(), services);
        let (background_task, stop) = (availability.clone(), running.signal.clone());
        running.spawn(Box::pin(async move {
            let beats = background_task.mirror_beats_every(BEATS_EVERY, &stop, || true);
            futures::future::join(background_task.watch(&stop), beats).await;
            if let Err(error) = background_task.mirror_beats().await {
                tracing::warn!(%error, "the last heartbeats were not written to the truth");
            }
        }));
        Ok(AvailabilitySystem { availability, running })
    }
}

/// A started system of availability; it is swept until the last clone is dropped.
#[derive(Clone)]
pub struct AvailabilitySystem {
    availability: Arc<Availability>,
    running: Arc<Running>,
}

impl AvailabilitySystem {
    /// Adds the provider `id`, unless it exists.
    pub async fn add(&self, id: &str) -> Result<()> {
        let profile = ProviderProfile { id: Name::new(id)?, display_name: None };
        self.availability.put_provider(&profile).await.map(drop)
    }

    /// Sets `id` online; its heartbeats count from now. `false`: there is no such provider.
    pub async fn online(&self, id: &str) -> Result<bool> {
        Ok(self.availability.set_online(&Name::new(id)?).await?.is_some())
    }

    /// Sets `id` offline. `false`: there is no such provider.
    pub async fn offline(&self, id: &str) -> Result<bool> {
        Ok(self.availability.set_offline(&Name::new(id)?).await?.is_some())
    }

    /// Records a heartbeat of `id`. `false`: the provider is not online, and nothing was recorded.
    pub async fn heartbeat(&self, id: &str) -> Result<bool> {
        let beats = self.availability.heartbeat(&[Name::new(id)?]).await?.answer;
        Ok(beats.first() == Some(&ProviderBeat::Noted))
    }

    /// The providers that can take work now, at most 1,000.
    pub async fn available(&self) -> Result<Vec<String>> {
        let found = self.availability.available(&Cursor::default(), PAGE).await?.answer;
        Ok(found.available.iter().map(|one| one.id.to_string()).collect())
    }

    /// How many providers can take work now.
    pub async fn count(&self) -> Result<u64> {
        Ok(self.availability.count_available().await?.answer)
    }

    common_operations!();
}
