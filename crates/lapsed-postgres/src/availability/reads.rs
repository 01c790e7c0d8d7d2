//! Reads and beats: one statement each.

use std::collections::{BTreeMap, HashMap};

use lapsed_availability::rules::AvailabilitySettings;
use lapsed_availability::{
    Available, ListedProvider, OnlineToggle, ProviderBeat, ProviderQuery, ProviderState,
};
use lapsed_core::{Error, Name, Result};
use tokio_postgres::Row;

use crate::availability::PostgresTruth;
use crate::availability::states::state_of;
use crate::availability::table_names::TableNames;
use crate::call_error::{CallResult, unexpected_answer};
use crate::number::{ms_of, to_i64, to_u64};
use crate::pool::Call;
use crate::schema::occupying;

/// A table with more rows than this is counted by the planner's estimate.
const COUNTED_MAX: u32 = 100_000;

/// The longest silence that is reported: a century. An earlier time cannot be represented.
const AGE_MS_MAX: u64 = 100 * 365 * 24 * 3_600_000;

/// The latest time that is sent to the server; a later time means "now".
const AT_MS_MAX: u64 = 4_102_444_800_000;

impl TableNames {
    /// The query for the states of the providers in parameter 2.
    fn states(&self) -> String {
        format!(
            "SELECT {} FROM {} WHERE m.{id} = ANY({}) ORDER BY m.{id}",
            self.state(),
            self.joined(),
            self.provider.many(2),
            id = self.p_id
        )
    }

    /// The condition for ids after parameter `number`; without `after`, it is true for all ids.
    fn after(&self, after: Option<&Name>, number: usize) -> String {
        match after {
            Some(_) => format!("m.{} > {}", self.p_id, self.provider.one(number)),
            None => format!("${number}::text IS NULL"),
        }
    }

    /// Whether `m` and `s` can be reached: require_ping and stale_ms as parameters 1 and 2.
    fn reachable(&self) -> String {
        format!(
            "s.{} AND m.{} AND (NOT $1::boolean OR \
             s.{} > clock_timestamp() - $2::float8 * interval '1 millisecond')",
            self.s_online, self.p_active, self.s_beat
        )
    }

    /// Those available, and how many sessions they have; how many they may have as parameter 3. The sessions
    /// are counted for those who are looked at only.
    fn available(&self) -> String {
        format!(
            "FROM {} m JOIN {} s ON {} CROSS JOIN LATERAL ({}) AS t(sessions) \
             WHERE {} AND t.sessions < $3::bigint",
            self.providers,
            self.status,
            self.s_of_m,
            self.count_of_m,
            self.reachable()
        )
    }

    /// How many are available: of all that can be reached, without the full, who are found in one go.
    fn count_available(&self) -> String {
        format!(
            "SELECT count(*) FROM {} m JOIN {} s ON {} WHERE {} AND $3::bigint > 0 \
             AND NOT EXISTS (SELECT 1 FROM (SELECT c.{provider} AS id FROM {sessions} c WHERE {occupying} \
             GROUP BY c.{provider} HAVING count(*) >= $3::bigint) f WHERE f.id = {})",
            self.providers,
            self.status,
            self.s_of_m,
            self.reachable(),
            self.session_provider.like(&format!("m.{}", self.p_id), &self.provider),
            provider = self.c_provider,
            sessions = self.sessions,
            occupying = occupying(&format!("c.{}", self.c_status)),
        )
    }

    fn listed(&self) -> String {
        let name = self.p_name.as_ref().map_or("NULL".to_owned(), |name| format!("m.{name}"));
        let time = |column: &str| ms_of(&format!("s.{column}"));
        format!(
            "SELECT m.{}::text, {name}::text, coalesce(s.{}, false), coalesce(m.{}, false), ({}), \
             {}, {}, {} FROM {} m LEFT JOIN {} s ON {}",
            self.p_id,
            self.s_online,
            self.p_active,
            self.count_of_m,
            time(&self.s_last_online),
            time(&self.s_last_offline),
            time(&self.s_beat),
            self.providers,
            self.status,
            self.s_of_m,
        )
    }

