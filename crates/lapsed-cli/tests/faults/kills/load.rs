//! The load: jobs, registrations, sessions, leases and heartbeats, each in a thread of its own, all the time. What is
//! answered goes into the ledger.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

use super::caller::{CallSpan, Caller, Told, now_ms};
use super::ledger::{GrantRecord, Ledger};
use super::worker::QUEUE;
use super::world::STALE_SECONDS;

/// The TTL of owners that live; those that die have a shorter one.
const LIVING_TTL_MS: u64 = 10_000;
const DYING_TTL_MS: u64 = 700;
const LEASE_TTL_MS: u64 = 3_000;

/// How many jobs are enqueued in one call.
const JOBS_A_CALL: u64 = 4;

/// Providers that beat all the time, and those that fall silent.
pub const STEADY: usize = 20;

pub struct Load {
    shared: Arc<LoadState>,
    threads: Vec<JoinHandle<()>>,
}

struct LoadState {
    urls: Vec<String>,
    ledger: Arc<Mutex<Ledger>>,
    next: AtomicU64,
    /// Nothing new is begun; those who live go on.
    calm: AtomicBool,
    over: AtomicBool,
}

/// Which parts of the load a world has stores for.
#[derive(Clone, Copy, Debug)]
pub struct LoadParts {
    pub jobs: bool,
    pub sessions: bool,
    pub leases: bool,
    pub providers: bool,
}

type Part = fn(&LoadState, &mut Caller);

impl Load {
    pub fn start(urls: &[String], ledger: &Arc<Mutex<Ledger>>, parts: LoadParts) -> Load {
        let shared = Arc::new(LoadState {
            urls: urls.to_vec(),
            ledger: ledger.clone(),
            next: AtomicU64::new(0),
            calm: AtomicBool::new(false),
            over: AtomicBool::new(false),
        });
        let of_jobs: &[Part] = &[LoadState::produce, LoadState::keep, LoadState::die];
        let chosen: [(bool, &[Part]); 4] = [
            (parts.jobs, of_jobs),
            (parts.sessions, &[LoadState::chat]),
            (parts.leases, &[LoadState::lease, LoadState::lease]),
            (parts.providers, &[LoadState::provide]),
        ];
        let parts =
            chosen.into_iter().filter(|(is_there, _)| *is_there).flat_map(|(_, parts)| parts);
        let threads = parts.enumerate().map(|(nth, part)| {
            let (shared, part) = (shared.clone(), *part);
            thread::spawn(move || part(&shared, &mut Caller::new(&shared.urls, nth)))
        });
        Load { threads: threads.collect(), shared: shared.clone() }
    }

