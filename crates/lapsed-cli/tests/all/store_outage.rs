//! One of two stores is away: the daemon stays ready, answers for the systems of the other store,
//! names what is missing, and logs the outage once. The stores are a folder and a real Redis.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use crate::support::{CALM, Daemon, Home, agent, until};
use lapsed_testbed::{Engine, Persistence, RedisServer, ServerOptions};
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    a_daemon_is_ready_while_one_store_answers,
    a_daemon_without_any_store_is_not_ready,
    a_store_that_hangs_does_not_delay_readiness,
    receipts_and_audit_answer_for_the_systems_whose_store_answers,
    a_follower_misses_nothing_of_a_store_that_was_away,
    a_follower_that_begins_during_an_outage_gets_what_comes_after,
    an_outage_is_logged_once_and_its_end_with_the_number_of_failures,
    a_wrong_password_is_logged_at_the_start_with_a_next_step,
}

/// A Redis that keeps its data over a restart.
fn redis() -> RedisServer {
    ServerOptions::new(Engine::Redis).persistence(Persistence::Aof).start().unwrap()
}

/// A registry `here` in a folder, and a registry `there` on Redis.
fn home(redis_url: &str) -> Home {
    let home = Home { dir: tempfile::tempdir().unwrap() };
    let data = home.data().display().to_string();
    let system = |name: &str, store: &str| {
        format!(
            "[[system]]\nkind = \"registry\"\nname = \"{name}\"\nstore = \"{store}\"\n\
             heartbeat_ttl = \"1m\"\n{CALM}\n\n"
        )
    };
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n\n[store.near]\nurl = \"embedded:{data}\"\n\n\
         [store.far]\nurl = \"{redis_url}\"\n\n{}{}",
        system("here", "near"),
        system("there", "far")
    );
    std::fs::write(home.config(), text).unwrap();
    home
}

/// Retires an owner with `count` keys, which writes `count` receipts.
#[track_caller]
fn reclaim(daemon: &Daemon, system: &str, owner: &str, count: usize) {
    let keys: Vec<String> = (0..count).map(|n| format!("{owner}-{n}")).collect();
    let held = json!({ "owner": owner, "keys": keys });
    let reply = daemon.post(&format!("/v1/registry/{system}/register_many"), held);
    assert_eq!(reply.status, 200, "{reply:?}");
    let retired = daemon.post(&format!("/v1/registry/{system}/retire"), json!({ "owner": owner }));
    assert_eq!(retired.body["reclaimed"], count, "{retired:?}");
}

fn answers_again(daemon: &Daemon) {
    until("the store to be back", || {
        let status = daemon.get("/v1/sweeps/registry/there").body;
        (status["census"].is_object() && status.get("error").is_none()).then_some(())
    });
}

fn a_daemon_is_ready_while_one_store_answers() {
    let server = redis();
    let home = home(&server.url());
    let daemon = home.serve();
    let both = daemon.get("/readyz");
    assert_eq!(both.status, 200, "{both:?}");
    assert_eq!(daemon.get("/readyz/registry/there").status, 200);

    server.kill().unwrap();
    until("the daemon to notice", || {
        (daemon.get("/readyz/registry/there").status == 503).then_some(())
    });
    let ready = daemon.get("/readyz");
    assert_eq!((ready.status, &ready.body["ready"]), (200, &json!(true)), "{ready:?}");
    let systems = json!([
        { "kind": "registry", "system": "here", "ready": true },
        { "kind": "registry", "system": "there", "ready": false },
    ]);
    assert_eq!(ready.body["systems"], systems);
    assert_eq!(daemon.get("/readyz/registry/here").body, systems[0]);
    let away = daemon.get("/readyz/registry/there");
    away.is_problem(503, "not_ready");
    daemon.get("/readyz/registry/nobody").is_problem(404, "not_found");
    daemon.get("/readyz/nothing/there").is_problem(404, "not_found");
    // Anybody may ask, so no answer says where the store is.
    for text in [&ready.text, &away.text] {
        assert!(!text.contains(&server.port().to_string()) && !text.contains("redis"), "{text}");
    }
    assert_eq!(daemon.run(&["healthcheck"]).code, 0);
    assert_eq!(daemon.run(&["healthcheck", "--system", "registry/here"]).code, 0);
    assert_eq!(daemon.run(&["healthcheck", "--system", "registry/there"]).code, 1);

    server.restart().unwrap();
    answers_again(&daemon);
    until("the system to be ready again", || {
        (daemon.get("/readyz").body["systems"][1]["ready"] == true).then_some(())
    });
}

