//! Requests that were carried out: a row each in the table of notes, under a system's name that no system can have.
//!
//! The races: two daemons carry out two attempts of one request at the same time, or a daemon is killed after the
//! commit and before it has kept the answer. So the row is written first, without an answer, in the transaction that
//! makes the change. Of two attempts the second waits for the row of the first, finds another attempt in it, and
//! is rolled back. A row without an answer says that something was changed.

use lapsed_core::request::{CurrentRequest, KeptRequest, REQUEST_AGE_MS, RequestId};
use lapsed_core::{Result, SystemId};

use crate::Postgres;
use crate::call_error::CallResult;
use crate::own_tables::OwnTables;
use crate::pool::Call;

/// The name under which the requests of a system are kept.
fn place_of(system: &SystemId) -> String {
    format!("{system}#requests")
}

/// The first line of a row; the answer, once it is known, is what follows it.
fn head(request: &RequestId) -> String {
    format!("{} {}", request.fingerprint, request.attempt)
}

/// Notes in this transaction that the attempt changes something. Refused if another attempt has.
pub(crate) async fn note(call: &Call, own: &OwnTables, current: &CurrentRequest) -> CallResult<()> {
    let sql = format!(
        "INSERT INTO {} AS n (system, book, seq, text) VALUES ($1, $2, 0, $3) \
         ON CONFLICT (system, book, seq) DO UPDATE SET text = EXCLUDED.text, at = EXCLUDED.at \
         WHERE n.text = EXCLUDED.text \
         OR n.at <= clock_timestamp() - {REQUEST_AGE_MS} * interval '1 millisecond' RETURNING 1",
        own.notes
    );
    let CurrentRequest { system, request, .. } = current;
    let params: crate::pool::Params<'_> =
        &[&place_of(system), &request.key.as_str(), &head(request)];
    match call.query(&sql, params).await?.is_empty() {
        true => Err(request.overtaken(&system.to_string()).into()),
        false => Ok(()),
    }
}

impl Postgres {
    pub(crate) async fn find_request(
        &self,
        system: &SystemId,
        request: &RequestId,
    ) -> Result<KeptRequest> {
        let sql = format!(
            "SELECT text FROM {} WHERE system = $1 AND book = $2 AND seq = 0 \
             AND at > clock_timestamp() - {REQUEST_AGE_MS} * interval '1 millisecond'",
            self.own().notes
        );
        let params: crate::pool::Params<'_> = &[&place_of(system), &request.key.as_str()];
        let rows = self.pool().query("find a request", &sql, params).await?;
        let Some(text) = rows.first().map(|row| row.get::<_, &str>(0)) else {
            return Ok(KeptRequest::Unknown);
        };
        let (head, answer) = match text.split_once('\n') {
            Some((head, answer)) => (head, Some(answer)),
            None => (text, None),
        };
        if head.split(' ').next() != Some(request.fingerprint.as_str()) {
            return Err(request.reused());
        }
        Ok(answer.map_or(KeptRequest::Begun, |answer| KeptRequest::Answered(answer.to_owned())))
    }

    pub(crate) async fn write_answer(
        &self,
        system: &SystemId,
        request: &RequestId,
        answer: &str,
    ) -> Result<()> {
        let sql = format!(
            "INSERT INTO {} AS n (system, book, seq, text) VALUES ($1, $2, 0, $3) \
             ON CONFLICT (system, book, seq) DO UPDATE SET text = EXCLUDED.text, at = EXCLUDED.at",
            self.own().notes
        );
        let text = format!("{}\n{answer}", head(request));
        let params: crate::pool::Params<'_> = &[&place_of(system), &request.key.as_str(), &text];
        self.pool().query("keep an answer", &sql, params).await.map(|_| ())
    }

    pub(crate) async fn remove_request(
        &self,
        system: &SystemId,
        request: &RequestId,
    ) -> Result<()> {
        let sql = format!(
            "DELETE FROM {} WHERE system = $1 AND book = $2 AND text = $3",
            self.own().notes
        );
        let params: crate::pool::Params<'_> =
            &[&place_of(system), &request.key.as_str(), &head(request)];
        self.pool().query("forget a request", &sql, params).await.map(|_| ())
    }

    /// Removes at most `rows` requests that are too old.
    pub(crate) async fn prune_requests(&self, system: &SystemId, rows: i64) -> Result<()> {
        let sql = format!(
            "DELETE FROM {0} WHERE ctid IN (SELECT ctid FROM {0} WHERE system = $1 \
             AND at <= clock_timestamp() - {REQUEST_AGE_MS} * interval '1 millisecond' LIMIT $2)",
            self.own().notes
        );
        self.pool().query("forget requests", &sql, &[&place_of(system), &rows]).await.map(|_| ())
    }
}
