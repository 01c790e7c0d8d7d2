//! Sessions while the server fails: killed, frozen, cut off, emptied, full, forbidding, replaced. Each
//! time: no live owner loses a session, nothing is counted twice, and the same client continues.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::chat::{App, Chat, GRACE, LONG_AGO, PATIENCE, name, named, sum, sweep_through, uuid};
use lapsed_core::Error;
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::sessions::{Deleted, SessionProfile, SessionsStore};
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{PassMode, PassReport, Stopped, Sweeper};
use lapsed_testbed::{Engine, Persistence, Proxy, RedisServer, ServerOptions};

lapsed_testbed::steady_async_tests! {
    redis_killed_in_the_middle_of_a_sweep,
    valkey_killed_in_the_middle_of_a_sweep,
    frozen_for_longer_than_the_grace,
    the_answer_to_a_reclaim_is_lost,
    the_answer_to_a_connect_is_lost,
    a_server_flushed_during_a_sweep_makes_nothing_up,
    a_server_out_of_memory_leaves_nothing_half_done,
    a_user_who_may_not,
    a_failover_that_loses_writes,
}

fn start(engine: Engine) -> RedisServer {
    RedisServer::start(engine).unwrap()
}

fn chat_on(server: &RedisServer) -> Chat {
    Chat::at(App::connect(server.port(), 0), &server.url(), GRACE)
}

/// A grace within which a test can come back also on a machine under load.
const PATIENT: Duration = Duration::from_secs(2);

fn patient_chat_on(server: &RedisServer) -> Chat {
    Chat::at(App::connect(server.port(), 0), &server.url(), PATIENT)
}

/// The application has reconnected.
fn reconnected(chat: &Chat, port: u16) -> Chat {
    Chat { app: Arc::new(App::connect(port, 0)), ..chat.clone() }
}

/// Runs passes in the background until the handle stops them; returns their sum.
struct Sweeping {
    over: tokio::sync::watch::Sender<bool>,
    task: tokio::task::JoinHandle<PassReport>,
}

fn keep_sweeping(sweeper: Arc<Sweeper>) -> Sweeping {
    let (over, mut told) = tokio::sync::watch::channel(false);
    let task = tokio::spawn(async move {
        let mut total = crate::chat::pass(&sweeper, PassMode::Reclaim).await;
        while !*told.borrow_and_update() {
            tokio::time::sleep(Duration::from_millis(5)).await;
            total = sum(total, crate::chat::pass(&sweeper, PassMode::Reclaim).await);
        }
        total
    });
    Sweeping { over, task }
}

