//! Jobs by FCALL and by lapsed itself: both work on the same.

use lapsed_core::Error;
use lapsed_core::inflight::{Finish, Finished, InflightStore, JobPlace, NewJob};
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::request::RequestId;
use lapsed_core::sweep::{Sweep, TidyLimits};
use lapsed_redis::QueueFormat;
use lapsed_testbed::{Engine, ServerOptions};

use crate::caller::{Caller, first};
use crate::jobs::{World, layout};
use crate::story::{name, on_both_engines, reclaim, suspects};

on_both_engines! {
    jobs_changed_by_fcall_are_seen_by_lapsed,
    without_an_incarnation_the_newest_life_holds_it,
    what_makes_no_sense_is_refused,
    the_application_s_queues_are_left_to_it,
    a_repeated_function_with_its_key_changes_nothing,
}

const PREFIX: [&str; 1] = ["lapsed:inflight"];

fn must(caller: &mut Caller, what: &str, args: &[&str]) -> String {
    let args = [&["mail"], args].concat();
    caller.must(&format!("lapsed_inflight_{what}"), &PREFIX, &args)
}

fn refused(caller: &mut Caller, what: &str, args: &[&str]) -> String {
    let args = [&["mail"], args].concat();
    caller.refused(&format!("lapsed_inflight_{what}"), &PREFIX, &args)
}

/// Every operation, one after the other.
async fn jobs_changed_by_fcall_are_seen_by_lapsed(engine: Engine) {
    let world = World::new(ServerOptions::new(engine), layout(QueueFormat::Own));
    let caller = &mut Caller::on(&world.server).await;
    let life = first(&must(caller, "start", &["w", "1500"]));
    let jobs = ["q", "a", "1", "b", "2", "a", "3", "c", ""];
    assert_eq!(must(caller, "enqueue", &jobs), "queued\nqueued\nexists\nqueued");
    let taken = must(caller, "take", &["w", &life, "q", "2"]);
    let words: Vec<&str> = taken.lines().collect();
    let [a, token_a, one, none, b, token_b, two, _] = words[..] else { panic!("{taken}") };
    assert_eq!((a, one, none, b, two), ("a", "1", "0", "b", "2"));
    assert_eq!(must(caller, "held", &["w", "", "", "10"]), taken, "by id, and it is the same");
    assert!(must(caller, "held", &["w", "", "a", "10"]).starts_with("b\n"));
    let job = world.jobs.job(&name("a")).await.unwrap().unwrap();
    let JobPlace::InFlight { token, .. } = job.place else { panic!("{job:?}") };
    assert_eq!(token.to_string(), token_a);
    assert_eq!(must(caller, "complete", &["a", token_a]), "done");
    assert_eq!(refused(caller, "complete", &["a", token_a]), "LOST");
    assert_eq!(must(caller, "give_back", &["front", "b", token_b]), "done");
    assert_eq!(refused(caller, "fail", &["late", "b", token_b]), "LOST");
    assert_eq!(must(caller, "complete", &["a", "1", "b", "1"]), "gone\nsuperseded");
    let tokens = must(caller, "register", &["w", &life, "q", "x", "popped", "b", "2"]);
    let tokens: Vec<&str> = tokens.lines().collect();
    assert_eq!(tokens[1], "(nil)", "it is on its queue");
    assert_eq!(must(caller, "fail", &["no é", "x", tokens[0]]), "done");
    let letter = world.jobs.job(&name("x")).await.unwrap().unwrap();
    assert!(matches!(letter.place, JobPlace::Dead { error: Some(error), .. } if error == "no é"));
    assert_eq!(
        must(caller, "counts", &[]),
        "entered\n4\ncompleted\n1\nqueued\n2\nin_flight\n0\ndead\n1\ndropped\n0"
    );

    // Taken by FCALL, recovered by lapsed, taken by lapsed.
    assert_eq!(must(caller, "take", &["w", &life, "q", "5"]).lines().count(), 8);
    world.suspect(2).await;
    let found = suspects(&world.jobs).await;
    assert_eq!(reclaim(&world.jobs, 1, found).await.owners_ended, 1);
    assert_eq!(refused(caller, "take", &["w", &life, "q", "5"]), "LOST");
    assert_eq!(refused(caller, "beat", &["w", &life]), "LOST");
    let claim = world.start("native").await;
    let taken = world.jobs.take(&claim, &name("q"), 5).await.unwrap().jobs;
    let crashes: Vec<(&str, u32)> = taken.iter().map(|j| (j.id.as_str(), j.crashes)).collect();
    assert_eq!(crashes, [("b", 1), ("c", 1)], "in the order in which they were taken");
    let (id, token) = (taken[0].id.to_string(), taken[0].token.to_string());
    assert_eq!(must(caller, "complete", &[&id, &token]), "done", "a claim is a claim");
    let ticket = taken[1].ticket(claim.incarnation.unwrap());
    let done = world.jobs.finish(&[ticket], &Finish::Complete).await.unwrap();
    assert_eq!(done, [Finished::Done]);
    world.audit("by FCALL").await;
}