    /// Starts nothing new until it is resumed; what runs continues.
    pub fn set_calm(&self, calm: bool) {
        self.shared.calm.store(calm, Ordering::SeqCst);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// A live owner of one system, which starts again when it gets `Lost`.
struct LivingOwner {
    path: &'static str,
    kind: &'static str,
    incarnation: u64,
}

impl LivingOwner {
    /// Beats, or starts; whether it is alive.
    fn live(&mut self, load: &LoadState, caller: &mut Caller) -> bool {
        let verb = if self.incarnation == 0 { "start" } else { "beat" };
        let body = match self.incarnation {
            0 => json!({ "owner": "keeper", "ttl_ms": LIVING_TTL_MS }),
            incarnation => json!({ "owner": "keeper", "incarnation": incarnation }),
        };
        let path = format!("{}/{verb}", self.path);
        match caller.timed("POST", &path, Some(&body), None) {
            (Told::Fine(answer), span) => {
                self.incarnation = answer["incarnation"].as_u64().unwrap();
                load.ledger().sign(self.kind, self.incarnation, LIVING_TTL_MS, span);
                true
            }
            (Told::Refused(409), _) => {
                self.incarnation = 0;
                let mut ledger = load.ledger();
                match self.kind {
                    "registry" => ledger.registered.clear(),
                    _ => ledger.connected.clear(),
                }
                false
            }
            (told, _) => {
                drop(told);
                false
            }
        }
    }
}

impl LoadState {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap()
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Waits while it is to be calm; then a number that was not used before, unless all is over.
    fn next(&self, rest: Duration) -> Option<u64> {
        thread::sleep(rest);
        while self.calm.load(Ordering::SeqCst) && !self.is_over() {
            thread::sleep(Duration::from_millis(10));
        }
        (!self.is_over()).then(|| self.next.fetch_add(1, Ordering::SeqCst))
    }

    /// Repeats a request until there is a clear answer; `None` if that is a no, or all is over.
    fn insist(&self, caller: &mut Caller, path: &str, body: &Value, key: &str) -> Option<Value> {
        while !self.is_over() {
            match caller.post_once(path, body, key) {
                Told::Fine(answer) => return Some(answer),
                Told::Refused(..) => return None,
                Told::Unknown => thread::sleep(Duration::from_millis(20)),
            }
        }
        None
    }

    fn produce(&self, caller: &mut Caller) {
        while let Some(n) = self.next(Duration::from_millis(40)) {
            let ids: Vec<String> = (0..JOBS_A_CALL).map(|nth| format!("job-{n}-{nth}")).collect();
            let job = |id: &String| json!({ "queue": QUEUE, "id": id, "payload": "x" });
            let body = json!({ "jobs": ids.iter().map(job).collect::<Vec<_>>() });
            self.ledger().tried += JOBS_A_CALL;
            let key = format!("enqueue-{n}");
            if self.insist(caller, "inflight/jobs/enqueue_many", &body, &key).is_some() {
                let mut ledger = self.ledger();
                ledger.entered += JOBS_A_CALL;
                ids.iter().for_each(|id| ledger.job(id).entered = true);
            }
        }
    }

    /// An owner of the registry that lives, and registers all the time.
    fn keep(&self, caller: &mut Caller) {
        let mut owner = LivingOwner { path: "registry/devices", kind: "registry", incarnation: 0 };
        while !self.is_over() {
            thread::sleep(Duration::from_millis(100));
            if !owner.live(self, caller) || self.calm.load(Ordering::SeqCst) {
                continue;
            }
            let n = self.next.fetch_add(1, Ordering::SeqCst);
            let keys: Vec<String> = (0..5).map(|nth| format!("kept-{n}-{nth}")).collect();
            let body = json!({ "owner": "keeper", "incarnation": owner.incarnation, "keys": keys });
            if let Told::Fine(_) = caller.post("registry/devices/register", &body) {
                let told = keys.into_iter().map(|key| (key, owner.incarnation));
                self.ledger().registered.extend(told);
            }
        }
    }

    /// Owners of the registry that register and are never heard of again.
    fn die(&self, caller: &mut Caller) {
        while let Some(n) = self.next(Duration::from_millis(300)) {
            let owner = format!("mortal-{n}");
            let body = json!({ "owner": owner, "ttl_ms": DYING_TTL_MS });
            let Told::Fine(_) = caller.post("registry/devices/start", &body) else { continue };
            let keys: Vec<String> = (0..3).map(|nth| format!("dying-{n}-{nth}")).collect();
            caller.post("registry/devices/register", &json!({ "owner": owner, "keys": keys }));
        }
    }

    /// Sessions: some stay connected, and some are left behind.
    fn chat(&self, caller: &mut Caller) {
        let mut owner = LivingOwner { path: "sessions/chat", kind: "sessions", incarnation: 0 };
        while !self.is_over() {
            thread::sleep(Duration::from_millis(100));
            if !owner.live(self, caller) || self.calm.load(Ordering::SeqCst) {
                continue;
            }
            let n = self.next.fetch_add(1, Ordering::SeqCst);
            let session = format!("session-{n}");
            let made = json!({ "session": session, "value": "v" });
            let Told::Fine(_) = caller.post("sessions/chat/activate", &made) else { continue };
            let one =
                json!({ "session": session, "owner": "keeper", "incarnation": owner.incarnation });
            let connected =
                caller.post_once("sessions/chat/connect", &one, &format!("connect-{n}"));
            if n.is_multiple_of(2) {
                // What is left behind is deleted after its grace.
                caller.post_once("sessions/chat/disconnect", &one, &format!("disconnect-{n}"));
            } else if let Told::Fine(_) = connected {
                self.ledger().connected.insert(session, owner.incarnation);
            }
        }
    }

    /// Holders of a few keys: they renew, and then release or are never heard of again.
    fn lease(&self, caller: &mut Caller) {
        while let Some(n) = self.next(Duration::from_millis(50)) {
            let key = format!("lock-{}", n % 3);
            let body = json!({ "key": key, "owner": format!("holder-{n}"), "ttl_ms": LEASE_TTL_MS,
                "request": format!("r-{n}") });
            let (told, span) = caller.timed("POST", "leases/locks/acquire", Some(&body), None);
            let Told::Fine(lease) = told else { continue };
            let token = lease["token"].as_u64().unwrap();
            self.hold(&key, token, span);
            let ticket = json!({ "key": key, "token": token, "ttl_ms": LEASE_TTL_MS });
            thread::sleep(Duration::from_millis(n % 200));
            let (told, span) = caller.timed("POST", "leases/locks/renew", Some(&ticket), None);
            if let Told::Fine(_) = told {
                self.hold(&key, token, span);
            }
            if n % 4 != 0 {
                self.grant(&mut self.ledger(), &key, token).released_ms = Some(now_ms());
                let ticket = json!({ "key": key, "token": token });
                caller.post("leases/locks/release", &ticket);
            }
        }
    }

    fn hold(&self, key: &str, token: u64, span: CallSpan) {
        self.grant(&mut self.ledger(), key, token).held.push(span);
    }

    fn grant<'a>(&self, ledger: &'a mut Ledger, key: &str, token: u64) -> &'a mut GrantRecord {
        let grant = ledger.grants.entry(key.to_owned()).or_default().entry(token).or_default();
        grant.ttl_ms = LEASE_TTL_MS;
        grant
    }

