//! Operations on sessions. Each is one job.

use std::sync::Arc;

use async_trait::async_trait;
use lapsed_core::owner::{Claim, Incarnation};
use lapsed_core::receipt::ReceiptId;
use lapsed_core::request::RequestId;
use lapsed_core::sessions::{
    Activated, Deleted, ReferenceChange, ReferenceStep, Session, SessionProfile, SessionsStore,
};
use lapsed_core::system::Restored;
use lapsed_core::{Error, Name, Result};
use serde::{Deserialize, Serialize};

use crate::fault::{Fault, Tried};
use crate::owners::load::open;
use crate::owners::service::{begin, begun};
use crate::owners::slot::Slot;
use crate::owners::{UnlessEnded, unknown_claim};
use crate::sessions::rows::disconnected_ms;
use crate::sessions::{Core, EmbeddedSessions};
use crate::tables::SessionRow;
use crate::tx::Tx;

/// What a receipt keeps of a session: everything that is needed to restore it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    pub profile: SessionProfile,
    pub disconnected_ms: Option<u64>,
    pub updated_ms: u64,
    /// Whether it was its broadcaster's current session.
    pub was_current: bool,
}

/// Result of a connect or disconnect inside its job.
struct Referred {
    slot: Arc<Slot>,
    started: bool,
    standing: ReferenceChange,
}

/// Result of a connect or disconnect that may be a repetition.
enum ChangedOnce {
    Now(Option<UnlessEnded<Referred>>),
    /// An earlier attempt of the request was answered with this.
    Before(ReferenceChange),
}

/// Sets the fields that `profile` contains.
fn set(row: &mut SessionRow, profile: &SessionProfile) {
    let own = &mut row.profile;
    for (own, given) in
        [(&mut own.value, &profile.value), (&mut own.config_json, &profile.config_json)]
    {
        if given.is_some() {
            own.clone_from(given);
        }
    }
    if profile.broadcaster_user_id.is_some() {
        own.broadcaster_user_id.clone_from(&profile.broadcaster_user_id);
    }
}

fn standing(row: &SessionRow, yours: u64, changed: bool) -> ReferenceChange {
    ReferenceChange {
        references: row.references,
        yours,
        changed,
        disconnected_ms: disconnected_ms(row),
        incarnation: None,
        started: None,
    }
}

impl Core {
    fn activate(
        &self,
        tx: &mut Tx,
        id: &Name,
        profile: &SessionProfile,
    ) -> Tried<(bool, SessionRow)> {
        let now_ms = self.store_clock.now_ms();
        let before = self.row(tx, id)?;
        let mut row = before.clone().unwrap_or_else(|| SessionRow {
            profile: SessionProfile::default(),
            references: 0,
            since_ms: now_ms,
            disconnected: false,
            updated_ms: now_ms,
        });
        (row.since_ms, row.disconnected, row.updated_ms) = (now_ms, false, now_ms);
        set(&mut row, profile);
        self.follow_broadcaster(tx, id, before.as_ref(), &row)?;
        if let Some(broadcaster) = &row.profile.broadcaster_user_id {
            self.point(tx, broadcaster, id)?;
        }
        self.put(tx, id, before.as_ref(), &row)?;
        Ok((before.is_none(), row))
    }

    /// When a session's broadcaster changes, removes the pointer of the old one and sets that of
    /// the new one.
    fn follow_broadcaster(
        &self,
        tx: &mut Tx,
        id: &Name,
        before: Option<&SessionRow>,
        row: &SessionRow,
    ) -> Tried<()> {
        let Some(before) = before else { return Ok(()) };
        let (old, new) = (&before.profile.broadcaster_user_id, &row.profile.broadcaster_user_id);
        if old == new {
            return Ok(());
        }
        self.let_go_of_broadcaster(tx, id, &before.profile)?;
        match new {
            Some(new) => self.point(tx, new, id),
            None => Ok(()),
        }
    }