fn a_daemon_without_any_store_is_not_ready() {
    let server = redis();
    let home = Home { dir: tempfile::tempdir().unwrap() };
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n\n[store.far]\nurl = \"{}\"\n\n\
         [[system]]\nkind = \"registry\"\nname = \"there\"\nstore = \"far\"\n{CALM}\n",
        server.url()
    );
    std::fs::write(home.config(), text).unwrap();
    server.kill().unwrap();
    let daemon = home.serve();
    let unready = daemon.get("/readyz");
    unready.is_problem(503, "not_ready");
    assert_eq!(unready.body["systems"][0]["ready"], false, "{unready:?}");
    assert!(!unready.text.contains(&server.port().to_string()), "{unready:?}");
    assert_eq!(daemon.run(&["healthcheck"]).code, 1);
    assert_eq!(daemon.get("/healthz").status, 200);
    server.restart().unwrap();
    until("the daemon to be ready", || (daemon.get("/readyz").status == 200).then_some(()));
}

/// A probe of a frozen server takes its whole limit of 2 s; a load balancer does not wait that long.
fn a_store_that_hangs_does_not_delay_readiness() {
    let server = redis();
    let home = home(&server.url());
    let daemon = home.serve();
    answers_again(&daemon);
    server.freeze().unwrap();
    let (asked, ready) = until("the frozen store to be noticed", || {
        let asked = Instant::now();
        let ready = daemon.get("/readyz");
        (ready.body["systems"][1]["ready"] == false).then_some((asked.elapsed(), ready))
    });
    server.thaw().unwrap();
    assert_eq!(ready.status, 200, "{ready:?}");
    assert!(asked < Duration::from_millis(1_900), "{asked:?}");
}

fn keys(receipts: &Value) -> Vec<&str> {
    receipts.as_array().unwrap().iter().map(|r| r["key"].as_str().unwrap()).collect()
}

fn receipts_and_audit_answer_for_the_systems_whose_store_answers() {
    let server = redis();
    let home = home(&server.url());
    let daemon = home.serve();
    answers_again(&daemon);
    reclaim(&daemon, "here", "a", 1);
    reclaim(&daemon, "there", "b", 1);
    for system in ["here", "there"] {
        assert_eq!(daemon.run(&["sweep", system]).code, 0);
    }
    let begun = daemon.get("/v1/receipts?after=registry/here:0,registry/there:0&limit=1");
    assert_eq!(begun.status, 200, "{begun:?}");
    let begun = begun.body["next"].as_str().unwrap().to_owned();

    server.kill().unwrap();
    let page = daemon.get("/v1/receipts");
    assert_eq!(page.status, 200, "{page:?}");
    assert_eq!(keys(&page.body["receipts"]), ["a-0"]);
    let missing = page.body["missing"].as_array().unwrap();
    assert_eq!(missing.len(), 1, "{page:?}");
    assert_eq!(missing[0]["system"], "registry/there");
    assert!(missing[0]["error"].as_str().unwrap().contains("unavailable"), "{page:?}");
    daemon.get("/v1/receipts?system=there").is_problem(503, "unavailable");

    let audit = daemon.get("/v1/audit");
    assert_eq!(audit.status, 200, "{audit:?}");
    let targets: Vec<&Value> =
        audit.body["entries"].as_array().unwrap().iter().map(|entry| &entry["target"]).collect();
    assert_eq!(targets, ["registry/here"]);
    assert_eq!(audit.body["missing"][0]["system"], "registry/there");
    for (command, shown) in [("receipts", "a-0"), ("audit", "registry/here")] {
        let told = daemon.run(&[command]);
        assert_eq!(told.code, 0, "{told:?}");
        assert!(told.out.contains(shown), "{told:?}");
        assert!(told.err.contains("missing: registry/there"), "{told:?}");
    }

    // A reader that continues from the cursor of the outage misses nothing.
    reclaim(&daemon, "here", "c", 2);
    let during = daemon.get(&format!("/v1/receipts?after={begun}"));
    let mut seen = keys(&begun_page(&daemon, &begun, &during.body)).len();
    let next = during.body["next"].as_str().unwrap().to_owned();
    server.restart().unwrap();
    answers_again(&daemon);
    reclaim(&daemon, "there", "d", 2);
    let after = daemon.get(&format!("/v1/receipts?after={next}"));
    assert!(after.body.get("missing").is_none(), "{after:?}");
    seen += after.body["receipts"].as_array().unwrap().len();
    let mut all = keys(&during.body["receipts"]);
    all.extend(keys(&after.body["receipts"]));
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), seen, "nothing twice");
    // The first page had one of the two receipts of before.
    assert_eq!(all.iter().filter(|key| **key != "a-0" && **key != "b-0").count(), 4, "{all:?}");
    assert_eq!(all.len(), 5, "{all:?}");
}

