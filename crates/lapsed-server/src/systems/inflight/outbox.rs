//! The outbox: jobs that go back to queues out of the store's reach are delivered by HTTP.
//!
//! A delivery is a job in flight like any other: it is taken from the outbox by a worker of this
//! process, and completed when the other side has said that it has it. Whoever dies in between is
//! found by a pass, and the job is delivered again: at least once, with the same key each time.

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

/// Who delivers. Every process is a life of its own under this name.
const OWNER: &str = "lapsed:outbox";

/// How soon a worker that could not begin, or was lost, begins again.
const AGAIN: Duration = Duration::from_secs(1);

/// Delivers until told to stop. What is between two tries then is given back.
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
    while !outbox.stop.is_told() {
        if let Err(error) = outbox.deliver().await {
            tracing::warn!(system = %outbox.system, %error, "delivering broke off; beginning again");
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
    /// One life of the worker.
    async fn deliver(&self) -> Result<(), Error> {
        let worker = Worker::start(self.inflight.clone(), OWNER).await?;
        let at_once = self.webhook.at_once;
        let ran = worker.run(&OUTBOX, at_once, &self.stop, |job| self.deliver_one(job)).await;
        // Whatever it still holds goes back at once; if even that fails, a pass finds it.
        let retired = worker.retire().await;
        ran.and(retired.map(drop))
    }

    /// Tries until it was taken, until there were too many tries, or until told to stop.
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

    /// The same for every try at this job, and another one should an id be used again later.
    /// None when the job is gone, or told to stop before the store has answered.
    async fn key(&self, job: &Claimed) -> Option<String> {
        while !self.stop.is_told() {
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

    /// One try. The error says nothing of the address.
    async fn post(&self, key: &str, body: &[u8]) -> Result<(), String> {
        let headers = [("idempotency-key", header_safe(key))];
        outbound::post(&self.agent, &self.webhook.address, &headers, body.to_vec()).await
    }

    /// So long, or until told to stop.
    async fn pause(&self, most: Duration) {
        tokio::select! {
            () = self.stop.told() => {}
            () = tokio::time::sleep(most) => {}
        }
    }
}

/// One job on its way to the receiver.
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
        Ok(!self.outbox.stop.is_told())
    }
}
