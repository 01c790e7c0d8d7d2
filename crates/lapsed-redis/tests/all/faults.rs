//! What can happen to a server, on a real one of its own each: it is killed, frozen, emptied, full,
//! replaced by a replica that missed the last writes; its answers are lost, its permissions are taken
//! away, its slots move. Each story ends the same way: nobody alive was reclaimed, nothing was counted
//! twice, and it goes on by itself.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lapsed::owner::{Claim, OwnerStore};
use lapsed::receipt::{Receipt, ReceiptQuery};
use lapsed::registry::{RegistryStore, Take};
use lapsed::store::Store;
use lapsed::sweep::policy::Policy;
use lapsed::sweep::{Outcome, Refusal, Stopped, Sweep, Sweeper};
use lapsed::{Error, Kind, SystemId};
use lapsed_redis::{NativeRegistry, Redis};
use lapsed_testbed::resp::Reply;
use lapsed_testbed::{Cluster, Engine, Persistence, Proxy, Server, ServerOptions};

use crate::story::{
    App, Living, Sum, TTL, audit, batch, connect, eventually, held_by, holding, id, keys, layout,
    name, names, on_both_engines, pass, receipts, reclaim, slowly, suspects, sweep_until, sweeper,
};

/// An owner with this TTL lives for longer than any test.
const LONG: Duration = Duration::from_secs(600);

struct World {
    server: Server,
    redis: Redis,
    registry: NativeRegistry,
    sweep: Arc<dyn Sweep>,
}

impl World {
    fn new(options: ServerOptions) -> World {
        let server = options.start().unwrap();
        let url = server.url();
        World::by(server, &url)
    }

    /// Reached by another address than its own.
    fn by(server: Server, url: &str) -> World {
        let redis = connect(url);
        let registry = redis.registry(id(), layout(TTL)).unwrap();
        World { server, redis, sweep: Arc::new(registry.clone()), registry }
    }

    fn app(&self) -> App {
        App::on(&self.server)
    }

    fn sweeper(&self, policy: Policy) -> Sweeper {
        sweeper(&self.sweep, &self.redis, policy)
    }

    async fn receipts(&self) -> Vec<Receipt> {
        receipts(&self.redis, &id()).await
    }

    /// `owners` that hold `each` keys and will not beat again; all their keys.
    async fn doomed(&self, prefix: &str, owners: usize, each: usize) -> Vec<String> {
        let mut all = Vec::new();
        for n in 0..owners {
            let owner = format!("{prefix}-{n:02}");
            let held = keys(&owner, each);
            holding(&self.registry, &owner, TTL, &held).await;
            all.extend(held);
        }
        all
    }

    /// Until that many keys of the dead are suspect.
    async fn suspect(&self, count: usize) {
        eventually("the end of the doomed", async || {
            (suspects(&self.registry).await.len() >= count).then_some(())
        })
        .await;
    }
}

fn seqs(receipts: &[Receipt]) -> BTreeSet<u64> {
    receipts.iter().map(|receipt| receipt.id.seq).collect()
}

on_both_engines! {
    killed_in_the_middle_of_a_sweep_with_its_data_on_disk,
    killed_with_all_its_data,
    trap_x7_a_replica_is_promoted_that_missed_the_last_writes,
    frozen_for_longer_than_a_ttl,
    the_answer_to_a_reclaim_is_lost,
    a_reclaim_that_never_arrived_is_forbidden,
    emptied_in_the_middle,
    something_else_under_a_key,
    out_of_memory,
    without_permission,
    p3_two_sweepers_one_of_them_killed_again_and_again,
}

lapsed_testbed::steady_async_tests! {
    a_slot_moves_during_a_sweep,
    no_script_holds_the_server_for_long,
    a_batch_that_slept_with_the_server_is_refused,
}

