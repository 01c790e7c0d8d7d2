//! Somebody who listens: where it stands, and what it is given next.
//!
//! It is asked for more only when there is room to send it, so that the time from one answer to the
//! next question is the time that the other side took. One page is all that it holds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use lapsed_core::Result;
use lapsed_core::receipt::ReceiptQuery;
use lapsed_core::schedule::StopSignal;
use tokio::sync::watch;

use super::listener_slots::ListenerSlot;
use super::page::{Page, PageWriter, greeting};
use super::{Feed, Next, Places};
use crate::write_timeout::WasCut;

/// How often a silent stream shows that it is there.
const HEARTBEAT: Duration = Duration::from_secs(15);
const SIGN_OF_LIFE: &[u8] = b":\n\n";

/// How many receipts of one system are read at a time by somebody who is behind.
const PAGE: usize = 100;

/// How long to wait after the store did not answer.
const PAUSE: Duration = Duration::from_secs(1);

/// Who takes longer than this for what was sent (a few hundred kilobytes at most) is too slow. Who
/// takes nothing at all is cut off sooner, by its connection.
const SLOW: Duration = Duration::from_secs(30);

pub struct EventListener {
    feed: Arc<Feed>,
    places: Places,
    /// The number of the page that it waits for, when it is within the ring.
    at: Option<u64>,
    told: watch::Receiver<()>,
    stop: StopSignal,
    seat: ListenerSlot,
    /// Since when it is to take what it was given.
    handed: Option<Instant>,
    /// Whether its connection was cut, because it took nothing at all.
    cut: WasCut,
}

impl EventListener {
    pub(super) fn new(
        feed: Arc<Feed>,
        places: Places,
        stop: StopSignal,
        seat: ListenerSlot,
        cut: WasCut,
    ) -> EventListener {
        let told = feed.told.subscribe();
        let (at, handed) = (None, None);
        EventListener { feed, places, at, told, stop, seat, handed, cut }
    }

    pub fn greeting(&self) -> Bytes {
        greeting(&self.feed.names, &self.places)
    }

    /// What it is sent next. None when the daemon stops, or when it was too slow to take the last.
    pub async fn next(&mut self) -> Option<Bytes> {
        if self.handed.take().is_some_and(|since| since.elapsed() >= SLOW) {
            self.count_dropped();
            return None;
        }
        let bytes = self.find().await?;
        self.handed = Some(Instant::now());
        Some(bytes)
    }

    async fn find(&mut self) -> Option<Bytes> {
        while !self.stop.is_told() {
            self.told.mark_unchanged();
            let found = match self.feed.next(self.at, &self.places) {
                Next::Page(number, page) => {
                    self.at = Some(number + 1);
                    self.take(&page)
                }
                Next::Wait(number) => {
                    self.at = Some(number);
                    self.wait().await
                }
                Next::Behind(head) => {
                    self.at = None;
                    self.catch_up(head).await
                }
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// The bytes that everybody is sent, if it stands where they begin; else its own.
    fn take(&mut self, page: &Page) -> Option<Bytes> {
        if self.places != page.before {
            return page.rest(&self.feed.names, &mut self.places);
        }
        self.places.clone_from(&page.after);
        Some(page.bytes.clone())
    }

    /// Until there is another page, or it is time for a sign of life.
    async fn wait(&mut self) -> Option<Bytes> {
        tokio::select! {
            _ = self.told.changed() => None,
            () = self.stop.told() => None,
            () = tokio::time::sleep(HEARTBEAT) => Some(Bytes::from_static(SIGN_OF_LIFE)),
        }
    }

    async fn catch_up(&mut self, head: Places) -> Option<Bytes> {
        match self.read(&head).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "a listener waits for the store");
                tokio::select! {
                    () = self.stop.told() => {}
                    () = tokio::time::sleep(PAUSE) => {}
                }
                None
            }
        }
    }

    /// One page from the store, of the systems in which it is behind `head`.
    async fn read(&mut self, head: &[u64]) -> Result<Option<Bytes>> {
        let _turn = self.feed.turn.acquire().await;
        let mut writer = PageWriter::new(&self.feed.names, self.places.clone());
        let mut places = self.places.clone();
        for (system, live) in self.feed.systems.iter().enumerate() {
            if places[system] >= head[system] {
                continue;
            }
            let query = ReceiptQuery { after: Some(places[system]), before: None, limit: PAGE };
            let found = live.receipts(query).await?;
            found.iter().for_each(|receipt| writer.receipt(system, receipt));
            // Nothing is kept any more of what lies between.
            places[system] = found.last().map_or(head[system], |receipt| receipt.id.seq);
        }
        self.places = places;
        Ok((writer.len() > 0).then(|| writer.finish().bytes))
    }

    fn count_dropped(&self) {
        tracing::info!("a listener that does not take its events is dropped");
        self.seat.count_dropped();
    }
}

impl Drop for EventListener {
    fn drop(&mut self) {
        if self.cut.get() {
            self.count_dropped();
        }
    }
}