/// The receipts of a page that was read during the outage: those of the other system are missing.
fn begun_page(daemon: &Daemon, from: &str, page: &Value) -> Value {
    assert_eq!(page["missing"][0]["system"], "registry/there", "{page}");
    let place = |cursor: &str| {
        cursor.split(',').find(|place| place.starts_with("registry/there:")).map(str::to_owned)
    };
    assert_eq!(place(page["next"].as_str().unwrap()), place(from), "its place is kept");
    assert_eq!(daemon.get("/healthz").status, 200);
    page["receipts"].clone()
}

#[derive(Debug, Default)]
struct Event {
    name: String,
    id: String,
    data: Value,
}

/// A connection to `/v1/events`.
struct Feed {
    lines: Box<dyn Iterator<Item = std::io::Result<String>>>,
}

impl Feed {
    fn open(daemon: &Daemon, last: Option<&str>) -> Feed {
        let mut request = agent().get(format!("{}/v1/events", daemon.url));
        if let Some(id) = last {
            request = request.header("last-event-id", id);
        }
        let reply = request.call().unwrap();
        assert_eq!(reply.status(), 200);
        Feed { lines: Box::new(BufReader::new(reply.into_body().into_reader()).lines()) }
    }

    fn next(&mut self) -> Event {
        let mut event = Event::default();
        loop {
            let line = self.lines.next().expect("the stream goes on").unwrap();
            match line.split_once(": ") {
                Some(("event", name)) => event.name = name.to_owned(),
                Some(("id", id)) => event.id = id.to_owned(),
                Some(("data", data)) => event.data = serde_json::from_str(data).unwrap(),
                _ if line.is_empty() && !event.name.is_empty() => return event,
                _ => {}
            }
        }
    }

    /// The next event of that name; others are skipped, except receipts.
    #[track_caller]
    fn next_of(&mut self, name: &str) -> Event {
        loop {
            let event = self.next();
            if event.name == name {
                return event;
            }
            assert_ne!(event.name, "receipt", "instead of {name}: {event:?}");
        }
    }

    /// The keys of the next receipts, sorted, and the cursor after them.
    #[track_caller]
    fn receipts(&mut self, count: usize) -> (Vec<String>, String) {
        let events: Vec<Event> = (0..count).map(|_| self.next_of("receipt")).collect();
        let mut keys: Vec<String> =
            events.iter().map(|event| event.data["key"].as_str().unwrap().to_owned()).collect();
        keys.sort();
        (keys, events.last().unwrap().id.clone())
    }
}

fn a_follower_misses_nothing_of_a_store_that_was_away() {
    let server = redis();
    let home = home(&server.url());
    let daemon = home.serve();
    answers_again(&daemon);
    let mut feed = Feed::open(&daemon, None);
    reclaim(&daemon, "there", "a", 2);
    reclaim(&daemon, "here", "b", 1);
    assert_eq!(feed.receipts(3).0, ["a-0", "a-1", "b-0"]);

    server.kill().unwrap();
    let missing = feed.next_of("missing");
    assert_eq!(missing.data["missing"][0]["system"], "registry/there", "{missing:?}");
    assert_eq!(missing.id, "", "it moves no cursor");
    reclaim(&daemon, "here", "c", 1);
    let (keys, cursor) = feed.receipts(1);
    assert_eq!(keys, ["c-0"], "the other system goes on");

    // It loses its stream, and resumes while the store is still away.
    let mut resumed = Feed::open(&daemon, Some(&cursor));
    assert_eq!(resumed.next_of("missing").data["missing"][0]["system"], "registry/there");
    reclaim(&daemon, "here", "d", 1);
    assert_eq!(resumed.receipts(1).0, ["d-0"]);
    server.restart().unwrap();
    for feed in [&mut feed, &mut resumed] {
        until("everything to be back", || {
            let event = feed.next();
            let is_back = event.data["missing"].as_array().is_some_and(Vec::is_empty);
            (event.name == "missing" && is_back).then_some(())
        });
    }
    answers_again(&daemon);
    reclaim(&daemon, "there", "e", 2);
    assert_eq!(resumed.receipts(2).0, ["e-0", "e-1"]);
    // One that slept through all of it finds everything after its cursor, once.
    let mut late = Feed::open(&daemon, Some(&cursor));
    assert_eq!(late.receipts(3).0, ["d-0", "e-0", "e-1"]);
}

