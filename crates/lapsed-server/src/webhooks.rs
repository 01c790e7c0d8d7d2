//! Webhooks: receipts are delivered to configured receivers by HTTP, signed, at least once.
//!
//! For each webhook and system a sender reads the receipts after a *mark* that the store keeps,
//! sends them, and moves the mark when the receiver has accepted them. A delivery that was not
//! accepted within the configured number of attempts becomes a dead letter, which is written to the
//! store before the mark moves past it.
//!
//! The race: of several daemons on one store, one has the *turn*. A turn is a lease without
//! fencing, so a slow daemon may lose it in the middle of an attempt, and then two daemons send the
//! same receipts. That is allowed. What must not happen is that the mark moves past receipts that
//! were neither accepted nor buried as a dead letter. It cannot: a sender reads the mark first,
//! sends what follows it without a gap, and moves the mark to the end of that and no further. The
//! mark never moves back, so a late sender cannot move it anywhere new. If a daemon is killed at
//! any moment, at worst the receipts that were sent since the last move of the mark are sent again.

mod body;
mod letters;
mod sender;

use std::sync::Arc;

use lapsed_core::Name;
use lapsed_core::clock::Clock;
use lapsed_core::receipt::ReceiptQuery;
use lapsed_core::schedule::StopSignal;
use opentelemetry::KeyValue;
use serde::Serialize;
use tokio::task::JoinSet;
use ureq::Agent;
use utoipa::ToSchema;

use crate::config::webhook::WebhookConfig;
use crate::metrics::{Metrics, WebhookSeries};
use crate::node::Config;
use crate::node::{LiveSystem, OpenSystems};
use crate::outbound;
use crate::telemetry::{Telemetry, end_with, traceparent};

pub use self::letters::{DeadLetter, LETTERS_MAX, LetterDecision};

/// All configured webhooks, ready to deliver.
#[derive(Default)]
pub struct Webhooks {
    hooks: Vec<Arc<Hook>>,
}

impl Webhooks {
    /// Prepares the configured webhooks for the opened systems.
    pub fn open(
        config: &Config,
        node: &OpenSystems,
        metrics: &Metrics,
        telemetry: &Option<Arc<Telemetry>>,
        clock: &Arc<dyn Clock>,
    ) -> Webhooks {
        let process = format!("{}-{:08x}", std::process::id(), clock.random() & 0xffff_ffff);
        let hook = |plan: &WebhookConfig| {
            let lives = plan.systems.iter().filter_map(|id| node.find(id.kind, &id.name)).cloned();
            let series = metrics.introduce_webhook(&plan.name);
            Arc::new(Hook {
                agent: outbound::agent(&plan.address, plan.timeout),
                book: DeliveryState::of(&plan.name),
                plan: plan.clone(),
                lives: lives.collect(),
                series,
                clock: clock.clone(),
                telemetry: telemetry.clone(),
                process: process.clone(),
            })
        };
        Webhooks { hooks: config.webhooks.iter().map(hook).collect() }
    }

    /// Starts one task for each webhook and system, so that a receiver that does not answer delays
    /// no other.
    pub fn deliver(&self, node: &OpenSystems, stop: &StopSignal) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        for hook in &self.hooks {
            for live in &hook.lives {
                let wakeups = node.journal().wakeups();
                tasks.spawn(sender::run(hook.clone(), live.clone(), wakeups, stop.clone()));
            }
        }
        tasks
    }

    /// All webhooks, in the order of the configuration.
    pub fn all(&self) -> &[Arc<Hook>] {
        &self.hooks
    }

    /// The webhook with this name, if it is configured.
    pub fn find(&self, name: &str) -> Option<&Arc<Hook>> {
        self.hooks.iter().find(|hook| hook.plan.name.as_str() == name)
    }
}

/// One webhook, ready to deliver.
pub struct Hook {
    plan: WebhookConfig,
    lives: Vec<Arc<LiveSystem>>,
    agent: Agent,
    book: DeliveryState,
    series: WebhookSeries,
    clock: Arc<dyn Clock>,
    telemetry: Option<Arc<Telemetry>>,
    process: String,
}

