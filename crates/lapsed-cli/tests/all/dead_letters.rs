//! Dead letters by HTTP and by the commands; what becomes of a job when its worker dies.

use crate::support::{CALM, Daemon, Home, until};
use serde_json::json;

lapsed_testbed::steady_tests! {
    dead_letters_are_listed_shown_put_back_and_deleted,
    other_systems_have_no_dead_letters,
    trap_e7_a_job_that_kills_its_workers_becomes_a_dead_letter,
    restore_brings_a_dropped_job_back,
}

/// A job that is a dead letter, because its worker said so.
fn bury(daemon: &Daemon, id: &str, error: &str) {
    daemon.jobs("enqueue", json!({ "queue": "mails", "id": id, "payload": "{\"n\": 1}" }));
    let taken = daemon.jobs("take", json!({ "owner": "w", "queue": "mails" }));
    assert_eq!(taken["jobs"][0]["id"], *id, "{taken}");
    let token = &taken["jobs"][0]["token"];
    daemon.jobs("fail", json!({ "id": id, "token": token, "error": error }));
}

fn dead_letters_are_listed_shown_put_back_and_deleted() {
    let home = Home::inflight("10m", CALM);
    let daemon = home.serve();
    assert_eq!(daemon.run(&["dead", "list"]).out, "There are no dead letters.\n");
    for id in ["a", "b", "put_back", "sp ace/ü"] {
        bury(&daemon, id, "no such host\nat line 1");
    }
    let list = daemon.run(&["dead", "list", "jobs"]).out;
    for word in ["SYSTEM", "inflight/jobs", "sp ace/ü", "mails", "failed", "no such host"] {
        assert!(list.contains(word), "{word}: {list}");
    }
    let lines = daemon.run(&["dead", "list", "--json"]).lines();
    assert_eq!(lines.len(), 4);
    assert_eq!((&lines[0]["id"], &lines[0]["system"]), (&json!("a"), &json!("jobs")));
    assert_eq!(daemon.run(&["dead", "list", "-n", "3", "--json"]).lines().len(), 3);

    let shown = daemon.run(&["dead", "show", "inflight/jobs", "a"]).out;
    for word in ["a of inflight/jobs", "{\"n\": 1}", "at line 1", "lapsed dead put-back"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    for id in ["put_back", "sp ace/ü"] {
        let shown = daemon.run(&["dead", "show", id, "--json"]).json();
        assert_eq!((&shown["id"], &shown["why"]), (&json!(id), &json!("failed")), "{shown}");
    }
    assert_eq!(daemon.get("/v1/inflight/jobs/dead/a").body["payload"], "{\"n\": 1}");

    let back = daemon.run(&["dead", "put-back", "jobs", "a"]);
    assert_eq!(
        (back.code, back.out.as_str()),
        (0, "a is back on its queue, its crashes forgotten\n")
    );
    assert_eq!(daemon.job("a")["state"], "queued");
    let again = daemon.run(&["dead", "put-back", "jobs", "a"]);
    assert_eq!(again.code, 1, "{again:?}");
    assert!(again.err.contains("has no dead letter `a`"), "{again:?}");
    assert_eq!(daemon.run(&["dead", "show", "a"]).code, 1);
    let gone = daemon.run(&["dead", "delete", "b", "--json"]).json();
    assert_eq!((&gone["id"], &gone["outcome"]), (&json!("b"), &json!("deleted")));
    let body = json!({ "id": "put_back", "end": "back" });
    assert_eq!(daemon.jobs("dead/put_back", body)["outcome"], "queued");
    assert_eq!(daemon.stop(), Some(0));

    // Straight on the store the same.
    assert_eq!(home.run(&["dead", "list", "--json"]).lines().len(), 1);
    let shown = home.run(&["dead", "show", "sp ace/ü", "--json"]).json();
    assert_eq!(shown["error"], "no such host\nat line 1");
    assert_eq!(home.run(&["dead", "put-back", "sp ace/ü", "--end", "back"]).code, 0);
    assert_eq!(home.run(&["dead", "delete", "sp ace/ü"]).code, 1);
    let daemon = home.serve();
    let counts = daemon.counts();
    assert_eq!((&counts["queued"], &counts["dropped"]), (&json!(3), &json!(1)), "{counts}");
    let taken = daemon.jobs("take", json!({ "owner": "v", "queue": "mails", "limit": 9 }));
    let order: Vec<_> = taken["jobs"].as_array().unwrap().iter().map(|j| &j["id"]).collect();
    assert_eq!(order, ["a", "put_back", "sp ace/ü"]);
}

fn other_systems_have_no_dead_letters() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    let none = daemon.run(&["dead", "list"]);
    assert_eq!(none.code, 2, "{none:?}");
    assert!(none.err.contains("inflight"), "{none:?}");
    assert_eq!(daemon.run(&["dead", "show"]).code, 2);
}

/// A job that kills its workers is tried as often as it may be, and no more.
fn trap_e7_a_job_that_kills_its_workers_becomes_a_dead_letter() {
    let home = Home::inflight("400ms", &format!("crashes_max = 2\n{CALM}"));
    let daemon = home.serve();
    daemon.jobs("enqueue", json!({ "queue": "q", "id": "poison", "payload": "p" }));
    for life in 1..=2 {
        let owner = format!("w{life}");
        until("somebody to take it", || {
            daemon.start_without_beats(&owner);
            let taken = daemon.try_jobs("take", json!({ "owner": owner, "queue": "q" }));
            (taken.status == 200).then(|| assert_eq!(taken.body["jobs"][0]["crashes"], life - 1))
        });
        daemon.until_recovered();
    }
    let job = daemon.job("poison");
    assert_eq!((&job["state"], &job["why"]), (&json!("dead"), &json!("crashes")), "{job}");
    let explained = daemon.run(&["explain", "jobs", "poison"]).out;
    for word in ["dead_letter", "too many workers died with it", "2 of its workers died"] {
        assert!(explained.contains(word), "{word}: {explained}");
    }
    let receipts = daemon.run(&["receipts", "jobs"]).out;
    assert!(receipts.contains("dead letter") && receipts.contains("put back"), "{receipts}");
    let restored = daemon.run(&["restore", "inflight-jobs-2"]);
    assert_eq!((restored.code, restored.out.as_str()), (0, "poison is back on its queue\n"));
    assert_eq!(daemon.job("poison")["crashes"], 0);
}

fn restore_brings_a_dropped_job_back() {
    let home = Home::inflight("400ms", &format!("on_death = \"drop\"\n{CALM}"));
    let daemon = home.serve();
    daemon.start_without_beats("w");
    let job = json!({ "owner": "w", "id": "j", "queue": "q", "payload": "precious" });
    daemon.jobs("register", job);
    daemon.until_recovered();
    daemon.get("/v1/inflight/jobs/jobs/j").is_problem(404, "not_found");
    assert_eq!(daemon.counts()["dropped"], 1);
    let explained = daemon.run(&["explain", "jobs", "j"]).out;
    assert!(explained.contains("reclaimed") && explained.contains("dropped"), "{explained}");
    assert_eq!(daemon.run(&["restore", "inflight-jobs-1"]).code, 0);
    assert_eq!(daemon.job("j")["payload"], "precious");
    daemon.counts();
}
