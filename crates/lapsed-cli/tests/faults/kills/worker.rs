//! A worker: a process of its own that takes jobs and completes them over HTTP, and prints what it does before it
//! does it and which answers it got. It is this test program, started again; it is killed and frozen for real.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lapsed_testbed::Program;
use serde_json::{Value, json};

use super::caller::{Caller, Told, now_ms};
use super::ledger::Ledger;

/// The environment variable with the worker's name and the daemons' addresses.
const SPEC: &str = "LAPSED_KILLS_WORKER";

/// A worker is dead after this much silence.
pub const TTL_MS: u64 = 2_000;
const BEAT_EVERY: Duration = Duration::from_millis(300);

/// The queue of all jobs.
pub const QUEUE: &str = "work";

/// How long a line may take from the worker to the ledger's reader.
const LINE_LIMIT: Duration = Duration::from_millis(200);

/// A running worker, and the thread that reads what it says.
pub struct Worker {
    pub program: Arc<Program>,
    ended: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Worker {
    pub fn start(name: &str, urls: &[String], ledger: &Arc<Mutex<Ledger>>) -> Worker {
        let spec = format!("{name} {}", urls.join(" "));
        let program = Program::start(Path::new(&std::env::current_exe().unwrap()), |command| {
            command.args(["kills::worker_process", "--exact", "--ignored", "--nocapture"]);
            command.env(SPEC, spec);
        });
        let (program, ended) = (Arc::new(program.unwrap()), Arc::new(AtomicBool::new(false)));
        let (said, over, ledger) = (program.clone(), ended.clone(), ledger.clone());
        let reader = thread::spawn(move || read(&said, &over, &ledger));
        Worker { program, ended, reader: Some(reader) }
    }

    /// SIGKILL; returns when everything that it said is in the ledger.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.program.kill();
        self.ended.store(true, Ordering::SeqCst);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

fn read(program: &Program, ended: &AtomicBool, ledger: &Mutex<Ledger>) {
    loop {
        match program.line(LINE_LIMIT) {
            Ok(line) => {
                if let Some(line) = line.strip_prefix("@ ") {
                    ledger.lock().unwrap().worker_line(line);
                }
            }
            // Its output is closed and read to the end.
            Err(error) if error.to_string().contains("said nothing more") => {
                assert!(ended.load(Ordering::SeqCst) || program.pid().is_none(), "{error}");
                return;
            }
            Err(_) => {}
        }
    }
}

/// What the process does, until it is killed. Without its environment variable: nothing.
pub fn run() {
    let Ok(spec) = std::env::var(SPEC) else { return };
    let mut words = spec.split(' ').map(str::to_owned);
    let name = words.next().unwrap();
    let urls: Vec<String> = words.collect();
    let incarnation = Arc::new(AtomicU64::new(0));
    let (beating, own) = (incarnation.clone(), name.clone());
    let mut caller = Caller::new(&urls, 0);
    thread::spawn(move || beat(&mut Caller::new(&urls, 1), &own, &beating));
    loop {
        match incarnation.load(Ordering::SeqCst) {
            0 => start(&mut caller, &name, &incarnation),
            current => work(&mut caller, &name, current, &incarnation),
        }
    }
}

fn start(caller: &mut Caller, name: &str, incarnation: &AtomicU64) {
    let body = json!({ "owner": name, "ttl_ms": TTL_MS });
    if let Told::Fine(answer) = caller.post("inflight/jobs/start", &body) {
        incarnation.store(answer["incarnation"].as_u64().unwrap(), Ordering::SeqCst);
    } else {
        thread::sleep(Duration::from_millis(50));
    }
}

fn beat(caller: &mut Caller, name: &str, incarnation: &AtomicU64) {
    loop {
        let current = incarnation.load(Ordering::SeqCst);
        if current > 0 {
            let body = json!({ "owner": name, "incarnation": current });
            let (told, span) = caller.timed("POST", "inflight/jobs/beat", Some(&body), None);
            match told {
                Told::Fine(_) => {
                    println!("@ beat {current} {TTL_MS} {} {}", span.sent_ms, span.done_ms);
                }
                Told::Refused(409) => lose(incarnation, current),
                told => drop(told),
            }
        }
        thread::sleep(BEAT_EVERY);
    }
}

/// A new incarnation is started, unless that was done already.
fn lose(incarnation: &AtomicU64, current: u64) {
    let _ = incarnation.compare_exchange(current, 0, Ordering::SeqCst, Ordering::SeqCst);
}

fn work(caller: &mut Caller, name: &str, current: u64, incarnation: &AtomicU64) {
    let Some(jobs) = take(caller, name, current) else { return lose(incarnation, current) };
    for job in &jobs {
        println!("@ took {} {}", job["id"].as_str().unwrap(), job["token"]);
    }
    for job in &jobs {
        // The work itself: some of it is being done at any time.
        thread::sleep(Duration::from_millis(now_ms() % 10));
        complete(caller, job["id"].as_str().unwrap(), job["token"].as_u64().unwrap(), current);
    }
}

/// Takes jobs, and repeats that with the same key until there is a clear answer: a daemon may be killed when the jobs are
/// this worker's already, and no other process would know. `None` if the worker is lost.
fn take(caller: &mut Caller, name: &str, incarnation: u64) -> Option<Vec<Value>> {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    let key = format!("{name}-{incarnation}-{}", TAKEN.fetch_add(1, Ordering::SeqCst));
    let body = json!({ "owner": name, "incarnation": incarnation, "queue": QUEUE, "limit": 3, "wait_ms": 200 });
    loop {
        match caller.post_once("inflight/jobs/take", &body, &key) {
            Told::Fine(answer) => return answer["jobs"].as_array().cloned(),
            Told::Refused(409) => return None,
            told => drop(told),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Repeats the completion until there is a clear answer. A repetition of one that was carried out is refused.
fn complete(caller: &mut Caller, id: &str, token: u64, incarnation: u64) {
    println!("@ completing {id} {token}");
    let body = json!({ "id": id, "token": token, "incarnation": incarnation });
    loop {
        match caller.post("inflight/jobs/complete", &body) {
            Told::Fine(_) => return println!("@ done {id} {token}"),
            Told::Refused(..) => return println!("@ refused {id} {token}"),
            Told::Unknown => thread::sleep(Duration::from_millis(20)),
        }
    }
}
