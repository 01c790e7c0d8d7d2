//! Answers concurrent queries for the same available providers by one call.
//!
//! An answer is never older than its query: a query that arrives while a call is in progress joins the next.

use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use lapsed_availability::AvailablePage;
use lapsed_availability::rules::AvailabilitySettings;
use lapsed_core::Result;
use lapsed_core::sweep::Cursor;

use super::{Inner, RedisMirror};
use crate::call_batcher::{BatchExecutor, BatchableCall};

/// One query for available providers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AvailabilityQuery {
    pub settings: AvailabilitySettings,
    pub after: Cursor,
    pub limit: usize,
    pub only_count: bool,
}

impl BatchableCall for AvailabilityQuery {
    const WEIGHT_MAX: usize = 1_000;
    const CALLS_MAX: usize = 1_000;

    fn weight(&self) -> usize {
        1
    }

    fn can_join(&self, other: &Self) -> bool {
        self == other
    }
}

/// Sends the combined queries.
#[derive(Clone)]
struct QueryExecutor(Arc<Inner>);

impl BatchExecutor<AvailabilityQuery, Option<AvailablePage>> for QueryExecutor {
    fn execute(
        &self,
        all: Vec<AvailabilityQuery>,
    ) -> BoxFuture<'static, Result<Vec<Option<AvailablePage>>>> {
        let inner = self.0.clone();
        async move {
            let Some(AvailabilityQuery { settings, after, limit, only_count }) = all.first() else {
                return Ok(Vec::new());
            };
            let page = inner.available(settings, after, *limit, *only_count).await?;
            Ok(vec![page; all.len()])
        }
        .boxed()
    }
}

impl RedisMirror {
    pub(super) async fn query_available(
        &self,
        availability_queries: AvailabilityQuery,
    ) -> Result<Option<AvailablePage>> {
        self.availability_queries
            .call(availability_queries, &QueryExecutor(self.inner.clone()))
            .await
    }
}
