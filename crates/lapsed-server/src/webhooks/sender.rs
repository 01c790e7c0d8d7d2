//! Delivers the receipts of one system to one webhook: reads the mark, reads the receipts after it,
//! sends them, moves the mark.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lapsed_core::receipt::{Receipt, ReceiptQuery};
use lapsed_core::schedule::StopSignal;
use lapsed_core::{Error, Result};
use tokio::sync::watch;

use super::Hook;
use super::body::Body;
use super::letters::Undelivered;
use crate::node::LiveSystem;
use crate::outbound::delivery::{Delivered, Delivery, deliver};

/// How often to poll for receipts of other processes; less often where every request costs money.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_METERED: Duration = Duration::from_secs(15);

/// How long to wait after the store failed to answer.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a turn lasts, in addition to the time limit of one attempt.
const TURN: Duration = Duration::from_secs(5);

/// Delivers until `stop`. Receipts that are waiting for their next attempt then stay after the
/// mark, and are sent after the next start.
pub async fn run(
    hook: Arc<Hook>,
    live: Arc<LiveSystem>,
    mut wakeups: watch::Receiver<()>,
    stop: StopSignal,
) {
    let sender = WebhookSender { hook, live, stop };
    let mut is_waiting = false;
    while !sender.stop.is_stopped() {
        wakeups.mark_unchanged();
        let round = sender.round().await;
        let is_new = !std::mem::replace(&mut is_waiting, round.is_err());
        match round {
            Ok(DeliveryRound::Went) => {}
            Ok(DeliveryRound::Nothing) => {
                sender.sleep_until(sender.look(), wakeups.changed()).await
            }
            Ok(DeliveryRound::NotOurs) => {
                sender.sleep_until(TURN / 3, std::future::pending::<()>()).await
            }
            Err(error) => {
                let (webhook, system) = (sender.hook.name(), sender.live.id());
                match is_new {
                    true => {
                        tracing::warn!(%webhook, %system, %error, "delivery waits until the store answers")
                    }
                    false => {
                        tracing::debug!(%webhook, %system, %error, "delivery still waits for the store")
                    }
                }
                sender.sleep_until(PAUSE, std::future::pending::<()>()).await;
            }
        }
    }
    let _ = sender.live.end_turn(&sender.hook.book.mark, &sender.hook.process).await;
}

struct WebhookSender {
    hook: Arc<Hook>,
    live: Arc<LiveSystem>,
    stop: StopSignal,
}

/// The result of one round.
enum DeliveryRound {
    /// Receipts were delivered, given up, or left for later because the daemon stops or lost its
    /// turn.
    Went,
    /// There was nothing to deliver.
    Nothing,
    NotOurs,
}

impl WebhookSender {
    async fn round(&self) -> Result<DeliveryRound> {
        if !self.take_turn().await? {
            return Ok(DeliveryRound::NotOurs);
        }
        if self.again().await? {
            return Ok(DeliveryRound::Went);
        }
        let mark = self.mark().await?;
        let found = self.read(mark, self.hook.plan.batch).await?;
        let Some(last) = found.last().map(|receipt| receipt.id.seq) else {
            self.hook.series.lag(self.live.id(), Duration::ZERO);
            return Ok(DeliveryRound::Nothing);
        };
        let looked_at = found.len();
        if self.settle(found, looked_at).await? {
            self.live.advance_mark(&self.hook.book.mark, last).await?;
        }
        Ok(DeliveryRound::Went)
    }

    /// Delivers the receipts that the webhook wants, and writes a dead letter if they are given up.
    /// Returns whether the mark may move past them.
    async fn settle(&self, found: Vec<Receipt>, looked_at: usize) -> Result<bool> {
        let (first, last) = match (found.first(), found.last()) {
            (Some(first), Some(last)) => (first.id.seq, last.id.seq),
            _ => return Ok(true),
        };
        let wanted: Vec<Receipt> =
            found.into_iter().filter(|receipt| self.hook.plan.wants(receipt.reason)).collect();
        let Some(oldest) = wanted.first().map(|receipt| receipt.at_ms) else { return Ok(true) };
        let body = Body::of(self.hook.name(), self.live.id(), &wanted);
        let began = Instant::now();
        let now_ms = self.live.store_info().await?.now_ms;
        let late = Duration::from_millis(now_ms.saturating_sub(oldest));
        match deliver(&ReceiptsDelivery { sender: self, body: &body, began, late }).await? {
            Delivered::Taken => Ok(true),
            Delivered::BrokenOff => Ok(false),
            Delivered::GivenUp { attempts, why } => {
                let delivery = body.delivery;
                let letter = Undelivered { delivery, first, last, looked_at, attempts, why };
                self.hook.keep_dead_letter(&self.live, &letter).await?;
                Ok(true)
            }
        }
    }

