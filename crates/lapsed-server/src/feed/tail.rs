//! The tail of a feed: its only reader of the store, for as long as somebody listens.
//!
//! It is woken by what this process reclaims, and looks by itself for what others wrote. What comes
//! together is read together: a page of a hundred costs hardly more than one of one.

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

/// A page is closed when it is this large: with what the socket holds, all that one listener can
/// keep from being freed.
const PAGE_BYTES: usize = 64 << 10;

/// For how long what was woken for is let come together.
const LINGER: Duration = Duration::from_millis(10);

/// How often to look for what other processes wrote; seldom where every look is paid for.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_METERED: Duration = Duration::from_secs(15);

/// How long to wait after the store did not answer.
const PAUSE: Duration = Duration::from_secs(1);

/// How many events a second are told at most, counted for each listener: what is beyond it waits
/// in the store, so that a flood with many listeners is late rather than in the way of the sweeps.
const TOLD_PER_SECOND: usize = 1_200_000;

/// Reads until nobody listens, or told to stop.
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

/// How long so many events to so many listeners take at least.
fn pace(count: usize, listeners: usize) -> Duration {
    let told = count.saturating_mul(listeners.max(1));
    LINGER.max(Duration::from_secs_f64(told as f64 / TOLD_PER_SECOND as f64))
}

/// So long, or until something happens.
async fn nap(most: Duration, happens: impl Future, stop: &StopSignal) {
    tokio::select! {
        _ = happens => {}
        () = stop.told() => {}
        () = tokio::time::sleep(most) => {}
    }
}

/// Tells what is new, and how much that was.
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
    /// Whether reading one of its stores costs money.
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
