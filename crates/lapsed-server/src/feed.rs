//! The event feed: new receipts are read from the store once, and sent to all listeners.
//!
//! One task, the tail, reads the receipts of a selection of systems (all of them, or those that a
//! listener selected), encodes each receipt as the bytes that are sent, and keeps the newest pages
//! in a ring of bounded size. A listener that keeps up is sent those bytes. A listener that resumes
//! with an old cursor, or is too slow for the ring, reads from the store itself until it has
//! reached the ring again. Only the store buffers without bound.
//!
//! The race: while a listener looks at the ring and then at the store, the tail continues to add
//! pages and to drop old ones. This is safe because a listener's only state is its *places*, the
//! number of the last receipt that it was sent of each system, and because two invariants hold.
//! Pages are contiguous: a page contains everything between its `before` and its `after`, and the
//! next page begins where it ends. Within a system, numbers only grow. A listener whose places are
//! at or beyond the `before` of a page therefore finds everything that it has not seen in that page
//! or a later one, and skips what it has seen by the numbers. A listener whose places are before
//! the oldest page reads the store from its own places. In neither case can a receipt be left out
//! or sent twice.

mod listener;
mod listener_slots;
mod page;
mod ring;
mod tail;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use lapsed_core::receipt::ReceiptQuery;
use lapsed_core::schedule::StopSignal;
use lapsed_core::{Error, Result};
use tokio::sync::{Semaphore, watch};

pub use self::listener::EventListener;
pub use self::listener_slots::{ListenerSlot, ListenerSlots};
use self::page::Page;
use self::ring::{Next, Ring};
use crate::node::page::ReceiptCursor;
use crate::node::{Journal, LiveSystem};
use crate::write_timeout::WasCut;

/// The most bytes of pages that one ring keeps, about 40,000 receipts.
const ROOM: usize = 16 << 20;

/// For each system of a feed, the number of the last receipt that a listener was sent.
type Places = Vec<u64>;

/// All feeds that have at least one listener.
pub struct Feeds {
    open: Mutex<HashMap<Vec<String>, Weak<Feed>>>,
    journal: Arc<Journal>,
    stop: StopSignal,
    room: usize,
}

impl Feeds {
    pub fn new(journal: Arc<Journal>, stop: StopSignal) -> Feeds {
        Feeds { open: Mutex::default(), journal, stop, room: ROOM }
    }

    /// Starts to listen to `systems`, after `cursor`, or from now on without one.
    pub async fn listen(
        &self,
        mut systems: Vec<Arc<LiveSystem>>,
        cursor: Option<ReceiptCursor>,
        slot: ListenerSlot,
        cut: WasCut,
    ) -> Result<EventListener> {
        // The order in which a cursor names the systems.
        systems.sort_by_key(|live| live.id().to_string());
        let feed = self.feed(&systems).await?;
        let present = present(&systems).await?;
        let places = match cursor {
            Some(cursor) => {
                let of = |name: &String| cursor.get(name).unwrap_or(0);
                let places: Vec<u64> = feed.names.iter().map(of).collect();
                // A cursor beyond the newest receipt would deliver nothing until the numbers have
                // caught up with it.
                if places.iter().zip(&present).any(|(place, newest)| *newest > 0 && place > newest)
                {
                    let what = "the cursor is ahead of the newest receipt, so it is of another store, or of \
                                before one was restored; begin again without it";
                    return Err(Error::Invalid(what.to_owned()));
                }
                places
            }
            None => present,
        };
        Ok(EventListener::new(feed, places, self.stop.clone(), slot, cut))
    }

    /// The feed of these systems; it is created if there is none, and ends with its last listener.
    async fn feed(&self, systems: &[Arc<LiveSystem>]) -> Result<Arc<Feed>> {
        let names: Vec<String> = systems.iter().map(|live| live.id().to_string()).collect();
        if let Some(feed) = self.find(&names) {
            return Ok(feed);
        }
        let head = present(systems).await?;
        let mut open = self.lock();
        // Another listener may have created the feed in the meantime.
        if let Some(feed) = open.get(&names).and_then(Weak::upgrade) {
            return Ok(feed);
        }
        let feed = Arc::new(Feed {
            names: names.clone(),
            systems: systems.to_vec(),
            ring: Mutex::new(Ring::new(head, self.room)),
            told: watch::Sender::new(()),
            turn: Semaphore::new(1),
        });
        open.retain(|_, feed| feed.strong_count() > 0);
        open.insert(names, Arc::downgrade(&feed));
        let (wakeups, stop) = (self.journal.wakeups(), self.stop.clone());
        tokio::spawn(tail::run(Arc::downgrade(&feed), wakeups, stop));
        Ok(feed)
    }

    fn find(&self, names: &[String]) -> Option<Arc<Feed>> {
        self.lock().get(names).and_then(Weak::upgrade)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Vec<String>, Weak<Feed>>> {
        self.open.lock().expect("no holder of the feeds' lock panics")
    }
}

/// One selection of systems, shared by all of its listeners.
struct Feed {
    /// The names of the systems as a cursor has them, in its order.
    names: Vec<String>,
    systems: Vec<Arc<LiveSystem>>,
    ring: Mutex<Ring>,
    /// Changes with every new page.
    told: watch::Sender<()>,
    /// Limits how many listeners that are behind the ring read the store at a time, so that they do
    /// not slow down the sweeps.
    turn: Semaphore,
}

impl Feed {
    /// What a listener at `places` is sent next; `at` is the number of the page that it expects, if
    /// known.
    fn next(&self, at: Option<u64>, places: &[u64]) -> Next {
        self.lock().next(at, places)
    }

    fn head(&self) -> Places {
        self.lock().head().to_vec()
    }

    fn tell(&self, page: Page) {
        self.lock().push(page);
        self.told.send_replace(());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ring> {
        self.ring.lock().expect("no holder of the ring's lock panics")
    }
}

/// The number of the newest receipt of each system.
async fn present(systems: &[Arc<LiveSystem>]) -> Result<Places> {
    let mut places = Places::with_capacity(systems.len());
    for live in systems {
        let newest = live.receipts(ReceiptQuery { limit: 1, ..ReceiptQuery::default() }).await?;
        places.push(newest.first().map_or(0, |receipt| receipt.id.seq));
    }
    Ok(places)
}
