//! Much at once: sweepers that are killed, slots that move, a hundred thousand entries.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::sweep::Sweep;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::{Kind, SystemId};
use lapsed_testbed::resp::Reply;
use lapsed_testbed::{Cluster, Engine, ServerOptions};

use crate::story::{
    App, Living, Sum, TTL, audit, connect, eventually, held_by, holding, id, keys, layout, name,
    on_both_engines, pass, receipts, slowly, suspects, sweep_until, sweeper,
};

use super::{LONG, World};

on_both_engines! {
    p3_two_sweepers_one_of_them_killed_again_and_again,
}

lapsed_testbed::steady_async_tests! {
    a_slot_moves_during_a_sweep,
    no_script_holds_the_server_for_long,
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
    let dead = world.dying_owners("dead", 20, 100).await;
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
    eventually("the end of the dying owners", async || {
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
