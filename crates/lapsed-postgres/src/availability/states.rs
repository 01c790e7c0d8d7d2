//! Versions and states: the first and the last step of every change.

use std::collections::BTreeMap;

use lapsed_availability::{ProviderState, rules};
use lapsed_core::{Name, Result, request};
use tokio_postgres::Row;

use crate::availability::PostgresTruth;
use crate::availability::table_names::TableNames;
use crate::call_error::{CallResult, unexpected_answer};
use crate::number::{to_i64, to_u64};
use crate::pool::Call;
use crate::requests;

/// Version and epoch of a provider, from lapsed's own table, whose row this transaction has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Locked {
    pub version: u64,
    pub epoch: u64,
}

/// For which providers versions are taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LockScope {
    /// Only for providers that exist.
    Existing,
    /// Also for providers that this transaction is about to create.
    ExistingAndNew,
}

impl TableNames {
    /// The SQL for the age of a timestamp in milliseconds, never negative; NULL stays NULL.
    pub fn age_of(&self, time: &str) -> String {
        format!(
            "CASE WHEN {time} IS NULL THEN NULL ELSE \
             greatest(0, floor(extract(epoch FROM clock_timestamp() - {time}) * 1000))::bigint END"
        )
    }

    /// The columns of a state, from the tables `m`, `s` and `v`.
    pub fn state(&self) -> String {
        format!(
            "m.{}::text, coalesce(v.version, 0), coalesce(v.epoch, 0), coalesce(s.{}, false), \
             coalesce(m.{}, false), ({}), {}",
            self.p_id,
            self.s_online,
            self.p_active,
            self.count_of_m,
            self.age_of(&format!("s.{}", self.s_beat)),
        )
    }

    /// The join of the tables `m`, `s` and `v`. The system is parameter 1.
    pub fn joined(&self) -> String {
        format!(
            "{} m LEFT JOIN {} s ON {} LEFT JOIN {} v ON v.system = $1 AND v.provider = m.{}::text",
            self.providers, self.status, self.s_of_m, self.own.availability, self.p_id
        )
    }

    /// Takes the next version of each: system, ids, floors. See [`rules::next_version`].
    fn bump(&self, scope: LockScope) -> String {
        let known = match scope {
            LockScope::ExistingAndNew => String::new(),
            LockScope::Existing => format!(
                "JOIN {} m ON m.{} = {} ",
                self.providers,
                self.p_id,
                self.provider.of("a.id")
            ),
        };
        format!(
            "INSERT INTO {} AS v (system, provider, version, epoch) \
             SELECT $1, a.id, greatest(a.floor + 1, \
             floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint), 0 \
             FROM unnest($2::text[], $3::bigint[]) AS a(id, floor) {known}ORDER BY a.id COLLATE \"C\" \
             ON CONFLICT (system, provider) DO UPDATE \
             SET version = greatest(v.version + 1, EXCLUDED.version) \
             RETURNING provider, version, epoch",
            self.own.availability
        )
    }

    /// Looks at the state of each and remembers it: system, ids, those for whom an epoch begins anyway.
    fn conclude(&self) -> String {
        let TableNames { s_online, s_last_online, p_id, .. } = self;
        format!(
            "UPDATE {} AS v SET epoch = CASE WHEN v.provider = ANY($3::text[]) \
             OR (coalesce(s.{s_online}, false), s.{s_last_online}) \
             IS DISTINCT FROM (coalesce(v.was_online, false), v.online_mark) \
             THEN v.version ELSE v.epoch END, \
             was_online = coalesce(s.{s_online}, false), online_mark = s.{s_last_online} \
             FROM {} m LEFT JOIN {} s ON {} \
             WHERE v.system = $1 AND v.provider = m.{p_id}::text AND m.{p_id} = ANY({}) RETURNING {}",
            self.own.availability,
            self.providers,
            self.status,
            self.s_of_m,
            self.provider.many(2),
            self.state()
        )
    }
}

