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
//!
//! Each system has a tail of its own, so that a store that does not answer delays no other system.
//! Listeners learn which systems are missing. A listener that begins without a cursor while a
//! store is away has no place in that system yet. Its place is found at the store's first answer: the
//! last receipt from before the feed began, by the store's clock, so that what others wrote
//! meanwhile is sent too. Until then the feed has the place 0 in that system. Placing the feed
//! drops its pages, so that a listener whose cursor is behind that place reads the store instead.

mod listener;
mod listener_slots;
mod page;
mod ring;
mod tail;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use lapsed_core::receipt::{Receipt, ReceiptQuery};
use lapsed_core::schedule::StopSignal;
use lapsed_core::{Error, Result};
use tokio::sync::{Semaphore, watch};

pub use self::listener::EventListener;
pub use self::listener_slots::{ListenerSlot, ListenerSlots};
use self::page::PageWriter;
use self::ring::{Next, Ring};
use crate::connections::CutFlag;
use crate::node::missing::{self, MissingSystem};
use crate::node::page::ReceiptCursor;
use crate::node::{Journal, LiveSystem};

/// The most bytes of pages that one ring keeps, about 40,000 receipts.
const ROOM: usize = 16 << 20;

/// How long the start of a stream waits for one store.
const START_LIMIT: Duration = Duration::from_secs(2);

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
        cut: CutFlag,
    ) -> Result<EventListener> {
        // The order in which a cursor names the systems.
        systems.sort_by_key(|live| live.id().to_string());
        let present = present(&systems).await?;
        let feed = self.feed(&systems, &present);
        let (places, unplaced) = match cursor {
            Some(cursor) => (resume(&feed.names, &cursor, &present)?, Vec::new()),
            None => feed.places_from_now(&present),
        };
        Ok(EventListener::new(feed, places, unplaced, self.stop.clone(), slot, cut))
    }

    /// The feed of these systems; it is created if there is none, and ends with its last listener.
    fn feed(&self, systems: &[Arc<LiveSystem>], present: &[Option<u64>]) -> Arc<Feed> {
        let names: Vec<String> = systems.iter().map(|live| live.id().to_string()).collect();
        let mut open = self.lock();
        if let Some(feed) = open.get(&names).and_then(Weak::upgrade) {
            return feed;
        }
        let head = present.iter().map(|newest| newest.unwrap_or(0)).collect();
        let state = FeedState {
            ring: Ring::new(head, self.room),
            starts: present.to_vec(),
            missing: vec![None; systems.len()],
            missing_changes: 0,
        };
        let feed = Arc::new(Feed {
            names: names.clone(),
            systems: systems.to_vec(),
            began: Instant::now(),
            state: Mutex::new(state),
            told: watch::Sender::new(()),
            turn: Semaphore::new(1),
            pace: tokio::sync::Mutex::default(),
        });
        open.retain(|_, feed| feed.strong_count() > 0);
        open.insert(names, Arc::downgrade(&feed));
        for system in 0..systems.len() {
            let (wakeups, stop) = (self.journal.wakeups(), self.stop.clone());
            tokio::spawn(tail::run(Arc::downgrade(&feed), system, wakeups, stop));
        }
        feed
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
    began: Instant,
    state: Mutex<FeedState>,
    /// Changes with every new page, and when a system is missing or back.
    told: watch::Sender<()>,
    /// Limits how many listeners that are behind the ring read the store at a time, so that they do
    /// not slow down the sweeps.
    turn: Semaphore,
    /// Held by a tail while it waits until its events may have been sent.
    pace: tokio::sync::Mutex<()>,
}

struct FeedState {
    ring: Ring,
    /// Where a listener begins that has no place in a system; `None` until its store has answered.
    starts: Vec<Option<u64>>,
    /// Why the store of a system does not answer; `None` while it does.
    missing: Vec<Option<String>>,
    /// How often a system went missing or came back.
    missing_changes: u64,
}

impl Feed {
    /// What a listener at `places` is sent next; `at` is the number of the page that it expects, if
    /// known. Finds its place in systems where it has none yet (`unplaced`), in the same step: between
    /// the two, the feed could move on, and the listener would count as behind it.
    fn next(&self, at: Option<u64>, places: &mut Places, unplaced: &mut Vec<usize>) -> Next {
        let state = self.lock();
        let before = unplaced.len();
        unplaced.retain(|system| match state.starts[*system] {
            Some(start) => {
                places[*system] = start;
                false
            }
            None => true,
        });
        if unplaced.len() < before {
            return Next::Placed;
        }
        state.ring.next(at, places)
    }

