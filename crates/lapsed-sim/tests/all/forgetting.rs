//! Forgetting a key is several requests, and anybody may come in between or die: at each of them, in turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lapsed_core::leases::{Fenced, LeaseKey, LeasesStore};
use lapsed_sim::executor::World;
use lapsed_sim::leases::bucket::SimBucket;
use lapsed_sim::leases::bug::LeaseBug;

use crate::lease_process::{Fate, Process, layout, tell};

/// The most requests that a pass or an acquire of these stories sends.
const REQUESTS_MAX: usize = 40;

fn stage(bug: Option<LeaseBug>) -> (Arc<World>, Arc<SimBucket>) {
    let world = World::new(1, false);
    let bucket = SimBucket::new(&world, bug);
    (world, bucket)
}

/// A process that ends at its request `last`; whether it came that far.
fn mortal(
    world: &Arc<World>,
    bucket: &Arc<SimBucket>,
    last: usize,
    fate: Fate,
) -> (Process, Arc<AtomicBool>) {
    let died = Arc::new(AtomicBool::new(false));
    let told = died.clone();
    let judge = move |number: usize, _: &str, _: &str| match number == last {
        true => {
            told.store(true, Ordering::Relaxed);
            fate
        }
        false => Fate::Sent,
    };
    (Process::with(world, bucket, layout(), judge), died)
}

/// The sweeper dies at its request `last` while it forgets a key with token 3. What somebody else is
/// granted then, and once more after the key was forgotten; `None`: the sweeper did not die.
fn token_after_a_dead_sweeper(last: usize, fate: Fate, bug: Option<LeaseBug>) -> Option<[u64; 2]> {
    let (world, bucket) = stage(bug);
    let (first, third) = (Process::new(&world, &bucket), Process::new(&world, &bucket));
    let (second, died) = mortal(&world, &bucket, last, fate);
    let dying = world.clone();
    let tokens = tell(&world, 10, async move {
        for _ in 0..3 {
            first.use_once("k").await;
        }
        first.let_it_be_forgotten().await;
        let number = dying.new_process();
        dying.spawn(number, async move { drop(second.pass().await) });
        third.sleep(120).await;
        let next = third.use_once("k").await;
        third.let_it_be_forgotten().await;
        third.pass().await;
        let key = LeaseKey::new("n", "k").unwrap();
        assert_eq!(third.leases.peek(&key).await.unwrap(), None, "forgotten in the end");
        [next, third.use_once("k").await]
    });
    died.load(Ordering::Relaxed).then_some(tokens)
}

#[test]
fn a_sweeper_that_dies_at_any_request_lets_no_token_go_back() {
    let mut deaths = 0;
    for fate in [Fate::Unsent, Fate::Unanswered] {
        for last in 0..REQUESTS_MAX {
            let Some([next, later]) = token_after_a_dead_sweeper(last, fate, None) else { break };
            assert!(next > 3 && later > next, "{fate:?} at {last}: {next}, then {later} after 3");
            deaths += 1;
        }
    }
    assert!(deaths > 20, "{deaths}");
    // A bucket that does not keep the floor shows that these stories would find it.
    let found = (0..REQUESTS_MAX)
        .filter_map(|last| {
            token_after_a_dead_sweeper(last, Fate::Unanswered, Some(LeaseBug::TokenFloorDropped))
        })
        .any(|[next, later]| next <= 3 || later <= next);
    assert!(found);
}

/// The key was forgotten with token 3. A process dies at its request `last` while it acquires it anew.
#[test]
fn an_acquire_that_dies_at_any_request_takes_no_old_token() {
    let mut deaths = 0;
    for fate in [Fate::Unsent, Fate::Unanswered] {
        for last in 0..REQUESTS_MAX {
            let (world, bucket) = stage(None);
            let (first, third) = (Process::new(&world, &bucket), Process::new(&world, &bucket));
            let (second, died) = mortal(&world, &bucket, last, fate);
            let dying = world.clone();
            let token = tell(&world, 10, async move {
                for _ in 0..3 {
                    first.use_once("k").await;
                }
                first.let_it_be_forgotten().await;
                first.pass().await;
                let number = dying.new_process();
                dying.spawn(number, async move { drop(second.acquire("k", 1_000).await) });
                third.sleep(60).await;
                third.use_once("k").await
            });
            assert!(token > 3, "{fate:?} at {last}: {token}");
            match died.load(Ordering::Relaxed) {
                true => deaths += 1,
                false => break,
            }
        }
    }
    assert!(deaths >= 10, "{deaths}");
}

/// The sweeper's delete is under way for 100 s; meanwhile somebody acquires the key. Whether the
/// holder still has it afterwards, and whether a rival is refused.
fn outlives_a_late_delete(bug: Option<LeaseBug>) -> (bool, bool) {
    let (world, bucket) = stage(bug);
    let late =
        |_: usize, method: &str, path: &str| match method == "DELETE" && path.contains("/meta/") {
            true => Fate::Late(Duration::from_secs(20)),
            false => Fate::Sent,
        };
    let slow = Process::with(&world, &bucket, layout(), late);
    let (holder, rival) = (Process::new(&world, &bucket), Process::new(&world, &bucket));
    let sweeping = world.clone();
    tell(&world, 10, async move {
        slow.use_once("k").await;
        slow.let_it_be_forgotten().await;
        let number = sweeping.new_process();
        sweeping.spawn(number, async move { drop(slow.pass().await) });
        holder.sleep(15).await;
        let grant = holder.acquire("k", 3_600_000).await.unwrap();
        holder.sleep(60).await;
        let renewed = holder.leases.renew(&grant.ticket(), None).await.unwrap().answer;
        let refused = rival.acquire("k", 1_000).await.is_err();
        (matches!(renewed, Fenced::Done(_)), refused)
    })
}

#[test]
fn a_key_that_is_leased_before_a_late_delete_is_not_forgotten() {
    assert_eq!(outlives_a_late_delete(None), (true, true));
    let lost = outlives_a_late_delete(Some(LeaseBug::DeleteIfIgnored));
    assert_eq!(lost, (false, false), "a server that ignores the condition would be found");
}
