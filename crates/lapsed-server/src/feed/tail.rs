//! The tail of a feed in one system: the task that reads its store, for as long as there are
//! listeners.
//!
//! It is woken by reclaims of this process, and polls for receipts of other processes. Receipts
//! that arrive together are read together, because reading a hundred costs hardly more than reading
//! one.

use std::sync::Weak;
use std::time::Duration;

use lapsed_core::Result;
use lapsed_core::receipt::ReceiptQuery;
use lapsed_core::schedule::StopSignal;
use tokio::sync::watch;

use super::Feed;

/// How many receipts of one system are read at a time.
const READ: usize = 1_000;

/// A page is closed when it reaches this size. Besides the socket's buffer, one page is all the
/// memory that a slow listener can keep from being freed.
pub(super) const PAGE_BYTES: usize = 64 << 10;

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

/// Reads one system until the last listener has left, or until `stop`.
pub async fn run(
    feed: Weak<Feed>,
    system: usize,
    mut wakeups: watch::Receiver<()>,
    stop: StopSignal,
) {
    while !stop.is_stopped() {
        wakeups.mark_unchanged();
        let Some(reading) = feed.upgrade() else { return };
        let read = read(&reading, system).await;
        reading.set_missing(system, read.as_ref().err().map(ToString::to_string));
        let look = if reading.systems[system].is_metered() { LOOK_METERED } else { LOOK };
        match read {
            Ok(0) => {
                drop(reading);
                sleep_until(look, wakeups.changed(), &stop).await;
                tokio::time::sleep(LINGER).await;
            }
            Ok(count) => {
                let _turn = reading.pace.lock().await;
                tokio::time::sleep(pace(count, reading.told.receiver_count())).await;
            }
            Err(error) => {
                drop(reading);
                tracing::debug!(%error, "the event feed waits for the store");
                sleep_until(PAUSE, std::future::pending::<()>(), &stop).await;
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
async fn sleep_until(most: Duration, happens: impl Future, stop: &StopSignal) {
    tokio::select! {
        _ = happens => {}
        () = stop.stopped() => {}
        () = tokio::time::sleep(most) => {}
    }
}

/// Reads new receipts of one system, adds them to the ring, and returns how many there were.
async fn read(feed: &Feed, system: usize) -> Result<usize> {
    let head = match feed.head(system) {
        Some(head) => head,
        None => {
            let start = find_start(feed, system).await?;
            feed.place(system, start);
            start
        }
    };
    let query = ReceiptQuery { after: Some(head), before: None, limit: READ };
    let found = feed.systems[system].receipts(query).await?;
    feed.tell(system, &found);
    Ok(found.len())
}

/// The newest receipt that was written before the feed began, by the store's clock.
async fn find_start(feed: &Feed, system: usize) -> Result<u64> {
    let live = &feed.systems[system];
    let now_ms = live.store_info().await?.now_ms;
    let began_ms = now_ms.saturating_sub(feed.began.elapsed().as_millis() as u64 + 1);
    let mut query = ReceiptQuery { limit: READ, ..ReceiptQuery::default() };
    loop {
        let page = live.receipts(query.clone()).await?;
        if let Some(earlier) = page.iter().find(|receipt| receipt.at_ms < began_ms) {
            return Ok(earlier.id.seq);
        }
        let oldest = page.last().map(|receipt| receipt.id.seq).or(query.before);
        if page.len() < READ {
            return Ok(oldest.map_or(0, |seq| seq.saturating_sub(1)));
        }
        query.before = oldest;
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