    fn update(
        &self,
        tx: &mut Tx,
        id: &Name,
        profile: &SessionProfile,
    ) -> Tried<Option<SessionRow>> {
        let Some(before) = self.row(tx, id)? else { return Ok(None) };
        let mut row = before.clone();
        set(&mut row, profile);
        row.updated_ms = self.store_clock.now_ms();
        self.follow_broadcaster(tx, id, Some(&before), &row)?;
        self.put(tx, id, Some(&before), &row)?;
        Ok(Some(row))
    }

    fn connect(
        &self,
        tx: &mut Tx,
        claim: &Claim,
        id: &Name,
    ) -> Tried<Option<UnlessEnded<Referred>>> {
        let acting = match self.acting(claim)? {
            Some(UnlessEnded::Ended(slot)) => return Ok(Some(UnlessEnded::Ended(slot))),
            Some(UnlessEnded::Done(slot)) => Some(slot),
            None => None,
        };
        // Checked before an incarnation is started: a session that does not exist creates nothing
        // (B6).
        let Some(before) = self.row(tx, id)? else { return Ok(None) };
        let (slot, started) = match acting {
            Some(slot) => (slot, false),
            None => (self.start(tx, &claim.owner, self.ttl_unless_told())?, true),
        };
        let yours = self.references(tx, &slot, id)?;
        self.refer(tx, &slot, id, yours, yours + 1)?;
        let row = SessionRow { references: before.references + 1, ..before.clone() };
        self.put(tx, id, Some(&before), &row)?;
        let standing = standing(&row, yours + 1, true);
        Ok(Some(UnlessEnded::Done(Referred { slot, started, standing })))
    }

    fn disconnect(
        &self,
        tx: &mut Tx,
        claim: &Claim,
        id: &Name,
    ) -> Tried<Option<UnlessEnded<Referred>>> {
        let slot = match self.acting(claim)? {
            Some(UnlessEnded::Done(slot)) => slot,
            Some(UnlessEnded::Ended(slot)) => return Ok(Some(UnlessEnded::Ended(slot))),
            None => return Err(unknown_claim(claim).into()),
        };
        let Some(before) = self.row(tx, id)? else { return Ok(None) };
        let yours = self.references(tx, &slot, id)?;
        let standing = if yours == 0 {
            standing(&before, 0, false)
        } else {
            self.refer(tx, &slot, id, yours, yours - 1)?;
            let row = self.dereference(tx, id, &before, 1, self.store_clock.now_ms())?;
            standing(&row, yours - 1, true)
        };
        Ok(Some(UnlessEnded::Done(Referred { slot, started: false, standing })))
    }

    fn change_once(
        &self,
        tx: &mut Tx,
        request: &RequestId,
        change: ReferenceStep,
        claim: &Claim,
        id: &Name,
    ) -> Tried<ChangedOnce> {
        let requests = self.requests();
        if let Some(standing) = requests.find(tx, request)? {
            return Ok(ChangedOnce::Before(standing));
        }
        let changed = match change {
            ReferenceStep::Connect => self.connect(tx, claim, id)?,
            ReferenceStep::Disconnect => self.disconnect(tx, claim, id)?,
        };
        if let Some(UnlessEnded::Done(Referred { slot, standing, .. })) = &changed {
            let incarnation = Some(Incarnation(slot.incarnation));
            let standing = ReferenceChange { incarnation, ..standing.clone() };
            requests.keep(tx, request, &standing)?;
        }
        Ok(ChangedOnce::Now(changed))
    }

    fn resume(&self, tx: &mut Tx, id: &Name) -> Tried<Option<ReferenceChange>> {
        let Some(before) = self.row(tx, id)? else { return Ok(None) };
        if before.references > 0 {
            return Ok(Some(standing(&before, 0, false)));
        }
        let mut row = before.clone();
        (row.since_ms, row.disconnected) = (self.store_clock.now_ms(), false);
        self.put(tx, id, Some(&before), &row)?;
        Ok(Some(standing(&row, 0, true)))
    }

