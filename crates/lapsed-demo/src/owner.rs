//! One owner of the demo, a process of its own: starts, registers, beats, and when it is told that
//! it was lost, takes a new life and re-asserts what is still free.

use std::io::BufRead;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};

use super::ENTRIES;
use super::api::Api;
use lapsed_server::failure::Failure;
use lapsed_server::print;

/// The keys that an owner begins with.
pub fn keys(owner: &str) -> Vec<String> {
    (0..ENTRIES).map(|i| format!("{owner}/device-{i:04}")).collect()
}

/// What it says when it was told that it was lost.
fn lost_line(lost: u64, back: u64) -> String {
    format!("lost {lost} reasserted {back}")
}

/// The two numbers of such a line.
pub fn parse_lost(line: &str) -> Option<(u64, u64)> {
    let (lost, back) = line.strip_prefix("lost ")?.split_once(" reasserted ")?;
    Some((lost.parse().ok()?, back.parse().ok()?))
}

/// Lives until it is told to leave, or whoever started it is gone.
pub fn run(name: &str, url: &str, every: Duration) -> Result<(), Failure> {
    let api = Api::new(url, None);
    let told = listen();
    let mut life = start(&api, name)?;
    api.post("register_many", json!({ "owner": name, "incarnation": life, "keys": keys(name) }))?
        .expect()?;
    loop {
        match told.recv_timeout(every) {
            Ok(()) => {
                api.post("retire", json!({ "owner": name, "incarnation": life }))?.expect()?;
                return Ok(());
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let answer = api.post("beat", json!({ "owner": name, "incarnation": life }))?;
        if answer.is_lost() {
            life = come_back(&api, name, &answer.body)?;
        }
    }
}

/// A line on stdin means: leave.
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
    let life = start(api, name)?;
    // The first thousand are named in the answer; this owner knows them all by itself.
    let held = keys(name);
    let body = json!({ "owner": name, "incarnation": life, "keys": held, "if_free": true });
    let answer = api.post("register_many", body)?.expect()?;
    let results = answer["results"].as_array().cloned().unwrap_or_default();
    let back = results.iter().filter(|r| r["outcome"] != "taken").count() as u64;
    print::line(&lost_line(lost["held_total"].as_u64().unwrap_or(0), back))?;
    Ok(life)
}