    /// Waits between two attempts, and keeps the turn meanwhile. Returns false if the daemon stops
    /// or has lost the turn.
    async fn rest(&self, mut left: Duration) -> Result<bool> {
        while !left.is_zero() && !self.stop.is_stopped() {
            let part = left.min(TURN / 3);
            self.sleep_until(part, std::future::pending::<()>()).await;
            left -= part;
            if !self.take_turn().await? {
                return Ok(false);
            }
        }
        Ok(!self.stop.is_stopped())
    }

    /// Delivers a dead letter that an operator queued again; these go before new receipts. Returns
    /// whether there was one.
    async fn again(&self) -> Result<bool> {
        let Some((seq, letter)) = self.hook.next_again(&self.live).await? else { return Ok(false) };
        let mut found = self.read(letter.first.saturating_sub(1), letter.looked_at.max(1)).await?;
        found.retain(|receipt| receipt.id.seq <= letter.last);
        if found.is_empty() {
            let (webhook, system) = (self.hook.name(), self.live.id());
            tracing::warn!(%webhook, %system, delivery = letter.delivery, "the receipts of a dead letter are no longer kept");
        }
        if self.settle(found, letter.looked_at).await? {
            self.hook.tried_again(&self.live, seq).await?;
        }
        Ok(true)
    }

    /// The number after which delivery continues. A new webhook starts after the receipts that
    /// exist now.
    async fn mark(&self) -> Result<u64> {
        if let Some(mark) = self.live.mark(&self.hook.book.mark).await? {
            return Ok(mark);
        }
        let newest = ReceiptQuery { limit: 1, ..ReceiptQuery::default() };
        let newest = self.live.receipts(newest).await?;
        let newest = newest.first().map_or(0, |receipt| receipt.id.seq);
        self.live.advance_mark(&self.hook.book.mark, newest).await
    }

    async fn read(&self, after: u64, limit: usize) -> Result<Vec<Receipt>> {
        let query = ReceiptQuery { after: Some(after), before: None, limit };
        self.live.receipts(query).await
    }

    async fn take_turn(&self) -> Result<bool> {
        let ttl = self.hook.plan.timeout + TURN;
        let Hook { book, process, .. } = &*self.hook;
        self.live.take_turn(&book.mark, process, ttl.as_millis() as u64).await
    }

    fn look(&self) -> Duration {
        if self.live.is_metered() { LOOK_METERED } else { LOOK }
    }

    /// Waits for `most`, or until `happens` or until the daemon stops.
    async fn sleep_until(&self, most: Duration, happens: impl Future) {
        tokio::select! {
            _ = happens => {}
            () = self.stop.stopped() => {}
            () = tokio::time::sleep(most) => {}
        }
    }
}

/// One body that is being sent to the receiver.
struct ReceiptsDelivery<'a> {
    sender: &'a WebhookSender,
    body: &'a Body,
    began: Instant,
    /// The age of its oldest receipt when the delivery began.
    late: Duration,
}

impl Delivery for ReceiptsDelivery<'_> {
    type Error = Error;

    fn attempts(&self) -> u32 {
        self.sender.hook.plan.attempts
    }

    /// A random time between half of the configured pause and all of it, so that a receiver that
    /// comes back does not get all deliveries at once.
    fn pause(&self, attempt: u32) -> Duration {
        let Hook { clock, plan, .. } = &*self.sender.hook;
        let share = (clock.random() % 1_000) as f64 / 2_000.0;
        plan.pause(attempt).mul_f64(0.5 + share)
    }

    async fn send(&self, attempt: u32) -> std::result::Result<(), String> {
        let WebhookSender { hook, live, .. } = self.sender;
        hook.series.lag(live.id(), self.late + self.began.elapsed());
        let sent = hook.send(self.body, attempt).await;
        let (webhook, system, delivery) = (hook.name(), live.id(), &self.body.delivery);
        match &sent {
            Ok(()) => tracing::debug!(delivery, attempt, "delivered"),
            Err(why) => {
                tracing::warn!(%webhook, %system, delivery, attempt, why, "not delivered");
            }
        }
        sent
    }

    async fn rest(&self, pause: Duration) -> Result<bool> {
        self.sender.rest(pause).await
    }
}
