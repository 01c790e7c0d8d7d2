//! Jobs in flight over HTTP and by the commands, on the embedded store.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::{CALM, Daemon, Home, until};
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    a_job_goes_from_queue_to_completion,
    jobs_popped_by_an_application_are_tracked,
    batched_calls_have_one_answer_each,
    invalid_requests_are_refused_with_a_reason,
    trap_e9_a_dead_workers_job_comes_back_and_its_late_completion_is_refused,
    job_counts_and_recoveries_are_exported_as_metrics,
    a_take_waits_for_work_up_to_its_limit,
    jobs_taken_for_a_disconnected_client_are_given_back,
    a_stopping_daemon_answers_waiting_clients,
}

/// Takes one; there must be one.
#[track_caller]
fn take(daemon: &Daemon, owner: &str, queue: &str) -> Value {
    let taken = daemon.jobs("take", json!({ "owner": owner, "queue": queue }));
    assert_eq!(taken["jobs"].as_array().unwrap().len(), 1, "{taken}");
    taken["jobs"][0].clone()
}

fn ticket(job: &Value) -> Value {
    json!({ "id": job["id"], "token": job["token"] })
}

fn a_job_goes_from_queue_to_completion() {
    let home = Home::inflight("10m", CALM);
    let daemon = home.serve();
    let body = json!({ "queue": "mails", "id": "j1", "payload": "{\"to\": \"a\"}" });
    assert_eq!(daemon.jobs("enqueue", body.clone()), json!({ "id": "j1", "outcome": "queued" }));
    assert_eq!(daemon.jobs("enqueue", body)["outcome"], "exists");
    let named = daemon.jobs("enqueue", json!({ "queue": "mails", "payload": "second" }));
    let id = named["id"].as_str().unwrap();
    assert_eq!((id.len(), &named["outcome"]), (32, &json!("queued")), "{named}");
    let queues = daemon.get("/v1/inflight/jobs/queues").body;
    assert_eq!(queues, json!({ "queues": [{ "queue": "mails", "jobs": 2 }], "next": null }));
    assert_eq!(daemon.job("j1")["state"], "queued");

    let taken = daemon.jobs("take", json!({ "owner": "w1", "queue": "mails", "limit": 10 }));
    assert_eq!((&taken["started"], &taken["owner"]), (&json!(true), &json!("w1")), "{taken}");
    let (first, second) = (&taken["jobs"][0], &taken["jobs"][1]);
    assert_eq!((&first["id"], &first["payload"]), (&json!("j1"), &json!("{\"to\": \"a\"}")));
    assert!(second["token"].as_u64() > first["token"].as_u64(), "{taken}");
    let job = daemon.job("j1");
    assert_eq!((&job["state"], &job["owner"]), (&json!("in_flight"), &json!("w1")), "{job}");
    assert_eq!(job["token"], first["token"]);
    let held = daemon.get("/v1/inflight/jobs/in_flight/w1?limit=1").body;
    assert_eq!(held["jobs"].as_array().unwrap().len(), 1, "{held}");
    assert!(held["next"].is_string(), "{held}");

    assert_eq!(daemon.jobs("complete", ticket(first)), json!({ "id": "j1", "outcome": "done" }));
    daemon.get("/v1/inflight/jobs/jobs/j1").is_problem(404, "not_found");
    let twice = daemon.try_jobs("complete", ticket(first));
    twice.is_problem(409, "lost");
    assert_eq!((&twice.body["outcome"], &twice.body["id"]), (&json!("gone"), &json!("j1")));

    let back = json!({ "id": id, "token": second["token"], "end": "back" });
    assert_eq!(daemon.jobs("give_back", back.clone())["outcome"], "done");
    daemon.try_jobs("give_back", back).is_problem(409, "lost");
    let again = take(&daemon, "w1", "mails");
    assert_eq!((&again["id"], &again["crashes"]), (&json!(id), &json!(0)), "nobody died");
    let late = json!({ "id": id, "token": second["token"] });
    let late = daemon.try_jobs("complete", late);
    assert_eq!(late.body["outcome"], "superseded", "{late:?}");
    let retired = daemon.jobs("retire", json!({ "owner": "w1" }));
    assert_eq!(retired["put_back"], 1, "{retired}");
    let counts = daemon.counts();
    assert_eq!((&counts["completed"], &counts["queued"]), (&json!(1), &json!(1)), "{counts}");
}

