//! Many take and complete at the same time, in one process: they share calls, and nothing else. Each has its
//! own life, its own jobs, its own answer, and its own error.

use std::collections::BTreeSet;

use futures::future::join_all;
use lapsed_core::Error;
use lapsed_core::inflight::{Claimed, Finish, Finished, InflightStore, JobTicket, Taken};
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_testbed::{Engine, ServerOptions};

use crate::jobs::{World, id, patient};
use crate::story::{name, on_both_engines};

on_both_engines! {
    many_take_and_complete_at_once,
    one_that_is_refused_does_not_refuse_the_others,
    a_claim_that_two_complete_at_once_is_completed_once,
}

const CALLERS: usize = 32;
const EACH: usize = 10;

/// A life that lasts for the whole story.
async fn living(world: &World, owner: &str) -> Claim {
    let beat = world.jobs.start(&name(owner), 600_000).await.unwrap();
    Claim::exact(name(owner), beat.incarnation)
}

async fn take_all(world: &World, claims: &[Claim]) -> Vec<lapsed_core::Result<Taken>> {
    join_all(claims.iter().map(|claim| {
        let queue = name("q");
        async move { world.jobs.take(claim, &queue, EACH).await }
    }))
    .await
}

fn tickets(claim: &Claim, jobs: &[Claimed]) -> Vec<JobTicket> {
    jobs.iter().map(|job| job.ticket(claim.incarnation.unwrap())).collect()
}

async fn many_take_and_complete_at_once(engine: Engine) {
    let world = World::new(ServerOptions::new(engine), patient());
    world.enqueue("j", CALLERS * EACH).await;
    let mut claims = Vec::new();
    for n in 0..CALLERS {
        claims.push(living(&world, &format!("w-{n}")).await);
    }
    let retired = living(&world, "retired").await;
    world.jobs.end(&retired).await.unwrap();
    let stranger = Claim { owner: name("stranger"), ..claims[0].clone() };
    let others = [retired, stranger, Claim::newest(name("new"))];
    let asked: Vec<Claim> = claims.iter().chain(&others).cloned().collect();

    let before = world.redis.requests();
    let mut taken = take_all(&world, &asked).await;
    let sent = world.redis.requests() - before;
    assert!(sent <= CALLERS as u64 / 2, "{sent} round trips for {} callers", asked.len());
    let new = taken.pop().unwrap().unwrap();
    assert!(new.started.is_some(), "a name never seen begins to live");
    for refused in taken.drain(CALLERS..) {
        assert!(matches!(refused, Err(Error::Lost(_))), "{refused:?}");
    }
    let taken: Vec<Taken> = taken.into_iter().map(Result::unwrap).collect();
    let (mut ids, mut tokens) = (BTreeSet::new(), BTreeSet::new());
    for (claim, taken) in claims.iter().zip(&taken) {
        let own: BTreeSet<_> = taken.jobs.iter().map(|job| job.id.clone()).collect();
        let held = world.jobs.in_flight(claim, None, 100).await.unwrap();
        assert_eq!(own, held.into_iter().collect(), "what it is told is what it holds");
        assert!(taken.jobs.iter().all(|job| job.payload == format!("payload of {}", job.id)));
        assert!(taken.jobs.is_sorted_by_key(|job| job.token));
        tokens.extend(taken.jobs.iter().map(|job| job.token));
        ids.extend(own);
    }
    ids.extend(new.jobs.iter().map(|job| job.id.clone()));
    assert_eq!(ids.len(), CALLERS * EACH, "every job is somebody's, and only one's");
    assert_eq!(tokens.len() + new.jobs.len(), ids.len());

    let all = claims.iter().zip(&taken).map(|(claim, taken)| tickets(claim, &taken.jobs));
    let before = world.redis.requests();
    let done = join_all(all.map(async |tickets| {
        let done = world.jobs.finish(&tickets, &Finish::Complete).await.unwrap();
        assert!(done.len() == tickets.len() && done.iter().all(|one| *one == Finished::Done));
        done.len()
    }));
    assert_eq!(done.await.into_iter().sum::<usize>() + new.jobs.len(), CALLERS * EACH);
    assert!(world.redis.requests() - before <= CALLERS as u64 / 2);
    let counts = world.audit("together").await;
    assert_eq!(counts.in_flight, new.jobs.len() as u64);
}

async fn one_that_is_refused_does_not_refuse_the_others(engine: Engine) {
    let world = World::new(ServerOptions::new(engine), patient());
    world.enqueue("j", CALLERS * EACH).await;
    let mut claims = Vec::new();
    for n in 0..CALLERS {
        claims.push(living(&world, &format!("w-{n}")).await);
    }
    let broken = claims[7].incarnation.unwrap();
    let held = format!("lapsed:{{lapsed:inflight}}:{}:held:{broken}", id());
    world.app().call(&["SET", &held, "of another type"]);
    let taken = take_all(&world, &claims).await;
    for (n, taken) in taken.iter().enumerate() {
        match taken {
            Err(error) => assert_eq!(n, 7, "{error}"),
            Ok(taken) => assert!(n != 7 && taken.jobs.len() == EACH, "{n}"),
        }
    }
    let counts = world.audit("one refused").await;
    assert_eq!((counts.in_flight, counts.queued), (310, 10));
}

async fn a_claim_that_two_complete_at_once_is_completed_once(engine: Engine) {
    let world = World::new(ServerOptions::new(engine), patient());
    world.enqueue("j", EACH).await;
    let claim = living(&world, "w").await;
    let jobs = world.jobs.take(&claim, &name("q"), EACH).await.unwrap().jobs;
    let tickets = tickets(&claim, &jobs);
    let ends = join_all((0..CALLERS).map(|_| world.jobs.finish(&tickets, &Finish::Complete))).await;
    for at in 0..EACH {
        let of_it = ends.iter().map(|end| end.as_ref().unwrap()[at]);
        let (done, rest): (Vec<_>, Vec<_>) = of_it.partition(|end| *end == Finished::Done);
        assert_eq!((done.len(), rest.len()), (1, CALLERS - 1));
        assert!(rest.iter().all(|end| *end == Finished::Gone), "{rest:?}");
    }
    assert_eq!(world.audit("twice").await.completed, EACH as u64);
}
