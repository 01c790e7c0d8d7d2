//! The feed: the newest receipts, read from the store once and told to everybody who listens.
//!
//! One tail reads a selection of systems (all of them, or those that somebody asked for), writes each
//! receipt down as the very bytes that are sent, and keeps the newest pages of them in a ring of
//! bounded size. Whoever keeps up is given those bytes; whoever comes back with an old cursor, or is
//! too slow for the ring, reads the store by itself until it is within the ring again. The store is
//! the only buffer without a bound.
//!
//! The race. While a listener looks at the ring and then at the store, the tail goes on: it adds pages
//! and lets others go. Nothing hangs on that, because a listener knows nothing but its *places*, the
//! number of the last receipt that it was given of each system, and two things hold: pages are
//! contiguous (what is between a page's `before` and its `after` is in it, and the next begins where
//! it ends), and within a system numbers only grow. So whoever stands at or beyond the `before` of a
//! page finds all that it has not seen in that page or a later one, and knows by its number what it has
//! seen. Whoever stands before the oldest page reads on from its own places, and from nowhere else.
//! Neither way can leave anything out or tell it twice, whatever comes in between.

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

/// The most bytes of pages that one ring keeps: some 40,000 receipts.
const ROOM: usize = 16 << 20;

/// The number of the last receipt that somebody was given, of each system of a feed.
type Places = Vec<u64>;

/// Every feed that somebody listens to.
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

    /// Begins to listen to `systems`, after `cursor` or else from now on.
    pub async fn listen(
        &self,
        mut systems: Vec<Arc<LiveSystem>>,
        cursor: Option<ReceiptCursor>,
        seat: ListenerSlot,
        cut: WasCut,
    ) -> Result<EventListener> {
        // As a cursor names them.
        systems.sort_by_key(|live| live.id().to_string());
        let feed = self.feed(&systems).await?;
        let present = present(&systems).await?;
        let places = match cursor {
            Some(cursor) => {
                let of = |name: &String| cursor.get(name).unwrap_or(0);
                let places: Vec<u64> = feed.names.iter().map(of).collect();
                // Nothing would be told until the numbers have come so far.
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
        Ok(EventListener::new(feed, places, self.stop.clone(), seat, cut))
    }

    /// The feed of these systems. It lasts as long as somebody listens to it.
    async fn feed(&self, systems: &[Arc<LiveSystem>]) -> Result<Arc<Feed>> {
        let names: Vec<String> = systems.iter().map(|live| live.id().to_string()).collect();
        if let Some(feed) = self.find(&names) {
            return Ok(feed);
        }
        let head = present(systems).await?;
        let mut open = self.lock();
        // Somebody else may have been faster.
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

/// One selection of systems, as its listeners share it.
struct Feed {
    /// The systems as a cursor names them, in its order.
    names: Vec<String>,
    systems: Vec<Arc<LiveSystem>>,
    ring: Mutex<Ring>,
    /// Changes with every new page.
    told: watch::Sender<()>,
    /// Who is behind the ring takes turns at the store: many of them must not crowd out the sweeps.
    turn: Semaphore,
}

impl Feed {
    /// What somebody at `places` is given next; `at` is the number of the page where it left off.
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

/// Just after the newest receipt of each system.
async fn present(systems: &[Arc<LiveSystem>]) -> Result<Places> {
    let mut places = Places::with_capacity(systems.len());
    for live in systems {
        let newest = live.receipts(ReceiptQuery { limit: 1, ..ReceiptQuery::default() }).await?;
        places.push(newest.first().map_or(0, |receipt| receipt.id.seq));
    }
    Ok(places)
}