fn jobs_popped_by_an_application_are_tracked() {
    let home = Home::inflight("10m", CALM);
    let daemon = home.serve();
    let body = json!({ "owner": "w", "id": "j", "queue": "q", "payload": "p" });
    let first = daemon.jobs("register", body.clone());
    assert_eq!((&first["outcome"], &first["started"]), (&json!("tracked"), &json!(true)));
    let again = daemon.jobs("register", body);
    assert_eq!((&again["outcome"], &again["token"]), (&json!("kept"), &first["token"]));
    let other = json!({ "owner": "w2", "id": "j", "queue": "q", "payload": "p" });
    assert_eq!(daemon.jobs("register", other)["outcome"], "taken");
    let many = json!({ "owner": "w", "jobs": [
        { "id": "j", "queue": "q", "payload": "p" },
        { "id": "k", "queue": "q", "payload": "p", "on_death": "drop", "crashes_max": 2 },
    ] });
    let many = daemon.jobs("register_many", many);
    let outcomes = [&many["results"][0]["outcome"], &many["results"][1]["outcome"]];
    assert_eq!(outcomes, ["kept", "tracked"], "{many}");
    assert_eq!(daemon.jobs("complete", json!({ "id": "j", "token": first["token"] }))["id"], "j");
    assert_eq!(daemon.counts()["in_flight"], 1);
}

fn batched_calls_have_one_answer_each() {
    let home = Home::inflight("10m", CALM);
    let daemon = home.serve();
    let jobs: Vec<Value> = (0..300)
        .map(|n| json!({ "queue": "q", "id": format!("j{n:03}"), "payload": n.to_string() }))
        .collect();
    let queued = daemon.jobs("enqueue_many", json!({ "jobs": jobs }));
    assert_eq!(queued["results"].as_array().unwrap().len(), 300);
    let taken = daemon.jobs("take", json!({ "owner": "w", "queue": "q", "limit": 300 }));
    let taken: Vec<Value> = taken["jobs"].as_array().unwrap().iter().map(ticket).collect();
    assert_eq!((taken.len(), &taken[299]["id"]), (300, &json!("j299")), "in order");
    let mut mixed = taken[..100].to_vec();
    mixed[7] = json!({ "id": "none", "token": 1 });
    let done = daemon.jobs("complete_many", json!({ "jobs": mixed }));
    let done = done["results"].as_array().unwrap();
    assert_eq!((&done[6]["ok"], &done[6]["outcome"]), (&json!(true), &json!("done")));
    assert_eq!((&done[7]["ok"], &done[7]["outcome"]), (&json!(false), &json!("gone")));
    assert!(done[7]["detail"].is_string() && done.len() == 100, "{:?}", done[7]);
    let failed = json!({ "jobs": taken[100..200], "error": "no such host" });
    assert_eq!(daemon.jobs("fail_many", failed)["results"][99]["outcome"], "done");
    let back = json!({ "jobs": taken[200..] });
    assert_eq!(daemon.jobs("give_back_many", back)["results"][0]["outcome"], "done");
    let counts = daemon.counts();
    let wanted = json!({ "entered": 300, "completed": 99, "queued": 100, "in_flight": 1,
        "dead": 100, "dropped": 0 });
    assert_eq!(counts, wanted);
    let page = daemon.get("/v1/inflight/jobs/dead?limit=60").body;
    let rest = daemon.get("/v1/inflight/jobs/dead?after=j159").body;
    assert_eq!((page["dead"].as_array().unwrap().len(), &page["next"]), (60, &json!("j159")));
    assert_eq!((rest["dead"].as_array().unwrap().len(), &rest["next"]), (40, &Value::Null));
    assert_eq!(rest["dead"][0]["error"], "no such host");
}

fn invalid_requests_are_refused_with_a_reason() {
    let home = Home::inflight("10m", CALM);
    let daemon = home.serve();
    for (operation, body) in [
        ("enqueue", json!({ "queue": "", "payload": "p" })),
        ("enqueue", json!({ "queue": "q", "id": "a\nb", "payload": "p" })),
        ("enqueue", json!({ "queue": "q", "payload": "p", "on_death": "frnt" })),
        ("enqueue", json!({ "queue": "q" })),
        ("take", json!({ "owner": "w", "queue": "q", "limit": 0 })),
        ("take", json!({ "owner": "w", "queue": "q", "limit": 1001 })),
        ("take", json!({ "owner": "w", "queue": "q", "wait_ms": 30_001 })),
        ("complete", json!({ "id": "j" })),
        ("give_back", json!({ "id": "j", "token": 1, "end": "middle" })),
    ] {
        daemon.try_jobs(operation, body).is_problem(422, "invalid");
    }
    let none = json!({ "id": "j" });
    daemon.try_jobs("dead/put_back", none.clone()).is_problem(404, "not_found");
    daemon.try_jobs("dead/delete", none).is_problem(404, "not_found");
    daemon.get("/v1/inflight/jobs/dead/j").is_problem(404, "not_found");
    daemon.post("/v1/inflight/nothing/start", json!({ "owner": "w" })).is_problem(404, "not_found");
    assert_eq!(daemon.counts()["entered"], 0);
}

