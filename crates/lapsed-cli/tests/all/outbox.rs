//! The webhook: what goes back to queues elsewhere is delivered at least once, with the same key for
//! every try, through refusals, redirects and a daemon killed in the middle.

use crate::support::receiver::{OK, Receiver, SERVER_ERROR};
use crate::support::{Daemon, Home, run, until};
use serde_json::json;

lapsed_testbed::steady_tests! {
    a_recovered_job_is_delivered_with_the_same_key_on_every_attempt,
    an_undeliverable_job_becomes_a_dead_letter_and_redirects_are_not_followed,
    a_delivery_cut_off_by_a_kill_is_made_by_the_next_daemon,
    a_stopping_daemon_gives_its_deliveries_back,
    the_plan_shows_the_webhook_url_without_its_secret,
}

/// Jobs that go to `hook`, with those other lines.
fn home(hook: &Receiver, lines: &str) -> Home {
    // A stalled machine may cost the deliverer a life or two: that is no crash of the job here.
    let text = format!(
        "webhook = \"http://127.0.0.1:{}/hook/s3cret?k=s3cret\"\ncrashes_max = 0\n\
         sweep = {{ every = \"100ms\" }}\n{lines}",
        hook.port
    );
    Home::inflight("1s", &text)
}

/// A job whose worker dies at once.
fn orphan(daemon: &Daemon, id: &str) {
    let job = json!({ "owner": "w", "id": id, "queue": "elsewhere", "payload": "{\"n\": 1.0}" });
    until("its worker to live long enough to register it", || {
        daemon.start_without_beats("w");
        (daemon.try_jobs("register", job.clone()).status == 200).then_some(())
    });
}

fn until_completed(daemon: &Daemon, count: u64) {
    until("the delivery to be done", || (daemon.counts()["completed"] == count).then_some(()));
}

fn a_recovered_job_is_delivered_with_the_same_key_on_every_attempt() {
    let hook = Receiver::open();
    let home = home(&hook, "delivery = { backoff = \"20ms\" }");
    let daemon = home.serve();
    orphan(&daemon, "j1");
    let first = hook.next();
    assert_eq!(first.path, "/hook/s3cret?k=s3cret");
    assert_eq!(
        (&first.body["system"], &first.body["id"], &first.body["queue"], &first.body["payload"]),
        (&json!("jobs"), &json!("j1"), &json!("elsewhere"), &json!("{\"n\": 1.0}"))
    );
    assert!(first.body["crashes"].is_u64() && first.body["token"].is_u64(), "{}", first.body);
    let entered = first.key.strip_prefix("inflight-jobs-j1-").expect(&first.key);
    assert_eq!(daemon.job("j1")["entered_ms"].to_string(), *entered);
    assert_eq!(daemon.job("j1")["owner"], "lapsed:outbox", "it is in flight meanwhile");
    first.answer.send(SERVER_ERROR).unwrap();
    for answer in [SERVER_ERROR, "429 Too Many Requests\r\n", OK] {
        let again = hook.next();
        assert_eq!((&again.key, &again.body["id"]), (&first.key, &json!("j1")));
        again.answer.send(answer).unwrap();
    }
    until_completed(&daemon, 1);

    // The next time that id is recovered it is another delivery.
    orphan(&daemon, "j1");
    let next = hook.next();
    assert_ne!(next.key, first.key);
    next.answer.send(OK).unwrap();
    until_completed(&daemon, 2);
    assert!(!daemon.log().contains("s3cret"), "{}", daemon.log());
    assert_eq!(daemon.stop(), Some(0));
}

fn an_undeliverable_job_becomes_a_dead_letter_and_redirects_are_not_followed() {
    let (hook, elsewhere) = (Receiver::open(), Receiver::open());
    let home = home(&hook, "delivery = { attempts = 3, backoff = \"10ms\" }");
    let daemon = home.serve();
    orphan(&daemon, "j1");
    let away = format!("307 Elsewhere\r\nlocation: http://127.0.0.1:{}/\r\n", elsewhere.port);
    let away: &'static str = Box::leak(away.into_boxed_str());
    let job = until("the delivery to be given up", || {
        if let Ok(request) = hook.knocks.try_recv() {
            request.answer.send(away).unwrap();
        }
        let job = daemon.job("j1");
        (job["state"] == "dead").then_some(job)
    });
    let error = job["error"].as_str().unwrap();
    for word in ["in 3 tries", "307", "redirects are not followed"] {
        assert!(error.contains(word), "{word}: {error}");
    }
    assert!(elsewhere.knocks.try_recv().is_err(), "nobody went there");
    for told in [error, &daemon.log(), &daemon.run(&["dead", "show", "j1"]).out] {
        assert!(!told.contains("s3cret"), "{told}");
    }
    assert_eq!(daemon.run(&["dead", "put-back", "j1"]).code, 0);
    hook.next().answer.send(OK).unwrap();
    until_completed(&daemon, 1);
}

fn a_delivery_cut_off_by_a_kill_is_made_by_the_next_daemon() {
    let hook = Receiver::open();
    let home = home(&hook, "");
    let daemon = home.serve();
    orphan(&daemon, "j1");
    let first = hook.next();
    daemon.kill();
    let daemon = home.serve();
    let again = hook.next();
    assert_eq!((&again.key, &again.body["payload"]), (&first.key, &first.body["payload"]));
    again.answer.send(OK).unwrap();
    until_completed(&daemon, 1);
    assert_eq!(daemon.counts()["entered"], 1);
}

/// Between two tries it is given back, without a crash, and the next daemon continues.
fn a_stopping_daemon_gives_its_deliveries_back() {
    let hook = Receiver::open();
    let home = home(&hook, "delivery = { backoff = \"1h\", backoff_max = \"1h\" }");
    let daemon = home.serve();
    orphan(&daemon, "j1");
    let first = hook.next();
    first.answer.send(SERVER_ERROR).unwrap();
    until("the first try to be over", || daemon.log().contains("not delivered").then_some(()));
    assert_eq!(daemon.stop(), Some(0));
    let daemon = home.serve();
    let again = hook.next();
    assert_eq!((&again.key, &again.body["crashes"]), (&first.key, &first.body["crashes"]));
    again.answer.send(OK).unwrap();
    until_completed(&daemon, 1);
}

fn the_plan_shows_the_webhook_url_without_its_secret() {
    let hook = Receiver::open();
    let home = home(&hook, "delivery = { attempts = 7 }");
    let config = home.config().display().to_string();
    for args in [&["check", "-c", &config][..], &["check", "--json", "-c", &config]] {
        let told = run(args);
        assert_eq!(told.code, 0, "{told:?}");
        let place = format!("http://127.0.0.1:{}/...", hook.port);
        assert!(told.out.contains(&place) && told.out.contains("7 tries"), "{told:?}");
        assert!(!told.out.contains("s3cret"), "{told:?}");
    }
}
