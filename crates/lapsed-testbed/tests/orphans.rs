//! A test process is killed (a time limit of CI, Ctrl-C): its servers must not be left behind.
//!
//! This program starts itself again as such a process, kills it and looks for its server.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use lapsed_testbed::{Engine, PostgresServer, RedisServer, until};

const ROLE: &str = "LAPSED_TESTBED_ORPHANS";

#[test]
fn a_killed_process_takes_its_servers_along() {
    if std::env::var_os(ROLE).is_some() {
        return start_and_wait_for_the_end();
    }
    let name = "a_killed_process_takes_its_servers_along";
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(ROLE, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(process.stdout.take().unwrap()).lines();
    let notes = said.map(|line| line.unwrap()).filter(|line| line.contains("note:"));
    let notes: Vec<String> = notes.take(2).collect();
    process.kill().unwrap();
    process.wait().unwrap();
    notes.iter().for_each(|note| assert_over(note));
}

fn assert_over(note: &str) {
    let (pid, dir) = note.split_once("note:").unwrap().1.split_once(' ').unwrap();
    let place = format!("/proc/{pid}");
    // Whoever adopted it may be slow to collect it: a zombie runs no longer.
    let gone = || {
        let status = std::fs::read_to_string(format!("{place}/status")).unwrap_or_default();
        Ok((status.is_empty() || status.contains("State:\tZ")).then_some(()))
    };
    until("the server's end", Duration::from_secs(20), gone).unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}

fn start_and_wait_for_the_end() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    println!("note:{} {}", server.pid().unwrap(), server.dir().display());
    let postgres = PostgresServer::start().unwrap();
    let folder = postgres.dir().parent().unwrap();
    println!("note:{} {}", postgres.pid().unwrap(), folder.display());
    std::thread::sleep(Duration::from_secs(60));
}