/// Whoever sends none is asked for nothing more, and loses nothing when it dies.
async fn without_an_incarnation_the_newest_life_holds_it(engine: Engine) {
    let world = World::new(ServerOptions::new(engine), layout(QueueFormat::Own));
    let caller = &mut Caller::on(&world.server).await;
    must(caller, "start", &["w", "60000"]);
    let life = first(&must(caller, "start", &["w", "1500"]));
    must(caller, "enqueue", &["q", "a", "1", "b", "2"]);
    must(caller, "take", &["w", "", "q", "1"]);
    must(caller, "register", &["w", "", "q", "x", "popped"]);
    let held = must(caller, "held", &["w", &life, "", "10"]);
    let ids: Vec<&str> = held.lines().step_by(4).collect();
    assert_eq!(ids, ["a", "x"], "{held}");
    world.audit("taken without an incarnation").await;
    world.suspect(2).await;
    let found = suspects(&world.jobs).await;
    assert_eq!(reclaim(&world.jobs, 1, found).await.owners_ended, 1);
    let queued = must(caller, "counts", &[]);
    assert!(queued.contains("queued\n3\nin_flight\n0"), "{queued}");
    world.audit("recovered").await;
}

async fn what_makes_no_sense_is_refused(engine: Engine) {
    let world = World::new(ServerOptions::new(engine), layout(QueueFormat::Own));
    let caller = &mut Caller::on(&world.server).await;
    let long = "x".repeat((1 << 20) + 1);
    for (what, args) in [
        ("enqueue", &["q", "a"][..]),
        ("enqueue", &["q", "", "payload"]),
        ("enqueue", &["q", "a", &long]),
        ("enqueue", &["line\nbreak", "a", "payload"]),
        ("take", &["w", "", "q", "0"]),
        ("take", &["w", "", "q", "101"]),
        ("take", &["w", "1x", "q", "1"]),
        ("complete", &["a"]),
        ("complete", &["a", "first"]),
        ("give_back", &["middle", "a", "1"]),
    ] {
        assert_eq!(refused(caller, what, args), "INVALID", "{what} {args:?}");
    }
    assert_eq!(refused(caller, "take", &["nobody", "", "q", "1"]), "UNKNOWN");
    assert_eq!(refused(caller, "take", &["nobody", "7", "q", "1"]), "LOST");
    assert_eq!(must(caller, "counts", &[]).lines().nth(1), Some("0"));
}

/// Popped there by the application, registered by FCALL, put back there by lapsed.
async fn the_application_s_queues_are_left_to_it(engine: Engine) {
    let world = World::new(ServerOptions::new(engine), layout(QueueFormat::List));
    let caller = &mut Caller::on(&world.server).await;
    let limits = TidyLimits {
        rows: 10,
        undeclared_max: None,
        retention: lapsed_core::receipt::Retention::default(),
        term: None,
    };
    world.jobs.tidy(limits).await.unwrap();
    let life = first(&must(caller, "start", &["w", "1500"]));
    assert_eq!(refused(caller, "enqueue", &["mail", "a", "1"]), "INVALID");
    assert_eq!(refused(caller, "take", &["w", &life, "mail", "1"]), "INVALID");
    let token = must(caller, "register", &["w", &life, "mail", "a", "payload"]);
    assert_eq!(refused(caller, "give_back", &["front", "a", &token]), "INVALID");
    world.suspect(1).await;
    reclaim(&world.jobs, 1, suspects(&world.jobs).await).await;
    assert_eq!(world.app().text(&["LINDEX", "queue:mail", "0"]), "payload");
    let claim = Claim::newest(name("w"));
    assert!(world.jobs.beat(&claim).await.is_err());
    let popped = NewJob::new(name("a"), name("mail"), "payload");
    let claim = world.start("w").await;
    world.jobs.register(&claim, &[popped]).await.unwrap();
    world.audit("registered by FCALL").await;
}