/// kill -9 and a restart that finds everything on disk. Who was not declared dead before has a whole
/// threshold to beat again, and then the sweep goes on where it was.
async fn killed_in_the_middle_of_a_sweep_with_its_data_on_disk(engine: Engine) {
    let world = World::new(ServerOptions::new(engine).persistence(Persistence::Aof));
    let mine = keys("live", 50);
    let dead = world.doomed("dead", 5, 60).await;
    let living = Living::new(&world.registry, "live", &mine).await;
    let sweeper = world.sweeper(slowly());
    let mut sum = Sum::default();
    let app = world.app();
    let half = || app.number(&["HLEN", "connections:registry"]) < 350 - 70;
    let over = AtomicBool::new(false);
    let killing = async {
        eventually("the middle of the sweep", async || half().then_some(())).await;
        world.server.kill().unwrap();
        let killed_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        world.server.restart().unwrap();
        over.store(true, Ordering::SeqCst);
        killed_ms
    };
    let sweeping = async {
        while !over.load(Ordering::SeqCst) {
            sum.add(&pass(&sweeper).await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let (killed_ms, ()) = tokio::join!(killing, sweeping);
    let app = world.app();
    let before: BTreeSet<String> = eventually("an answer", async || {
        let query = ReceiptQuery { after: Some(0), limit: 10_000, ..ReceiptQuery::default() };
        world.redis.receipts(&id(), query).await.ok()
    })
    .await
    .iter()
    .map(|receipt| receipt.owner.to_string())
    .collect();
    assert!(before.len() < 5, "the kill came in the middle: {before:?}");
    sweep_until(&sweeper, &mut sum, || app.registry().len() == 50).await;
    living.beats().await;
    let receipts = world.receipts().await;
    for receipt in receipts.iter().filter(|receipt| !before.contains(receipt.owner.as_str())) {
        let whole = receipt.at_ms >= killed_ms + TTL.as_millis() as u64;
        assert!(whole, "`{}` had no whole threshold", receipt.owner);
    }
    audit(&app, &receipts, sum.reclaimed, &dead, &held_by("live", &mine));
}

/// Nothing is left, not even the numbers. Owners are told that they are lost, start again, and no
/// number comes a second time.
async fn killed_with_all_its_data(engine: Engine) {
    let world = World::new(ServerOptions::new(engine));
    let first = world.doomed("dead", 3, 2_000).await;
    let claim = holding(&world.registry, "live", TTL, &keys("live", 20)).await;
    let sweeper = world.sweeper(Policy::default());
    let mut sum = Sum::default();
    let app = world.app();
    sweep_until(&sweeper, &mut sum, || {
        let beat = futures_now(world.registry.beat(&claim));
        beat.is_ok() && app.registry().len() == 20
    })
    .await;
    let old = world.receipts().await;
    audit(&app, &old, sum.reclaimed, &first, &held_by("live", &keys("live", 20)));

    world.server.kill().unwrap();
    world.server.restart().unwrap();
    let app = world.app();
    let lost = eventually("an answer", async || match world.registry.beat(&claim).await {
        Err(Error::Unavailable { .. }) => None,
        other => Some(other),
    })
    .await;
    assert!(matches!(lost, Err(Error::Lost(_))), "{lost:?}");
    let second = world.doomed("dead", 1, 30).await;
    let living = Living::new(&world.registry, "live", &keys("live", 20)).await;
    assert!(living.claim.incarnation > claim.incarnation, "{living:?}", living = living.claim);
    let registered = Instant::now();
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || app.registry().len() == 20).await;
    assert!(registered.elapsed() >= TTL / 2);
    living.beats().await;
    let new = world.receipts().await;
    audit(&app, &new, sum.reclaimed, &second, &held_by("live", &keys("live", 20)));
    let (highest, lowest) = (seqs(&old).last().copied(), seqs(&new).first().copied());
    assert!(lowest > highest, "receipt {lowest:?} comes after {highest:?}");
}

/// Runs to its end here and now: for a look inside a closure.
fn futures_now<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

/// The primary goes on for a while after the last write that the replica saw: lives are begun, entries
/// reclaimed, a term is won. Then the replica takes over, and all of that never happened.
async fn trap_x7_a_replica_is_promoted_that_missed_the_last_writes(engine: Engine) {
    let primary = Server::start(engine).unwrap();
    let replica = Server::replica_of(&primary).unwrap();
    let proxy = Proxy::start(primary.port()).unwrap();
    let world = World::by(primary, &proxy.url());
    let dead = world.doomed("dead", 3, 50).await;
    let living = Living::new(&world.registry, "live", &keys("live", 10)).await;
    let term = world.redis.campaign(&id(), "me", 100).await.unwrap().unwrap();
    world.suspect(150).await;
    replica.wait_synced().unwrap();
    replica.promote().unwrap();
    // What the replica never sees.
    let sweeper = world.sweeper(Policy::default());
    let mut sum = Sum::default();
    let app = world.app();
    sweep_until(&sweeper, &mut sum, || app.registry().len() == 10).await;
    let old = world.receipts().await;
    let mut incarnations = BTreeSet::new();
    for n in 0..40 {
        let beat = world.registry.start(&name(&format!("short-{n}")), 60_000).await.unwrap();
        incarnations.insert(beat.incarnation);
    }
    let second = eventually("the next term", async || {
        world.redis.campaign(&id(), "you", 100).await.unwrap()
    })
    .await;
    assert!(second.number > term.number);

    proxy.redirect(replica.port());
    let promoted = Instant::now();
    let app = App::on(&replica);
    assert_eq!(app.registry().len(), 160, "the replica never saw it");
    living.beats().await;
    let third = eventually("the term after it", async || {
        world.redis.campaign(&id(), "she", 100).await.ok().flatten()
    })
    .await;
    assert!(third.number > second.number, "{third:?} after {second:?}");
    let beat = world.registry.start(&name("late"), 600_000).await.unwrap();
    assert!(Some(&beat.incarnation) > incarnations.last(), "{beat:?} after {incarnations:?}");
    let mut again = Sum::default();
    while promoted.elapsed() < TTL / 2 {
        again.add(&pass(&sweeper).await);
        assert_eq!((again.reclaimed, app.registry().len()), (0, 160), "{again:?}");
    }
    sweep_until(&sweeper, &mut again, || app.registry().len() == 10).await;
    assert!(promoted.elapsed() >= TTL * 3 / 4, "everybody had a whole threshold");
    let new = world.receipts().await;
    audit(&app, &new, again.reclaimed, &dead, &held_by("live", &keys("live", 10)));
    assert!(seqs(&new).is_disjoint(&seqs(&old)));
    assert!(seqs(&new).first() > seqs(&old).last());
    living.assert_alive();
}

/// SIGSTOP: connections stay open, nothing is answered, clocks go on. What was on its way is carried
/// out when it wakes up, before anybody could beat.
async fn frozen_for_longer_than_a_ttl(engine: Engine) {
    let world = World::new(ServerOptions::new(engine));
    let mine = keys("live", 40);
    let dead = world.doomed("dead", 4, 50).await;
    let living = Living::new(&world.registry, "live", &mine).await;
    world.suspect(200).await;
    let found = suspects(&world.registry).await;
    let sweeper = Arc::new(world.sweeper(slowly()));
    // One pass is in the middle, and one batch is on its way.
    let under_way = tokio::spawn({
        let sweeper = sweeper.clone();
        async move { pass(&sweeper).await }
    });
    let app = world.app();
    eventually("the middle of the pass", async || {
        (app.number(&["HLEN", "connections:registry"]) < 240 - 20).then_some(())
    })
    .await;
    world.server.freeze().unwrap();
    let late = batch("late", 1, found[150..].to_vec());
    let unanswered = world.registry.reclaim(late.clone()).await;
    assert!(matches!(unanswered, Err(Error::Unavailable { .. })), "{unanswered:?}");
    let mut sum = Sum::default();
    sum.add(&under_way.await.unwrap());
    tokio::time::sleep(TTL + Duration::from_millis(500)).await;
    world.server.thaw().unwrap();
    living.beats().await;
    sum.reclaimed += world.registry.settle(&late.id).await.unwrap().len() as u64;
    sweep_until(&sweeper, &mut sum, || app.registry().len() == 40).await;
    living.beats().await;
    audit(&app, &world.receipts().await, sum.reclaimed, &dead, &held_by("live", &mine));
    assert!(sum.errors > 0, "{sum:?}");
}

/// It was carried out, and the connection broke before the answer came: in doubt, and settled by the
/// next pass.
async fn the_answer_to_a_reclaim_is_lost(engine: Engine) {
    let server = Server::start(engine).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let world = World::by(server, &proxy.url());
    let app = world.app();
    let sweeper = world.sweeper(slowly());
    let mut sum = Sum::default();
    // So that the server knows the scripts: else it is the answer `NOSCRIPT` that is lost.
    let mut dead = world.doomed("first", 1, 1).await;
    sweep_until(&sweeper, &mut sum, || app.registry().is_empty()).await;
    dead.extend(world.doomed("dead", 3, 25).await);
    let living = Living::new(&world.registry, "live", &keys("live", 5)).await;
    world.suspect(75).await;
    for _ in 0..3 {
        let lost = proxy.dropped();
        proxy.drop_answers_matching("\r\nreclaim\r\n");
        eventually("an answer lost", async || {
            let report = pass(&sweeper).await;
            sum.add(&report);
            (proxy.dropped() > lost || app.registry().len() == 5).then_some(())
        })
        .await;
    }
    assert!(sweeper.is_in_doubt());
    assert!(sum.in_doubt > 0, "{sum:?}");
    sweep_until(&sweeper, &mut sum, || app.registry().len() == 5).await;
    assert!(sum.settled > 0 && !sweeper.is_in_doubt(), "{sum:?}");
    audit(&app, &world.receipts().await, sum.reclaimed, &dead, &held_by("live", &keys("live", 5)));
    living.assert_alive();
}

/// The connection broke before the request arrived. Settling it forbids it, because it might still be
/// on its way, and would then be counted by nobody.
async fn a_reclaim_that_never_arrived_is_forbidden(engine: Engine) {
    let server = Server::start(engine).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let world = World::by(server, &proxy.url());
    let app = world.app();
    let dead = world.doomed("dead", 2, 20).await;
    world.suspect(40).await;
    let found = suspects(&world.registry).await;
    let sent = batch("cut-off", 1, found);
    proxy.cut();
    let answer = world.registry.reclaim(sent.clone()).await;
    assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
    proxy.mend().unwrap();
    let settled =
        eventually("an answer", async || world.registry.settle(&sent.id).await.ok()).await;
    assert!(settled.is_empty());
    // Here it comes after all, whatever the grace says by now.
    world.suspect(40).await;
    let late = world.registry.reclaim(sent).await.unwrap();
    assert_eq!(late.outcomes, vec![Outcome::Gone; 40]);
    assert_eq!((app.registry().len(), world.receipts().await.len()), (40, 0));
    let sweeper = world.sweeper(Policy::default());
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || app.registry().is_empty()).await;
    audit(&app, &world.receipts().await, sum.reclaimed, &dead, &[]);
}

/// FLUSHALL in the middle of a sweep.
async fn emptied_in_the_middle(engine: Engine) {
    let world = World::new(ServerOptions::new(engine));
    let app = world.app();
    world.doomed("dead", 3, 2_000).await;
    let old = holding(&world.registry, "live", LONG, &keys("live", 10)).await;
    world.suspect(3_000).await;
    let sweeper = world.sweeper(Policy::default());
    let emptied = async {
        eventually("the middle of the sweep", async || {
            (app.number(&["HLEN", "connections:registry"]) < 2_500).then_some(())
        })
        .await;
        let meta = format!("lapsed:{{connections:registry}}:{}:meta", id());
        app.call(&["MULTI"]);
        app.call(&["HGET", &meta, "receipt"]);
        app.call(&["FLUSHALL"]);
        match app.call(&["EXEC"]) {
            Reply::List(answers) => answers[0].to_string().parse::<u64>().unwrap(),
            other => panic!("{other}"),
        }
    };
    let sweeping = async {
        loop {
            let report = pass(&sweeper).await;
            assert_eq!(report.errors, 0, "{report:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    // The pass is left where it is.
    let before: u64 = tokio::select! {
        last = emptied => last,
        () = sweeping => unreachable!(),
    };
    let told = world.registry.beat(&old).await;
    assert!(matches!(told, Err(Error::Lost(_))), "{told:?}");
    let told = world.registry.register(&old, &[name("x")], Take::Always).await;
    assert!(matches!(told, Err(Error::Lost(_))), "{told:?}");
    let ghosts = app.registry();
    assert!(ghosts.is_empty(), "{ghosts:?}");
    let living = Living::new(&world.registry, "live", &keys("live", 10)).await;
    assert!(living.claim.incarnation > old.incarnation);
    let dead = world.doomed("dead", 1, 20).await;
    let mut sum = Sum::default();
    let sweeper = world.sweeper(Policy::default());
    sweep_until(&sweeper, &mut sum, || app.registry().len() == 10).await;
    let after = world.receipts().await;
    audit(&app, &after, sum.reclaimed, &dead, &held_by("live", &keys("live", 10)));
    assert!(seqs(&after).first() > Some(&before), "{:?} after {before}", seqs(&after).first());
    living.beats().await;
}

/// A key that is not what it should be: told, and nothing half-done; once it is put right it goes on.
async fn something_else_under_a_key(engine: Engine) {
    let world = World::new(ServerOptions::new(engine));
    let app = world.app();
    let dead = world.doomed("dead", 2, 20).await;
    let claim = holding(&world.registry, "live", LONG, &keys("live", 5)).await;
    world.suspect(40).await;
    let found = suspects(&world.registry).await;
    let own = |what: &str| format!("lapsed:{{connections:registry}}:{}:{what}", id());
    let held = own(&format!("held:{}", found[0].incarnation));
    assert_eq!(app.number(&["EXISTS", &held]), 1, "{}", app.text(&["KEYS", "*"]));
    let everything = || -> BTreeSet<(String, String)> {
        let listed = app.text(&["KEYS", "*"]);
        let own =
            listed.lines().filter(|key| !key.contains("heartbeat") && !key.ends_with(":meta"));
        own.map(|key| (key.to_owned(), app.text(&["DEBUG", "DIGEST-VALUE", key]))).collect()
    };
    let mut number = 0;
    for what in ["receipts", "counts", "ended", "deaths", "past", "batches", "batches_at"] {
        let key = own(what);
        let aside = app.number(&["EXISTS", &key]) == 1;
        if aside {
            app.call(&["RENAME", &key, "aside"]);
        }
        app.call(&["SET", &key, "mine"]);
        let before = everything();
        number += 1;
        let answer = world.registry.reclaim(batch("s", number, found.clone())).await;
        assert!(matches!(answer, Err(Error::Corrupt { .. })), "{what}: {answer:?}");
        assert_eq!(everything(), before, "{what}");
        app.call(&["DEL", &key]);
        if aside {
            app.call(&["RENAME", "aside", &key]);
        }
    }
    let live_held = own(&format!("held:{}", claim.incarnation.unwrap()));
    for key in ["connections:registry", held.as_str(), live_held.as_str()] {
        app.call(&["RENAME", key, "aside"]);
        app.call(&["SET", key, "mine"]);
        let before = everything();
        if key != live_held {
            number += 1;
            let answer = world.registry.reclaim(batch("s", number, found.clone())).await;
            assert!(matches!(answer, Err(Error::Corrupt { .. })), "{key}: {answer:?}");
            let report = pass(&world.sweeper(Policy::default())).await;
            assert_eq!((report.reclaimed, report.stopped), (0, Stopped::Error), "{report:?}");
            let detail = report.detail.unwrap();
            assert!(detail.contains("WRONGTYPE"), "{detail}");
        }
        if key != held {
            let new = names(&["new-1", "new-2"]);
            let told = world.registry.register(&claim, &new, Take::Always).await;
            assert!(matches!(told, Err(Error::Corrupt { .. })), "{key}: {told:?}");
            let told = world.registry.unregister(&claim, &names(&keys("live", 2))).await;
            assert!(matches!(told, Err(Error::Corrupt { .. })), "{key}: {told:?}");
        }
        assert_eq!(everything(), before, "{key}");
        app.call(&["DEL", key]);
        app.call(&["RENAME", "aside", key]);
    }
    let sweeper = world.sweeper(Policy::default());
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || app.registry().len() == 5).await;
    let receipts = world.receipts().await;
    audit(&app, &receipts, sum.reclaimed, &dead, &held_by("live", &keys("live", 5)));
}

/// No write is taken any more. Nothing is reclaimed by halves; and who could not beat meanwhile is not
/// dead for it.
async fn out_of_memory(engine: Engine) {
    let world = World::new(ServerOptions::new(engine));
    let app = world.app();
    let dead = world.doomed("dead", 3, 30).await;
    let living = Living::new(&world.registry, "live", &keys("live", 10)).await;
    world.suspect(90).await;
    let sweeper = world.sweeper(slowly());
    let mut sum = Sum::default();
    app.call(&["CONFIG", "SET", "maxmemory", "1"]);
    let full = Instant::now();
    // Longer than a TTL: all of that time nobody can beat.
    while full.elapsed() < TTL + Duration::from_millis(500) {
        let report = pass(&sweeper).await;
        sum.add(&report);
        assert_eq!((report.reclaimed, app.registry().len()), (0, 100), "{report:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(sum.details.iter().any(|d| d.contains("out of memory")), "{sum:?}");
    // The sweeper is first, by far: a new one, which has seen nothing of it.
    let other = world.sweeper(Policy::default());
    app.call(&["CONFIG", "SET", "maxmemory", "0"]);
    sum.add(&pass(&other).await);
    living.beats().await;
    sweep_until(&sweeper, &mut sum, || app.registry().len() == 10).await;
    let receipts = world.receipts().await;
    audit(&app, &receipts, sum.reclaimed, &dead, &held_by("live", &keys("live", 10)));
    living.beats().await;
}

/// A user that may not do all of it: nothing is done by halves, the error names what is missing, and
/// once it is granted it goes on.
async fn without_permission(engine: Engine) {
    let server = Server::start(engine).unwrap();
    let app = App::on(&server);
    app.call(&["ACL", "SETUSER", "sweep", "on", ">pw", "~*", "&*", "+@all"]);
    let url = format!("redis://sweep:pw@127.0.0.1:{}/0", server.port());
    let world = World::by(server, &url);
    let mut dead = Vec::new();
    let living = Living::new(&world.registry, "live", &keys("live", 10)).await;
    let sweeper = world.sweeper(Policy::default());
    let mut sum = Sum::default();
    for (nth, command) in ["xadd", "hdel", "info"].into_iter().enumerate() {
        dead.extend(world.doomed(&format!("dead-{nth}"), 2, 10).await);
        world.suspect(20).await;
        let found = suspects(&world.registry).await;
        app.call(&["ACL", "SETUSER", "sweep", &format!("-{command}")]);
        let error = world.registry.reclaim(batch("s", nth as u64 + 1, found)).await.unwrap_err();
        let words = error.to_string();
        assert!(matches!(error, Error::Unavailable { .. }), "{words}");
        let named = words.to_lowercase().contains(command);
        assert!(named && words.contains("permission"), "{command}: {words}");
        if command == "hdel" {
            let before = app.text(&["DEBUG", "DIGEST-VALUE", "connections:registry"]);
            let own = names(&keys("live", 3));
            let error = world.registry.unregister(&living.claim, &own).await.unwrap_err();
            assert!(error.to_string().contains("permission"), "{error}");
            let held = world.registry.entries(&living.claim, None, 100).await.unwrap();
            assert_eq!(held.len(), 10, "nothing half-done");
            assert_eq!(app.text(&["DEBUG", "DIGEST-VALUE", "connections:registry"]), before);
        }
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(200) {
            sum.add(&pass(&sweeper).await);
        }
        assert_eq!(app.registry().len(), 30, "{command}");
        app.call(&["ACL", "SETUSER", "sweep", &format!("+{command}")]);
        sweep_until(&sweeper, &mut sum, || app.registry().len() == 10).await;
        living.beats().await;
    }
    let receipts = world.receipts().await;
    audit(&app, &receipts, sum.reclaimed, &dead, &held_by("live", &keys("live", 10)));
}

/// Two connections, two sweepers, 2,000 entries of 20 dead owners; one of the two is ended at any
/// instant, again and again.
async fn p3_two_sweepers_one_of_them_killed_again_and_again(engine: Engine) {
    let world = World::new(ServerOptions::new(engine));
    let app = world.app();
    let mut living = Vec::new();
    for n in 0..20 {
        let owner = format!("live-{n:02}");
        holding(&world.registry, &owner, LONG, &keys(&owner, 5)).await;
        living.extend(held_by(&owner, &keys(&owner, 5)));
    }
    let dead = world.doomed("dead", 20, 100).await;
    world.suspect(2_000).await;
    let steady = crate::story::sweeper_called("steady", &world.sweep, &world.redis, slowly());
    let mut sum = Sum::default();
    let (stopper, stop) = tokio::sync::oneshot::channel::<()>();
    let victim = async {
        let redis = connect(&world.server.url());
        let sweep: Arc<dyn Sweep> = Arc::new(redis.registry(id(), layout(TTL)).unwrap());
        let (mut dice, mut stop) = (1_u64, stop);
        let mut killed = 0;
        while stop.try_recv().is_err() {
            let policy = Policy { batch: 25, ..slowly() };
            let one = sweeper(&sweep, &redis, policy);
            let task = tokio::spawn(async move { pass(&one).await });
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            tokio::time::sleep(Duration::from_micros(dice >> 51)).await;
            task.abort();
            killed += u64::from(task.await.is_err());
        }
        killed
    };
    let steady_one = async {
        sweep_until(&steady, &mut sum, || app.registry().len() == living.len()).await;
        let _ = stopper.send(());
    };
    let (killed, ()) = tokio::join!(victim, steady_one);
    assert!(killed > 5, "{killed}");
    let receipts = world.receipts().await;
    audit(&app, &receipts, receipts.len() as u64, &dead, &living);
    let steady_ones = receipts.iter().filter(|receipt| &*receipt.sweeper == "steady").count();
    assert_eq!(steady_ones as u64, sum.reclaimed, "the one that lived counted what it did");
    assert!(steady_ones < receipts.len(), "the others had their share");
}

/// The slot of the registry moves to another node, key by key, while sweepers sweep and owners beat.
/// As long as the keys are on both sides no script can run; nothing is lost or done twice for it.
async fn a_slot_moves_during_a_sweep() {
    let cluster = Arc::new(Cluster::start(Engine::Redis, 3).unwrap());
    let redis = connect(&cluster.url());
    let tagged = lapsed_redis::RegistryLayout {
        registry_key: "{c}:registry".to_owned(),
        heartbeat_key: lapsed_redis::Template::new("{c}:hb:{owner}", "owner").unwrap(),
        ..layout(TTL)
    };
    let system = SystemId::new(Kind::Registry, "moving").unwrap();
    let registry = redis.registry(system.clone(), tagged).unwrap();
    let sweep: Arc<dyn Sweep> = Arc::new(registry.clone());
    let mut dead = Vec::new();
    for n in 0..3 {
        let held = keys(&format!("dead-{n}"), 60);
        holding(&registry, &format!("dead-{n}"), TTL, &held).await;
        dead.extend(held);
    }
    let living = Living::new(&registry, "live", &keys("live", 20)).await;
    eventually("the end of the doomed", async || {
        (suspects(&registry).await.len() == 180).then_some(())
    })
    .await;
    let sweeper = Arc::new(sweeper(&sweep, &redis, Policy { max_ops: Some(30), ..slowly() }));
    let other = crate::story::sweeper(&sweep, &redis, Policy::default());
    let slot = cluster.slot_of("{c}:registry");
    let from = cluster.master_of_slot(slot).unwrap();
    let to = (from + 1) % 3;
    let handle = tokio::runtime::Handle::current();
    let moving = tokio::task::spawn_blocking({
        let (cluster, sweeper) = (cluster.clone(), sweeper.clone());
        let (registry, claim) = (registry.clone(), living.claim.clone());
        move || {
            let (mut sum, mut steps) = (Sum::default(), 0);
            let step = || {
                // Marked on both sides, in the middle, and at the end.
                if steps % 5 == 0 {
                    sum.add(&handle.block_on(pass(&sweeper)));
                }
                match steps {
                    // All keys are on one side yet.
                    0 => drop(handle.block_on(registry.beat(&claim)).unwrap()),
                    // Somebody's script hangs: longer than a TTL nobody can beat.
                    6 => std::thread::sleep(TTL + Duration::from_millis(500)),
                    _ => {}
                }
                steps += 1;
            };
            cluster.migrate_slot_in_steps(slot, to, step).unwrap();
            // A sweeper is first, by far: one that has seen nothing of it.
            sum.add(&handle.block_on(pass(&other)));
            (sum, steps)
        }
    });
    let (mut sum, steps) = moving.await.unwrap();
    assert!(steps > 8, "{steps}");
    living.beats().await;
    let app = App::on(&cluster.nodes()[to]);
    let left = || app.number(&["HLEN", "{c}:registry"]);
    sweep_until(&sweeper, &mut sum, || left() == 20).await;
    let receipts = receipts(&redis, &system).await;
    let keys: BTreeSet<&str> = receipts.iter().map(|receipt| receipt.key.as_str()).collect();
    assert_eq!((receipts.len(), keys.len()), (180, 180), "one receipt each");
    assert!(dead.iter().all(|key| keys.contains(key.as_str())));
    assert_eq!(sum.reclaimed, 180, "{sum:?}");
    living.beats().await;
}

/// 100,000 entries of one dead owner among 200,000, and the server has others to serve. The server's
/// own clock runs on while the machine lets others run: a few long ones prove nothing, many would.
async fn no_script_holds_the_server_for_long() {
    let world = World::new(ServerOptions::new(Engine::Redis).extra("slowlog-max-len", "1000"));
    let app = world.app();
    holding(&world.registry, "live", LONG, &keys("live", 100_000)).await;
    holding(&world.registry, "dead", TTL, &keys("dead", 100_000)).await;
    world.suspect(1).await;
    app.call(&["CONFIG", "SET", "slowlog-log-slower-than", "2000"]);
    app.call(&["SLOWLOG", "RESET"]);
    app.call(&["CONFIG", "RESETSTAT"]);
    let sweeper = world.sweeper(Policy::default());
    let mut sum = Sum::default();
    let left = || app.number(&["HLEN", "connections:registry"]);
    sweep_until(&sweeper, &mut sum, || left() == 100_000).await;
    assert_eq!(sum.reclaimed, 100_000);
    let stats = app.text(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")).unwrap();
    let field = |name: &str| -> f64 {
        let value = line.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        value.unwrap().parse().unwrap()
    };
    let (calls, mean_us) = (field("calls"), field("usec_per_call"));
    let Reply::List(slow) = app.call(&["SLOWLOG", "GET", "1000"]) else { panic!("no list") };
    let took: Vec<i64> = slow.iter().map(held_us).collect();
    let longest = took.iter().max().copied().unwrap_or(0);
    println!(
        "{calls} scripts in {} passes: {mean_us} µs each, {} over 2 ms, the longest {longest} µs",
        sum.passes,
        took.len(),
    );
    assert!(mean_us <= 2_000.0, "{line}");
    let long = took.iter().filter(|us| **us > 20_000).count();
    assert!(long as f64 <= calls / 50.0, "{long} of {calls} over 20 ms");
    let claim = Claim::newest(name("live"));
    assert_eq!(world.registry.owner(&claim).await.unwrap().unwrap().held, 100_000);
}

/// How long a command of the slow log held the server.
fn held_us(entry: &Reply) -> i64 {
    match entry {
        Reply::List(fields) => match fields.get(2) {
            Some(Reply::Integer(us)) => *us,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// What the guard says to a batch whose server stood still meanwhile, by itself.
async fn a_batch_that_slept_with_the_server_is_refused() {
    let world = World::new(ServerOptions::new(Engine::Valkey));
    let mine = keys("k", 5);
    holding(&world.registry, "i-1", TTL, &mine).await;
    world.suspect(5).await;
    let found = suspects(&world.registry).await;
    let registry = world.registry.clone();
    // The script is known to the server.
    let first = reclaim(&world.registry, 1, found[..1].to_vec()).await;
    assert!(matches!(first.outcomes[0], Outcome::Reclaimed(_)), "{first:?}");
    holding(&world.registry, "i-2", TTL, &keys("l", 5)).await;
    eventually("the end of the second", async || {
        let all = suspects(&world.registry).await;
        all.iter().any(|suspect| suspect.owner == name("i-2")).then_some(())
    })
    .await;
    let found: Vec<_> = suspects(&world.registry).await;
    let found: Vec<_> = found.into_iter().filter(|s| s.owner == name("i-2")).collect();
    world.server.freeze().unwrap();
    let late = batch("late", 1, found.clone());
    let sent = registry.reclaim(late.clone()).await;
    assert!(sent.is_err(), "{sent:?}");
    tokio::time::sleep(TTL).await;
    world.server.thaw().unwrap();
    let again = eventually("an answer", async || {
        world.registry.reclaim(batch("by-hand", 2, found.clone())).await.ok()
    })
    .await;
    assert_eq!(again.outcomes, vec![Outcome::Refused(Refusal::StoreAway); 5]);
    assert!(world.registry.settle(&late.id).await.unwrap().is_empty());
    assert_eq!(world.app().registry().len(), 9);
}