/// Reads a state from a row.
pub(super) fn state_of(place: &str, row: &Row) -> Result<ProviderState> {
    let id: &str = row.get(0);
    Ok(ProviderState {
        id: Name::new(id).map_err(|error| unexpected_answer(place, "read a provider", error))?,
        version: to_u64(row.get(1)),
        epoch: to_u64(row.get(2)),
        online: row.get(3),
        active: row.get(4),
        sessions: to_u64(row.get(5)),
        beat_age_ms: row.get::<_, Option<i64>>(6).map(to_u64),
    })
}

impl PostgresTruth {
    /// Begins a transaction with the versions of all that it touches. Those that are not there are left out.
    pub(super) async fn begin(
        &self,
        call: &'static str,
        ids: impl IntoIterator<Item = (&Name, u64)>,
        scope: LockScope,
    ) -> CallResult<(Call, BTreeMap<Name, Locked>)> {
        let names = self.names().await?;
        let (ids, floors) = self.deduplicated(names, ids);
        let params: crate::pool::Params<'_> = &[&self.system, &ids, &floors];
        let (call, rows) = self.pool().begin(call, &names.bump(scope), params).await?;
        let noted = self.note_request(&call).await;
        match noted.and_then(|()| Ok(locked_of(self.pool().place(), &rows)?)) {
            Ok(locked) => Ok((call, locked)),
            Err(failure) => Err(call.abort(failure).await),
        }
    }

    /// Notes in this transaction for which request it is, if the request has a key.
    pub(super) async fn note_request(&self, call: &Call) -> CallResult<()> {
        match request::current(&self.id) {
            Some(current) => requests::note(call, self.postgres.own(), &current).await,
            None => Ok(()),
        }
    }

    /// Takes the versions inside a transaction that has begun with another step.
    pub(super) async fn lock(
        &self,
        call: &Call,
        ids: impl IntoIterator<Item = (&Name, u64)>,
    ) -> CallResult<BTreeMap<Name, Locked>> {
        let names = self.names().await?;
        let (ids, floors) = self.deduplicated(names, ids);
        let params: crate::pool::Params<'_> = &[&self.system, &ids, &floors];
        let rows = call.query(&names.bump(LockScope::Existing), params).await?;
        Ok(locked_of(self.pool().place(), &rows)?)
    }

    /// The ids, each once, without those that the column's type cannot have.
    fn deduplicated<'a>(
        &self,
        names: &TableNames,
        ids: impl IntoIterator<Item = (&'a Name, u64)>,
    ) -> (Vec<&'a str>, Vec<i64>) {
        let mut floors: BTreeMap<&str, u64> = BTreeMap::new();
        for (id, floor) in ids.into_iter().filter(|(id, _)| names.provider.accepts(id)) {
            let known = floors.entry(id.as_str()).or_default();
            *known = floor.max(*known);
        }
        floors.into_iter().map(|(id, floor)| (id, to_i64(floor))).unzip()
    }

    /// The last step of a change: reads the current state of each provider, by id.
    pub(super) async fn conclude(
        &self,
        call: &Call,
        locked: &BTreeMap<Name, Locked>,
        toggled: &[&Name],
    ) -> CallResult<BTreeMap<Name, ProviderState>> {
        let names = self.names().await?;
        let ids: Vec<&str> = locked.keys().map(Name::as_str).collect();
        let toggled: Vec<&str> = toggled.iter().map(|id| id.as_str()).collect();
        let rows = call.query(&names.conclude(), &[&self.system, &ids, &toggled]).await?;
        let mut states = BTreeMap::new();
        for row in &rows {
            let state = state_of(self.pool().place(), row)?;
            states.insert(state.id.clone(), state);
        }
        Ok(states)
    }
}

fn locked_of(place: &str, rows: &[Row]) -> Result<BTreeMap<Name, Locked>> {
    let read = |row: &Row| -> Result<(Name, Locked)> {
        let id = Name::new(row.get(0))
            .map_err(|error| unexpected_answer(place, "take versions", error))?;
        Ok((id, Locked { version: to_u64(row.get(1)), epoch: to_u64(row.get(2)) }))
    };
    rows.iter().map(read).collect()
}

// The rule that `bump` follows on the server.
const _: fn(u64, u64, u64) -> u64 = rules::next_version;