/// A worker dies with a job; it comes back, and is finished by another. The first one wakes up.
fn trap_e9_a_dead_workers_job_comes_back_and_its_late_completion_is_refused() {
    let home = Home::inflight("400ms", CALM);
    let daemon = home.serve();
    daemon.jobs("enqueue", json!({ "queue": "q", "id": "j", "payload": "p" }));
    daemon.start_without_beats("w1");
    let first = take(&daemon, "w1", "q");
    let dry = until("a dry run to see it", || {
        let dry = daemon.run(&["sweep", "jobs", "--dry-run"]);
        dry.out.contains("1 of 1 suspect would be recovered").then_some(dry.out)
    });
    for word in ["JOB", "WORKER", "w1", "its owner's deadline was"] {
        assert!(dry.contains(word), "{word}: {dry}");
    }
    let report = daemon.until_recovered();
    assert_eq!((&report["reclaimed"], &report["stopped"]), (&json!(1), &json!("done")), "{report}");
    let job = daemon.job("j");
    assert_eq!((&job["state"], &job["crashes"]), (&json!("queued"), &json!(1)), "{job}");
    assert_eq!(daemon.run(&["explain", "jobs", "j", "--json"]).json()["verdict"], "queued");

    let zombie = daemon.try_jobs("complete", ticket(&first));
    zombie.is_problem(409, "lost");
    assert_eq!(zombie.body["token"], first["token"]);
    daemon.try_jobs("beat", json!({ "owner": "w1" })).is_problem(409, "lost");
    daemon.try_jobs("take", json!({ "owner": "w1", "queue": "q" })).is_problem(409, "lost");

    daemon.start_long_lived("w2");
    let second = take(&daemon, "w2", "q");
    assert_eq!((&second["payload"], &second["crashes"]), (&json!("p"), &json!(1)), "{second}");
    assert!(second["token"].as_u64() > first["token"].as_u64());
    daemon.try_jobs("complete", ticket(&first)).is_problem(409, "lost");
    assert_eq!(daemon.job("j")["owner"], "w2", "and changed nothing");
    daemon.jobs("complete", ticket(&second));
    assert_eq!(daemon.counts()["completed"], 1);

    let receipts = daemon.run(&["receipts", "jobs"]).out;
    assert!(receipts.contains("owner_dead, put back"), "{receipts}");
    let receipt = daemon.get("/v1/receipts/inflight-jobs-1").body;
    assert_eq!((&receipt["key"], &receipt["removed"]["did"]), (&json!("j"), &json!("put_back")));
    let refused = daemon.run(&["restore", "inflight-jobs-1"]);
    assert_eq!(refused.code, 1, "it was completed: {refused:?}");
    let status = daemon.run(&["status", "jobs"]).out;
    for word in ["in flight", "dead letters", "1 entered, 1 completed, 0 dropped"] {
        assert!(status.contains(word), "{word}: {status}");
    }
}

