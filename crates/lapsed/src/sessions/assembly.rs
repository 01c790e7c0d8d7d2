//! How sessions are assembled, on each store that carries them.
#![allow(missing_docs)]
// A build with only some of the stores does not use everything here.
#![cfg_attr(not(feature = "all-stores"), allow(dead_code, unused_imports, unused_variables))]

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::sessions::{Sessions, SessionsParts, SessionsStore};
use lapsed_core::sweep::policy::Policy;
use lapsed_core::{Kind, Result, SystemId};

use crate::assembly::{self, Assembly, Index};
use crate::stores::{Carries, OpenStore, Opened, StoreUse, SystemSpec};

#[derive(Clone, Debug)]
pub struct SessionsSpec {
    /// How long an owner of references may be silent before it is dead.
    pub ttl: Duration,
    /// How long a session is kept without connections.
    pub grace: Duration,
    #[cfg(feature = "redis")]
    pub redis: RedisSessionsKeys,
}

/// The layout of sessions on Redis, native or adopted from an application.
#[cfg(feature = "redis")]
#[derive(Clone, Debug)]
pub enum RedisSessionsKeys {
    Native(lapsed_redis::SessionsLayout),
    Adopt(lapsed_redis::SessionsLayout),
}

impl SessionsSpec {
    pub fn new(ttl: Duration, grace: Duration) -> Self {
        SessionsSpec {
            ttl,
            grace,
            #[cfg(feature = "redis")]
            redis: RedisSessionsKeys::Native(lapsed_redis::SessionsLayout::new(ttl, grace)),
        }
    }
}

impl Assembly {
    pub fn sessions(
        &self,
        store: &OpenStore,
        id: SystemId,
        spec: SessionsSpec,
    ) -> Result<Arc<Sessions>> {
        let (ttl, grace) = (spec.ttl, spec.grace);
        let (sessions, index) = store.open_system(&id, spec)?;
        let parts = SessionsParts::new(sessions, store.store(), ttl).index(index);
        Ok(Arc::new(Sessions::new(self.equip(parts), grace)))
    }
}

impl SystemSpec for SessionsSpec {
    const KIND: Kind = Kind::Sessions;
    type Opened = (Arc<dyn SessionsStore>, Index);
}

#[cfg(feature = "embedded")]
impl Carries<SessionsSpec> for lapsed_embedded::Embedded {
    fn open_system(&self, id: &SystemId, spec: SessionsSpec) -> Opened<SessionsSpec> {
        Ok((self.sessions(id.clone(), spec.ttl, spec.grace)?, None))
    }
}

#[cfg(feature = "redis")]
impl Carries<SessionsSpec> for lapsed_redis::Redis {
    fn open_system(&self, id: &SystemId, spec: SessionsSpec) -> Opened<SessionsSpec> {
        let sessions = Arc::new(match spec.redis {
            RedisSessionsKeys::Native(layout) => self.sessions(id.clone(), layout)?,
            RedisSessionsKeys::Adopt(layout) => self.adopted_sessions(id.clone(), layout)?,
        });
        Ok((sessions.clone(), Some(sessions)))
    }
}

/// The default policy of sessions.
pub fn default_policy(used_by: StoreUse) -> Policy {
    Policy { every: Duration::from_secs(30), ..assembly::default_policy(used_by) }
}