    fn delete(&self, tx: &mut Tx, id: &Name) -> Tried<Deleted> {
        match self.row(tx, id)? {
            None => Ok(Deleted::Missing),
            Some(row) if row.references > 0 => Ok(Deleted::Active { references: row.references }),
            Some(row) => {
                self.take_out(tx, id, &row)?;
                Ok(Deleted::Deleted)
            }
        }
    }

    fn restore(&self, tx: &mut Tx, seq: u64) -> Tried<Restored> {
        let refused = |why: String| Ok(Restored::Refused { why });
        let receipt_id = ReceiptId { system: self.id.clone(), seq };
        let Some(receipt) = self.receipt(tx, seq)? else {
            return refused(format!(
                "there is no receipt {receipt_id}, or it is past its retention"
            ));
        };
        let id = receipt.key.clone();
        if receipt.restored_ms.is_some() {
            return refused(format!("`{id}` was put back from {receipt_id} before"));
        }
        if self.row(tx, &id)?.is_some() {
            return refused(format!("its place is taken: there is a session `{id}`"));
        }
        let kept: Kept = serde_json::from_value(receipt.removed.clone())?;
        let now_ms = self.store_clock.now_ms();
        let row = SessionRow {
            references: 0,
            since_ms: now_ms,
            disconnected: true,
            updated_ms: kept.updated_ms,
            profile: kept.profile,
        };
        if let Some(broadcaster) =
            row.profile.broadcaster_user_id.as_ref().filter(|_| kept.was_current)
            && self.pointer(tx, broadcaster)?.is_none()
        {
            self.point(tx, broadcaster, &id)?;
        }
        self.put(tx, &id, None, &row)?;
        self.note_restored(tx, &receipt, now_ms)?;
        let (key, owner) = (id.to_string(), receipt.owner.to_string());
        Ok(Restored::Restored { key, owner, incarnation: receipt.incarnation.0 })
    }
}

impl EmbeddedSessions {
    /// In this store a reference always has an owner; without one it would never end.
    fn whose(&self, claim: Option<&Claim>) -> Result<Claim> {
        claim.cloned().ok_or_else(|| Error::Unsupported {
            operation: "a reference without an owner (name the server that holds it)".to_owned(),
            store: self.owner_service.inner.disk.name.clone(),
        })
    }

    async fn standing(
        &self,
        acted: Option<UnlessEnded<Referred>>,
    ) -> Result<Option<ReferenceChange>> {
        let Some(acted) = acted else { return Ok(None) };
        let done = self.owner_service.acted(acted).await?;
        Ok(Some(ReferenceChange {
            incarnation: Some(Incarnation(done.slot.incarnation)),
            started: done.started.then(|| begun(&done.slot)),
            ..done.standing
        }))
    }

    /// Reads the rows of several keys at one instant.
    fn read<'a, T>(
        &self,
        table: &str,
        keys: impl Iterator<Item = &'a Name>,
        parse: impl Fn(&[u8]) -> Tried<T>,
    ) -> Result<Vec<Option<T>>> {
        let txn = self.owner_service.inner.disk.read()?;
        let read = || -> Tried<Vec<Option<T>>> {
            let Some(table) = open(&txn, table)? else { return Ok(keys.map(|_| None).collect()) };
            let one = |key: &Name| {
                let value = table.get(key.as_str().as_bytes())?;
                value.map(|value| parse(value.value())).transpose()
            };
            keys.map(one).collect()
        };
        read().map_err(|fault| fault.told(&self.owner_service.inner.disk.name))
    }

    /// Reads session rows from disk.
    pub(super) fn rows<'a>(
        &self,
        ids: impl Iterator<Item = &'a Name>,
    ) -> Result<Vec<Option<SessionRow>>> {
        let parse = |bytes: &[u8]| serde_json::from_slice(bytes).map_err(Fault::from);
        self.read(&self.core.tables.sessions, ids, parse)
    }

    pub(super) fn row(&self, id: &Name) -> Result<Option<SessionRow>> {
        Ok(self.rows(std::iter::once(id))?.into_iter().next().flatten())
    }
}