fn job_counts_and_recoveries_are_exported_as_metrics() {
    let home = Home::inflight("400ms", CALM);
    let daemon = home.serve();
    let jobs = [("a", "front"), ("b", "dead_letter"), ("c", "drop")]
        .map(|(id, word)| json!({ "queue": "q", "id": id, "payload": "p", "on_death": word }));
    daemon.jobs("enqueue_many", json!({ "jobs": jobs }));
    daemon.start_without_beats("w1");
    daemon.jobs("take", json!({ "owner": "w1", "queue": "q", "limit": 3 }));
    until("all three to be recovered", || {
        daemon.post("/v1/sweeps/inflight/jobs", json!({}));
        (daemon.counts()["in_flight"] == 0).then_some(())
    });
    let text = daemon.get("/metrics").text;
    for line in [
        "lapsed_jobs{system=\"jobs\",state=\"queued\",kind=\"inflight\"} 1",
        "lapsed_jobs{system=\"jobs\",state=\"in_flight\",kind=\"inflight\"} 0",
        "lapsed_jobs{system=\"jobs\",state=\"dead\",kind=\"inflight\"} 1",
        "lapsed_jobs_account_total{system=\"jobs\",what=\"entered\",kind=\"inflight\"} 3",
        "lapsed_jobs_account_total{system=\"jobs\",what=\"completed\",kind=\"inflight\"} 0",
        "lapsed_jobs_account_total{system=\"jobs\",what=\"dropped\",kind=\"inflight\"} 1",
        "lapsed_recovered_total{system=\"jobs\",did=\"put_back\",kind=\"inflight\"} 1",
        "lapsed_recovered_total{system=\"jobs\",did=\"dead_letter\",kind=\"inflight\"} 1",
        "lapsed_recovered_total{system=\"jobs\",did=\"dropped\",kind=\"inflight\"} 1",
        "lapsed_reclaimed_total{system=\"jobs\",reason=\"owner_dead\",kind=\"inflight\"} 3",
        "lapsed_population{system=\"jobs\",kind=\"inflight\"} 0",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line} is missing:\n{text}");
    }
}

fn a_take_waits_for_work_up_to_its_limit() {
    let home = Home::inflight("10m", CALM);
    let daemon = home.serve();
    let began = Instant::now();
    let none = daemon.jobs("take", json!({ "owner": "w", "queue": "q", "wait_ms": 1500 }));
    assert_eq!(none["jobs"], json!([]));
    assert!(began.elapsed() >= Duration::from_millis(1500), "{:?}", began.elapsed());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            daemon.jobs("take", json!({ "owner": "w", "queue": "q", "wait_ms": 30_000 }))
        });
        until("somebody to wait", || {
            (daemon.get("/v1/inflight/jobs/owners/w").status == 200).then_some(())
        });
        daemon.jobs("enqueue", json!({ "queue": "q", "id": "j", "payload": "p" }));
        let taken = waiting.join().unwrap();
        assert_eq!(taken["jobs"][0]["id"], "j", "{taken}");
    });
    assert_eq!(daemon.job("j")["owner"], "w");
}

/// A client asks for work and disconnects: the jobs taken for it can be taken by others.
fn jobs_taken_for_a_disconnected_client_are_given_back() {
    let home = Home::inflight("10m", CALM);
    let daemon = home.serve();
    let address = daemon.url.strip_prefix("http://").unwrap();
    let body = json!({ "owner": "ghost", "queue": "q", "wait_ms": 30_000, "limit": 5 }).to_string();
    for round in 0..10 {
        let id = format!("j{round}");
        let job = json!({ "queue": "q", "id": id, "payload": "p" });
        let mut client = TcpStream::connect(address).unwrap();
        let request = format!(
            "POST /v1/inflight/jobs/take HTTP/1.1\r\nhost: {address}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        client.write_all(request.as_bytes()).unwrap();
        until("the daemon to have heard it", || {
            (daemon.get("/v1/inflight/jobs/owners/ghost").status == 200).then_some(())
        });
        drop(client);
        daemon.jobs("enqueue", job);
        let taken = until("the job to be free again", || {
            let taken = daemon.jobs("take", json!({ "owner": "w", "queue": "q" }));
            taken["jobs"].get(0).cloned()
        });
        assert_eq!((&taken["id"], &taken["crashes"]), (&json!(id), &json!(0)), "nobody died");
        daemon.jobs("complete", ticket(&taken));
    }
    let held = daemon.get("/v1/inflight/jobs/in_flight/ghost").body;
    assert_eq!(held["jobs"], json!([]));
    assert_eq!(daemon.counts()["completed"], 10);
    assert_eq!(daemon.stop(), Some(0));
}

/// A client that waits for work does not delay the stop of the daemon.
fn a_stopping_daemon_answers_waiting_clients() {
    let home = Home::inflight("10m", CALM);
    let daemon = home.serve();
    let url = daemon.url.clone();
    let waiting = std::thread::spawn(move || {
        let body = json!({ "owner": "w", "queue": "q", "wait_ms": 30_000 });
        let answer =
            crate::support::agent().post(format!("{url}/v1/inflight/jobs/take")).send_json(body);
        answer.unwrap().body_mut().read_json::<Value>().unwrap()
    });
    until("somebody to wait", || {
        (daemon.get("/v1/inflight/jobs/owners/w").status == 200).then_some(())
    });
    assert_eq!(daemon.stop(), Some(0));
    assert_eq!(waiting.join().unwrap()["jobs"], json!([]));
}