    /// Providers that beat all the time, and others that are set online and fall silent.
    fn provide(&self, caller: &mut Caller) {
        let id = |nth: usize| format!("00000000-0000-4000-8000-{nth:012}");
        let steady: Vec<String> = (0..STEADY).map(id).collect();
        let mortal: Vec<String> = (STEADY..STEADY + 5).map(id).collect();
        for one in steady.iter().chain(&mortal) {
            while !self.is_over() && !self.provider(caller, "PUT", one, "") {}
            while !self.is_over() && !self.provider(caller, "POST", one, "/online") {}
        }
        while !self.is_over() {
            thread::sleep(Duration::from_millis(250));
            let body = json!({ "providers": steady });
            let path = "availability/mitras/heartbeats";
            let (told, span) = caller.timed("POST", path, Some(&body), None);
            let Told::Fine(answer) = told else { continue };
            for (one, result) in steady.iter().zip(answer["results"].as_array().unwrap()) {
                match result["outcome"].as_str() {
                    Some("noted") => {
                        self.ledger().provider_sign(one, STALE_SECONDS * 1_000, span);
                    }
                    _ => drop(self.provider(caller, "POST", one, "/online")),
                }
            }
            let n = self.next.fetch_add(1, Ordering::SeqCst);
            if n.is_multiple_of(16) && !self.calm.load(Ordering::SeqCst) {
                self.provider(caller, "POST", &mortal[n as usize / 16 % mortal.len()], "/online");
            }
        }
    }

    fn provider(&self, caller: &mut Caller, method: &str, id: &str, verb: &str) -> bool {
        let path = format!("availability/mitras/providers/{id}{verb}");
        matches!(caller.timed(method, &path, Some(&json!({})), None).0, Told::Fine(_))
    }
}
