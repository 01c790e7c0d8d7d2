//! Which provider has which session. The rule is [`rules::step`]; this file has the transaction around it.

use std::collections::BTreeMap;

use lapsed_availability::{
    ProviderState, SessionChange, SessionOutcome, SessionRefusal, SessionStatus, WorkSession, rules,
};
use lapsed_core::{Error, Name, Result};
use tokio_postgres::Row;

use crate::availability::states::{LockScope, Locked};
use crate::availability::table_names::TableNames;
use crate::availability::{PostgresTruth, TRIES};
use crate::call_error::{CallResult, unavailable, unexpected_answer};
use crate::pool::{Call, TransactionEnd};

/// The outcome of one try; `None`: the session has changed since it was read, so it must be read again.
type Try = Option<SessionOutcome>;

impl TableNames {
    /// The query for the session with the id in parameter 1.
    fn session(&self) -> String {
        format!(
            "SELECT c.{}::text, c.{}::text, c.{}::text FROM {} c WHERE c.{} = {}",
            self.c_id,
            self.c_provider,
            self.c_status,
            self.sessions,
            self.c_id,
            self.session.one(1)
        )
    }
}

fn session_of(place: &str, row: &Row) -> Result<WorkSession> {
    let name =
        |text: &str| Name::new(text).map_err(|error| unexpected_answer(place, "session", error));
    let status: Option<String> = row.get(2);
    Ok(WorkSession {
        id: name(row.get(0))?,
        provider: row.get::<_, Option<&str>>(1).map(name).transpose()?,
        status: SessionStatus::from(status.unwrap_or_default()),
    })
}

impl PostgresTruth {
    pub(super) async fn read_session(&self, id: &Name) -> Result<Option<WorkSession>> {
        let names = self.names().await?;
        if !names.session.accepts(id) {
            return Ok(None);
        }
        let rows = self.pool().query("session", &names.session(), &[&id.as_str()]).await?;
        rows.first().map(|row| session_of(self.pool().place(), row)).transpose()
    }