impl Sweeping {
    async fn stop(self) -> PassReport {
        self.over.send_replace(true);
        self.task.await.unwrap()
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// How many are disconnected.
fn left(chat: &Chat) -> u64 {
    chat.app.call(&["ZCARD", "disconnected_sessions"]).parse().unwrap()
}

fn slowly() -> Policy {
    Policy { batch: 25, op_delay: Duration::from_millis(2), ..Policy::default() }
}

/// In the middle of 2,000 orphans, with everything on disk: no orphan twice, none forgotten, and after
/// the restart first a whole grace for everybody.
async fn killed_in_the_middle_of_a_sweep(engine: Engine) {
    let server = ServerOptions::new(engine).persistence(Persistence::Aof).start().unwrap();
    let chat = patient_chat_on(&server);
    chat.app.orphans(0, 2_000);
    (5_000..5_050).for_each(|n| chat.app.active(&uuid(n)));
    // They disconnect just before the end, and come back just after it.
    (6_000..6_050).for_each(|n| chat.app.active(&uuid(n)));
    chat.settle().await;
    let sweeper = Arc::new(chat.sweeper_with("s", slowly()));
    let sweeping = keep_sweeping(sweeper.clone());
    until("some are gone", || left(&chat) < 1_800).await;
    (6_000..6_050).for_each(|n| chat.app.let_go(&uuid(n)));
    server.kill().unwrap();
    server.restart().unwrap();
    let chat = reconnected(&chat, server.port());
    let back_ms = chat.app.now_ms();
    (6_000..6_050).for_each(|n| chat.app.reconnect(&uuid(n)));
    until("all are gone", || left(&chat) == 0).await;
    let total = sum(sweeping.stop().await, sweep_through(&sweeper).await);
    assert_eq!(total.reclaimed, 2_000, "{:?} {:?}", total.skipped, total.detail);
    let receipts = chat.receipts().await;
    let distinct: BTreeSet<&str> = receipts.iter().map(|r| r.key.as_str()).collect();
    assert_eq!((receipts.len(), distinct.len()), (2_000, 2_000));
    // The server counts its life in whole seconds.
    let early = receipts
        .iter()
        .filter(|r| r.at_ms > back_ms && r.at_ms + 1_100 < back_ms + PATIENT.as_millis() as u64);
    assert_eq!(early.count(), 0, "nobody is reclaimed before a whole grace");
    for n in (5_000..5_050).chain(6_000..6_050) {
        assert!(chat.app.has_session(&uuid(n)), "{n} is alive");
    }
}

async fn redis_killed_in_the_middle_of_a_sweep() {
    killed_in_the_middle_of_a_sweep(Engine::Redis).await;
}

async fn valkey_killed_in_the_middle_of_a_sweep() {
    killed_in_the_middle_of_a_sweep(Engine::Valkey).await;
}

/// For longer than every time limit and the grace. Requests lie in its socket when it wakes up: none of
/// them may take the session of a client that could not reconnect.
async fn frozen_for_longer_than_the_grace() {
    let server = start(Engine::Redis);
    let chat = patient_chat_on(&server);
    (0..60).for_each(|n| chat.app.active(&uuid(n)));
    chat.settle().await;
    let sweeping = keep_sweeping(Arc::new(chat.sweeper("s")));
    (0..60).for_each(|n| chat.app.let_go(&uuid(n)));
    server.freeze().unwrap();
    // The fault itself, not a waiting for something.
    tokio::time::sleep(PATIENT + Duration::from_millis(1_500)).await;
    server.thaw().unwrap();
    (0..30).for_each(|n| chat.app.reconnect(&uuid(n)));
    until("the others are gone", || !(30..60).any(|n| chat.app.has_session(&uuid(n)))).await;
    let total = sweeping.stop().await;
    assert_eq!((total.reclaimed, chat.receipts().await.len()), (30, 30), "{total:?}");
    (0..30).for_each(|n| assert!(chat.app.has_session(&uuid(n)), "{n} came back in time"));
}

/// The call was carried out, but its answer was lost: it is in doubt, settled by its receipts, and counted once.
async fn the_answer_to_a_reclaim_is_lost() {
    for engine in Engine::ALL {
        let server = start(engine);
        let proxy = Proxy::start(server.port()).unwrap();
        let chat = Chat::at(App::connect(server.port(), 0), &proxy.url(), GRACE);
        chat.app.orphans(0, 20);
        chat.settle().await;
        chat.dry_run().await;
        let sweeper = chat.sweeper("lossy");
        proxy.drop_answers_matching("lossy");
        let first = crate::chat::pass(&sweeper, PassMode::Reclaim).await;
        assert_eq!(first.stopped, Stopped::Error, "{first:?}");
        assert_eq!(
            (first.reclaimed, crate::chat::skipped(&first, "in_doubt")),
            (0, 20),
            "{first:?}"
        );
        assert_eq!(proxy.dropped(), 1);
        assert!(chat.app.keys().is_empty(), "it was carried out");
        assert!(sweeper.is_in_doubt());
        let second = sweep_through(&sweeper).await;
        assert_eq!((second.reclaimed, second.settled), (20, 20), "{second:?}");
        let third = sweep_through(&sweeper).await;
        assert_eq!((third.reclaimed, third.settled, chat.receipts().await.len()), (0, 0, 20));
    }
}

/// A `connect` whose answer is lost has counted. Repeating it counts twice: `yours` tells, and what is
/// too many can be given back. What leaks all the same dies with its owner.
async fn the_answer_to_a_connect_is_lost() {
    let server = start(Engine::Redis);
    let proxy = Proxy::start(server.port()).unwrap();
    let chat = Chat::at(App::connect(server.port(), 0), &proxy.url(), GRACE).native();
    let sessions = &chat.sessions;
    let ids = [name(&uuid(1)), name(&uuid(2))];
    let beat = sessions.start(&name("server"), 60_000).await.unwrap();
    let claim = Claim::exact(name("server"), beat.incarnation);
    for id in &ids {
        sessions.activate(id, &SessionProfile::default()).await.unwrap();
        // So that the script is known and the lost answer is the real one.
        sessions.connect(Some(&claim), id).await.unwrap();
        sessions.disconnect(Some(&claim), id).await.unwrap();
        proxy.drop_answers_matching("connect");
        let error = sessions.connect(Some(&claim), id).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        let again = loop {
            // The connection comes back by itself.
            match sessions.connect(Some(&claim), id).await {
                Ok(standing) => break standing.unwrap(),
                Err(error) => assert!(matches!(error, Error::Unavailable { .. }), "{error}"),
            }
        };
        assert_eq!((again.yours, again.references), (2, 2), "one more than it knows of");
    }
    // One owner looks at `yours` and gives back what is too much.
    let right = sessions.disconnect(Some(&claim), &ids[0]).await.unwrap().unwrap();
    assert_eq!((right.yours, right.disconnected_ms), (1, None));
    for id in &ids {
        sessions.disconnect(Some(&claim), id).await.unwrap();
    }
    let sweeper = chat.sweeper("s");
    let began = Instant::now();
    while chat.app.has_session(&uuid(1)) {
        assert!(began.elapsed() < PATIENCE);
        sessions.beat(&claim).await.unwrap();
        sweep_through(&sweeper).await;
    }
    assert_eq!(sessions.get(&ids[1]).await.unwrap().unwrap().references, 1, "leaked, and safe");
    sessions.end(&claim).await.unwrap();
    let mut total = sweep_through(&sweeper).await;
    let began = Instant::now();
    while chat.app.has_session(&uuid(2)) {
        assert!(began.elapsed() < PATIENCE, "{total:?}");
        total = sum(total, sweep_through(&sweeper).await);
    }
    assert_eq!((total.released, named(&total)), (1, [uuid(2)].into()), "it dies with its owner");
}

/// All data is lost at once, also lapsed's own: nothing is invented, owners get `Lost`, and what
/// comes after is as on the first day.
async fn a_server_flushed_during_a_sweep_makes_nothing_up() {
    let server = start(Engine::Valkey);
    let chat = chat_on(&server).native();
    let sessions = &chat.sessions;
    let beat = sessions.start(&name("server"), 60_000).await.unwrap();
    let claim = Claim::exact(name("server"), beat.incarnation);
    for n in 0..20 {
        sessions.activate(&name(&uuid(n)), &SessionProfile::default()).await.unwrap();
        sessions.connect(Some(&claim), &name(&uuid(n))).await.unwrap();
    }
    for n in 0..10 {
        sessions.disconnect(Some(&claim), &name(&uuid(n))).await.unwrap();
    }
    let sweeper = chat.sweeper("s");
    sweep_through(&sweeper).await;
    server.command(&["FLUSHALL"]).unwrap();
    let after = sweep_through(&sweeper).await;
    assert_eq!((after.reclaimed, after.released, after.errors), (0, 0, 0), "{after:?}");
    assert!(chat.app.keys().is_empty());
    assert!(matches!(sessions.beat(&claim).await.unwrap_err(), Error::Lost(_)));
    assert!(matches!(sessions.connect(Some(&claim), &name(&uuid(1))).await, Err(Error::Lost(_))));
    let anew = sessions.start(&name("server"), 60_000).await.unwrap();
    assert!(anew.incarnation > beat.incarnation, "numbers do not come twice");
    let anew = Claim::exact(name("server"), anew.incarnation);
    for n in 0..2 {
        sessions.activate(&name(&uuid(n)), &SessionProfile::default()).await.unwrap();
        sessions.connect(Some(&anew), &name(&uuid(n))).await.unwrap();
    }
    sessions.disconnect(Some(&anew), &name(&uuid(0))).await.unwrap();
    let (mut total, began) = (sweep_through(&sweeper).await, Instant::now());
    while chat.app.has_session(&uuid(0)) {
        assert!(began.elapsed() < PATIENCE, "{total:?}");
        total = sum(total, sweep_through(&sweeper).await);
    }
    assert_eq!((named(&total), chat.receipts().await.len()), ([uuid(0)].into(), 1));
    assert_eq!(sessions.get(&name(&uuid(1))).await.unwrap().unwrap().references, 1);
}

/// While the server refuses writes nothing is half done, and afterwards passes continue.
async fn a_server_out_of_memory_leaves_nothing_half_done() {
    for engine in Engine::ALL {
        let server = start(engine);
        let chat = chat_on(&server);
        chat.app.orphans(0, 50);
        chat.app.active(&uuid(100));
        chat.settle().await;
        let sweeper = chat.sweeper("s");
        let before = chat.app.picture();
        chat.app.call(&["CONFIG", "SET", "maxmemory", "1"]);
        let report = crate::chat::pass(&sweeper, PassMode::Reclaim).await;
        assert_eq!((report.reclaimed, report.errors), (0, 1), "{report:?}");
        assert!(report.detail.as_ref().unwrap().contains("memory"), "{report:?}");
        for op in ["connect", "disconnect"] {
            let id = name(&uuid(100));
            let answer = match op {
                "connect" => chat.sessions.connect(None, &id).await,
                _ => chat.sessions.disconnect(None, &id).await,
            };
            assert!(matches!(answer, Err(Error::Unavailable { .. })), "{op}: {answer:?}");
        }
        let error =
            chat.sessions.activate(&name("new"), &SessionProfile::default()).await.unwrap_err();
        assert!(error.to_string().contains("memory"), "{error}");
        assert_eq!(chat.app.picture(), before);
        chat.app.call(&["CONFIG", "SET", "maxmemory", "0"]);
        let total = sweep_through(&sweeper).await;
        assert_eq!((total.reclaimed, chat.receipts().await.len()), (50, 50), "{total:?}");
        assert!(chat.app.has_session(&uuid(100)));
    }
}

/// Without any one of its permissions: nothing half done, said clearly, and on it goes when granted.
async fn a_user_who_may_not() {
    for engine in Engine::ALL {
        let server = start(engine);
        let app = App::connect(server.port(), 0);
        let may_not = |commands: &[&str]| {
            let mut rule = vec!["ACL", "SETUSER", "janitor", "on", ">pw", "~*", "&*", "+@all"];
            rule.extend(commands);
            app.call(&rule);
        };
        may_not(&[]);
        let url = format!("redis://janitor:pw@127.0.0.1:{}/0", server.port());
        let chat = Chat::at(App::connect(server.port(), 0), &url, GRACE);
        chat.app.orphans(0, 10);
        chat.app.active(&uuid(100));
        chat.app.call(&["SET", &format!("ref_count:{}", uuid(101)), "0"]);
        chat.app.session(&uuid(101), "0");
        chat.settle().await;
        let (sweeper, before) = (chat.sweeper("s"), app.picture());
        for command in ["del", "xadd", "zrem", "zadd", "hset", "hincrby", "set", "hdel"] {
            may_not(&[&format!("-{command}")]);
            let report = crate::chat::pass(&sweeper, PassMode::Reclaim).await;
            assert_eq!(report.reclaimed, 0, "-{command}: {report:?}");
            let held = report.stopped == Stopped::Brake;
            let said = report.detail.as_deref().unwrap_or_default();
            assert!(held || said.contains("permission"), "-{command}: {report:?}");
            assert_eq!(app.picture(), before, "sweep with -{command}");
            let id = name(&uuid(100));
            for op in ["connect", "disconnect", "resume", "delete", "activate"] {
                let done = match op {
                    "connect" => chat.sessions.connect(None, &id).await.map(|_| true),
                    "disconnect" => chat.sessions.disconnect(None, &id).await.map(|_| true),
                    "resume" => chat.sessions.resume(&name(&uuid(101))).await.map(|_| true),
                    "delete" => {
                        chat.sessions.delete(&name(&uuid(101))).await.map(|d| d == Deleted::Deleted)
                    }
                    _ => chat
                        .sessions
                        .activate(&name("new"), &SessionProfile::default())
                        .await
                        .map(|_| true),
                };
                match done {
                    // It does not need that permission: set right what it did.
                    Ok(_) => {
                        let keys: Vec<String> = app.keys().into_iter().collect();
                        app.call(&[&["DEL".to_owned()][..], &keys].concat());
                        restore(&app, &before);
                    }
                    Err(error) => {
                        assert!(error.to_string().contains("permission"), "{op}: {error}");
                        assert_eq!(app.picture(), before, "{op} with -{command}");
                    }
                }
            }
        }
        may_not(&[]);
        let total = sweep_through(&sweeper).await;
        assert_eq!((total.reclaimed, chat.receipts().await.len()), (10, 10), "{total:?}");
        assert!(app.has_session(&uuid(100)));
    }
}

/// Writes a picture back.
fn restore(app: &App, picture: &std::collections::BTreeMap<String, String>) {
    for (key, held) in picture {
        let words: Vec<&str> = held.split(' ').collect();
        if key.starts_with("session:") {
            let pairs =
                words.iter().flat_map(|pair| pair.split_once('=').map(|(f, v)| [f, v]).unwrap());
            let all: Vec<&str> = ["HSET", key].into_iter().chain(pairs).collect();
            app.call(&all);
        } else if key == "disconnected_sessions" {
            words.chunks(2).for_each(|pair| drop(app.call(&["ZADD", key, pair[1], pair[0]])));
        } else {
            app.call(&["SET", key, held]);
        }
    }
    assert_eq!(&app.picture(), picture);
}

/// The replica that takes over has not seen the last writes, among them reconnects: everybody has a
/// whole grace to come back again.
async fn a_failover_that_loses_writes() {
    let server = start(Engine::Redis);
    let chat = patient_chat_on(&server);
    chat.settle().await;
    chat.app.orphans(0, 10);
    let sweeper = Arc::new(chat.sweeper("s"));
    let first = sweep_through(&sweeper).await;
    let at = (chat.app.now_s() - LONG_AGO).to_string();
    (100..120).for_each(|n| chat.app.disconnected(&uuid(n), &at));
    let replica = RedisServer::replica_of(&server).unwrap();
    let lost: Vec<usize> = (100..120).collect();
    // Cut off from here on, and promoted by somebody: it never hears of what follows.
    replica.promote().unwrap();
    let promoted_ms = chat.app.now_ms();
    lost.iter().for_each(|n| chat.app.reconnect(&uuid(*n)));
    let sweeping = keep_sweeping(sweeper.clone());
    server.kill().unwrap();
    replica.command(&["CONFIG", "SET", "port", &server.port().to_string()]).unwrap();
    let chat = reconnected(&chat, server.port());
    // By the new server they are disconnected since before: their clients notice, and come back.
    lost.iter().for_each(|n| assert_eq!(chat.app.field(&uuid(*n), "last_disconnect"), at, "lost"));
    lost.iter().skip(5).for_each(|n| chat.app.reconnect(&uuid(*n)));
    until("the rest is gone", || lost.iter().take(5).all(|n| !chat.app.has_session(&uuid(*n))))
        .await;
    let total = sum(first, sweeping.stop().await);
    let total = sum(total, sweep_through(&sweeper).await);
    lost.iter().skip(5).for_each(|n| assert!(chat.app.has_session(&uuid(*n)), "{n} came back"));
    assert_eq!(total.reclaimed, 15, "{total:?}");
    let receipts = chat.receipts().await;
    let after = receipts.iter().filter(|r| r.key >= name(&uuid(100)));
    let early = after.filter(|r| r.at_ms < promoted_ms + PATIENT.as_millis() as u64).count();
    assert_eq!(early, 0, "everybody has a whole grace since the promotion");
    let numbers: BTreeSet<u64> = receipts.iter().map(|r| r.id.seq).collect();
    assert_eq!(
        (receipts.len(), numbers.len()),
        (total.reclaimed as usize, total.reclaimed as usize)
    );
}