    /// Beats of parameter 1. Rows are locked in the order of their ids: two such statements never wait for
    /// each other in a circle.
    fn beat(&self) -> String {
        format!(
            "WITH held AS MATERIALIZED (SELECT s.{s_provider} AS id FROM {status} s \
             JOIN {providers} m ON {s_of_m} WHERE m.{p_id} = ANY({ids}) AND s.{online} AND m.{active} \
             ORDER BY s.{s_provider} FOR NO KEY UPDATE OF s), \
             noted AS (UPDATE {status} s SET {beat} = greatest(s.{beat}, clock_timestamp()){touch} \
             FROM held WHERE s.{s_provider} = held.id AND s.{online} RETURNING s.{s_provider}::text AS id) \
             SELECT m.{p_id}::text, coalesce(m.{active}, false), noted.id IS NOT NULL \
             FROM {providers} m LEFT JOIN noted ON noted.id = m.{p_id}::text WHERE m.{p_id} = ANY({ids})",
            s_provider = self.s_provider,
            status = self.status,
            providers = self.providers,
            s_of_m = self.s_of_m,
            p_id = self.p_id,
            ids = self.provider.many(1),
            online = self.s_online,
            active = self.p_active,
            beat = self.s_beat,
            touch = self.s_touch,
        )
    }

    /// Beats of parameter 1 that were parameter 2 old at the time of parameter 3, or are when the statement
    /// arrived if that is earlier: time on the network or waiting for a lock makes no heartbeat younger.
    fn note_beats(&self) -> String {
        let later = |beat: &str| {
            format!("(s.{0} IS NULL OR s.{0} < {beat} - interval '1 second')", self.s_beat)
        };
        format!(
            "WITH told AS (SELECT {id} AS id, LEAST(statement_timestamp(), \
             to_timestamp($3::float8 / 1000)) - a.age * interval '1 millisecond' AS beat FROM unnest($1::text[], $2::float8[]) AS a(id, age)), \
             held AS MATERIALIZED (SELECT s.{provider} AS id, t.beat FROM {status} s \
             JOIN told t ON s.{provider} = t.id WHERE s.{online} AND {first} \
             ORDER BY s.{provider} FOR NO KEY UPDATE OF s), \
             moved AS (UPDATE {status} s SET {beat} = h.beat{touch} FROM held h \
             WHERE s.{provider} = h.id AND s.{online} AND {again} RETURNING 1) \
             SELECT count(*) FROM moved",
            id = self.status_provider.of("a.id"),
            provider = self.s_provider,
            status = self.status,
            online = self.s_online,
            beat = self.s_beat,
            touch = self.s_touch,
            first = later("t.beat"),
            again = later("h.beat"),
        )
    }
}

impl PostgresTruth {
    pub(super) async fn read_states(&self, ids: &[Name]) -> Result<Vec<ProviderState>> {
        let names = self.names().await?;
        let ids = valid_ids(names, ids);
        self.states("read", &names.states(), &[&self.system, &ids]).await
    }

    /// Reads the states inside a transaction.
    pub(super) async fn states_in(
        &self,
        call: &Call,
        ids: &[Name],
    ) -> CallResult<Vec<ProviderState>> {
        let names = self.names().await?;
        let ids = valid_ids(names, ids);
        let rows = call.query(&names.states(), &[&self.system, &ids]).await?;
        rows.iter().map(|row| Ok(state_of(self.pool().place(), row)?)).collect()
    }

