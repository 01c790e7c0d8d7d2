//! Takes the account after each fault, and settles it from time to time: then nothing may be left open.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::account::{Complaint, check_counts, check_grants, check_job, check_receipts};
use super::caller::{Caller, PATIENCE};
use super::ledger::JobRecord;
use super::load::{Load, LoadParts, STEADY};
use super::world::Fleet;

/// How many open jobs, and how many keys, one account looks at; a settlement looks at all.
const JOBS_A_TAKE: usize = 100;
const KEYS_A_TAKE: usize = 300;

/// How long a worker's word may be on its way to the ledger.
const WORD_LIMIT: Duration = Duration::from_secs(5);

pub struct Campaign {
    caller: Caller,
    parts: LoadParts,
    cursor: String,
    receipts: u64,
    accounts: u64,
    settled: u64,
    /// Complaints that the loss of writes explains, where such a loss is documented.
    pub losses: Option<Vec<Complaint>>,
}

impl Campaign {
    pub fn new(fleet: &Fleet, parts: LoadParts) -> Campaign {
        Campaign {
            caller: Caller::new(&fleet.urls, 0),
            parts,
            cursor: String::new(),
            receipts: 0,
            accounts: 0,
            settled: 0,
            losses: None,
        }
    }

    /// The account while the load runs.
    pub fn take(&mut self, fleet: &Fleet, after: &str) {
        self.accounts += 1;
        let mut found = self.new_receipts(fleet);
        if self.parts.jobs {
            found.extend(self.open_jobs(fleet, JOBS_A_TAKE));
            let counts = self.caller.look("inflight/jobs/counts", None).unwrap();
            // Both are read while jobs are enqueued: only the balance can be compared.
            found.extend(check_counts(&counts, &fleet.ledger.lock().unwrap(), false));
            found.extend(self.registrations(fleet, KEYS_A_TAKE));
        }
        if self.parts.sessions {
            found.extend(self.sessions(fleet, JOBS_A_TAKE));
        }
        let ledger = fleet.ledger.lock().unwrap();
        found.extend(ledger.grants.iter().filter_map(|(key, grants)| check_grants(key, grants)));
        drop(ledger);
        self.judge(fleet, after, found);
    }

