//! Changes of a provider: it is created, set online or offline, activated or deactivated, or read again.

use std::collections::BTreeMap;

use lapsed_availability::{ProviderChange, ProviderProfile, ProviderState};
use lapsed_core::Name;

use crate::availability::PostgresTruth;
use crate::availability::states::{LockScope, Locked};
use crate::availability::table_names::TableNames;
use crate::call_error::CallResult;
use crate::number::to_u64;
use crate::pool::{Call, TransactionEnd};

impl TableNames {
    /// The subquery `was`: the row of parameter 1, locked.
    fn was(&self) -> String {
        format!(
            "was AS MATERIALIZED (SELECT s.{0} AS id, coalesce(s.{1}, false) AS online \
             FROM {2} s WHERE s.{0} = {3} FOR NO KEY UPDATE)",
            self.s_provider,
            self.s_online,
            self.status,
            self.status_provider.one(1)
        )
    }

    /// Sets online, which is a beat; a log row if it was not. Answers with the log rows, and with the rows
    /// that are online now: none if another connection has just created the row.
    pub(super) fn go_online(&self) -> String {
        let TableNames { status, s_provider, s_online, s_last_online, s_beat, .. } = self;
        format!(
            "WITH {was}, changed AS (UPDATE {status} s SET {s_online} = true, \
             {s_last_online} = clock_timestamp(), \
             {s_beat} = greatest(s.{s_beat}, clock_timestamp()){touch} \
             FROM was WHERE s.{s_provider} = was.id RETURNING was.online), \
             made AS (INSERT INTO {status} ({s_provider}, {s_online}, {s_last_online}, {s_beat}) \
             SELECT {id}, true, clock_timestamp(), clock_timestamp() \
             WHERE NOT EXISTS (SELECT 1 FROM was) ON CONFLICT DO NOTHING RETURNING 1), \
             logged AS ({logged}) \
             SELECT (SELECT count(*) FROM logged), \
             (SELECT count(*) FROM changed) + (SELECT count(*) FROM made)",
            was = self.was(),
            touch = self.s_touch,
            id = self.status_provider.one(1),
            logged = self.log(
                &self.log_provider.one(1),
                "online",
                "WHERE EXISTS (SELECT 1 FROM changed WHERE NOT online) OR EXISTS (SELECT 1 FROM made)",
            ),
        )
    }

    /// Sets a provider offline, and writes a log row if it was online.
    fn go_offline(&self) -> String {
        format!(
            "WITH {was}, changed AS (UPDATE {status} s SET {online} = false, \
             {last_offline} = clock_timestamp(){touch} \
             FROM was WHERE s.{provider} = was.id AND was.online RETURNING 1), \
             logged AS ({logged}) \
             SELECT (SELECT count(*) FROM logged), 1::bigint",
            was = self.was(),
            status = self.status,
            online = self.s_online,
            last_offline = self.s_last_offline,
            touch = self.s_touch,
            provider = self.s_provider,
            logged = self.log(
                &self.log_provider.one(1),
                "offline",
                "WHERE EXISTS (SELECT 1 FROM changed)",
            ),
        )
    }

    /// Activates or deactivates (parameter 2), and revokes logins in the latter case. Answers with how many
    /// rows have changed, and how many logins were revoked.
    fn activate(&self) -> String {
        let revoke = self.logins.as_ref().map_or(String::new(), |(table, provider, revoked_at)| {
            format!(
                ", revoked AS (UPDATE {table} l SET {revoked_at} = clock_timestamp() \
                 WHERE NOT $2::boolean AND l.{provider} = {} AND l.{revoked_at} IS NULL RETURNING 1)",
                self.login_provider.one(1)
            )
        });
        let revoked =
            if revoke.is_empty() { "0::bigint" } else { "(SELECT count(*) FROM revoked)" };
        format!(
            "WITH changed AS (UPDATE {0} m SET {1} = $2::boolean \
             WHERE m.{2} = {3} AND m.{1} IS DISTINCT FROM $2::boolean RETURNING 1){revoke} \
             SELECT (SELECT count(*) FROM changed), {revoked}",
            self.providers,
            self.p_active,
            self.p_id,
            self.provider.one(1)
        )
    }
}

impl PostgresTruth {
    pub(super) async fn try_put_provider(
        &self,
        profile: &ProviderProfile,
    ) -> CallResult<ProviderChange> {
        let names = self.names().await?;
        names.provider.require(&profile.id)?;
        let (call, locked) =
            self.begin("put a provider", [(&profile.id, 0)], LockScope::ExistingAndNew).await?;
        let put = self.put_in(&call, &locked, profile).await;
        call.finish(put).await
    }