#[async_trait]
impl SessionsStore for EmbeddedSessions {
    async fn activate(&self, id: &Name, profile: &SessionProfile) -> Result<Activated> {
        let (session, profile) = (id.clone(), profile.clone());
        let job = move |core: &Core, tx: &mut Tx| core.activate(tx, &session, &profile);
        let (created, row) = self.write(job, |_| {}).await?;
        Ok(Activated { created, session: self.core.session(id, row) })
    }

    async fn connect(&self, claim: Option<&Claim>, id: &Name) -> Result<Option<ReferenceChange>> {
        let (claim, id) = (self.whose(claim)?, id.clone());
        let store_clock = self.core.store_clock.clone();
        let after = move |acted: &Option<UnlessEnded<Referred>>| match acted {
            Some(UnlessEnded::Done(done)) if done.started => begin(&store_clock, &done.slot),
            _ => {}
        };
        let done = self.write(move |core, tx| core.connect(tx, &claim, &id), after);
        self.standing(done.await?).await
    }

    async fn disconnect(
        &self,
        claim: Option<&Claim>,
        id: &Name,
    ) -> Result<Option<ReferenceChange>> {
        let (claim, id) = (self.whose(claim)?, id.clone());
        let done = self.write(move |core, tx| core.disconnect(tx, &claim, &id), |_| {});
        self.standing(done.await?).await
    }

    async fn change_once(
        &self,
        request: &RequestId,
        change: ReferenceStep,
        claim: Option<&Claim>,
        id: &Name,
    ) -> Result<Option<ReferenceChange>> {
        let (request, claim, id) = (request.clone(), self.whose(claim)?, id.clone());
        let store_clock = self.core.store_clock.clone();
        let after = move |changed: &ChangedOnce| match changed {
            ChangedOnce::Now(Some(UnlessEnded::Done(done))) if done.started => {
                begin(&store_clock, &done.slot);
            }
            _ => {}
        };
        let job =
            move |core: &Core, tx: &mut Tx| core.change_once(tx, &request, change, &claim, &id);
        match self.write(job, after).await? {
            ChangedOnce::Now(done) => self.standing(done).await,
            ChangedOnce::Before(standing) => Ok(Some(standing)),
        }
    }

    async fn resume(&self, id: &Name) -> Result<Option<ReferenceChange>> {
        let id = id.clone();
        self.write(move |core, tx| core.resume(tx, &id), |_| {}).await
    }

    async fn get(&self, id: &Name) -> Result<Option<Session>> {
        Ok(self.row(id)?.map(|row| self.core.session(id, row)))
    }

    async fn update(&self, id: &Name, profile: &SessionProfile) -> Result<Option<Session>> {
        let (session, profile) = (id.clone(), profile.clone());
        let job = move |core: &Core, tx: &mut Tx| core.update(tx, &session, &profile);
        let row = self.write(job, |_| {}).await?;
        Ok(row.map(|row| self.core.session(id, row)))
    }

    async fn delete(&self, id: &Name) -> Result<Deleted> {
        let id = id.clone();
        self.write(move |core, tx| core.delete(tx, &id), |_| {}).await
    }

    async fn of_broadcaster(&self, broadcaster: &Name) -> Result<Option<Name>> {
        let parse = |bytes: &[u8]| Name::from_bytes(bytes).map_err(Fault::from);
        let keys = std::iter::once(broadcaster);
        let found = self.read(&self.core.tables.broadcasters, keys, parse)?;
        Ok(found.into_iter().next().flatten())
    }

    async fn orphans(&self, limit: usize) -> Result<Vec<Name>> {
        let due_before = self.core.due_before();
        let orphans = self.core.waiting.lock().page(due_before, None, limit);
        Ok(orphans.into_iter().map(|(_, id, _)| id).collect())
    }

    async fn disconnected_count(&self) -> Result<u64> {
        Ok(self.core.waiting.lock().disconnected())
    }

    async fn referred(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        self.owner_service.entries(claim, after, limit).await
    }

    async fn restore(&self, seq: u64) -> Result<Restored> {
        self.write(move |core, tx| core.restore(tx, seq), |_| {}).await
    }
}
