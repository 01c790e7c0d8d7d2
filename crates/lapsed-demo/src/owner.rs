//! One owner of `lapsed demo`, in a process of its own. It starts, registers its entries and sends heartbeats.
//! When the daemon answers that the owner was declared dead, it starts a new incarnation and registers again
//! those entries that are still free.

use std::io::BufRead;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};

use super::ENTRIES;
use super::api::Api;
use lapsed_server::failure::Failure;
use lapsed_server::print;

/// The keys that an owner registers when it starts.
pub fn keys(owner: &str) -> Vec<String> {
    (0..ENTRIES).map(|i| format!("{owner}/device-{i:04}")).collect()
}

/// The line that an owner prints after it was declared dead and has registered `back` entries again.
fn lost_line(lost: u64, back: u64) -> String {
    format!("lost {lost} reasserted {back}")
}

/// The two numbers in a line of `lost_line`.
pub fn parse_lost(line: &str) -> Option<(u64, u64)> {
    let (lost, back) = line.strip_prefix("lost ")?.split_once(" reasserted ")?;
    Some((lost.parse().ok()?, back.parse().ok()?))
}

/// Runs until a line on stdin asks the owner to leave, or until its parent process ends.
pub fn run(name: &str, url: &str, every: Duration) -> Result<(), Failure> {
    let api = Api::new(url, None);
    let told = listen();
    let mut incarnation = start(&api, name)?;
    api.post(
        "register_many",
        json!({ "owner": name, "incarnation": incarnation, "keys": keys(name) }),
    )?
    .expect()?;
    loop {
        match told.recv_timeout(every) {
            Ok(()) => {
                api.post("retire", json!({ "owner": name, "incarnation": incarnation }))?
                    .expect()?;
                return Ok(());
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let answer = api.post("beat", json!({ "owner": name, "incarnation": incarnation }))?;
        if answer.is_lost() {
            incarnation = come_back(&api, name, &answer.body)?;
        }
    }
}

/// Receives a message for each line on stdin, which asks the process to leave; disconnects at its end.
pub(super) fn listen() -> Receiver<()> {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for _line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if tell.send(()).is_err() {
                return;
            }
        }
    });
    told
}

fn start(api: &Api, name: &str) -> Result<u64, Failure> {
    let answer = api.post("start", json!({ "owner": name }))?.expect()?;
    answer["incarnation"].as_u64().ok_or_else(|| Failure::failed("a start without a number"))
}

fn come_back(api: &Api, name: &str, lost: &Value) -> Result<u64, Failure> {
    let incarnation = start(api, name)?;
    // The answer names only the first thousand entries; this owner knows all of its keys.
    let held = keys(name);
    let body = json!({ "owner": name, "incarnation": incarnation, "keys": held, "if_free": true });
    let answer = api.post("register_many", body)?.expect()?;
    let results = answer["results"].as_array().cloned().unwrap_or_default();
    let back = results.iter().filter(|r| r["outcome"] != "taken").count() as u64;
    print::line(&lost_line(lost["held_total"].as_u64().unwrap_or(0), back))?;
    Ok(incarnation)
}