    async fn put_in(
        &self,
        call: &Call,
        locked: &BTreeMap<Name, Locked>,
        profile: &ProviderProfile,
    ) -> CallResult<TransactionEnd<ProviderChange>> {
        let names = self.names().await?;
        let TableNames { providers, p_id, p_active, provider, .. } = names;
        let make = format!(
            "INSERT INTO {providers} ({p_id}, {p_active}) VALUES ({}, true) \
             ON CONFLICT DO NOTHING RETURNING 1",
            provider.one(1)
        );
        let id = profile.id.as_str();
        let mut changed = !call.query(&make, &[&id]).await?.is_empty();
        if let (Some(p_name), Some(name)) = (&names.p_name, &profile.display_name) {
            let rename = format!(
                "UPDATE {providers} SET {p_name} = $2 \
                 WHERE {p_id} = {} AND {p_name} IS DISTINCT FROM $2 RETURNING 1",
                provider.one(1)
            );
            changed |= !call.query(&rename, &[&id, name]).await?.is_empty();
        }
        let state = self.concluded(call, locked, &profile.id, &[]).await?;
        let state = state
            .ok_or_else(|| call.unexpected_answer("a provider that was just made is not there"))?;
        Ok(TransactionEnd::Commit(ProviderChange { state, changed, revoked: 0 }))
    }

    pub(super) async fn try_set_online(
        &self,
        id: &Name,
        online: bool,
    ) -> CallResult<Option<ProviderChange>> {
        let word = if online { "set online" } else { "set offline" };
        let (call, locked) = self.begin(word, [(id, 0)], LockScope::Existing).await?;
        let set = self.set_online_in(&call, &locked, id, online).await;
        call.finish(set).await
    }

    async fn set_online_in(
        &self,
        call: &Call,
        locked: &BTreeMap<Name, Locked>,
        id: &Name,
        online: bool,
    ) -> CallResult<TransactionEnd<Option<ProviderChange>>> {
        if locked.is_empty() {
            return Ok(TransactionEnd::Rollback(None));
        }
        let changed = match online {
            true => self.go_online(call, id).await?,
            false => {
                let sql = self.names().await?.go_offline();
                let row = call.query_opt(&sql, &[&id.as_str()]).await?;
                row.is_some_and(|row| row.get::<_, i64>(0) > 0)
            }
        };
        // Going online always begins an epoch; staying offline does not.
        let toggled: &[&Name] = if online || changed { &[id] } else { &[] };
        let state = self.concluded(call, locked, id, toggled).await?;
        Ok(match state {
            Some(state) => {
                TransactionEnd::Commit(Some(ProviderChange { state, changed, revoked: 0 }))
            }
            None => TransactionEnd::Rollback(None),
        })
    }

    /// Sets a provider online; returns whether it was offline before.
    pub(super) async fn go_online(&self, call: &Call, id: &Name) -> CallResult<bool> {
        let sql = self.names().await?.go_online();
        // The second attempt sees a row that another transaction has made in the meantime.
        for _ in 0..2 {
            let row = call.query_opt(&sql, &[&id.as_str()]).await?;
            let row = row.ok_or_else(|| call.unexpected_answer("no row"))?;
            if row.get::<_, i64>(1) > 0 {
                return Ok(row.get::<_, i64>(0) > 0);
            }
        }
        Err(call.unexpected_answer("a row that is there and cannot be changed"))
    }

    pub(super) async fn try_set_active(
        &self,
        id: &Name,
        active: bool,
    ) -> CallResult<Option<ProviderChange>> {
        let word = if active { "activate" } else { "deactivate" };
        let (call, locked) = self.begin(word, [(id, 0)], LockScope::Existing).await?;
        let set = self.set_active_in(&call, &locked, id, active).await;
        call.finish(set).await
    }

    async fn set_active_in(
        &self,
        call: &Call,
        locked: &BTreeMap<Name, Locked>,
        id: &Name,
        active: bool,
    ) -> CallResult<TransactionEnd<Option<ProviderChange>>> {
        if locked.is_empty() {
            return Ok(TransactionEnd::Rollback(None));
        }
        let sql = self.names().await?.activate();
        let row = call.query_opt(&sql, &[&id.as_str(), &active]).await?;
        let row = row.ok_or_else(|| call.unexpected_answer("no row"))?;
        let (changed, revoked) = (row.get::<_, i64>(0) > 0, to_u64(row.get(1)));
        let state = self.concluded(call, locked, id, &[]).await?;
        Ok(match state {
            Some(state) => TransactionEnd::Commit(Some(ProviderChange { state, changed, revoked })),
            None => TransactionEnd::Rollback(None),
        })
    }

    pub(super) async fn try_refresh(&self, ids: &[(Name, u64)]) -> CallResult<Vec<ProviderState>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let each = ids.iter().map(|(id, floor)| (id, *floor));
        let (call, locked) = self.begin("refresh", each, LockScope::Existing).await?;
        let states = self.conclude(&call, &locked, &[]).await;
        let states = states.map(|states| TransactionEnd::Commit(states.into_values().collect()));
        call.finish(states).await
    }

    /// The last step of a change of one provider: reads its new state.
    async fn concluded(
        &self,
        call: &Call,
        locked: &BTreeMap<Name, Locked>,
        id: &Name,
        toggled: &[&Name],
    ) -> CallResult<Option<ProviderState>> {
        Ok(self.conclude(call, locked, toggled).await?.remove(id))
    }
}