    pub(super) async fn read_page(
        &self,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<ProviderState>> {
        let names = self.names().await?;
        after.map_or(Ok(()), |after| names.provider.require(after))?;
        let sql = format!(
            "SELECT {} FROM {} WHERE {} ORDER BY m.{} LIMIT $3",
            names.state(),
            names.joined(),
            names.after(after, 2),
            names.p_id
        );
        let (after, limit) = (after.map(Name::as_str), to_i64(limit as u64));
        self.states("page", &sql, &[&self.system, &after, &limit]).await
    }

    async fn states(
        &self,
        call: &'static str,
        sql: &str,
        params: crate::pool::Params<'_>,
    ) -> Result<Vec<ProviderState>> {
        let rows = self.pool().query(call, sql, params).await?;
        rows.iter().map(|row| state_of(self.pool().place(), row)).collect()
    }

    pub(super) async fn estimate(&self) -> Result<u64> {
        let names = self.names().await?;
        let sql = format!(
            "SELECT CASE WHEN c.reltuples >= {COUNTED_MAX} THEN c.reltuples::bigint \
             ELSE (SELECT count(*) FROM {}) END FROM pg_class c WHERE c.oid = to_regclass($1::text)",
            names.providers
        );
        Ok(to_u64(self.pool().query_one("extent", &sql, &[&names.providers]).await?.get(0)))
    }

    pub(super) async fn note_own_beats(&self, ids: &[Name]) -> Result<Vec<ProviderBeat>> {
        let names = self.names().await?;
        let asked = valid_ids(names, ids);
        let rows = self.pool().query("beat", &names.beat(), &[&asked]).await?;
        let answer = |row: &Row| match (row.get::<_, bool>(1), row.get::<_, bool>(2)) {
            (false, _) => ProviderBeat::Deactivated,
            (true, true) => ProviderBeat::Noted,
            (true, false) => ProviderBeat::Offline,
        };
        let answers: HashMap<&str, ProviderBeat> =
            rows.iter().map(|row| (row.get(0), answer(row))).collect();
        let of = |id: &Name| answers.get(id.as_str()).copied().unwrap_or(ProviderBeat::Offline);
        Ok(ids.iter().map(of).collect())
    }

    /// One statement: a row that another connection is changing is judged as that change leaves it.
    pub(super) async fn clamp_future_beats(&self, ids: &[Name]) -> Result<u64> {
        let names = self.names().await?;
        let TableNames { status, s_provider, s_beat, s_touch, .. } = names;
        let asked = ids.iter().filter(|id| names.status_provider.accepts(id));
        let asked: Vec<&str> = asked.map(Name::as_str).collect();
        let sql = format!(
            "WITH held AS MATERIALIZED (SELECT s.{s_provider} AS id FROM {status} s \
             WHERE s.{s_provider} = ANY({ids}) AND s.{s_beat} > clock_timestamp() \
             ORDER BY s.{s_provider} FOR NO KEY UPDATE), \
             clamped AS (UPDATE {status} s SET {s_beat} = clock_timestamp(){s_touch} \
             FROM held WHERE s.{s_provider} = held.id AND s.{s_beat} > clock_timestamp() RETURNING 1) \
             SELECT count(*) FROM clamped",
            ids = names.status_provider.many(1)
        );
        Ok(to_u64(self.pool().query_one("clamp beats", &sql, &[&asked]).await?.get(0)))
    }

    pub(super) async fn note_old_beats(&self, beats: &[(Name, u64)], at_ms: u64) -> Result<u64> {
        let names = self.names().await?;
        let mut youngest: BTreeMap<&str, u64> = BTreeMap::new();
        for (id, age_ms) in beats.iter().filter(|(id, _)| names.status_provider.accepts(id)) {
            let known = youngest.entry(id.as_str()).or_insert(u64::MAX);
            *known = (*known).min(*age_ms).min(AGE_MS_MAX);
        }
        if youngest.is_empty() {
            return Ok(0);
        }
        let (ids, ages): (Vec<&str>, Vec<f64>) =
            youngest.into_iter().map(|(id, age_ms)| (id, age_ms as f64)).unzip();
        let at = at_ms.min(AT_MS_MAX) as f64;
        let row =
            self.pool().query_one("note beats", &names.note_beats(), &[&ids, &ages, &at]).await?;
        Ok(to_u64(row.get(0)))
    }

    pub(super) async fn read_available(
        &self,
        settings: &AvailabilitySettings,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Available>> {
        let names = self.names().await?;
        after.map_or(Ok(()), |after| names.provider.require(after))?;
        let sql = format!(
            "SELECT m.{0}::text, t.sessions {1} AND {2} ORDER BY m.{0} LIMIT $5",
            names.p_id,
            names.available(),
            names.after(after, 4)
        );
        let (stale, max) = query_limits(settings);
        let (after, limit) = (after.map(Name::as_str), to_i64(limit as u64));
        let params: crate::pool::Params<'_> =
            &[&settings.require_ping, &stale, &max, &after, &limit];
        let rows = self.pool().query("available", &sql, params).await?;
        let read = |row: &Row| {
            let id = Name::new(row.get(0))
                .map_err(|e| unexpected_answer(self.pool().place(), "available", e))?;
            Ok(Available { id, active_session_count: to_u64(row.get(1)) })
        };
        rows.iter().map(read).collect()
    }

    pub(super) async fn number_available(&self, settings: &AvailabilitySettings) -> Result<u64> {
        let sql = self.names().await?.count_available();
        let (stale, max) = query_limits(settings);
        let params: crate::pool::Params<'_> = &[&settings.require_ping, &stale, &max];
        Ok(to_u64(self.pool().query_one("count available", &sql, params).await?.get(0)))
    }

    pub(super) async fn number_online(&self) -> Result<u64> {
        let names = self.names().await?;
        let sql = format!(
            "SELECT count(*) FROM {} m JOIN {} s ON {} WHERE s.{} AND m.{}",
            names.providers, names.status, names.s_of_m, names.s_online, names.p_active
        );
        Ok(to_u64(self.pool().query_one("count online", &sql, &[]).await?.get(0)))
    }

    pub(super) async fn read_list(&self, listing: &ProviderQuery) -> Result<Vec<ListedProvider>> {
        let names = self.names().await?;
        let after = listing.after.as_ref();
        after.map_or(Ok(()), |after| names.provider.require(after))?;
        let online = match listing.online_only {
            true => format!(" AND s.{}", names.s_online),
            false => String::new(),
        };
        let sql = format!(
            "{} WHERE {}{online} ORDER BY m.{} LIMIT $2",
            names.listed(),
            names.after(after, 1),
            names.p_id
        );
        let (after, limit) = (after.map(Name::as_str), to_i64(listing.limit as u64));
        let rows = self.pool().query("list", &sql, &[&after, &limit]).await?;
        rows.iter().map(|row| self.listed(row)).collect()
    }

    pub(super) async fn read_one(&self, id: &Name) -> Result<Option<ListedProvider>> {
        let names = self.names().await?;
        if !names.provider.accepts(id) {
            return Ok(None);
        }
        let sql = format!("{} WHERE m.{} = {}", names.listed(), names.p_id, names.provider.one(1));
        let rows = self.pool().query("describe", &sql, &[&id.as_str()]).await?;
        rows.first().map(|row| self.listed(row)).transpose()
    }

    pub(super) async fn read_log(&self, id: &Name, limit: usize) -> Result<Vec<OnlineToggle>> {
        let names = self.names().await?;
        let Some(at) = &names.l_at else {
            return Err(Error::Unsupported {
                operation: format!(
                    "reading a log without a column {}",
                    self.layout.logs.created_at
                ),
                store: self.pool().place().to_owned(),
            });
        };
        if !names.log_provider.accepts(id) {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT l.{}::text = 'online', {} FROM {} l WHERE l.{} = {} \
             ORDER BY l.{at} DESC, l.ctid DESC LIMIT $2",
            names.l_status,
            ms_of(&format!("l.{at}")),
            names.logs,
            names.l_provider,
            names.log_provider.one(1)
        );
        let limit = to_i64(limit as u64);
        let rows = self.pool().query("log", &sql, &[&id.as_str(), &limit]).await?;
        let read = |row: &Row| OnlineToggle { online: row.get(0), at_ms: to_u64(row.get(1)) };
        Ok(rows.iter().map(read).collect())
    }

    fn listed(&self, row: &Row) -> Result<ListedProvider> {
        let time = |place: usize| row.get::<_, Option<i64>>(place).map(to_u64);
        Ok(ListedProvider {
            id: Name::new(row.get(0))
                .map_err(|e| unexpected_answer(self.pool().place(), "list", e))?,
            display_name: row.get(1),
            is_online: row.get(2),
            is_active: row.get(3),
            active_session_count: to_u64(row.get(4)),
            last_online_ms: time(5),
            last_offline_ms: time(6),
            last_heartbeat_ms: time(7),
        })
    }
}

/// Leaves out ids that the column's type cannot have.
fn valid_ids<'a>(names: &TableNames, ids: &'a [Name]) -> Vec<&'a str> {
    ids.iter().filter(|id| names.provider.accepts(id)).map(Name::as_str).collect()
}

fn query_limits(settings: &AvailabilitySettings) -> (f64, i64) {
    (settings.stale_ms() as f64, to_i64(settings.max_customers_per_mitra))
}
