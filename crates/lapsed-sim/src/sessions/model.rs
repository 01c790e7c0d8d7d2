//! The model of the store of sessions: written from the contracts alone, on the true time.

use std::collections::{BTreeMap, BTreeSet};

use lapsed_core::Name;
use lapsed_core::owner::Ending;
use lapsed_core::sessions::{Deleted, ReferenceStep};
use lapsed_core::sweep::Suspect;

#[derive(Clone, Debug)]
pub struct ModelSession {
    /// How many references each incarnation has; never 0.
    pub references: BTreeMap<u64, u64>,
    /// Since when there has been no reference, in milliseconds; of no meaning while there is one.
    pub since_ms: u64,
    /// Whether a reference ended then.
    pub disconnected: bool,
    pub broadcaster: Name,
}

impl ModelSession {
    /// How many references there are.
    pub fn total(&self) -> u64 {
        self.references.values().sum()
    }

    /// Removes references of one incarnation; if they were the last, the grace begins.
    fn dereference(&mut self, incarnation: u64, count: u64, now_ms: u64) {
        let held = self.references.get(&incarnation).copied().unwrap_or(0);
        match held.saturating_sub(count) {
            0 => drop(self.references.remove(&incarnation)),
            left => drop(self.references.insert(incarnation, left)),
        }
        if self.references.is_empty() {
            (self.since_ms, self.disconnected) = (now_ms, true);
        }
    }
}

#[derive(Clone, Debug)]
pub struct ModelServer {
    pub name: Name,
    pub started_ms: u64,
    /// The deadline of its last beat, in milliseconds.
    pub deadline_ms: u64,
    pub ended: Option<Ending>,
}

/// What a connect or disconnect answers: all references, and those of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferenceCounts {
    pub references: u64,
    pub yours: u64,
}

/// What becomes of a connect or disconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    Lost,
    NoSession,
    Done(ReferenceCounts),
}

/// What a batch does with one suspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swept {
    Released,
    Deleted,
    Nothing,
}

/// The state that the store should have.
#[derive(Clone, Debug)]
pub struct SessionModel {
    /// The TTL of a beat and the grace of a session, in milliseconds.
    pub ttl_ms: u64,
    pub grace_ms: u64,
    /// When the store was last opened.
    pub back_ms: u64,
    pub sessions: BTreeMap<Name, ModelSession>,
    /// Every session that there ever was.
    pub known: BTreeSet<Name>,
    /// The current session of each broadcaster.
    pub current: BTreeMap<Name, Name>,
    /// Every server that ever started, by incarnation.
    pub incarnations: BTreeMap<u64, ModelServer>,
    /// Incarnations that have ended in the store's memory, and possibly not on its disk.
    pub unsure: BTreeSet<u64>,
    /// What each request was answered with when it was carried out.
    pub requests: BTreeMap<String, ReferenceCounts>,
    /// How many receipts were written by each batch.
    pub receipts: BTreeMap<u64, u64>,
}

impl SessionModel {
    pub fn new(ttl_ms: u64, grace_ms: u64, now_ms: u64) -> Self {
        SessionModel {
            ttl_ms,
            grace_ms,
            back_ms: now_ms,
            sessions: BTreeMap::new(),
            known: BTreeSet::new(),
            current: BTreeMap::new(),
            incarnations: BTreeMap::new(),
            unsure: BTreeSet::new(),
            requests: BTreeMap::new(),
            receipts: BTreeMap::new(),
        }
    }

    /// Whether that incarnation may be declared dead: its time is over, and it had a whole TTL since the
    /// store was back.
    fn is_overdue(&self, server: &ModelServer, now_ms: u64) -> bool {
        let spared = if self.back_ms <= server.started_ms { 0 } else { self.back_ms + self.ttl_ms };
        now_ms >= server.deadline_ms.max(spared)
    }

    pub fn has_ended(&self, incarnation: u64) -> bool {
        self.incarnations.get(&incarnation).is_none_or(|server| server.ended.is_some())
    }

    /// When a session without references is an orphan.
    pub fn due_ms(&self, session: &ModelSession) -> u64 {
        session.since_ms.max(self.back_ms) + self.grace_ms
    }

    /// Creates or reactivates a session: whether it was created.
    pub fn activate(&mut self, id: &Name, broadcaster: &Name, now_ms: u64) -> bool {
        self.known.insert(id.clone());
        self.current.insert(broadcaster.clone(), id.clone());
        let created = !self.sessions.contains_key(id);
        let session = self.sessions.entry(id.clone()).or_insert_with(|| ModelSession {
            references: BTreeMap::new(),
            since_ms: now_ms,
            disconnected: false,
            broadcaster: broadcaster.clone(),
        });
        (session.since_ms, session.disconnected) = (now_ms, false);
        created
    }

