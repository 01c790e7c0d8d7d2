//! One listener: its position in the feed, and what it is sent next.
//!
//! The connection asks a listener for more only when there is room to send it, so the time from one
//! answer to the next question is the time that the client took to read. A listener holds at most
//! one page.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use lapsed_core::receipt::ReceiptQuery;
use lapsed_core::schedule::StopSignal;
use tokio::sync::watch;

use super::listener_slots::ListenerSlot;
use super::page::{Page, PageWriter, greeting, missing};
use super::{Feed, Next, Places};
use crate::connections::CutFlag;

/// How often a stream without events sends a comment, so that clients and proxies keep it open.
const HEARTBEAT: Duration = Duration::from_secs(15);
const SIGN_OF_LIFE: &[u8] = b":\n\n";

/// How many receipts of one system a listener that is behind reads at a time.
const PAGE: usize = 100;

/// How long to wait after the store failed to answer.
const PAUSE: Duration = Duration::from_secs(1);

/// A listener that needs longer than this to read what it was sent (a few hundred kilobytes at
/// most) is too slow. A client that reads nothing at all is disconnected earlier, by the write
/// timeout.
const SLOW: Duration = Duration::from_secs(30);

pub struct EventListener {
    feed: Arc<Feed>,
    places: Places,
    /// The systems in which it has no place yet, because their stores have not answered.
    unplaced: Vec<usize>,
    /// How many changes of the missing systems it was sent.
    missing_changes: u64,
    /// The number of the page that it expects next; `None` while it is behind the ring.
    at: Option<u64>,
    told: watch::Receiver<()>,
    stop: StopSignal,
    slot: ListenerSlot,
    /// When it was handed the bytes that it is now sending.
    handed: Option<Instant>,
    /// Whether its connection was ended because the client read nothing at all.
    cut: CutFlag,
}

impl EventListener {
    pub(super) fn new(
        feed: Arc<Feed>,
        places: Places,
        unplaced: Vec<usize>,
        stop: StopSignal,
        slot: ListenerSlot,
        cut: CutFlag,
    ) -> EventListener {
        let told = feed.told.subscribe();
        let (at, handed) = (None, None);
        let missing_changes = 0;
        EventListener { feed, places, unplaced, missing_changes, at, told, stop, slot, handed, cut }
    }

    pub fn greeting(&self) -> Bytes {
        greeting(&self.feed.names, &self.places)
    }

    /// The bytes to send next. `None` ends the stream: the daemon stops, or the client was too slow
    /// to read the previous bytes.
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
        let since = Instant::now();
        while !self.stop.is_stopped() {
            self.told.mark_unchanged();
            if let Some(systems) = self.feed.missing_since(&mut self.missing_changes) {
                return Some(missing(&systems));
            }
            let found = match self.feed.next(self.at, &mut self.places, &mut self.unplaced) {
                Next::Placed => {
                    self.at = None;
                    Some(self.greeting())
                }
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
                    let found = self.catch_up(&head).await;
                    let is_silent = found.is_none() && since.elapsed() >= HEARTBEAT;
                    if is_silent { Some(Bytes::from_static(SIGN_OF_LIFE)) } else { found }
                }
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// The bytes shared by all listeners if it is exactly where the page begins, else a copy of its
    /// own.
    fn take(&mut self, page: &Page) -> Option<Bytes> {
        if self.places != page.before {
            return page.rest(&self.feed.names, &mut self.places);
        }
        self.places.clone_from(&page.after);
        Some(page.bytes.clone())
    }

    /// Waits for the next page, or until it is time to send a keep-alive comment.
    async fn wait(&mut self) -> Option<Bytes> {
        tokio::select! {
            _ = self.told.changed() => None,
            () = self.stop.stopped() => None,
            () = tokio::time::sleep(HEARTBEAT) => Some(Bytes::from_static(SIGN_OF_LIFE)),
        }
    }

    /// Reads the store. If it does not answer, waits until the feed has something new, or a moment.
    async fn catch_up(&mut self, head: &[u64]) -> Option<Bytes> {
        let (found, is_whole) = self.read(head).await;
        if found.is_none() && !is_whole {
            tokio::select! {
                () = self.stop.stopped() => {}
                _ = self.told.changed() => {}
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
        found
    }

    /// Reads one page from the store, of the systems in which it is behind `head`; and whether all of
    /// them answered. Its place in a system that did not answer stays where it is.
    async fn read(&mut self, head: &[u64]) -> (Option<Bytes>, bool) {
        let _turn = self.feed.turn.acquire().await;
        let mut writer = PageWriter::new(&self.feed.names, self.places.clone());
        let mut places = self.places.clone();
        let mut is_whole = true;
        for (system, live) in self.feed.systems.iter().enumerate() {
            if places[system] >= head[system] {
                continue;
            }
            let query = ReceiptQuery { after: Some(places[system]), before: None, limit: PAGE };
            // The tail finds out when the store is back; until then it is not asked by every listener.
            let answer = match self.feed.is_missing(system) {
                true => None,
                false => live.receipts(query).await.ok(),
            };
            let Some(found) = answer else {
                is_whole = false;
                continue;
            };
            found.iter().for_each(|receipt| writer.receipt(system, receipt));
            // If nothing was found, the receipts up to `head` are no longer kept, and are skipped.
            places[system] = found.last().map_or(head[system], |receipt| receipt.id.seq);
        }
        self.places = places;
        ((writer.len() > 0).then(|| writer.finish().bytes), is_whole)
    }

    fn count_dropped(&self) {
        tracing::info!("a listener that does not take its events is dropped");
        self.slot.count_dropped();
    }
}

impl Drop for EventListener {
    fn drop(&mut self) {
        if self.cut.get() {
            self.count_dropped();
        }
    }
}
