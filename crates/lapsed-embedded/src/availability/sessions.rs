//! Sessions of providers. [`lapsed_availability::rules::step`] decides what happens to one; the
//! provider's count changes in the same job.

use lapsed_availability::rules::{SessionStep, step};
use lapsed_availability::{
    ProviderState, SessionChange, SessionOutcome, SessionRefusal, WorkSession,
};
use lapsed_core::Name;

use crate::availability::Core;
use crate::fault::{Fault, Tried};
use crate::tx::Tx;

/// The provider that a session occupies.
fn occupied(session: Option<&WorkSession>) -> Option<&Name> {
    session.filter(|session| session.occupies()).and_then(|session| session.provider.as_ref())
}

impl Core {
    pub(super) fn change_session(
        &self,
        tx: &mut Tx,
        change: &SessionChange,
        max: u64,
    ) -> Tried<SessionOutcome> {
        let before = self.session_row(tx, change.session())?;
        let SessionStep { session, onto } = match (step(before.as_ref(), change), before.clone()) {
            (Err(why), _) => return Ok(SessionOutcome::Refused(why)),
            (Ok(Some(step)), _) => step,
            (Ok(None), None) => {
                return Ok(SessionOutcome::Refused(SessionRefusal::NoSuchSession));
            }
            (Ok(None), Some(session)) => {
                let touched = Vec::new();
                return Ok(SessionOutcome::Done { session, changed: false, touched });
            }
        };
        if let Some(onto) = onto
            && let Some(why) = self.no_room(tx, &onto, max)?
        {
            return Ok(SessionOutcome::Refused(why));
        }
        self.put_session(tx, &session)?;
        let touched = self.move_place(tx, occupied(before.as_ref()), occupied(Some(&session)))?;
        Ok(SessionOutcome::Done { session, changed: true, touched })
    }

    /// Why a provider cannot take one more session.
    fn no_room(&self, tx: &mut Tx, id: &Name, max: u64) -> Tried<Option<SessionRefusal>> {
        let Some(row) = self.provider(tx, id)? else {
            return Ok(Some(SessionRefusal::NoSuchProvider));
        };
        Ok(match (row.is_active, row.sessions) {
            (false, _) => Some(SessionRefusal::Deactivated),
            (true, sessions) if sessions >= max => Some(SessionRefusal::Full { sessions, max }),
            (true, _) => None,
        })
    }

    /// Moves a session's place from one provider to another.
    fn move_place(
        &self,
        tx: &mut Tx,
        from: Option<&Name>,
        to: Option<&Name>,
    ) -> Tried<Vec<ProviderState>> {
        let mut touched = Vec::new();
        if from == to {
            return Ok(touched);
        }
        for (id, one_more) in [(from, false), (to, true)] {
            let Some(id) = id else { continue };
            let Some(row) = self.provider(tx, id)? else {
                return Err(Fault::row(format!(
                    "a session belongs to provider `{id}`, which does not exist"
                )));
            };
            let sessions = match one_more {
                true => row.sessions.checked_add(1),
                false => row.sessions.checked_sub(1),
            };
            let Some(sessions) = sessions else {
                return Err(Fault::row(format!(
                    "provider `{id}` has a session, but its session count is 0"
                )));
            };
            let changed = self.change(tx, id, row, |row, _| {
                row.sessions = sessions;
                true
            })?;
            touched.push(changed.state);
        }
        Ok(touched)
    }
}