    /// Clears the disconnection: whether anything changed; `None` without the session.
    pub fn resume(&mut self, id: &Name, now_ms: u64) -> Option<bool> {
        let session = self.sessions.get_mut(id)?;
        if !session.references.is_empty() {
            return Some(false);
        }
        (session.since_ms, session.disconnected) = (now_ms, false);
        Some(true)
    }

    /// Carries out a request once, however often it arrives.
    pub fn change(
        &mut self,
        request: &str,
        step: ReferenceStep,
        incarnation: u64,
        id: &Name,
        now_ms: u64,
    ) -> Changed {
        if let Some(counted) = self.requests.get(request) {
            return Changed::Done(*counted);
        }
        if self.has_ended(incarnation) {
            return Changed::Lost;
        }
        let Some(session) = self.sessions.get_mut(id) else { return Changed::NoSession };
        match step {
            ReferenceStep::Connect => *session.references.entry(incarnation).or_default() += 1,
            ReferenceStep::Disconnect if session.references.contains_key(&incarnation) => {
                session.dereference(incarnation, 1, now_ms);
            }
            ReferenceStep::Disconnect => {}
        }
        let yours = session.references.get(&incarnation).copied().unwrap_or(0);
        let counted = ReferenceCounts { references: session.total(), yours };
        self.requests.insert(request.to_owned(), counted);
        Changed::Done(counted)
    }

    pub fn delete(&mut self, id: &Name) -> Deleted {
        match self.sessions.get(id).map(ModelSession::total) {
            None => Deleted::Missing,
            Some(0) => {
                self.remove(id);
                Deleted::Deleted
            }
            Some(references) => Deleted::Active { references },
        }
    }

    /// Removes a session, and its broadcaster's pointer if that points to it.
    fn remove(&mut self, id: &Name) {
        if let Some(session) = self.sessions.remove(id)
            && self.current.get(&session.broadcaster) == Some(id)
        {
            self.current.remove(&session.broadcaster);
        }
    }

    /// What a batch does, suspect by suspect.
    pub fn reclaim(&mut self, number: u64, suspects: &[Suspect], now_ms: u64) -> Vec<Swept> {
        let mut done = Vec::new();
        for suspect in suspects {
            let swept = match suspect.incarnation.0 {
                0 => self.delete_orphan(&suspect.key, now_ms),
                incarnation => self.release(&suspect.key, incarnation, now_ms),
            };
            if swept == Swept::Deleted {
                *self.receipts.entry(number).or_default() += 1;
            }
            done.push(swept);
        }
        done
    }

    fn delete_orphan(&mut self, id: &Name, now_ms: u64) -> Swept {
        let Some(session) = self.sessions.get(id) else { return Swept::Nothing };
        if !session.references.is_empty() || now_ms < self.due_ms(session) {
            return Swept::Nothing;
        }
        self.remove(id);
        Swept::Deleted
    }

    fn release(&mut self, id: &Name, incarnation: u64, now_ms: u64) -> Swept {
        let held = self.sessions.get(id).and_then(|session| session.references.get(&incarnation));
        let (Some(count), Some(server)) = (held.copied(), self.incarnations.get(&incarnation))
        else {
            return Swept::Nothing;
        };
        if server.ended.is_none() && !self.is_overdue(server, now_ms) {
            return Swept::Nothing;
        }
        if let Some(server) = self.incarnations.get_mut(&incarnation) {
            server.ended.get_or_insert(Ending::Dead);
        }
        if let Some(session) = self.sessions.get_mut(id) {
            session.dereference(incarnation, count, now_ms);
        }
        Swept::Released
    }

    /// References of servers that are overdue or ended, and sessions whose grace is over: each by its
    /// key and the incarnation, which is 0 for a session.
    pub fn suspects(&self, now_ms: u64) -> BTreeSet<(Name, u64)> {
        let mut suspects = BTreeSet::new();
        for (id, session) in &self.sessions {
            for incarnation in session.references.keys() {
                let server = self.incarnations.get(incarnation);
                if server.is_some_and(|s| s.ended.is_some() || self.is_overdue(s, now_ms)) {
                    suspects.insert((id.clone(), *incarnation));
                }
            }
            if session.references.is_empty() && now_ms >= self.due_ms(session) {
                suspects.insert((id.clone(), 0));
            }
        }
        suspects
    }
}
