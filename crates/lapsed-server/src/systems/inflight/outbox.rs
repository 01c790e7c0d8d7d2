//! The outbox: delivers jobs by HTTP to queues that the store cannot reach.
//!
//! A delivery is a job in flight like any other: a worker of this process takes it from the outbox,
//! and completes it when the receiver has acknowledged it. If this process dies in between, a pass
//! puts the job back and it is delivered again: at least once, with the same idempotency key each
//! time.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::inflight::rules::QueueEnd;
use lapsed_core::inflight::{Claimed, Inflight, JobResult, Worker};
use lapsed_core::schedule::StopSignal;
use lapsed_core::{Error, SystemId};
use serde::Serialize;
use ureq::Agent;

use super::webhook::{DeliveryWebhook, OUTBOX};
use crate::outbound::delivery::{Delivered, Delivery, deliver};
use crate::outbound::{self, header_safe};

/// The owner name of the workers that deliver; each process is an incarnation of its own.
const OWNER: &str = "lapsed:outbox";

/// The pause before a worker that could not start or was lost is started again.
const AGAIN: Duration = Duration::from_secs(1);

/// Delivers until `stop` is signalled. Deliveries that wait for their next attempt are then given
/// back.
pub async fn run(
    system: SystemId,
    inflight: Arc<Inflight>,
    webhook: DeliveryWebhook,
    stop: StopSignal,
) {
    let outbox = Outbox {
        system,
        inflight,
        agent: outbound::agent(&webhook.address, webhook.timeout),
        webhook,
        stop,
    };
    while !outbox.stop.is_stopped() {
        if let Err(error) = outbox.deliver().await {
            tracing::warn!(system = %outbox.system, %error, "the worker of the outbox ended; starting another");
            outbox.pause(AGAIN).await;
        }
    }
}

struct Outbox {
    system: SystemId,
    inflight: Arc<Inflight>,
    agent: Agent,
    webhook: DeliveryWebhook,
    stop: StopSignal,
}

#[derive(Serialize)]
struct JobDocument<'a> {
    system: &'a str,
    id: &'a str,
    queue: &'a str,
    payload: &'a str,
    crashes: u32,
    token: u64,
}

impl Outbox {
    /// Runs one incarnation of the worker until it is stopped or lost.
    async fn deliver(&self) -> Result<(), Error> {
        let worker = Worker::start(self.inflight.clone(), OWNER).await?;
        let at_once = self.webhook.at_once;
        let ran = worker.run(&OUTBOX, at_once, &self.stop, |job| self.deliver_one(job)).await;
        // Jobs that the worker still holds are given back at once; if that fails, a pass finds
        // them.
        let retired = worker.retire().await;
        ran.and(retired.map(drop))
    }

    /// Attempts one delivery until the receiver has accepted it, the attempts are used up, or
    /// `stop` is signalled.
    async fn deliver_one(&self, job: Claimed) -> Result<JobResult, String> {
        let Some(key) = self.key(&job).await else {
            return Ok(JobResult::GiveBack(QueueEnd::Front));
        };
        let body = self.body(&job);
        let Ok(delivered) = deliver(&JobDelivery { outbox: self, job: &job, key, body }).await;
        match delivered {
            Delivered::Taken => Ok(JobResult::Complete),
            Delivered::BrokenOff => Ok(JobResult::GiveBack(QueueEnd::Front)),
            Delivered::GivenUp { attempts, why } => {
                tracing::error!(system = %self.system, job = %job.id, why, "delivery given up");
                Err(format!("the webhook did not take it in {attempts} tries: {why}"))
            }
        }
    }

    /// The idempotency key: the same for every attempt at this job, and a different one if the
    /// job's id is used again later. `None` if the job no longer exists, or if `stop` was signalled
    /// before the store answered.
    async fn key(&self, job: &Claimed) -> Option<String> {
        while !self.stop.is_stopped() {
            match self.inflight.job(&job.id).await {
                Ok(found) => {
                    let SystemId { kind, name } = &self.system;
                    return Some(format!("{kind}-{name}-{}-{}", job.id, found?.entered_ms));
                }
                Err(_) => self.pause(AGAIN).await,
            }
        }
        None
    }

    fn body(&self, job: &Claimed) -> Vec<u8> {
        let delivery = JobDocument {
            system: &self.system.name,
            id: job.id.as_str(),
            queue: job.queue.as_str(),
            payload: &job.payload,
            crashes: job.crashes,
            token: job.token.0,
        };
        serde_json::to_vec(&delivery).unwrap_or_default()
    }

    /// Makes one attempt. The error does not contain the address, which may hold a secret.
    async fn post(&self, key: &str, body: &[u8]) -> Result<(), String> {
        let headers = [("idempotency-key", header_safe(key))];
        outbound::post(&self.agent, &self.webhook.address, &headers, body.to_vec()).await
    }

    /// Waits for `most`, or until `stop` is signalled.
    async fn pause(&self, most: Duration) {
        tokio::select! {
            () = self.stop.stopped() => {}
            () = tokio::time::sleep(most) => {}
        }
    }
}

/// The delivery of one job to the receiver, through all its attempts.
struct JobDelivery<'a> {
    outbox: &'a Outbox,
    job: &'a Claimed,
    key: String,
    body: Vec<u8>,
}

impl Delivery for JobDelivery<'_> {
    type Error = Infallible;

    fn attempts(&self) -> u32 {
        self.outbox.webhook.attempts
    }

    fn pause(&self, attempt: u32) -> Duration {
        self.outbox.webhook.pause(attempt)
    }

    async fn send(&self, attempt: u32) -> Result<(), String> {
        let (system, job) = (&self.outbox.system, &self.job.id);
        let sent = self.outbox.post(&self.key, &self.body).await;
        match &sent {
            Ok(()) => tracing::info!(%system, %job, attempt, "delivered"),
            Err(why) => tracing::warn!(%system, %job, attempt, why, "not delivered"),
        }
        sent
    }

    async fn rest(&self, pause: Duration) -> Result<bool, Infallible> {
        self.outbox.pause(pause).await;
        Ok(!self.outbox.stop.is_stopped())
    }
}
