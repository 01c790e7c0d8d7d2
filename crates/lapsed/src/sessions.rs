//! Sessions that are kept while somebody is connected, and a grace period longer.

mod assembly;

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::owner::Owner;
use lapsed_core::sessions::{Deleted, GRACE_MS, HEARTBEAT_TTL_MS, Sessions};
use lapsed_core::{Kind, Name, Result};

use crate::assembly::Assembly;
use crate::common::{Running, Settings, common_operations, common_settings, member_operations};
use crate::open::Lapsed;

#[cfg(feature = "redis")]
pub use assembly::RedisSessionsKeys;
pub use assembly::{SessionsSpec, default_policy};
pub use lapsed_core::sessions::{Session, SessionProfile};

impl Lapsed {
    /// Sessions that are kept while somebody is connected, and a grace period longer.
    pub fn sessions(&self, name: &str) -> SessionsBuilder {
        SessionsBuilder::new(Settings::new(self, Kind::Sessions, name))
    }
}

/// A builder for a system of sessions.
#[must_use]
pub struct SessionsBuilder {
    settings: Settings,
    ttl: Duration,
    grace: Duration,
}

impl SessionsBuilder {
    pub(crate) fn new(settings: Settings) -> Self {
        let settings = settings.with_policy(default_policy);
        let (ttl, grace) = (HEARTBEAT_TTL_MS, GRACE_MS);
        let ms = Duration::from_millis;
        SessionsBuilder { settings, ttl: ms(ttl), grace: ms(grace) }
    }

    /// How long an owner of references may be silent before it is dead; by default 90 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long a session is kept without connections; by default 30 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    common_settings!();

    /// What [`start`](Self::start) assembles the system from. The daemon's tests compare its own defaults with this.
    #[doc(hidden)]
    pub fn assembly(&self) -> Result<(Assembly, SessionsSpec)> {
        let assembly = self.settings.assembly(self.ttl.max(self.grace))?;
        Ok((assembly, SessionsSpec::new(self.ttl, self.grace)))
    }

    /// Starts the system: from now on passes run, unless the schedule is manual.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when a name or a duration is wrong,
    /// [`Error::Unsupported`](crate::Error::Unsupported) when the store cannot keep sessions.
    pub async fn start(self) -> Result<SessionsSystem> {
        let (assembly, spec) = self.assembly()?;
        let store = self.settings.lapsed.store();
        let sessions = assembly.sessions(store, self.settings.id()?, spec)?;
        let running = self.settings.run(&assembly, sessions.clone(), store.store());
        Ok(SessionsSystem { sessions, running })
    }
}

/// A started system of sessions; it is swept until the last clone is dropped.
#[derive(Clone)]
pub struct SessionsSystem {
    sessions: Arc<Sessions>,
    running: Arc<Running>,
}

impl SessionsSystem {
    /// Starts a new incarnation of the owner `name`, which sends heartbeats until it is dropped.
    pub async fn join(&self, name: &str) -> Result<SessionsMember> {
        let owner = self.sessions.owner(name).await?;
        Ok(SessionsMember { sessions: self.sessions.clone(), owner })
    }

    /// The session `id`, also one whose grace is over and that was not yet swept.
    pub async fn get(&self, id: &str) -> Result<Option<Session>> {
        self.sessions.get(&Name::new(id)?).await
    }

    /// The id of the broadcaster's current session: the one that was activated for it last.
    pub async fn of_broadcaster(&self, broadcaster: &str) -> Result<Option<String>> {
        let id = self.sessions.of_broadcaster(&Name::new(broadcaster)?).await?;
        Ok(id.map(String::from))
    }

    /// Sets those attributes of the session that `profile` gives. `None`: there is no such session.
    pub async fn update(&self, id: &str, profile: &SessionProfile) -> Result<Option<Session>> {
        self.sessions.update(&Name::new(id)?, profile).await
    }

    /// Deletes the session unless it has connections; true if it does not exist any more.
    pub async fn delete(&self, id: &str) -> Result<bool> {
        let deleted = self.sessions.delete(&Name::new(id)?).await?;
        Ok(!matches!(deleted, Deleted::Active { .. }))
    }

    common_operations!();
}

/// One incarnation of an owner of references. Sends heartbeats until it is dropped, leaves or is
/// lost.
pub struct SessionsMember {
    sessions: Arc<Sessions>,
    owner: Owner,
}

impl SessionsMember {
    /// Creates the session `id`, or reactivates an existing one. Without a connection its grace runs
    /// from now.
    pub async fn activate(&self, id: &str) -> Result<Session> {
        self.activate_with(id, &SessionProfile::default()).await
    }

    /// Like [`activate`](Self::activate), and makes the session the current one of `broadcaster`.
    pub async fn activate_for(&self, id: &str, broadcaster: &str) -> Result<Session> {
        let broadcaster_user_id = Some(Name::new(broadcaster)?);
        self.activate_with(id, &SessionProfile { broadcaster_user_id, ..Default::default() }).await
    }

    /// Like [`activate`](Self::activate), and sets the attributes that `profile` gives.
    pub async fn activate_with(&self, id: &str, profile: &SessionProfile) -> Result<Session> {
        Ok(self.sessions.activate(&Name::new(id)?, profile).await?.session)
    }

    /// Adds one reference of this owner; the number of references now. `None`: there is no such session.
    ///
    /// # Errors
    /// After [`Error::Unavailable`](crate::Error::Unavailable) the reference may have been counted;
    /// repeating the call then keeps the session too long, and never too short.
    pub async fn connect(&self, id: &str) -> Result<Option<u64>> {
        let changed = self.sessions.connect(Some(self.owner.claim()), &Name::new(id)?).await?;
        Ok(changed.map(|change| change.references))
    }

    /// Removes one reference of this owner; the number of references now. `None`: there is no such
    /// session.
    ///
    /// # Errors
    /// After [`Error::Unavailable`](crate::Error::Unavailable) the reference may have been removed:
    /// do not repeat the call.
    pub async fn disconnect(&self, id: &str) -> Result<Option<u64>> {
        let changed = self.sessions.disconnect(Some(self.owner.claim()), &Name::new(id)?).await?;
        Ok(changed.map(|change| change.references))
    }

    member_operations!();
}
