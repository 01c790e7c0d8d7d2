//! The connection pool: a bounded number of connections, always with time limits, reconnecting when needed.
//!
//! A connection returns to the pool only if its call succeeded, or if the server refused the call and the
//! transaction was rolled back. After anything else (no answer, a cancelled caller, an open transaction) the
//! connection is closed, and the server rolls back what was not committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime,
};
use futures::join;
use lapsed_core::clock::{Clock, within};
use lapsed_core::{Error, Result};
use tokio_postgres::types::ToSql;
use tokio_postgres::{NoTls, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::address::PostgresAddress;
use crate::call_error::{CallError, CallResult, call_error, error_chain, timed_out, unavailable};
use crate::tls;

/// The parameters of one statement.
pub(crate) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A pool of connections to one database. Clones share it.
#[derive(Clone)]
pub(crate) struct PostgresPool {
    inner: Arc<Inner>,
}

struct Inner {
    pool: Pool,
    clock: Arc<dyn Clock>,
    place: Arc<str>,
    statements: AtomicU64,
    address: PostgresAddress,
    config: tokio_postgres::Config,
    tls: Option<MakeRustlsConnect>,
}

impl PostgresPool {
    /// Creates the pool without connecting; the first call connects.
    pub fn new(address: &PostgresAddress, clock: Arc<dyn Clock>) -> Result<PostgresPool> {
        let (config, trust) = address.config()?;
        let tls = trust.as_ref().map(tls::connector).transpose()?;
        let how = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = match &tls {
            Some(tls) => Manager::from_config(config.clone(), tls.clone(), how),
            None => Manager::from_config(config.clone(), NoTls, how),
        };
        let session_settings = session_settings(address);
        let first = Hook::async_fn(move |client: &mut deadpool_postgres::ClientWrapper, _| {
            let session_settings = session_settings.clone();
            Box::pin(async move {
                client.batch_execute(&session_settings).await.map_err(HookError::Backend)
            })
        });
        let pool = Pool::builder(manager)
            .max_size(address.connections.max(1))
            .post_create(first)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| Error::Invalid(error.to_string()))?;
        let inner = Inner {
            pool,
            clock,
            place: Arc::from(address.place()),
            statements: AtomicU64::new(0),
            address: address.clone(),
            config,
            tls,
        };
        Ok(PostgresPool { inner: Arc::new(inner) })
    }

    pub fn place(&self) -> &str {
        &self.inner.place
    }

    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    pub fn address(&self) -> &PostgresAddress {
        &self.inner.address
    }

    /// The number of statements that were sent so far.
    pub fn statements(&self) -> u64 {
        self.inner.statements.load(Ordering::Relaxed)
    }

    /// What a caller needs to open a connection outside of the pool (used for LISTEN).
    pub fn parts(&self) -> (&tokio_postgres::Config, Option<&MakeRustlsConnect>) {
        (&self.inner.config, self.inner.tls.as_ref())
    }

    /// Runs one statement outside of a transaction.
    pub async fn query(
        &self,
        name: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>> {
        let call = self.call(name).await?;
        let rows = call.query(sql, params).await;
        call.end(rows)
    }

    /// Runs one statement outside of a transaction; an answer without a row is an error.
    pub async fn query_one(
        &self,
        name: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Row> {
        let mut rows = self.query(name, sql, params).await?;
        rows.pop().ok_or_else(|| {
            crate::call_error::unexpected_answer(self.place(), name, "there is no row")
        })
    }

    /// A transaction that begins with this statement, which costs no round trip more than it.
    pub async fn begin(
        &self,
        name: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> CallResult<(Call, Vec<Row>)> {
        let call = self.call(name).await?;
        match call.begin(sql, params).await {
            Ok(rows) => Ok((call, rows)),
            Err(failure) => Err(call.abort(failure).await),
        }
    }

    /// Runs several statements without parameters, separated by semicolons.
    pub async fn batch(&self, name: &'static str, sql: &str) -> Result<()> {
        let call = self.call(name).await?;
        let done = call.batch(sql).await;
        call.end(done)
    }

    /// Takes a connection from the pool for one call.
    async fn call(&self, name: &'static str) -> Result<Call> {
        let limit = self.inner.address.connect_timeout;
        let got = within(&*self.inner.clock, limit, self.inner.pool.get()).await;
        let client = match got {
            None => return Err(self.unconnected(format!("no connection within {limit:?}"))),
            Some(Err(error)) => return Err(self.refused(&error)),
            Some(Ok(client)) => client,
        };
        let until = self.inner.clock.mono() + self.inner.address.call_timeout;
        Ok(Call { pool: self.clone(), name, client: Some(client), until })
    }

    fn refused(&self, error: &PoolError) -> Error {
        match error {
            PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
                match error.as_db_error() {
                    Some(_) => call_error(self.place(), "connect", error).error,
                    None => self.unconnected(error_chain(error)),
                }
            }
            other => self.unconnected(other.to_string()),
        }
    }

    fn unconnected(&self, why: String) -> Error {
        unavailable(self.place(), format!("cannot connect: {why}"))
    }

    /// Closes all idle connections, because one was lost and the others are likely to be lost as well.
    fn forget_idle(&self) {
        drop(self.inner.pool.retain(|_, _| false));
    }
}

/// The settings of every new connection. `lapsed.quiet` makes the triggers ignore what lapsed writes itself.
fn session_settings(address: &PostgresAddress) -> String {
    let ms = address.call_timeout.as_millis().max(1);
    format!(
        "SET statement_timeout = {ms}; SET idle_in_transaction_session_timeout = {}; \
         SET TimeZone = 'UTC'; SET lapsed.quiet = 'on'",
        2 * ms
    )
}

/// How a transaction is to end, and the answer of its steps.
pub(crate) enum TransactionEnd<T> {
    Commit(T),
    Rollback(T),
}

/// One call: a connection with a deadline. Dropping it before its end closes the connection.
pub(crate) struct Call {
    pool: PostgresPool,
    name: &'static str,
    client: Option<Object>,
    until: Duration,
}

impl Call {
    pub async fn query(&self, sql: &str, params: Params<'_>) -> CallResult<Vec<Row>> {
        let client = self.client();
        self.in_time(1, async {
            let statement = client.prepare_cached(sql).await?;
            client.query(&statement, params).await
        })
        .await
    }

    /// Runs one statement that answers with at most one row.
    pub async fn query_opt(&self, sql: &str, params: Params<'_>) -> CallResult<Option<Row>> {
        Ok(self.query(sql, params).await?.pop())
    }

    async fn begin(&self, sql: &str, params: Params<'_>) -> CallResult<Vec<Row>> {
        let client = self.client();
        self.in_time(2, async {
            let statement = client.prepare_cached(sql).await?;
            // In one go: the second is sent before the first is answered. Whatever the server's default
            // is, a statement must see what was committed before it.
            let begin = client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED");
            let (begun, rows) = join!(begin, client.query(&statement, params));
            begun.and(rows)
        })
        .await
    }

    async fn batch(&self, sql: &str) -> CallResult<()> {
        self.in_time(1, self.client().batch_execute(sql)).await
    }

    /// Begins a part of the transaction that can be undone by itself.
    pub async fn savepoint(&self) -> CallResult<()> {
        self.batch("SAVEPOINT part").await
    }

    /// Ends the part that was begun last; after a failure it is undone.
    pub async fn end_savepoint<T>(&self, outcome: &CallResult<T>) -> CallResult<()> {
        self.batch(match outcome {
            Ok(_) => "RELEASE SAVEPOINT part",
            Err(_) => "ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part",
        })
        .await
    }

    /// Commits or rolls back a transaction, as its steps decided.
    pub async fn finish<T>(self, outcome: CallResult<TransactionEnd<T>>) -> CallResult<T> {
        match outcome {
            Ok(TransactionEnd::Commit(answer)) => self.commit().await.map(|()| answer),
            Ok(TransactionEnd::Rollback(answer)) => {
                self.rollback().await;
                Ok(answer)
            }
            Err(failure) => Err(self.abort(failure).await),
        }
    }

    /// Commits. After an error it is unknown whether the transaction was committed.
    async fn commit(self) -> CallResult<()> {
        match self.batch("COMMIT").await {
            Ok(()) => {
                self.return_to_pool();
                Ok(())
            }
            Err(failure) => Err(self.abort(failure).await),
        }
    }

    async fn rollback(self) {
        if self.batch("ROLLBACK").await.is_ok() {
            self.return_to_pool();
        }
    }

    /// Rolls back a transaction that failed, and returns the failure.
    pub async fn abort(self, failure: CallError) -> CallError {
        match failure.connected {
            true => self.rollback().await,
            false => self.pool.forget_idle(),
        }
        failure
    }

    /// Ends a call without a transaction.
    fn end<T>(self, outcome: CallResult<T>) -> Result<T> {
        match &outcome {
            Err(failure) if !failure.connected => self.pool.forget_idle(),
            _ => self.return_to_pool(),
        }
        Ok(outcome?)
    }

    async fn in_time<T>(
        &self,
        statements: u64,
        work: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
    ) -> CallResult<T> {
        self.pool.inner.statements.fetch_add(statements, Ordering::Relaxed);
        let clock = &*self.pool.inner.clock;
        let left = self.until.saturating_sub(clock.mono());
        match within(clock, left, work).await {
            Some(Ok(done)) => Ok(done),
            Some(Err(error)) => Err(call_error(self.pool.place(), self.name, &error)),
            None => {
                let ms = self.pool.inner.address.call_timeout.as_millis();
                Err(timed_out(self.pool.place(), self.name, ms))
            }
        }
    }

    fn client(&self) -> &Object {
        self.client.as_ref().expect("a call has its connection until it ends")
    }

    fn return_to_pool(mut self) {
        drop(self.client.take());
    }

    /// The error for an answer that does not have the expected shape.
    pub fn unexpected_answer(&self, what: impl std::fmt::Display) -> CallError {
        crate::call_error::unexpected_answer(self.pool.place(), self.name, what).into()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            drop(Object::take(client));
        }
    }
}