/// What was written before the stream began is not sent, and what another process writes after the
/// store is back is.
fn a_follower_that_begins_during_an_outage_gets_what_comes_after() {
    let server = redis();
    let home = home(&server.url());
    let daemon = home.serve();
    answers_again(&daemon);
    reclaim(&daemon, "there", "old", 3);
    let newest = daemon.get("/v1/receipts?system=there&limit=1").body["receipts"][0].clone();
    let newest = newest["id"].as_str().unwrap().rsplit('-').next().unwrap().to_owned();
    server.kill().unwrap();
    until("the outage", || daemon.get("/v1/sweeps/registry/there").body.get("error").map(drop));
    let mut feed = Feed::open(&daemon, None);
    let first = feed.next();
    assert_eq!(first.name, "cursor");
    assert_eq!(feed.next_of("missing").data["missing"][0]["system"], "registry/there");
    reclaim(&daemon, "here", "a", 1);
    assert_eq!(feed.receipts(1).0, ["a-0"]);
    server.restart().unwrap();
    let placed = feed.next_of("cursor");
    assert!(placed.id.ends_with(&format!("registry/there:{newest}")), "{placed:?}, not {newest}");
    answers_again(&daemon);
    reclaim(&daemon, "there", "new", 2);
    assert_eq!(feed.receipts(2).0, ["new-0", "new-1"]);
}

/// The lines of the log with this word for their level.
fn lines(daemon: &Daemon, level: &str) -> Vec<String> {
    let log = daemon.log();
    log.lines().filter(|line| line.contains(level)).map(str::to_owned).collect()
}

fn an_outage_is_logged_once_and_its_end_with_the_number_of_failures() {
    let server = redis();
    let home = home(&server.url());
    server.kill().unwrap();
    let daemon = home.serve();
    let said = until("a warning at the start", || lines(&daemon, " WARN ").pop());
    for words in ["far", "Connection refused", "Is the server running there?", "[store.far]"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    for _ in 0..60 {
        let beat = daemon.post("/v1/registry/there/beat", json!({ "owner": "a" }));
        beat.is_problem(503, "unavailable");
    }
    assert_eq!(daemon.post("/v1/registry/here/beat", json!({ "owner": "a" })).status, 200);
    assert_eq!(lines(&daemon, " WARN ").len(), 1, "{}", daemon.log());

    server.restart().unwrap();
    let back = until("the end of the outage", || {
        lines(&daemon, " INFO ").into_iter().find(|line| line.contains("the store answers again"))
    });
    let count = back.split("failed_calls=").nth(1).unwrap_or_default();
    let count: u64 = count.split_whitespace().next().unwrap().parse().unwrap();
    assert!((60..80).contains(&count), "{back}");
    assert!(back.contains("store=\"far\"") && back.contains("away="), "{back}");
    // One more kind of line is allowed: that everybody is spared, because the server was away.
    let mut warnings = lines(&daemon, " WARN ");
    warnings.retain(|line| !line.contains("every owner gets a whole threshold"));
    assert_eq!(warnings.len(), 1, "{}", daemon.log());
    let beat = daemon.post("/v1/registry/there/beat", json!({ "owner": "a" }));
    assert_eq!(beat.status, 200, "{beat:?}");
}

fn a_wrong_password_is_logged_at_the_start_with_a_next_step() {
    let server = ServerOptions::new(Engine::Redis).start().unwrap();
    server.command(&["CONFIG", "SET", "requirepass", "right-one"]).unwrap();
    let home = home(&server.url().replace("redis://", "redis://:not-this-one@"));
    let daemon = home.serve();
    let said = until("a warning at the start", || lines(&daemon, " WARN ").pop());
    for words in
        ["does not accept user and password", "Correct the password in `url` of [store.far]"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!daemon.log().contains("not-this-one"), "no password is logged");
    assert_eq!(daemon.get("/readyz").status, 200);
}