/// The names under which a webhook keeps its state in the store of each system.
struct DeliveryState {
    /// The name of the mark and of the turn.
    mark: Name,
    /// The name of the list of dead letters.
    dead: Name,
    /// The name of the list of dead letters that are to be delivered again.
    again: Name,
}

impl DeliveryState {
    fn of(webhook: &Name) -> DeliveryState {
        let name = |what: &str| {
            Name::new(&format!("{what}:{webhook}"))
                .expect("the name of a webhook is short and plain")
        };
        DeliveryState {
            mark: name("webhook"),
            dead: name("webhook-dead"),
            again: name("webhook-again"),
        }
    }
}

/// The progress of one webhook.
#[derive(Serialize, ToSchema)]
pub struct HookStatus {
    /// The name of the webhook, as configured.
    pub name: String,
    /// The receiver's address; only its host is shown.
    pub url: String,
    /// The progress in each of its systems.
    pub systems: Vec<RouteStatus>,
}

/// The progress of a webhook in one system.
#[derive(Serialize, ToSchema)]
pub struct RouteStatus {
    /// `KIND/NAME` of the system.
    pub system: String,
    /// The number of the last receipt that was delivered or became a dead letter.
    pub mark: Option<u64>,
    /// The number of the system's newest receipt.
    pub newest: u64,
    /// How many deliveries are dead letters; counted up to 1,000.
    pub dead: usize,
}

impl Hook {
    pub fn name(&self) -> &Name {
        &self.plan.name
    }

    /// The systems whose receipts it delivers.
    pub fn lives(&self) -> &[Arc<LiveSystem>] {
        &self.lives
    }

    /// How far it has delivered in each system.
    pub async fn status(&self) -> lapsed_core::Result<HookStatus> {
        let mut systems = Vec::new();
        for live in &self.lives {
            let newest = ReceiptQuery { limit: 1, ..ReceiptQuery::default() };
            let newest = live.receipts(newest).await?;
            systems.push(RouteStatus {
                system: live.id().to_string(),
                mark: live.mark(&self.book.mark).await?,
                newest: newest.first().map_or(0, |receipt| receipt.id.seq),
                dead: self.letters(live, None, LETTERS_MAX).await?.len(),
            });
        }
        let (name, url) = (self.plan.name.to_string(), self.plan.address.to_string());
        Ok(HookStatus { name, url, systems })
    }

    /// Sends one `test` event without content. Returns the delivery's id, or why the receiver did
    /// not accept it.
    pub async fn test(&self) -> Result<String, String> {
        let body = body::Body::test(&self.plan.name, self.clock.random());
        self.send(&body, 1).await.map(|()| body.delivery)
    }

    /// One attempt to send `body`. The error says why the receiver did not accept it.
    async fn send(&self, body: &body::Body, attempt: u32) -> Result<(), String> {
        let now_s = self.clock.wall_ms() / 1_000;
        let mut headers = body.headers(&self.plan, now_s, attempt).to_vec();
        let span = self.telemetry.as_ref().map(|telemetry| {
            let name = KeyValue::new("lapsed.webhook", self.plan.name.to_string());
            let delivery = KeyValue::new("lapsed.delivery", body.delivery.clone());
            let attempt = KeyValue::new("lapsed.attempt", i64::from(attempt));
            telemetry.begin_delivery(vec![name, delivery, attempt])
        });
        headers.extend(span.as_ref().map(|span| ("traceparent", traceparent(span))));
        let sent = outbound::post(&self.agent, &self.plan.address, &headers, body.bytes.clone());
        let sent = sent.await;
        self.series.count(if sent.is_ok() { "delivered" } else { "failed" });
        if let Some(span) = span {
            end_with(&span, sent.as_ref().err().map(String::as_str));
        }
        sent
    }
}
