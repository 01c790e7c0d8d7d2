//! Receives the notifications of the triggers: which provider or setting the application has changed.
//!
//! PostgreSQL drops notifications while no connection listens. So after every connection, also the first, and
//! whenever the buffer overflowed, [`ChangeEvent::Gap`] reports that something may have been missed: the
//! receiver then compares everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::poll_fn;
use lapsed_core::Name;
use lapsed_core::clock::{backoff, jittered, within};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls, Notification, Socket};

use crate::Postgres;
use crate::call_error::error_chain;
use crate::pool::PostgresPool;
use crate::quote;
use crate::schema::{AVAILABILITY_CHANNEL, SETTINGS_CHANNEL};

/// The default size of the buffer of received events.
const WAITING_MAX: usize = 10_000;
/// How often the server is asked whether it is still there: a connection that is cut in silence would
/// otherwise tell nothing for ever.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// The first and the longest pause between two attempts to connect.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MOST: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangeEvent {
    /// This provider was changed: its status, its sessions, or whether it may work.
    Provider(Name),
    /// The setting under this key was changed.
    Setting(String),
    /// Something may have been missed.
    Gap,
}

/// Listens until it is dropped; reconnects automatically.
pub struct ChangeListener {
    pool: PostgresPool,
    listening: Option<ListenConnection>,
    /// How many attempts to connect have failed since the last connection.
    failed: u32,
    waiting_max: usize,
}

/// One connection that listens.
struct ListenConnection {
    events: Receiver<ChangeEvent>,
    overflowed: Arc<AtomicBool>,
    // Dropping it ends the connection, and with that the task.
    client: Client,
    task: JoinHandle<()>,
}

impl Drop for ListenConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Postgres {
    /// Returns a listener; its first [`ChangeListener::next`] connects.
    pub fn listen(&self) -> ChangeListener {
        self.listen_within(WAITING_MAX)
    }

    /// Returns a listener that buffers at most `waiting_max` events; more are reported as a gap.
    pub fn listen_within(&self, waiting_max: usize) -> ChangeListener {
        let waiting_max = waiting_max.max(1);
        ChangeListener { pool: self.pool().clone(), listening: None, failed: 0, waiting_max }
    }
}

impl ChangeListener {
    /// Waits for the next event. Cancel-safe: no event is lost if the caller stops waiting.
    pub async fn next(&mut self) -> ChangeEvent {
        loop {
            let Some(listening) = &mut self.listening else {
                self.reconnect().await;
                return ChangeEvent::Gap;
            };
            if listening.overflowed.swap(false, Ordering::AcqRel) {
                return ChangeEvent::Gap;
            }
            match within(&**self.pool.clock(), ASK_EVERY, listening.events.recv()).await {
                Some(Some(event)) => return event,
                Some(None) => self.listening = None,
                None if self.answers().await => {}
                None => self.listening = None,
            }
        }
    }

    /// Returns at most `limit` events that were received already, without waiting.
    pub fn more(&mut self, limit: usize) -> Vec<ChangeEvent> {
        let events = self.listening.iter_mut().flat_map(|listening| {
            std::iter::from_fn(|| listening.events.try_recv().ok()).take(limit)
        });
        events.collect()
    }

    async fn answers(&self) -> bool {
        let Some(listening) = &self.listening else { return false };
        let limit = self.pool.address().call_timeout;
        let asked = listening.client.simple_query("");
        matches!(within(&**self.pool.clock(), limit, asked).await, Some(Ok(_)))
    }

    /// Connects again and again until a connection listens.
    async fn reconnect(&mut self) {
        let clock = self.pool.clock().clone();
        let mut is_new = true;
        loop {
            let limit = self.pool.address().connect_timeout + self.pool.address().call_timeout;
            let why = match within(&*clock, limit, connect(&self.pool, self.waiting_max)).await {
                Some(Ok(listening)) => {
                    self.listening = Some(listening);
                    self.failed = 0;
                    return;
                }
                Some(Err(error)) => error_chain(&error),
                None => "no answer in time".to_owned(),
            };
            match std::mem::take(&mut is_new) {
                true => {
                    tracing::warn!(store = self.pool.place(), why, "cannot listen; trying again")
                }
                false => tracing::debug!(store = self.pool.place(), why, "still cannot listen"),
            }
            let pause = backoff(RETRY_FIRST, 2, self.failed, RETRY_MOST);
            self.failed = self.failed.saturating_add(1);
            clock.sleep(jittered(&*clock, pause, 0.2)).await;
        }
    }
}

async fn connect(
    pool: &PostgresPool,
    waiting_max: usize,
) -> Result<ListenConnection, tokio_postgres::Error> {
    let (config, tls) = pool.parts();
    let (sender, events) = channel(waiting_max);
    let overflowed = Arc::new(AtomicBool::new(false));
    let listener = ListenerTask { sender, overflowed: overflowed.clone() };
    let (client, task) = match tls {
        Some(tls) => {
            let (client, connection) = config.connect(tls.clone()).await?;
            (client, tokio::spawn(listener.run(connection)))
        }
        None => {
            let (client, connection) = config.connect(NoTls).await?;
            (client, tokio::spawn(listener.run(connection)))
        }
    };
    let listening = ListenConnection { events, overflowed, client, task };
    let listen =
        [AVAILABILITY_CHANNEL, SETTINGS_CHANNEL].map(|c| format!("LISTEN {}", quote::name(c)));
    listening.client.batch_execute(&listen.join("; ")).await?;
    Ok(listening)
}

/// Drives the connection and forwards its notifications.
struct ListenerTask {
    sender: Sender<ChangeEvent>,
    overflowed: Arc<AtomicBool>,
}

impl ListenerTask {
    /// Runs until the connection ends.
    async fn run<T>(self, mut connection: Connection<Socket, T>)
    where
        T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message
                && let Some(event) = parse_notification(&notification)
                && self.sender.try_send(event).is_err()
            {
                self.overflowed.store(true, Ordering::Release);
            }
        }
    }
}

fn parse_notification(events: &Notification) -> Option<ChangeEvent> {
    match (events.channel(), events.payload()) {
        (_, "") => Some(ChangeEvent::Gap),
        // A payload that cannot be a name belongs to no provider.
        (AVAILABILITY_CHANNEL, id) => Name::new(id).ok().map(ChangeEvent::Provider),
        (SETTINGS_CHANNEL, key) => Some(ChangeEvent::Setting(key.to_owned())),
        _ => None,
    }
}
