//! The tail of a feed: the task that reads the store for it, for as long as there are listeners.
//!
//! It is woken by reclaims of this process, and polls for receipts of other processes. Receipts
//! that arrive together are read together, because reading a hundred costs hardly more than reading
//! one.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lapsed_core::Result;
use lapsed_core::receipt::{Receipt, ReceiptQuery};
use lapsed_core::schedule::StopSignal;
use tokio::sync::watch;

use super::page::PageWriter;
use super::{Feed, Places};

/// How many receipts of one system are read at a time.
const READ: usize = 1_000;

/// A page is closed when it reaches this size. Besides the socket's buffer, one page is all the
/// memory that a slow listener can keep from being freed.
const PAGE_BYTES: usize = 64 << 10;

/// How long to wait after a wake-up, so that several receipts are read together.
const LINGER: Duration = Duration::from_millis(10);

/// How often to poll for receipts of other processes; less often where every request costs money.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_METERED: Duration = Duration::from_secs(15);

/// How long to wait after the store failed to answer.
const PAUSE: Duration = Duration::from_secs(1);

/// The most events per second over all listeners. Beyond that, receipts wait in the store: with
/// many listeners a flood arrives late, instead of slowing down the sweeps.
const TOLD_PER_SECOND: usize = 1_200_000;

/// Reads until the last listener has left, or until `stop`.
pub async fn run(feed: Weak<Feed>, mut wakeups: watch::Receiver<()>, stop: StopSignal) {
    while !stop.is_told() {
        wakeups.mark_unchanged();
        let Some(reading) = feed.upgrade() else { return };
        let listeners = Arc::strong_count(&reading) - 1;
        let read = read(&reading).await;
        let look = if reading.is_metered() { LOOK_METERED } else { LOOK };
        drop(reading);
        match read {
            Ok(0) => {
                nap(look, wakeups.changed(), &stop).await;
                tokio::time::sleep(LINGER).await;
            }
            Ok(count) => tokio::time::sleep(pace(count, listeners)).await,
            Err(error) => {
                tracing::debug!(%error, "the event feed waits for the store");
                nap(PAUSE, std::future::pending::<()>(), &stop).await;
            }
        }
    }
}

/// The least time in which `count` events may be sent to `listeners` listeners.
fn pace(count: usize, listeners: usize) -> Duration {
    let told = count.saturating_mul(listeners.max(1));
    LINGER.max(Duration::from_secs_f64(told as f64 / TOLD_PER_SECOND as f64))
}

/// Waits for `most`, or until `happens` or `stop`.
async fn nap(most: Duration, happens: impl Future, stop: &StopSignal) {
    tokio::select! {
        _ = happens => {}
        () = stop.told() => {}
        () = tokio::time::sleep(most) => {}
    }
}

/// Reads new receipts, adds them to the ring, and returns how many there were.
async fn read(feed: &Feed) -> Result<usize> {
    let mut count = 0;
    for system in 0..feed.systems.len() {
        let head = feed.head();
        let found = newer(feed, system, &head).await?;
        count += found.len();
        tell(feed, system, head, &found);
    }
    Ok(count)
}

async fn newer(feed: &Feed, system: usize, head: &[u64]) -> Result<Vec<Receipt>> {
    let query = ReceiptQuery { after: Some(head[system]), before: None, limit: READ };
    feed.systems[system].receipts(query).await
}

fn tell(feed: &Feed, system: usize, head: Places, found: &[Receipt]) {
    let mut writer = PageWriter::new(&feed.names, head);
    for receipt in found {
        writer.receipt(system, receipt);
        if writer.len() >= PAGE_BYTES {
            let page = writer.finish();
            writer = PageWriter::new(&feed.names, page.after.clone());
            feed.tell(page);
        }
    }
    if writer.len() > 0 {
        feed.tell(writer.finish());
    }
}

impl Feed {
    /// Whether reading one of the stores costs money per request.
    fn is_metered(&self) -> bool {
        self.systems.iter().any(|live| live.is_metered())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_spread_over_the_listeners_and_a_trickle_is_not_held_up() {
        assert_eq!(pace(10, 100), LINGER);
        assert_eq!(pace(12_000, 100), Duration::from_secs(1));
        assert_eq!(pace(1_000, 0), LINGER);
    }
}
