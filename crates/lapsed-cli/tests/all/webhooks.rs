//! Webhooks: every receipt is delivered at least once and signed, despite refusals, hanging
//! receivers, a killed daemon and two daemons at once; what is never accepted becomes a dead
//! letter.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use lapsed_testbed::{Engine, RedisServer, paths};
use serde_json::{Value, json};

use crate::support::receiver::{OK, ReceivedRequest, Receiver, SERVER_ERROR};
use crate::support::{CALM, Daemon, Home, until};

lapsed_testbed::steady_tests! {
    deliveries_are_signed_and_the_documented_examples_verify_them,
    an_undeliverable_event_is_a_dead_letter_until_it_is_put_back,
    a_daemon_killed_during_a_delivery_loses_no_event,
    a_hanging_receiver_delays_no_other_receiver,
    only_selected_events_are_sent_and_dry_runs_send_none,
    two_daemons_deliver_each_event_once,
    a_stopping_daemon_leaves_undelivered_events_for_the_next,
}

const SECRET: &str = "a-secret-of-the-tests";

/// A registry `devices` with these webhooks.
fn home(webhooks: &str) -> Home {
    let home = Home::new("1m", CALM);
    append(&home, webhooks);
    home
}

fn append(home: &Home, webhooks: &str) {
    let text = std::fs::read_to_string(home.config()).unwrap();
    std::fs::write(home.config(), format!("{text}\n{webhooks}")).unwrap();
}

fn webhook(name: &str, receiver: &Receiver, lines: &str) -> String {
    format!(
        "[[webhook]]\nname = \"{name}\"\nurl = \"http://127.0.0.1:{}/hook/s3cret\"\nsecret = \"{SECRET}\"\n\
         backoff = \"10ms\"\nbackoff_max = \"100ms\"\n{lines}\n",
        receiver.port
    )
}

/// Retires an owner with `count` keys, which writes `count` receipts.
fn reclaim(daemon: &Daemon, owner: &str, count: usize) {
    let keys: Vec<String> = (0..count).map(|n| format!("{owner}-{n}")).collect();
    daemon.registry("register_many", json!({ "owner": owner, "keys": keys }));
    let retired = daemon.registry("retire", json!({ "owner": owner })).body;
    assert_eq!(retired["reclaimed"], count, "{retired}");
}

/// The ids of the receipts in a delivery.
fn ids(request: &ReceivedRequest) -> Vec<String> {
    let id = |event: &Value| {
        assert_eq!(event["event"], "receipt");
        event["data"]["id"].as_str().unwrap().to_owned()
    };
    request.body["events"].as_array().unwrap().iter().map(id).collect()
}

/// Waits until the webhook has started: a new webhook gets only receipts from then on.
fn until_begun(daemon: &Daemon) {
    until("the webhooks to begin", || {
        let all = daemon.get("/v1/webhooks").body;
        let begun = |hook: &Value| {
            hook["systems"].as_array().unwrap().iter().all(|route| route["mark"].is_u64())
        };
        all["webhooks"].as_array().unwrap().iter().all(begun).then_some(())
    });
}

fn until_marked(daemon: &Daemon, mark: u64) {
    until("the mark to move", || {
        let all = daemon.get("/v1/webhooks").body;
        (all["webhooks"][0]["systems"][0]["mark"] == mark).then_some(())
    });
}

/// The example of that name in the documentation.
fn example(first_line: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/events.md");
    let text = std::fs::read_to_string(page).unwrap();
    let start = text.find(first_line).unwrap_or_else(|| panic!("no example {first_line:?}"));
    let (code, _) = text[start..].split_once("\n```").unwrap();
    code.to_owned()
}