    /// Who has it now is known only after looking, and their versions are to be locked first: so it is
    /// looked at, locked, and looked at again.
    pub(super) async fn step_session(
        &self,
        change: &SessionChange,
        max: u64,
    ) -> Result<SessionOutcome> {
        for _ in 0..TRIES {
            let before = self.read_session(change.session()).await?;
            let step = match rules::step(before.as_ref(), change) {
                Err(refusal) => return Ok(SessionOutcome::Refused(refusal)),
                Ok(step) => step,
            };
            let Some(step) = step else {
                let Some(session) = before else {
                    return Ok(SessionOutcome::Refused(SessionRefusal::NoSuchSession));
                };
                return Ok(SessionOutcome::Done { session, changed: false, touched: Vec::new() });
            };
            if before.is_none() {
                self.names().await?.session.require(&step.session.id)?;
            }
            match self.try_step(change, before.as_ref(), max).await {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) => {}
                Err(failure) if failure.conflict => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        let what = format!("session {} is being changed by too many at once", change.session());
        Err(unavailable(self.pool().place(), what))
    }

    async fn try_step(
        &self,
        change: &SessionChange,
        before: Option<&WorkSession>,
        max: u64,
    ) -> CallResult<Try> {
        let holder = before.and_then(|session| session.provider.as_ref());
        let scope = holder.into_iter().chain(change.provider()).map(|id| (id, 0));
        let (call, locked) = self.begin("change a session", scope, LockScope::Existing).await?;
        let stepped = self.step_in(&call, &locked, change, before, max).await;
        call.finish(stepped).await
    }

    async fn step_in(
        &self,
        call: &Call,
        locked: &BTreeMap<Name, Locked>,
        change: &SessionChange,
        before: Option<&WorkSession>,
        max: u64,
    ) -> CallResult<TransactionEnd<Try>> {
        let sql = format!("{} FOR NO KEY UPDATE", self.names().await?.session());
        let row = call.query_opt(&sql, &[&change.session().as_str()]).await?;
        let place = self.pool().place();
        let now = row.map(|row| session_of(place, &row)).transpose()?;
        if now.as_ref().and_then(|now| now.provider.as_ref())
            != before.and_then(|before| before.provider.as_ref())
        {
            return Ok(TransactionEnd::Rollback(None));
        }
        let refused = |why| Ok(TransactionEnd::Rollback(Some(SessionOutcome::Refused(why))));
        let step = match rules::step(now.as_ref(), change) {
            Err(refusal) => return refused(refusal),
            Ok(None) => return Ok(TransactionEnd::Rollback(None)),
            Ok(Some(step)) => step,
        };
        if let Some(onto) = &step.onto
            && let Some(refusal) = self.no_room(call, locked, onto, max).await?
        {
            return refused(refusal);
        }
        if !self.write_session(call, now.is_some(), &step.session).await? {
            return Ok(TransactionEnd::Rollback(None));
        }
        let states = self.conclude(call, locked, &[]).await?;
        let touched = touched(now.as_ref(), &step.session, states);
        let done = SessionOutcome::Done { session: step.session, changed: true, touched };
        Ok(TransactionEnd::Commit(Some(done)))
    }

    /// Why a provider cannot have another session; the caller holds the lock on its version.
    async fn no_room(
        &self,
        call: &Call,
        locked: &BTreeMap<Name, Locked>,
        onto: &Name,
        max: u64,
    ) -> CallResult<Option<SessionRefusal>> {
        if !locked.contains_key(onto) {
            return Ok(Some(SessionRefusal::NoSuchProvider));
        }
        let names = self.names().await?;
        let sql = format!(
            "SELECT coalesce(m.{}, false), ({}) FROM {} m WHERE m.{} = {}",
            names.p_active,
            names.count_of_m,
            names.providers,
            names.p_id,
            names.provider.one(1)
        );
        let Some(row) = call.query_opt(&sql, &[&onto.as_str()]).await? else {
            return Ok(Some(SessionRefusal::NoSuchProvider));
        };
        let (active, sessions) = (row.get::<_, bool>(0), crate::number::to_u64(row.get(1)));
        Ok(match active {
            false => Some(SessionRefusal::Deactivated),
            true if sessions >= max => Some(SessionRefusal::Full { sessions, max }),
            true => None,
        })
    }

    /// Writes the session; `false`: another transaction has just created it.
    async fn write_session(
        &self,
        call: &Call,
        is_there: bool,
        session: &WorkSession,
    ) -> CallResult<bool> {
        let names = self.names().await?;
        let TableNames { sessions, c_id, c_provider, c_status, c_touch, .. } = names;
        let provider = session.provider.as_ref().map(Name::as_str);
        if let Some(id) = session.provider.as_ref().filter(|id| !names.session_provider.accepts(id))
        {
            return Err(Error::Invalid(format!("{id} cannot have a session")).into());
        }
        // A status is sent as it is written, for columns of an enumeration, too.
        let status = crate::quote::literal(session.status.as_str());
        let sql = match is_there {
            true => format!(
                "UPDATE {sessions} SET {c_provider} = {}, {c_status} = {status}{c_touch} \
                 WHERE {c_id} = {} RETURNING 1",
                names.session_provider.one(2),
                names.session.one(1)
            ),
            false => format!(
                "INSERT INTO {sessions} ({c_id}, {c_provider}, {c_status}) \
                 VALUES ({}, {}, {status}) ON CONFLICT DO NOTHING RETURNING 1",
                names.session.one(1),
                names.session_provider.one(2)
            ),
        };
        Ok(!call.query(&sql, &[&session.id.as_str(), &provider]).await?.is_empty())
    }
}

/// The providers whose number of sessions the change alters.
fn touched(
    before: Option<&WorkSession>,
    after: &WorkSession,
    mut states: BTreeMap<Name, ProviderState>,
) -> Vec<ProviderState> {
    let holder = |session: &WorkSession| session.provider.clone().filter(|_| session.occupies());
    let (before, after) = (before.and_then(holder), holder(after));
    if before == after {
        return Vec::new();
    }
    [before, after].into_iter().flatten().filter_map(|id| states.remove(&id)).collect()
}
