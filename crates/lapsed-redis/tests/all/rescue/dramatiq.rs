//! What Dramatiq's keys tell, and messages that kill their workers, with the real program.

use super::*;

lapsed_testbed::steady_async_tests! {
    trap_f12_a_message_that_kills_its_workers_is_a_dead_letter,
    detect_counts_what_living_workers_have_and_names_their_queues,
}

async fn trap_f12_a_message_that_kills_its_workers_is_a_dead_letter() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app) = (Workplace::new("dramatiq", &server), App::on(&server));
    work.add(&["poison"]);
    let redis = connect(&server.url());
    let recovery = RecoveryPolicy { crashes_max: 2, ..RecoveryPolicy::default() };
    let layout = RescueLayout { recovery, ..layout("dramatiq", Duration::from_secs(3)) };
    let inflight = Arc::new(redis.rescued_inflight(id(), layout).unwrap());
    for _ in 0..2 {
        let (worker, _, _) = work.stuck("");
        worker.kill().unwrap();
        put_back(&inflight, &redis, 1).await;
    }
    assert_eq!(app.number(&["LLEN", "dramatiq:mails"]), 0);
    assert_eq!(app.number(&["ZCARD", "dramatiq:mails.XQ"]), 1);
    let letter = app.text(&["HVALS", "dramatiq:mails.XQ.msgs"]);
    assert!(letter.contains("poison"), "{letter}");
}

async fn detect_counts_what_living_workers_have_and_names_their_queues() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let work = Workplace::new("dramatiq", &server);
    work.add(&["a"]);
    let (_worker, _, _) = work.stuck("");
    let redis = connect(&server.url());
    let found = redis.detect(DetectOptions::default(), &mut |_, _| {}).await.unwrap().found;
    assert_eq!((found[0].in_flight, found[0].orphans), (1, 0), "{found:?}");
    assert_eq!(found[0].queues, ["mails"], "{found:?}");
    // The program that sent the message is in the list of heartbeats, too.
    assert!(found[0].notes.iter().any(|note| note.contains("only send messages")), "{found:?}");
}
