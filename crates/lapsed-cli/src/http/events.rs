//! `/v1/events`: receipts as they come, as server-sent events.
//!
//! The store is the only buffer. A listener reads it page by page from its own cursor, and what
//! happens in between only wakes it up; so a slow listener holds one page, and one that comes back
//! with its last cursor misses nothing that is still kept.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::future::{Either, select};
use futures::stream::{self, Stream};
use lapsed::receipt::{Receipt, ReceiptQuery};
use lapsed::schedule::Stop;
use serde::Deserialize;
use tokio::sync::watch;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Shared;
use super::extract::Query;
use super::problem::Problem;
use crate::node::Live;
use crate::node::page::Cursor;

/// How often a silent stream shows that it is there.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// How many receipts of one system are read at a time.
const PAGE: usize = 100;

/// How long to wait after the store did not answer.
const PAUSE: Duration = Duration::from_secs(1);

/// The stream.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(events))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventsQuery {
    /// Where to go on; from now without it. `Last-Event-ID` does the same.
    cursor: Option<String>,
    /// `NAME` or `KIND/NAME`; all systems without it.
    system: Option<String>,
}

/// Receipts as they come. The first event, `cursor`, says where the stream begins; then each
/// `receipt`. The `id` of each is the cursor to come back with.
#[utoipa::path(get, path = "/v1/events", tag = "receipts", params(EventsQuery),
    responses((status = 200, description = "A stream that does not end",
        body = String, content_type = "text/event-stream")))]
async fn events(
    State(app): State<Shared>,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let systems = app.chosen(query.system.as_deref())?;
    let wakeups = app.node.journal().wakeups();
    let last = headers.get("last-event-id").and_then(|v| v.to_str().ok()).map(str::to_owned);
    let cursor = match last.filter(|id| !id.is_empty()).or(query.cursor) {
        Some(text) => Cursor::parse(&text, &systems)?,
        None => present(&systems).await?,
    };
    let stop = app.stop.clone();
    let mut follower = Follower { systems, cursor, page: VecDeque::new(), wakeups, stop };
    let first = follower.greeting();
    let rest = stream::unfold(follower, |mut follower| async move {
        let event = follower.next().await?;
        Some((Ok(event), follower))
    });
    let all = stream::StreamExt::chain(stream::iter([Ok(first)]), rest);
    Ok(Sse::new(all).keep_alive(KeepAlive::new().interval(HEARTBEAT)))
}

/// Just after the newest receipt of each system.
async fn present(systems: &[Arc<Live>]) -> lapsed::Result<Cursor> {
    let mut cursor = Cursor::default();
    for live in systems {
        let newest = live.receipts(ReceiptQuery { limit: 1, ..ReceiptQuery::default() }).await?;
        cursor.set(&live.id().to_string(), newest.first().map_or(0, |r| r.id.seq));
    }
    Ok(cursor)
}

struct Follower {
    systems: Vec<Arc<Live>>,
    cursor: Cursor,
    page: VecDeque<Receipt>,
    wakeups: watch::Receiver<()>,
    stop: Stop,
}

impl Follower {
    /// Makes every place of the cursor explicit, and tells it, so that one who loses the stream
    /// before the first receipt can come back without a gap.
    fn greeting(&mut self) -> Event {
        let mut cursor = Cursor::default();
        for live in &self.systems {
            let system = live.id().to_string();
            cursor.set(&system, self.cursor.get(&system).unwrap_or(0));
        }
        self.cursor = cursor;
        let id = self.cursor.to_string();
        Event::default()
            .event("cursor")
            .data(serde_json::json!({ "cursor": id }).to_string())
            .id(id)
    }

    /// The next receipt; none when the daemon stops.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if self.stop.is_told() {
                return None;
            }
            if let Some(receipt) = self.page.pop_front() {
                self.cursor.set(&receipt.id.system.to_string(), receipt.id.seq);
                let data = serde_json::to_string(&receipt).unwrap_or_default();
                return Some(
                    Event::default().event("receipt").id(self.cursor.to_string()).data(data),
                );
            }
            self.wakeups.mark_unchanged();
            match self.read().await {
                Ok(0) => self.sleep().await,
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, "the event feed waits for the store");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn read(&mut self) -> lapsed::Result<usize> {
        let mut found = VecDeque::new();
        for live in &self.systems {
            let after = self.cursor.get(&live.id().to_string());
            let query = ReceiptQuery { after, before: None, limit: PAGE };
            found.extend(live.receipts(query).await?);
        }
        self.page = found;
        Ok(self.page.len())
    }

    /// Until something may have happened. The heartbeat also looks, for what others wrote.
    async fn sleep(&mut self) {
        let woken = Box::pin(self.wakeups.changed());
        let stopped = Box::pin(self.stop.told());
        let either = select(woken, stopped);
        if let Ok(Either::Left((Err(_), _))) = tokio::time::timeout(HEARTBEAT, either).await {
            tokio::time::sleep(PAUSE).await;
        }
    }
}
