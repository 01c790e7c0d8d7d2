//! Reads and writes a session's rows inside a job. Every write is followed by the same change in
//! memory after the commit.

use std::sync::Arc;

use lapsed_core::Name;
use lapsed_core::sessions::rules::{SessionCase, SessionState, due_ms};
use lapsed_core::sessions::{Session, SessionProfile};

use crate::fault::{Fault, Tried};
use crate::owners::slot::Slot;
use crate::sessions::Core;
use crate::sessions::grace_index::SessionStanding;
use crate::tables::{SessionRow, held_key, number, to_number};
use crate::tx::Tx;

/// The standing of a session in the grace index.
pub(super) fn stand(row: Option<&SessionRow>) -> SessionStanding {
    match row {
        None => SessionStanding::Absent,
        Some(row) if row.references > 0 => SessionStanding::Active,
        Some(row) => {
            SessionStanding::Waiting { since_ms: row.since_ms, disconnected: row.disconnected }
        }
    }
}

/// When the last reference ended; `None` while the session is active.
pub(super) fn disconnected_ms(row: &SessionRow) -> Option<u64> {
    (row.references == 0 && row.disconnected).then_some(row.since_ms)
}

impl Core {
    pub(super) fn row(&self, tx: &mut Tx, id: &Name) -> Tried<Option<SessionRow>> {
        match tx.get(&self.tables.sessions, id.as_str().as_bytes())? {
            Some(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            None => Ok(None),
        }
    }

    /// Writes a session; `before` is the previous row.
    pub(super) fn put(
        &self,
        tx: &mut Tx,
        id: &Name,
        before: Option<&SessionRow>,
        row: &SessionRow,
    ) -> Tried<()> {
        tx.put(&self.tables.sessions, id.as_str().as_bytes(), &serde_json::to_vec(row)?)?;
        self.follow(tx, id, stand(before), stand(Some(row)));
        Ok(())
    }

    /// Removes a session without references, and its broadcaster's pointer if it points to this
    /// session; returns whether it did.
    pub(super) fn take_out(&self, tx: &mut Tx, id: &Name, row: &SessionRow) -> Tried<bool> {
        tx.remove(&self.tables.sessions, id.as_str().as_bytes())?;
        self.follow(tx, id, stand(Some(row)), SessionStanding::Absent);
        self.let_go_of_broadcaster(tx, id, &row.profile)
    }

    fn follow(&self, tx: &mut Tx, id: &Name, before: SessionStanding, after: SessionStanding) {
        if before != after {
            let (waiting, id) = (self.waiting.clone(), id.clone());
            tx.then(move || waiting.lock().apply(&id, before, after));
        }
    }

    /// The current session of a broadcaster, including this batch's changes.
    pub(super) fn pointer(&self, tx: &mut Tx, broadcaster: &Name) -> Tried<Option<Name>> {
        match tx.get(&self.tables.broadcasters, broadcaster.as_str().as_bytes())? {
            Some(bytes) => Ok(Some(Name::from_bytes(&bytes)?)),
            None => Ok(None),
        }
    }

    pub(super) fn point(&self, tx: &mut Tx, broadcaster: &Name, id: &Name) -> Tried<()> {
        let (key, id) = (broadcaster.as_str().as_bytes(), id.as_str().as_bytes());
        tx.put(&self.tables.broadcasters, key, id)
    }

    /// Removes the broadcaster's pointer, unless it points to another session by now.
    pub(super) fn let_go_of_broadcaster(
        &self,
        tx: &mut Tx,
        id: &Name,
        profile: &SessionProfile,
    ) -> Tried<bool> {
        let Some(broadcaster) = &profile.broadcaster_user_id else { return Ok(false) };
        if self.pointer(tx, broadcaster)?.as_ref() != Some(id) {
            return Ok(false);
        }
        tx.remove(&self.tables.broadcasters, broadcaster.as_str().as_bytes())?;
        Ok(true)
    }

    /// How many references that incarnation has to that session.
    pub(super) fn references(&self, tx: &mut Tx, slot: &Slot, id: &Name) -> Tried<u64> {
        let row = tx.get(&self.tables.held, &held_key(slot.incarnation, id.as_str()))?;
        match row {
            None => Ok(0),
            Some(bytes) => {
                to_number(&bytes).ok_or_else(|| Fault::row("a row of `held` is not a reference"))
            }
        }
    }

    /// Sets the number of references of an incarnation, which was `before`.
    pub(super) fn refer(
        &self,
        tx: &mut Tx,
        slot: &Arc<Slot>,
        id: &Name,
        before: u64,
        count: u64,
    ) -> Tried<()> {
        let key = held_key(slot.incarnation, id.as_str());
        match (before, count) {
            (_, 0) => {
                tx.remove(&self.tables.held, &key)?;
                self.note_let_go(slot);
            }
            (0, _) => {
                tx.put(&self.tables.held, &key, &number(count))?;
                slot.hold_one();
            }
            _ => tx.put(&self.tables.held, &key, &number(count))?,
        }
        Ok(())
    }

    /// Removes references of a session; with the last one its grace period begins.
    pub(super) fn dereference(
        &self,
        tx: &mut Tx,
        id: &Name,
        before: &SessionRow,
        count: u64,
        now_ms: u64,
    ) -> Tried<SessionRow> {
        let mut row = before.clone();
        row.references = row.references.saturating_sub(count);
        if row.references == 0 {
            (row.since_ms, row.disconnected) = (now_ms, true);
        }
        self.put(tx, id, Some(before), &row)?;
        Ok(row)
    }

    pub(super) fn case(&self, row: &SessionRow, now_ms: u64, back_ms: u64) -> SessionCase {
        let SessionRow { references, since_ms, disconnected, .. } = *row;
        let session = SessionState { references, since_ms, disconnected };
        SessionCase { session, grace_ms: self.grace_ms, now_ms, back_ms }
    }

    pub(super) fn session(&self, id: &Name, row: SessionRow) -> Session {
        let (now_ms, back_ms) = self.look();
        let waits = row.references == 0;
        Session {
            id: id.clone(),
            references: row.references,
            disconnected_ms: disconnected_ms(&row),
            updated_ms: Some(row.updated_ms),
            due_ms: waits.then(|| due_ms(row.since_ms, self.grace_ms, back_ms)),
            now_ms,
            profile: row.profile,
        }
    }
}
