//! The calls on the store of sessions, each carried out, predicted and compared.

use lapsed_core::owner::{Claim, Ending, Incarnation, OwnerStore};
use lapsed_core::request::RequestId;
use lapsed_core::sessions::{ReferenceChange, ReferenceStep, SessionProfile, SessionsStore};
use lapsed_core::sweep::{Batch, BatchId, Cursor, Outcome, PageRequest, PassMode, Suspect, Sweep};
use lapsed_core::{Error, Name, Result};

use crate::jobs::calls::CheckedCall;
use crate::promise::{Broken, Checked, Promise, holds};
use crate::sessions::bug::SessionBug;
use crate::sessions::model::{Changed, ModelServer, ReferenceCounts, Swept};
use crate::sessions::system::{SessionSimSystem, TTL_MS, name, now};

/// A connect or disconnect, the same at each attempt.
#[derive(Clone, Debug)]
pub struct ChangeRequest {
    /// The same for all attempts.
    pub key: String,
    pub step: ReferenceStep,
    pub claim: Claim,
    pub id: Name,
}

fn number_of(claim: &Claim) -> u64 {
    claim.incarnation.map_or(0, |incarnation| incarnation.0)
}

impl SessionSimSystem {
    pub fn start(&mut self, server: &Name) -> CheckedCall<Option<Claim>> {
        let now_ms = self.now_ms();
        let answer = now(self.store().start(server, TTL_MS));
        self.note(server.as_str(), format_args!("start: {answer:?}"));
        let number = match answer {
            Ok(beat) => beat.incarnation.0,
            Err(error) => {
                // Ask the store whether it started; no server uses this incarnation.
                self.doubt_start(&error, server)?;
                return Ok(None);
            }
        };
        let last = self.model.incarnations.keys().next_back().copied().unwrap_or(0);
        holds(number > last, Promise::P5, || format!("incarnation {number} after {last}"))?;
        let started = ModelServer {
            name: server.clone(),
            started_ms: now_ms,
            deadline_ms: now_ms + TTL_MS,
            ended: None,
        };
        self.model.incarnations.insert(number, started);
        Ok(Some(Claim::exact(server.clone(), Incarnation(number))))
    }

    fn doubt_start(&mut self, error: &Error, server: &Name) -> Checked {
        let now_ms = self.now_ms();
        let model = self.model.clone();
        self.doubt(error, model)?;
        let newest = now(self.store().owner(&Claim::newest(server.clone())));
        let Some(info) = newest.ok().flatten() else { return Ok(()) };
        let started = ModelServer {
            name: server.clone(),
            started_ms: info.started_ms,
            deadline_ms: now_ms.max(info.started_ms) + TTL_MS,
            ended: None,
        };
        self.model.incarnations.entry(info.incarnation.0).or_insert(started);
        Ok(())
    }

    /// Whether the server still lives.
    pub fn beat(&mut self, claim: &Claim) -> CheckedCall<bool> {
        let number = number_of(claim);
        let answer = now(self.store().beat(claim));
        let ended = self.model.has_ended(number);
        self.note(claim.owner.as_str(), format_args!("beat of {number}: {}", answer.is_ok()));
        match answer {
            Ok(_) => {
                holds(!ended, Promise::P5, || format!("{number} has ended, and its beat counts"))?;
                let now_ms = self.now_ms();
                if let Some(server) = self.model.incarnations.get_mut(&number) {
                    server.deadline_ms = now_ms + TTL_MS;
                }
                Ok(true)
            }
            Err(Error::Lost(_)) => {
                holds(ended, Promise::P1, || {
                    format!("{number} is live, and was told that it ended")
                })?;
                self.model.unsure.remove(&number);
                Ok(false)
            }
            Err(error) => {
                let model = self.model.clone();
                self.doubt(&error, model).map(|()| true)
            }
        }
    }

    /// A server leaves: its references end with it, and a pass removes them.
    pub fn end(&mut self, claim: &Claim) -> Checked {
        let number = number_of(claim);
        let mut after = self.model.clone();
        let lives = !after.has_ended(number);
        if let Some(server) = after.incarnations.get_mut(&number) {
            server.ended.get_or_insert(Ending::Retired);
        }
        let answer = now(self.store().end(claim));
        self.note(claim.owner.as_str(), format_args!("end of {number}: {}", answer.is_ok()));
        match answer {
            Ok(_) => {
                holds(lives, Promise::P5, || format!("{number} has ended, and ends again"))?;
                self.model = after;
                Ok(())
            }
            Err(Error::Lost(_)) => {
                self.model.unsure.remove(&number);
                holds(!lives, Promise::P1, || format!("{number} is live, and was told otherwise"))
            }
            Err(error) => self.doubt(&error, after),
        }
    }

