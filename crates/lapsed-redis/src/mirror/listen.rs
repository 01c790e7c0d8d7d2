//! Listens to the mirror's notifications: a setting has changed, or a provider's heartbeat has expired.
//!
//! Correctness does not depend on them: a lost notification only delays something. The receiver learns when
//! notifications may have been lost ([`MirrorEvent::MaybeMissed`]), so that it can read the state once.

use std::time::Duration;

use futures::StreamExt;
use lapsed_core::clock::{Clock, within};
use lapsed_core::{Error, Name, Result};
use redis::aio::PubSub;
use redis::{Client, Msg};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::RedisMirror;
use crate::error_mapping::store_error;

/// The size of the buffer of events. Events that do not fit are dropped, and the receiver gets `MaybeMissed`.
const WAITING: usize = 1_024;

/// How long to wait before the next attempt to connect.
const PAUSE: Duration = Duration::from_millis(250);

/// How often a silent connection is tested.
const ASKED_EVERY: Duration = Duration::from_secs(5);

/// An event that the server announced.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MirrorEvent {
    /// This setting has changed.
    Invalidated(String),
    /// The heartbeat of this provider has expired, unless it has sent another one since.
    Silent(Name),
    /// The connection has just been made, so that earlier events may have been missed.
    MaybeMissed,
}

impl RedisMirror {
    /// Listens on a connection of its own, which reconnects automatically, until the receiver is dropped.
    /// The first event is [`MirrorEvent::MaybeMissed`], as after every reconnection. Needs a tokio runtime.
    pub fn listen(&self) -> mpsc::Receiver<MirrorEvent> {
        let (events, receiver) = mpsc::channel(WAITING);
        let address = self.redis.address();
        let listener = KeyspaceListener {
            nodes: address.nodes(),
            place: address.place(),
            limit: address.connect_timeout + address.response_timeout,
            clock: self.inner.context.clock.clone(),
            channel: self.inner.layout.invalidate_channel.clone(),
            alive: self.inner.alive.clone(),
            events,
            missed: false,
        };
        tokio::spawn(listener.keep_listening());
        receiver
    }
}

/// The task that listens to the server.
struct KeyspaceListener {
    nodes: Vec<String>,
    place: String,
    limit: Duration,
    clock: std::sync::Arc<dyn Clock>,
    channel: String,
    alive: String,
    events: mpsc::Sender<MirrorEvent>,
    missed: bool,
}

impl KeyspaceListener {
    async fn keep_listening(mut self) {
        let events = self.events.clone();
        for attempt in 0.. {
            let node = self.nodes[attempt % self.nodes.len()].clone();
            tokio::select! {
                () = events.closed() => return,
                ended = self.listen_at(&node) => if let Err(error) = ended {
                    tracing::debug!(%error, "cannot subscribe to notifications; retrying");
                },
            }
            tokio::select! {
                () = events.closed() => return,
                () = self.clock.sleep(PAUSE) => {}
            }
        }
    }

    /// Listens at one node until the connection ends.
    async fn listen_at(&mut self, node: &str) -> Result<()> {
        let clock = self.clock.clone();
        let slow = || Error::timed_out(&self.place, "SUBSCRIBE", self.limit.as_millis());
        let opened = within(&*clock, self.limit, self.open(node)).await.ok_or_else(slow)?;
        let (mut sink, mut stream) = opened?.split();
        self.emit(MirrorEvent::MaybeMissed);
        loop {
            tokio::select! {
                message = stream.next() => match message {
                    Some(message) => self.handle(&message),
                    None => return Ok(()),
                },
                () = clock.sleep(ASKED_EVERY) => {
                    let asked = sink.ping::<redis::Value>();
                    let slow = || Error::timed_out(&self.place, "PING", self.limit.as_millis());
                    let answer = within(&*clock, self.limit, asked).await.ok_or_else(slow)?;
                    answer.map_err(|error| store_error(&self.place, "PING", &error))?;
                }
            }
            if self.missed {
                self.emit(MirrorEvent::MaybeMissed);
            }
        }
    }

    async fn open(&self, node: &str) -> Result<PubSub> {
        let wrong = |error| store_error(&self.place, "SUBSCRIBE", &error);
        let client = Client::open(node).map_err(wrong)?;
        let mut connection = client.get_async_pubsub().await.map_err(wrong)?;
        connection.subscribe(&self.channel).await.map_err(wrong)?;
        if !self.alive.is_empty() {
            let database = client.get_connection_info().redis_settings().db();
            let expired = format!("__keyevent@{database}__:expired");
            connection.subscribe(expired).await.map_err(wrong)?;
        }
        Ok(connection)
    }

    fn handle(&mut self, message: &Msg) {
        if message.get_channel_name() == self.channel {
            let setting = String::from_utf8_lossy(message.get_payload_bytes()).into_owned();
            return self.emit(MirrorEvent::Invalidated(setting));
        }
        let name = message.get_payload_bytes().strip_prefix(self.alive.as_bytes());
        if let Some(Ok(name)) = name.map(Name::from_bytes) {
            self.emit(MirrorEvent::Silent(name));
        }
    }

    /// Never waits: a slow receiver must not stop the reading of the connection.
    fn emit(&mut self, event: MirrorEvent) {
        let again = event == MirrorEvent::MaybeMissed;
        match self.events.try_send(event) {
            Err(TrySendError::Full(_)) => self.missed = true,
            _ if again => self.missed = false,
            _ => {}
        }
    }
}