/// Whether a program accepts a delivery.
fn accepts(program: &Path, file: &Path, secret: &str, signature: &str, body: &[u8]) -> bool {
    let mut command = Command::new(program);
    command.arg(file).args([secret, signature]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(body).unwrap();
    child.wait().unwrap().success()
}

fn deliveries_are_signed_and_the_documented_examples_verify_them() {
    let receiver = Receiver::open();
    let home = home(&webhook("pager", &receiver, "batch = 2"));
    let daemon = home.serve();
    until_begun(&daemon);
    reclaim(&daemon, "a", 3);
    let first = receiver.next();
    assert_eq!(first.path, "/hook/s3cret");
    assert_eq!(first.body["webhook"], "pager");
    assert_eq!(first.body["delivery"], first.headers["lapsed-delivery"]);
    assert_eq!(first.key, first.headers["lapsed-delivery"]);
    assert_eq!(ids(&first)[0], "registry-devices-1");

    for (program, name, first_line) in [
        (paths::python().unwrap(), "verify.py", "# verify.py"),
        (paths::node().unwrap(), "verify.js", "// verify.js"),
    ] {
        let program = program.as_path();
        let file = home.dir.path().join(name);
        std::fs::write(&file, example(first_line)).unwrap();
        let signature = &first.headers["lapsed-signature"];
        assert!(accepts(program, &file, SECRET, signature, &first.bytes), "{name}: {signature}");
        let mut other = first.bytes.clone();
        other[0] ^= 1;
        assert!(!accepts(program, &file, SECRET, signature, &other), "{name}: another body");
        assert!(!accepts(program, &file, "another-secret", signature, &first.bytes), "{name}");
        let old = signature.replacen("t=1", "t=0", 1);
        assert!(!accepts(program, &file, SECRET, &old, &first.bytes), "{name}: another time");
    }

    first.answer.send(SERVER_ERROR).unwrap();
    let again = receiver.next();
    assert_eq!((&again.key, &again.bytes), (&first.key, &first.bytes), "the same, tried again");
    assert_eq!(again.headers["lapsed-attempt"], "2");
    let mut seen = ids(&again);
    again.answer.send(OK).unwrap();
    while seen.len() < 3 {
        let next = receiver.next();
        seen.extend(ids(&next));
        next.answer.send(OK).unwrap();
    }
    assert_eq!(seen, ["registry-devices-1", "registry-devices-2", "registry-devices-3"]);
    until_marked(&daemon, 3);
    let metrics = daemon.get("/metrics").text;
    let failed = "lapsed_webhook_deliveries_total{webhook=\"pager\",outcome=\"failed\"} 1";
    assert!(metrics.contains(failed), "{metrics}");
    assert!(metrics.contains("lapsed_webhook_lag_seconds{webhook=\"pager\",system=\"devices\""));
    for secret in ["s3cret", SECRET] {
        assert!(!daemon.log().contains(secret), "{}", daemon.log());
    }
}

fn an_undeliverable_event_is_a_dead_letter_until_it_is_put_back() {
    let receiver = Receiver::open();
    let home = home(&webhook("pager", &receiver, "attempts = 2"));
    let daemon = home.serve();
    until_begun(&daemon);
    reclaim(&daemon, "a", 2);
    // However the two come: all in one, or one by one.
    let mut letters = Vec::new();
    while letters.iter().map(|letter: &Value| letter["looked_at"].as_u64().unwrap()).sum::<u64>()
        < 2
    {
        for _ in 0..2 {
            receiver.next().answer.send(SERVER_ERROR).unwrap();
        }
        let before = letters.len();
        letters = until("a dead letter", || {
            let dead =
                daemon.get("/v1/webhooks/pager/dead").body["dead"].as_array().unwrap().clone();
            (dead.len() > before).then_some(dead)
        });
    }
    assert_eq!(letters[0]["attempts"], 2);
    assert_eq!(letters[0]["why"], "it answers 500");
    until_marked(&daemon, 2);

    // It delays no other delivery: what comes after is delivered.
    reclaim(&daemon, "b", 1);
    let next = receiver.next();
    assert_eq!(ids(&next), ["registry-devices-3"]);
    next.answer.send(OK).unwrap();

    let listed = daemon.run(&["webhook", "dead", "pager", "--json"]).lines();
    assert_eq!(listed.len(), letters.len());
    let id = listed[0]["id"].as_str().unwrap();
    let told = daemon.run(&["webhook", "put-back", "pager", id]);
    assert_eq!(told.code, 0, "{told:?}");
    let audit = daemon.get("/v1/audit").body.to_string();
    assert!(audit.contains("webhook put_back") && audit.contains(id), "{audit}");
    let again = receiver.next();
    assert_eq!(ids(&again).len() as u64, listed[0]["looked_at"].as_u64().unwrap());
    again.answer.send(OK).unwrap();
    until("it to be settled", || {
        let dead = daemon.get("/v1/webhooks/pager/dead").body["dead"].as_array().unwrap().len();
        (dead == letters.len() - 1).then_some(())
    });
    for letter in &listed[1..] {
        let id = letter["id"].as_str().unwrap();
        assert_eq!(daemon.run(&["webhook", "delete", "pager", id]).code, 0);
    }
    let told = daemon.run(&["webhook", "dead", "pager"]);
    assert!(told.out.contains("There are no dead letters"), "{told:?}");
    let gone = json!({ "id": id });
    daemon.post("/v1/webhooks/pager/dead/delete", gone).is_problem(404, "not_found");
    daemon.get("/v1/webhooks/other/dead").is_problem(404, "not_found");
    let told = daemon.run(&["webhook", "list"]);
    assert!(told.out.contains("pager") && !told.out.contains("s3cret"), "{told:?}");
}

fn a_daemon_killed_during_a_delivery_loses_no_event() {
    let receiver = Receiver::open();
    let home = home(&webhook("pager", &receiver, "batch = 1\ntimeout = \"500ms\""));
    let mut daemon = home.serve();
    until_begun(&daemon);
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for round in 0..2 {
        reclaim(&daemon, &format!("owner-{round}"), 2);
        let request = receiver.next();
        ids(&request).into_iter().for_each(|id| *seen.entry(id).or_default() += 1);
        // Every other time it has said that it has it, and the daemon may not have heard.
        if round % 2 == 0 {
            request.answer.send(OK).unwrap();
        }
        daemon.kill();
        daemon = home.serve();
    }
    until("every receipt to be delivered", || {
        if let Ok(request) = receiver.knocks.try_recv() {
            ids(&request).into_iter().for_each(|id| *seen.entry(id).or_default() += 1);
            let _ = request.answer.send(OK);
        }
        (seen.len() == 4).then_some(())
    });
    let wanted: Vec<String> = (1..=4).map(|seq| format!("registry-devices-{seq}")).collect();
    assert_eq!(seen.into_keys().collect::<Vec<_>>(), wanted);
}

fn a_hanging_receiver_delays_no_other_receiver() {
    let (hangs, works) = (Receiver::open(), Receiver::open());
    let text = webhook("hangs", &hangs, "timeout = \"500ms\"\nattempts = 2")
        + &webhook("works", &works, "");
    let home = home(&text);
    let daemon = home.serve();
    until_begun(&daemon);
    reclaim(&daemon, "a", 1);
    let stuck = hangs.next();
    let next = works.next();
    assert_eq!(ids(&next), ids(&stuck));
    next.answer.send(OK).unwrap();
    let letter = until("the other to be given up", || {
        daemon.get("/v1/webhooks/hangs/dead").body["dead"].as_array().unwrap().first().cloned()
    });
    assert_eq!(letter["why"], "it does not answer in time");
    assert!(daemon.get("/v1/webhooks/works/dead").body["dead"].as_array().unwrap().is_empty());
}

fn only_selected_events_are_sent_and_dry_runs_send_none() {
    let receiver = Receiver::open();
    let home = home(&webhook("pager", &receiver, "events = [\"owner_dead\"]"));
    let daemon = home.serve();
    until_begun(&daemon);
    reclaim(&daemon, "a", 2);
    until_marked(&daemon, 2);
    assert!(receiver.knocks.try_recv().is_err(), "nobody died");
    let url = daemon.url.clone();
    let trying = std::thread::spawn(move || {
        crate::support::run(&["webhook", "test", "pager", "--url", &url])
    });
    let request = receiver.next();
    assert_eq!(request.body["events"][0]["event"], "test");
    request.answer.send(OK).unwrap();
    let told = trying.join().unwrap();
    assert!(told.code == 0 && told.out.contains("took the delivery pager-test-"), "{told:?}");
    let url = daemon.url.clone();
    let trying = std::thread::spawn(move || {
        crate::support::run(&["webhook", "test", "pager", "--url", &url])
    });
    receiver.next().answer.send(SERVER_ERROR).unwrap();
    let told = trying.join().unwrap();
    assert!(told.code == 1 && told.err.contains("it answers 500"), "{told:?}");
}

/// Both would: one has the turn.
fn two_daemons_deliver_each_event_once() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let receiver = Receiver::open();
    let homes: Vec<Home> = (0..2)
        .map(|_| {
            let home = Home { dir: tempfile::tempdir().unwrap() };
            let text = format!(
                "[server]\nlisten = \"127.0.0.1:0\"\n\n[store.main]\nurl = \"redis://127.0.0.1:{}/0\"\n\n\
                 [[system]]\nkind = \"registry\"\nname = \"devices\"\nmode = \"native\"\nsweep = {{ every = \"1d\" }}\n\n{}",
                server.port(),
                webhook("pager", &receiver, "")
            );
            std::fs::write(home.config(), text).unwrap();
            home
        })
        .collect();
    let daemons: Vec<Daemon> = homes.iter().map(Home::serve).collect();
    until_begun(&daemons[0]);
    let mut seen = Vec::new();
    for round in 0..10 {
        reclaim(&daemons[round % 2], &format!("owner-{round}"), 3);
        while seen.len() < 3 * (round + 1) {
            let request = receiver.next();
            seen.extend(ids(&request));
            request.answer.send(OK).unwrap();
        }
    }
    let mut once = seen.clone();
    once.sort();
    once.dedup();
    assert_eq!((seen.len(), once.len()), (30, 30), "{seen:?}");
    for daemon in daemons {
        assert_eq!(daemon.stop(), Some(0));
    }
}

fn a_stopping_daemon_leaves_undelivered_events_for_the_next() {
    let receiver = Receiver::open();
    let home = home(&webhook("pager", &receiver, "").replace("\"10ms\"", "\"5m\""));
    let daemon = home.serve();
    until_begun(&daemon);
    reclaim(&daemon, "a", 1);
    receiver.next().answer.send(SERVER_ERROR).unwrap();
    until("it to be noted", || daemon.log().contains("not delivered").then_some(()));
    assert_eq!(daemon.stop(), Some(0), "a pause of five minutes does not keep it");
    let daemon = home.serve();
    let request = receiver.next();
    assert_eq!(ids(&request), ["registry-devices-1"]);
    request.answer.send(OK).unwrap();
    until_marked(&daemon, 1);
}
