//! Webhooks: whoever is configured is told of receipts by HTTP, signed, at least once.
//!
//! For each webhook and system a sender reads receipts after a *mark* that the store keeps, sends them, and
//! moves the mark when the receiver has said that it has them. What was not taken in as many tries as are
//! allowed is a dead letter, noted in the store before the mark goes past it.
//!
//! The race. Of several daemons on one store one has the *turn*; but a turn is a lease without a fence,
//! and whoever has it may be slow and lose it in the middle of a try. Then two send the same. That is
//! allowed: what must not be is a mark that goes past what nobody has taken. It cannot: a sender
//! reads the mark first, sends what follows it without a gap, and moves the mark to the end of that
//! and no further; the mark never goes back, so that whoever is late moves it nowhere new. Killed at any
//! instant, the worst is that what was sent since the mark was moved last is sent again.

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

pub use self::letters::{DeadLetter, Fate, LETTERS_MAX};

/// All of them.
#[derive(Default)]
pub struct Webhooks {
    hooks: Vec<Arc<Hook>>,
}

impl Webhooks {
    /// As configured, on the opened systems.
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

    /// One task for each webhook and system: who is away holds up nobody else.
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

    /// All of them, in the order of the configuration.
    pub fn all(&self) -> &[Arc<Hook>] {
        &self.hooks
    }

    /// The one of that name.
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

/// What it keeps in the store of each system, by name.
struct DeliveryState {
    /// The mark, and the turn.
    mark: Name,
    /// Dead letters.
    dead: Name,
    /// Those that are to be tried again.
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

/// How one stands.
#[derive(Serialize, ToSchema)]
pub struct HookStatus {
    /// Its name.
    pub name: String,
    /// Where to; only the host is shown.
    pub url: String,
    /// Each of its systems.
    pub systems: Vec<RouteStatus>,
}

/// How far it has come in one system.
#[derive(Serialize, ToSchema)]
pub struct RouteStatus {
    /// `KIND/NAME`.
    pub system: String,
    /// The number of the last receipt that was delivered or is a dead letter.
    pub mark: Option<u64>,
    /// The number of the newest receipt.
    pub newest: u64,
    /// Deliveries that are dead letters; a thousand are counted at most.
    pub dead: usize,
}

impl Hook {
    /// Its name.
    pub fn name(&self) -> &Name {
        &self.plan.name
    }

    /// The systems that it tells of.
    pub fn lives(&self) -> &[Arc<LiveSystem>] {
        &self.lives
    }

    /// How it stands.
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

    /// Sends an event that says nothing, once: the delivery's id, or why it was not taken.
    pub async fn test(&self) -> Result<String, String> {
        let body = body::Body::test(&self.plan.name, self.clock.random());
        self.send(&body, 1).await.map(|()| body.delivery)
    }

    /// One try.
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