    /// The places of a listener without a cursor, and the systems in which it has none yet.
    fn places_from_now(&self, present: &[Option<u64>]) -> (Places, Vec<usize>) {
        let state = self.lock();
        let known = |system: usize| {
            let head = state.starts[system].map(|_| state.ring.head()[system]);
            present[system].or(head)
        };
        let places = (0..present.len()).map(|system| known(system).unwrap_or(0)).collect();
        (places, (0..present.len()).filter(|system| known(*system).is_none()).collect())
    }

    fn head(&self, system: usize) -> Option<u64> {
        let state = self.lock();
        state.starts[system].map(|_| state.ring.head()[system])
    }

    /// Sets the place of a system whose store has answered for the first time.
    fn place(&self, system: usize, start: u64) {
        let mut state = self.lock();
        state.starts[system] = Some(start);
        state.ring.jump(system, start);
        drop(state);
        self.told.send_replace(());
    }

    /// Adds receipts of one system to the ring, as pages. Only the tail of that system does so.
    fn tell(&self, system: usize, found: &[Receipt]) {
        let mut rest = found;
        while !rest.is_empty() {
            let mut state = self.lock();
            let mut writer = PageWriter::new(&self.names, state.ring.head().to_vec());
            while let [receipt, others @ ..] = rest
                && writer.len() < tail::PAGE_BYTES
            {
                writer.receipt(system, receipt);
                rest = others;
            }
            if writer.len() > 0 {
                state.ring.push(writer.finish());
            }
            drop(state);
            self.told.send_replace(());
        }
    }

    /// Records whether the store of a system answers, and tells the listeners if that changed.
    fn set_missing(&self, system: usize, error: Option<String>) {
        let mut state = self.lock();
        let is_change = state.missing[system].is_some() != error.is_some();
        state.missing[system] = error;
        if is_change {
            state.missing_changes += 1;
            drop(state);
            self.told.send_replace(());
        }
    }

    fn is_missing(&self, system: usize) -> bool {
        self.lock().missing[system].is_some()
    }

    /// The systems that are missing, if that has changed since `changes`.
    fn missing_since(&self, changes: &mut u64) -> Option<Vec<MissingSystem>> {
        let state = self.lock();
        if *changes == state.missing_changes {
            return None;
        }
        *changes = state.missing_changes;
        let all = self.names.iter().zip(&state.missing);
        let of = |(system, error): (&String, &Option<String>)| {
            Some(MissingSystem { system: system.clone(), error: error.clone()? })
        };
        Some(all.filter_map(of).collect())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, FeedState> {
        self.state.lock().expect("no holder of the feed's lock panics")
    }
}

/// The places of a listener that resumes. A store that does not answer cannot be asked whether the
/// cursor is ahead of it.
fn resume(names: &[String], cursor: &ReceiptCursor, present: &[Option<u64>]) -> Result<Places> {
    let places: Places = names.iter().map(|name| cursor.get(name).unwrap_or(0)).collect();
    // A cursor beyond the newest receipt would deliver nothing until the numbers have caught up with
    // it.
    let is_ahead = |(place, newest): (&u64, &Option<u64>)| {
        newest.is_some_and(|newest| newest > 0 && *place > newest)
    };
    if places.iter().zip(present).any(is_ahead) {
        let what = "the cursor is ahead of the newest receipt, so it is of another store, or of \
                    before one was restored; begin again without it";
        return Err(Error::Invalid(what.to_owned()));
    }
    Ok(places)
}

/// The number of the newest receipt of each system; `None` where the store does not answer. An error
/// if none answers.
async fn present(systems: &[Arc<LiveSystem>]) -> Result<Vec<Option<u64>>> {
    let newest = systems.iter().map(|live| async move {
        let query = ReceiptQuery { limit: 1, ..ReceiptQuery::default() };
        let limited = tokio::time::timeout(START_LIMIT, live.receipts(query)).await;
        let late = || Error::timed_out(live.store_name(), "receipts", START_LIMIT.as_millis());
        let newest = limited.unwrap_or_else(|_| Err(late()))?;
        Ok(newest.first().map_or(0, |receipt| receipt.id.seq))
    });
    let answers = futures::future::join_all(newest).await;
    let places = answers.iter().map(|answer| answer.as_ref().ok().copied()).collect();
    missing::split(systems, answers)?;
    Ok(places)
}
