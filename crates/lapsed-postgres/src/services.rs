//! Implements what the engine needs of any store: terms, the operator's settings and receipts.

use async_trait::async_trait;
use lapsed_core::leader::Term;
use lapsed_core::notes::NoteStore;
use lapsed_core::receipt::{Receipt, ReceiptQuery};
use lapsed_core::request::{KeptRequest, RequestId};
use lapsed_core::store::{Store, StoreInfo};
use lapsed_core::sweep::brake::BrakeRecord;
use lapsed_core::{Error, Result, SystemId};

use crate::Postgres;
use crate::call_error::unexpected_answer;
use crate::number::{ms_of, to_i64, to_u64};
use crate::receipts::{READ_COLUMNS, read_receipt};

#[async_trait]
impl Store for Postgres {
    async fn info(&self) -> Result<StoreInfo> {
        let sql = format!(
            "SELECT current_setting('server_version'), {}, {}, \
             floor(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint",
            ms_of("clock_timestamp()"),
            ms_of("pg_postmaster_start_time()")
        );
        let row = self.pool().query_one("info", &sql, &[]).await?;
        let version: &str = row.get(0);
        Ok(StoreInfo {
            engine: format!("postgres {}", version.split(' ').next().unwrap_or(version)),
            place: self.pool().place().to_owned(),
            incarnation: row.get::<_, i64>(3).to_string(),
            now_ms: to_u64(row.get(1)),
            back_ms: to_u64(row.get(2)),
        })
    }

    async fn receipts(&self, system: &SystemId, query: ReceiptQuery) -> Result<Vec<Receipt>> {
        let (place, order) = match (query.after, query.before) {
            (Some(after), _) => (Some(to_i64(after)), "seq > $2 ORDER BY seq"),
            (None, Some(before)) => (Some(to_i64(before)), "seq < $2 ORDER BY seq DESC"),
            (None, None) => (None, "$2::bigint IS NULL ORDER BY seq DESC"),
        };
        let sql = format!(
            "SELECT {READ_COLUMNS} FROM {} WHERE system = $1 AND {order} LIMIT $3",
            self.own().receipts
        );
        let limit = to_i64(query.limit as u64);
        let system = system.to_string();
        let rows = self.pool().query("receipts", &sql, &[&system, &place, &limit]).await?;
        rows.iter().map(|row| read_receipt(self.pool().place(), row)).collect()
    }

    async fn receipt(&self, system: &SystemId, seq: u64) -> Result<Option<Receipt>> {
        let sql = format!(
            "SELECT {READ_COLUMNS} FROM {} WHERE system = $1 AND seq = $2",
            self.own().receipts
        );
        let (system, seq) = (system.to_string(), to_i64(seq));
        let rows = self.pool().query("receipt", &sql, &[&system, &seq]).await?;
        rows.first().map(|row| read_receipt(self.pool().place(), row)).transpose()
    }

    async fn campaign(
        &self,
        system: &SystemId,
        candidate: &str,
        ttl_ms: u64,
    ) -> Result<Option<Term>> {
        self.take_term(&system.to_string(), candidate, ttl_ms).await
    }

    async fn term(&self, system: &SystemId) -> Result<Option<Term>> {
        let sql = format!(
            "SELECT number, holder, {} FROM {} WHERE system = $1 AND until > clock_timestamp()",
            ms_of("until"),
            self.own().terms
        );
        let rows = self.pool().query("term", &sql, &[&system.to_string()]).await?;
        Ok(rows.first().map(|row| Term {
            number: to_u64(row.get(0)),
            holder: row.get(1),
            until_ms: to_u64(row.get(2)),
        }))
    }

    async fn resign(&self, system: &SystemId, term: u64) -> Result<()> {
        // The number stays, so that the next one is larger.
        let sql = format!(
            "UPDATE {} SET until = '-infinity' WHERE system = $1 AND number = $2",
            self.own().terms
        );
        let (system, term) = (system.to_string(), to_i64(term));
        self.pool().query("resign", &sql, &[&system, &term]).await.map(|_| ())
    }

    async fn brake(&self, system: &SystemId) -> Result<BrakeRecord> {
        let sql = format!("SELECT brake::text FROM {} WHERE system = $1", self.own().settings);
        let rows = self.pool().query("brake", &sql, &[&system.to_string()]).await?;
        let Some(text) = rows.first().and_then(|row| row.get::<_, Option<&str>>(0)) else {
            return Ok(BrakeRecord::default());
        };
        serde_json::from_str(text)
            .map_err(|error| unexpected_answer(self.pool().place(), "brake", error))
    }

    async fn swap_brake(&self, system: &SystemId, next: &BrakeRecord) -> Result<bool> {
        let settings = &self.own().settings;
        // The row's lock orders two swaps; the second one sees the version that the first wrote.
        let is_expected = "coalesce((t.brake->>'version')::bigint, 0) = $3";
        let sql = match next.version {
            1 => format!(
                "INSERT INTO {settings} AS t (system, brake) VALUES ($1, $2::text::jsonb) \
                 ON CONFLICT (system) DO UPDATE SET brake = EXCLUDED.brake WHERE {is_expected} \
                 RETURNING 1"
            ),
            _ => format!(
                "UPDATE {settings} AS t SET brake = $2::text::jsonb \
                 WHERE system = $1 AND {is_expected} RETURNING 1"
            ),
        };
        let text = serde_json::to_string(next)
            .map_err(|error| Error::Invalid(format!("the brake's record: {error}")))?;
        let (system, expected) = (system.to_string(), to_i64(next.version.saturating_sub(1)));
        let rows = self.pool().query("brake", &sql, &[&system, &text, &expected]).await?;
        Ok(!rows.is_empty())
    }

    async fn kept_request(&self, system: &SystemId, request: &RequestId) -> Result<KeptRequest> {
        self.find_request(system, request).await
    }

    async fn keep_answer(
        &self,
        system: &SystemId,
        request: &RequestId,
        answer: &str,
    ) -> Result<()> {
        self.write_answer(system, request, answer).await
    }

    async fn forget_request(&self, system: &SystemId, request: &RequestId) -> Result<()> {
        self.remove_request(system, request).await
    }

    fn notes(&self) -> &dyn NoteStore {
        self
    }
}

impl Postgres {
    /// Takes or renews the term that is kept under `key`.
    pub(crate) async fn take_term(
        &self,
        key: &str,
        candidate: &str,
        ttl_ms: u64,
    ) -> Result<Option<Term>> {
        // The number follows the clock: a server that lost its last commits does not hand it out again.
        let sql = format!(
            "INSERT INTO {} AS t (system, number, holder, until) VALUES ($1, \
             floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint, $2, \
             clock_timestamp() + $3 * interval '1 millisecond') \
             ON CONFLICT (system) DO UPDATE SET holder = EXCLUDED.holder, number = CASE \
             WHEN t.until <= clock_timestamp() THEN greatest(t.number + 1, EXCLUDED.number) \
             ELSE t.number END, until = clock_timestamp() + $3 * interval '1 millisecond' \
             WHERE t.holder = EXCLUDED.holder OR t.until <= clock_timestamp() \
             RETURNING number, {}",
            self.own().terms,
            ms_of("until")
        );
        let ttl = ttl_ms as f64;
        let rows = self.pool().query("campaign", &sql, &[&key, &candidate, &ttl]).await?;
        Ok(rows.first().map(|row| Term {
            number: to_u64(row.get(0)),
            holder: candidate.to_owned(),
            until_ms: to_u64(row.get(1)),
        }))
    }
}