    pub fn activate(&mut self, id: &Name, broadcaster: &Name) -> CheckedCall<bool> {
        let now_ms = self.now_ms();
        let mut after = self.model.clone();
        let expected = after.activate(id, broadcaster, now_ms);
        let profile = SessionProfile {
            broadcaster_user_id: Some(broadcaster.clone()),
            ..SessionProfile::default()
        };
        let answer = now(self.store().activate(id, &profile));
        self.note("application", format_args!("activate {id} of {broadcaster}: {expected}"));
        match answer {
            Ok(answer) => {
                holds(answer.created == expected, Promise::P4, || {
                    format!("{id} was created ({}), and not {expected}", answer.created)
                })?;
                self.model = after;
                self.counted("activated");
                Ok(true)
            }
            Err(error) => {
                // Whether or not it was carried out, the id is looked at from now on.
                self.model.known.insert(id.clone());
                self.doubt(&error, after).map(|()| false)
            }
        }
    }

    pub fn resume(&mut self, id: &Name) -> Checked {
        let now_ms = self.now_ms();
        let mut after = self.model.clone();
        let expected = after.resume(id, now_ms);
        let answer = now(self.store().resume(id));
        self.note("application", format_args!("resume {id}: {expected:?}"));
        match answer {
            Ok(answer) => {
                let changed = answer.map(|change| change.changed);
                holds(changed == expected, Promise::P4, || {
                    format!("resuming {id} changed {changed:?}, not {expected:?}")
                })?;
                self.model = after;
                Ok(())
            }
            Err(error) => self.doubt(&error, after),
        }
    }

    pub fn delete(&mut self, id: &Name) -> Checked {
        let mut after = self.model.clone();
        let expected = after.delete(id);
        let answer = now(self.store().delete(id));
        self.note("application", format_args!("delete {id}: {answer:?}"));
        match answer {
            Ok(answer) => {
                holds(answer == expected, Promise::P1, || {
                    format!("{id} was to be {expected:?}, and was {answer:?}")
                })?;
                self.model = after;
                Ok(())
            }
            Err(error) => self.doubt(&error, after),
        }
    }

    /// One attempt of a connect or disconnect; `None` if it has to be tried again.
    pub fn change(
        &mut self,
        request: &ChangeRequest,
        attempt: u64,
    ) -> CheckedCall<Option<Changed>> {
        let (number, now_ms) = (number_of(&request.claim), self.now_ms());
        let mut after = self.model.clone();
        let expected = after.change(&request.key, request.step, number, &request.id, now_ms);
        let answer = self.send_change(request, attempt);
        let who = request.claim.owner.clone();
        let (step, id) = (request.step.as_str(), &request.id);
        self.note(who.as_str(), format_args!("{step} {id} by {number}: {expected:?}"));
        let seen = match answer {
            Ok(None) => Changed::NoSession,
            Ok(Some(change)) => Changed::Done(ReferenceCounts {
                references: change.references,
                yours: change.yours,
            }),
            Err(Error::Lost(_)) => Changed::Lost,
            Err(error) => return self.doubt(&error, after).map(|()| None),
        };
        let promise = match (expected, seen) {
            (Changed::Lost, _) => Promise::P5,
            (_, Changed::Lost) => Promise::P1,
            _ => Promise::P3,
        };
        // References without an owner are nobody's: what is found is that they stay.
        let agrees = match (self.bug, expected, seen) {
            (
                Some(SessionBug::ReferencesOutliveTheirServer),
                Changed::Done(expected),
                Changed::Done(seen),
            ) => expected.references == seen.references,
            (Some(SessionBug::ReferencesOutliveTheirServer), Changed::Lost, _) => true,
            _ => expected == seen,
        };
        holds(agrees, promise, || {
            format!("{step} {id} by {number} as {}: {expected:?}, not {seen:?}", request.key)
        })?;
        if seen == Changed::Lost {
            after.unsure.remove(&number);
        }
        self.model = after;
        self.counted(match expected {
            Changed::Lost => "zombies refused",
            Changed::NoSession => "without a session",
            Changed::Done(_) => "references changed",
        });
        Ok(Some(expected))
    }

    fn send_change(
        &mut self,
        request: &ChangeRequest,
        attempt: u64,
    ) -> Result<Option<ReferenceChange>> {
        let (mut claim, id) = (request.claim.clone(), &request.id);
        let (mut key, step) = (request.key.clone(), request.step);
        match self.bug {
            Some(SessionBug::RepeatCountsTwice) => key = format!("{key}-{attempt}"),
            Some(SessionBug::ReferencesOutliveTheirServer) => {
                if self.model.has_ended(number_of(&claim)) {
                    return Ok(None);
                }
                claim = self.immortal()?;
            }
            _ => {}
        }
        let request = RequestId::new(&key, "same", &format!("{key}/{attempt}"))?;
        now(self.store().change_once(&request, step, Some(&claim), id))
    }

    /// `ReferencesOutliveTheirServer`: an owner that never ends holds all references.
    fn immortal(&self) -> Result<Claim> {
        let owner = name("nobody");
        let newest = Claim::newest(owner.clone());
        if let Some(info) = now(self.store().owner(&newest))? {
            let claim = Claim::exact(owner, info.incarnation);
            now(self.store().beat(&claim))?;
            return Ok(claim);
        }
        let year_ms = 365 * 24 * 3_600_000;
        let beat = now(self.store().start(&owner, year_ms))?;
        Ok(Claim::exact(owner, beat.incarnation))
    }