    /// The account when nothing new has begun for long enough: nothing may be open.
    pub fn settle(&mut self, fleet: &Fleet, load: &Load, after: &str) {
        load.set_calm(true);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = self.left_open();
            if left.is_empty() {
                break;
            }
            if Instant::now() >= deadline {
                self.judge(fleet, after, vec![Complaint::Unsettled(left.join(", "))]);
            }
            thread::sleep(Duration::from_millis(200));
        }
        let mut found = self.new_receipts(fleet);
        if self.parts.jobs {
            found.extend(self.open_jobs(fleet, usize::MAX));
            let counts = self.caller.look("inflight/jobs/counts", None).unwrap();
            let is_whole = self.losses.is_none();
            found.extend(check_counts(&counts, &fleet.ledger.lock().unwrap(), is_whole));
            found.extend(self.registrations(fleet, usize::MAX));
        }
        if self.parts.sessions {
            found.extend(self.sessions(fleet, usize::MAX));
        }
        if self.parts.providers {
            found.extend(self.providers(fleet));
        }
        self.judge(fleet, after, found);
        self.forget(fleet);
        load.set_calm(false);
    }

    /// What must come to an end by itself.
    fn left_open(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        if self.parts.jobs {
            let counts = self.caller.look("inflight/jobs/counts", None).unwrap();
            if counts["queued"] != 0 || counts["in_flight"] != 0 {
                left.push(counts.to_string());
            }
            let status = self.caller.look("sweeps/registry/devices", None).unwrap();
            let census = &status["census"];
            if census["suspects"] != 0
                || census["owners_overdue"] != 0
                || census["owners_live"] != 1
            {
                left.push(format!("registry {census}"));
            }
        }
        if self.parts.sessions {
            let count = self.caller.look("sessions/chat/disconnected_count", None).unwrap();
            if count["disconnected_count"] != 0 {
                left.push(format!("sessions {count}"));
            }
        }
        if self.parts.providers {
            let online = self.caller.look("availability/mitras/online/count", None).unwrap();
            if online["count"] != STEADY {
                left.push(format!("online {online}"));
            }
        }
        left
    }

    fn new_receipts(&mut self, fleet: &Fleet) -> Vec<Complaint> {
        let mut found = Vec::new();
        loop {
            let from = if self.cursor.is_empty() { self.beginning() } else { self.cursor.clone() };
            let page =
                self.caller.look(&format!("receipts?limit=1000&after={from}"), None).unwrap();
            let receipts = page["receipts"].as_array().unwrap();
            self.receipts += receipts.len() as u64;
            found.extend(check_receipts(receipts, &mut fleet.ledger.lock().unwrap()));
            match page["next"].as_str() {
                Some(next) => self.cursor = next.to_owned(),
                None => {
                    self.cursor = after(&from, receipts);
                    return found;
                }
            }
        }
    }

    /// The cursor before the first receipt of every system.
    fn beginning(&self) -> String {
        let systems = [
            (self.parts.jobs, "inflight/jobs"),
            (self.parts.jobs, "registry/devices"),
            (self.parts.sessions, "sessions/chat"),
            (self.parts.providers, "availability/mitras"),
            (self.parts.leases, "leases/locks"),
        ];
        let there = systems.iter().filter(|(is_there, _)| *is_there);
        there.map(|(_, name)| format!("{name}:0")).collect::<Vec<_>>().join(",")
    }

    /// Jobs that were not known to be settled, the oldest first.
    fn open_jobs(&mut self, fleet: &Fleet, limit: usize) -> Vec<Complaint> {
        let ledger = fleet.ledger.lock().unwrap();
        let ids: Vec<String> = ledger
            .jobs
            .iter()
            .filter(|(_, job)| job.entered)
            .map(|(id, _)| id.clone())
            .take(limit)
            .collect();
        drop(ledger);
        let mut found = Vec::new();
        for id in ids {
            let place = self.caller.look(&format!("inflight/jobs/jobs/{id}"), None);
            let state = place.as_ref().and_then(|job| job["state"].as_str().map(str::to_owned));
            let deadline = Instant::now() + WORD_LIMIT;
            // A worker says what it is about to do before it does it, but the word may still be on its way.
            while let Some(job) = self.job(fleet, &id) {
                let complaint = check_job(&id, &job, state.as_deref());
                let Some(complaint) = complaint else {
                    if state.is_none() || state.as_deref() == Some("dead") {
                        fleet.ledger.lock().unwrap().jobs.remove(&id);
                        self.settled += 1;
                    }
                    break;
                };
                // It was looked at before its completion was acknowledged.
                let is_stale = matches!(complaint, Complaint::JobRunAfterCompletion(_))
                    && self.caller.look(&format!("inflight/jobs/jobs/{id}"), None).is_none();
                if is_stale {
                    break;
                }
                if Instant::now() >= deadline {
                    found.push(complaint);
                    fleet.ledger.lock().unwrap().jobs.remove(&id);
                    break;
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
        found
    }

    fn job(&self, fleet: &Fleet, id: &str) -> Option<JobRecord> {
        fleet.ledger.lock().unwrap().jobs.get(id).cloned()
    }

    /// The newest keys that the live owner holds by the answers it got.
    fn registrations(&mut self, fleet: &Fleet, limit: usize) -> Vec<Complaint> {
        let ledger = fleet.ledger.lock().unwrap();
        let told: Vec<(String, u64)> =
            ledger.registered.iter().rev().take(limit).map(|(key, n)| (key.clone(), *n)).collect();
        drop(ledger);
        let mut found = Vec::new();
        for some in told.chunks(1_000) {
            let keys: Vec<&String> = some.iter().map(|(key, _)| key).collect();
            let body = json!({ "keys": keys });
            let answer = self.caller.look("registry/devices/lookup_many", Some(&body)).unwrap();
            for ((key, incarnation), entry) in
                some.iter().zip(answer["results"].as_array().unwrap())
            {
                let is_lost = entry["incarnation"].as_u64() != Some(*incarnation);
                let is_still_told =
                    || fleet.ledger.lock().unwrap().registered.get(key) == Some(incarnation);
                if is_lost && is_still_told() {
                    found.push(Complaint::RegistrationLost(format!(
                        "{key} of {incarnation}: {entry}"
                    )));
                    fleet.ledger.lock().unwrap().registered.remove(key);
                }
            }
        }
        found
    }

    fn sessions(&mut self, fleet: &Fleet, limit: usize) -> Vec<Complaint> {
        let ledger = fleet.ledger.lock().unwrap();
        let told: Vec<(String, u64)> =
            ledger.connected.iter().rev().take(limit).map(|(id, n)| (id.clone(), *n)).collect();
        drop(ledger);
        let mut found = Vec::new();
        for some in told.chunks(500) {
            let ids: Vec<&String> = some.iter().map(|(id, _)| id).collect();
            let answer = self
                .caller
                .look("sessions/chat/get_many", Some(&json!({ "sessions": ids })))
                .unwrap();
            for ((id, owner), session) in some.iter().zip(answer["results"].as_array().unwrap()) {
                let is_there = session["references"].as_u64().unwrap_or(0) > 0;
                let is_still_told =
                    || fleet.ledger.lock().unwrap().connected.get(id) == Some(owner);
                if !is_there && is_still_told() {
                    found.push(Complaint::SessionLost(format!("{id}: {session}")));
                    fleet.ledger.lock().unwrap().connected.remove(id);
                }
            }
        }
        found
    }

    /// Both stores must agree on every provider.
    fn providers(&mut self, fleet: &Fleet) -> Vec<Complaint> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = fleet.run(&["reconcile", "mitras", "--dry-run", "--json"]);
            if said.code == 0 && said.json()["agree"] == true {
                return Vec::new();
            }
            if Instant::now() >= deadline {
                return vec![Complaint::Unsettled(format!("{said:?}"))];
            }
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// After a settlement only the newest of what stays for ever is looked at again.
    fn forget(&self, fleet: &Fleet) {
        let mut ledger = fleet.ledger.lock().unwrap();
        for grants in ledger.grants.values_mut() {
            while grants.len() > 2 {
                grants.pop_first();
            }
        }
        while ledger.registered.len() > 5_000 {
            ledger.registered.pop_first();
        }
        while ledger.connected.len() > 1_000 {
            ledger.connected.pop_first();
        }
    }

    fn judge(&mut self, fleet: &Fleet, after: &str, mut found: Vec<Complaint>) {
        if let Some(losses) = &mut self.losses {
            let lost = found.extract_if(.., |complaint| complaint.is_documented_loss());
            losses.extend(lost);
        }
        if !found.is_empty() {
            let shown: Vec<String> =
                found.iter().take(10).map(|one| format!("  {one:?}")).collect();
            let (count, logs) = (found.len(), fleet.logs());
            panic!("after {after}: {count} complaints\n{}\n{logs}", shown.join("\n"));
        }
    }

    /// One line about what was reached.
    pub fn summary(&self, fleet: &Fleet) -> String {
        let ledger = fleet.ledger.lock().unwrap();
        let leases: u64 =
            ledger.grants.values().filter_map(|g| g.last_key_value()).map(|(t, _)| *t).sum();
        format!(
            "{} accounts, {} jobs enqueued, {} completed, {} completions refused, {} settled, {} receipts, {} leases granted",
            self.accounts,
            ledger.entered,
            ledger.completed,
            ledger.refused,
            self.settled,
            self.receipts,
            leases
        )
    }
}

/// The cursor after these receipts: that of the page before, further in the systems that they are of.
fn after(from: &str, receipts: &[Value]) -> String {
    let mut places: Vec<(String, u64)> = from
        .split(',')
        .filter_map(|place| place.rsplit_once(':'))
        .map(|(name, number)| (name.to_owned(), number.parse().unwrap()))
        .collect();
    for receipt in receipts {
        let id = receipt["id"].as_str().unwrap();
        let (system, number) = id.rsplit_once('-').unwrap();
        let name = system.replacen('-', "/", 1);
        let number: u64 = number.parse().unwrap();
        if let Some(place) = places.iter_mut().find(|(known, _)| *known == name) {
            place.1 = place.1.max(number);
        }
    }
    places.iter().map(|(name, number)| format!("{name}:{number}")).collect::<Vec<_>>().join(",")
}