fn keyed(caller: &mut Caller, key: &str, what: &str, args: &[&str]) -> Result<String, String> {
    let key = format!("key={key}");
    let args = [&[key.as_str(), "mail"], args].concat();
    caller.fcall(&format!("lapsed_inflight_{what}"), &PREFIX, &args)
}

/// Each call is repeated as a client does that did not get the answer.
async fn a_repeated_function_with_its_key_changes_nothing(engine: Engine) {
    let world = World::new(ServerOptions::new(engine), layout(QueueFormat::Own));
    let caller = &mut Caller::on(&world.server).await;
    let twice = |caller: &mut Caller, key: &str, what: &str, args: &[&str]| {
        let first = keyed(caller, key, what, args).unwrap();
        assert_eq!(keyed(caller, key, what, args).unwrap(), first, "{what}");
        first
    };
    let life = first(&twice(caller, "s", "start", &["w", "60000"]));
    assert_eq!(first(&must(caller, "beat", &["w", ""])), life, "there is one incarnation");
    assert_eq!(
        twice(caller, "e", "enqueue", &["q", "a", "1", "b", "2", "c", "3"]),
        "queued\nqueued\nqueued"
    );
    let taken = twice(caller, "t", "take", &["w", &life, "q", "2"]);
    let words: Vec<&str> = taken.lines().collect();
    assert_eq!((words.len(), words[0], words[4]), (8, "a", "b"), "{taken}");
    assert_eq!(twice(caller, "c", "complete", &["a", words[1]]), "done");
    let left = keyed(caller, "t", "take", &["w", &life, "q", "2"]).unwrap();
    assert_eq!(left.lines().collect::<Vec<_>>(), words[4..], "what is still held");
    // The job was completed: its enqueue is repeated, and nothing comes back.
    assert_eq!(
        keyed(caller, "e", "enqueue", &["q", "a", "1", "b", "2", "c", "3"]).unwrap(),
        "queued\nqueued\nqueued"
    );
    assert_eq!(twice(caller, "g", "give_back", &["front", "b", words[5]]), "done");
    let counts = must(caller, "counts", &[]);
    assert_eq!(counts, "entered\n3\ncompleted\n1\nqueued\n2\nin_flight\n0\ndead\n0\ndropped\n0");
    for (key, what, args) in [
        ("t", "take", &["w", &life, "q", "1"][..]),
        ("e", "enqueue", &["q", "x", "1"]),
        ("s", "start", &["other", "60000"]),
    ] {
        let reused = keyed(caller, key, what, args).unwrap_err();
        assert!(reused.starts_with("REUSED "), "{what}: {reused}");
    }
    for (key, what, args) in
        [("k", "counts", &[][..]), ("", "start", &["w", "1"]), ("!x", "start", &["w", "1"])]
    {
        let wrong = keyed(caller, key, what, args).unwrap_err();
        assert!(wrong.starts_with("INVALID "), "{what}: {wrong}");
    }
    assert_eq!(must(caller, "counts", &[]), counts, "what was refused changed nothing");
    // What lapsed keeps and what functions keep is the same.
    let request = RequestId::new("t", "another", "attempt").unwrap();
    let claim = Claim::newest(name("w"));
    let reused = world.jobs.take_once(&request, &claim, &name("q"), 1).await;
    assert!(matches!(reused, Err(Error::KeyReused { .. })), "{reused:?}");
    world.audit("by FCALL with keys").await;
}
