//! Follows the event feed of a daemon: reads server-sent events, and reconnects with the last cursor when the
//! stream breaks, so that no event is missed.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use lapsed_core::SystemId;
use serde::Deserialize;

use super::Followed;
use super::remote::{RemoteBackend, RequestLimit, segment};
use lapsed_server::failure::Failure;
use lapsed_server::node::missing::MissingSystem;

/// How many reconnections are tried before giving up, and the pause between them.
const TRIES_MAX: u32 = 10;
const PAUSE: Duration = Duration::from_millis(500);

/// Calls `tell` with every receipt from now on. Ends when `tell` fails, or when no reconnection succeeds.
pub fn follow(
    remote: &RemoteBackend,
    system: Option<&SystemId>,
    tell: &mut dyn FnMut(Followed) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut cursor = None;
    let mut tries = 0;
    loop {
        let before = cursor.clone();
        let broken = match stream(remote, system, &mut cursor, tell) {
            Err(Stream::Told(failure)) => return Err(failure),
            Err(Stream::Broken(failure)) => failure,
            Ok(()) => Failure::failed("the daemon closed the stream"),
        };
        // The first connection must succeed; later ones may wait until the daemon is back.
        if cursor.is_none() {
            return Err(broken);
        }
        tries = if cursor == before { tries + 1 } else { 0 };
        if tries > TRIES_MAX {
            return Err(broken);
        }
        tracing::info!("{broken}; trying again");
        std::thread::sleep(PAUSE * tries.max(1));
    }
}

/// The reason why a stream has ended.
enum Stream {
    /// The callback `tell` has failed, so the stream must not be reopened.
    Told(Failure),
    Broken(Failure),
}

fn stream(
    remote: &RemoteBackend,
    system: Option<&SystemId>,
    cursor: &mut Option<String>,
    tell: &mut dyn FnMut(Followed) -> Result<(), Failure>,
) -> Result<(), Stream> {
    let path = match system {
        Some(system) => format!("/v1/events?system={}", segment(&system.to_string())),
        None => "/v1/events".to_owned(),
    };
    let resume = cursor.clone();
    let resume = resume.as_deref().map(|id| ("last-event-id", id));
    let headers: Vec<(&str, &str)> = resume.into_iter().collect();
    let answer = remote.open(&path, &headers, RequestLimit::Stream).map_err(Stream::Broken)?;
    let mut event = Event::default();
    for line in BufReader::new(answer.into_body().into_reader()).lines() {
        let line = line.map_err(|e| Stream::Broken(e.into()))?;
        if !line.is_empty() {
            event.take(&line);
            continue;
        }
        let done = std::mem::take(&mut event);
        if done.name == "receipt" {
            let receipt = serde_json::from_str(&done.data)
                .map_err(|e| Stream::Broken(Failure::failed(format!("unreadable event: {e}"))))?;
            tell(Followed::Receipt(Box::new(receipt))).map_err(Stream::Told)?;
        }
        if done.name == "missing" {
            let told: MissingEvent = serde_json::from_str(&done.data)
                .map_err(|e| Stream::Broken(Failure::failed(format!("unreadable event: {e}"))))?;
            tell(Followed::Missing(told.missing)).map_err(Stream::Told)?;
        }
        if let Some(id) = done.id
            && cursor.replace(id).is_none()
        {
            tell(Followed::Begun).map_err(Stream::Told)?;
        }
    }
    Ok(())
}

/// The data of an event `missing`.
#[derive(Deserialize)]
struct MissingEvent {
    missing: Vec<MissingSystem>,
}

/// One server-sent event, filled line by line.
#[derive(Default)]
struct Event {
    name: String,
    data: String,
    id: Option<String>,
}

impl Event {
    fn take(&mut self, line: &str) {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.name = value.to_owned(),
            "data" => self.data.push_str(value),
            "id" => self.id = Some(value.to_owned()),
            _ => {}
        }
    }
}