    pub fn suspects(&mut self) -> CheckedCall<Vec<Suspect>> {
        let request = PageRequest { after: Cursor::default(), limit: 1_000, undeclared_max: None };
        let page = now(self.store().suspects(request));
        let suspects = page.map_err(|e| Broken::new(Promise::P4, e.to_string()))?.suspects;
        let expected = self.model.suspects(self.now_ms());
        let seen = suspects.iter().map(|s| (s.key.clone(), s.incarnation.0)).collect();
        holds(expected == seen, Promise::P2, || format!("suspects {seen:?}, not {expected:?}"))?;
        Ok(suspects)
    }

    /// Reclaims a batch of one of the sweepers, possibly long after its page was read.
    pub fn reclaim(&mut self, sweeper: &str, number: u64, suspects: Vec<Suspect>) -> Checked {
        let now_ms = self.now_ms();
        let mut after = self.model.clone();
        let expected = after.reclaim(number, &suspects, now_ms);
        let id = BatchId { sweeper: sweeper.into(), number };
        let batch = Batch { id, suspects: suspects.clone(), act: PassMode::Reclaim, term: None };
        let outcomes = match now(self.store().reclaim(batch)) {
            Ok(answer) => self.sweep_on(&suspects, answer.outcomes),
            Err(error) => return self.doubt(&error, after),
        };
        self.note(sweeper, format_args!("batch {number}: {outcomes:?}"));
        for ((suspect, expected), outcome) in suspects.iter().zip(expected).zip(outcomes) {
            let did = match outcome {
                Outcome::Released => Swept::Released,
                Outcome::Reclaimed(_) => Swept::Deleted,
                _ => Swept::Nothing,
            };
            holds(did == Swept::Nothing || expected != Swept::Nothing, Promise::P1, || {
                format!("{} by {}: {did:?} too early", suspect.key, suspect.incarnation)
            })?;
            holds(did == expected, Promise::P3, || {
                format!("{}: {expected:?}, not {did:?}", suspect.key)
            })?;
            self.counted(match did {
                Swept::Released => "references released",
                Swept::Deleted => "sessions deleted",
                Swept::Nothing => "refused or gone",
            });
        }
        // The end of every incarnation in it is durable with it.
        after.unsure.retain(|number| !suspects.iter().any(|s| s.incarnation.0 == *number));
        self.model = after;
        Ok(())
    }

    /// What a sweeper with a planted bug does after the store's answer.
    fn sweep_on(&mut self, suspects: &[Suspect], outcomes: Vec<Outcome>) -> Vec<Outcome> {
        let sweep_on = |(suspect, outcome): (&Suspect, Outcome)| match (self.bug, &outcome) {
            (Some(SessionBug::DeletedAsListed), Outcome::Refused(_))
                if suspect.incarnation.0 == 0 && self.delete_connected(&suspect.key) =>
            {
                Outcome::Reclaimed(None)
            }
            (Some(SessionBug::PointerRemovedBlindly), Outcome::Reclaimed(_)) => {
                self.remove_pointer(&suspect.owner);
                outcome
            }
            _ => outcome,
        };
        suspects.iter().zip(outcomes).map(sweep_on).collect()
    }

    /// Deletes a session with all its references: whether it was there.
    fn delete_connected(&self, id: &Name) -> bool {
        let Some(session) = self.model.sessions.get(id) else { return false };
        for (incarnation, count) in &session.references {
            let Some(server) = self.model.incarnations.get(incarnation) else { continue };
            let claim = Claim::exact(server.name.clone(), Incarnation(*incarnation));
            for _ in 0..*count {
                let _ = now(self.store().disconnect(Some(&claim), id));
            }
        }
        now(self.store().delete(id)).is_ok()
    }

    fn remove_pointer(&self, broadcaster: &Name) {
        let Ok(Some(newer)) = now(self.store().of_broadcaster(broadcaster)) else { return };
        let profile = SessionProfile {
            broadcaster_user_id: Some(name("somebody-else")),
            ..SessionProfile::default()
        };
        let _ = now(self.store().update(&newer, &profile));
    }

    /// Settles a batch, as a sweeper does after a lost answer.
    pub fn settle(&mut self, sweeper: &str, number: u64) -> Checked {
        let id = BatchId { sweeper: sweeper.into(), number };
        let settled = match now(self.store().settle(&id)) {
            Ok(receipts) => receipts.len() as u64,
            Err(error) => {
                let model = self.model.clone();
                return self.doubt(&error, model);
            }
        };
        let written = self.model.receipts.get(&number).copied().unwrap_or(0);
        self.note(sweeper, format_args!("batch {number} wrote {settled} receipts"));
        holds(settled == written, Promise::P3, || {
            format!("batch {number} wrote {written} receipts, and {settled} were found")
        })
    }
}
