//! Reading suspects costs a pass next to no round trips: what one life left in many pages, and what many
//! lives left in one each, is read ahead of the batches that take it. Nobody is left out or comes twice.

use std::collections::BTreeSet;

use lapsed_core::sweep::{Cursor, Outcome, PageRequest, Suspect, Sweep};
use lapsed_testbed::{Engine, ServerOptions};

use crate::story::{
    TTL, connect, eventually, holding, id, keys, layout, on_both_engines, reclaim, suspects,
};

on_both_engines! {
    pages_cost_few_round_trips_for_one_or_many_dead_owners,
    suspects_reclaimed_between_pages_are_not_missed,
}

const LIMIT: usize = 50;

async fn page_after(sweep: &dyn Sweep, after: Cursor) -> (Vec<Suspect>, bool) {
    let request = PageRequest { after, limit: LIMIT, undeclared_max: None };
    let page = sweep.suspects(request).await.unwrap();
    (page.suspects, page.last)
}

async fn pages_cost_few_round_trips_for_one_or_many_dead_owners(engine: Engine) {
    let server = ServerOptions::new(engine).start().unwrap();
    let redis = connect(&server.url());
    let registry = redis.registry(id(), layout(TTL)).unwrap();
    let mut all: BTreeSet<String> = keys("heavy", 1_000).into_iter().collect();
    holding(&registry, "heavy", TTL, &keys("heavy", 1_000)).await;
    for n in 0..300 {
        let owner = format!("light-{n:03}");
        holding(&registry, &owner, TTL, &keys(&owner, 1)).await;
        all.extend(keys(&owner, 1));
    }
    eventually("the end of all", async || {
        (suspects(&registry).await.len() == all.len()).then_some(())
    })
    .await;
    let before = redis.requests();
    let (mut found, mut pages, mut cursor) = (Vec::new(), 0, Cursor::default());
    loop {
        let (some, last) = page_after(&registry, cursor).await;
        pages += 1;
        found.extend(some);
        cursor = registry.after(found.last().unwrap());
        if last {
            break;
        }
    }
    let sent = redis.requests() - before;
    assert_eq!(pages, all.len().div_ceil(LIMIT));
    assert!(sent <= pages as u64 / 2, "{sent} round trips for {pages} pages");
    assert_eq!(found.len(), all.len(), "somebody came twice");
    assert_eq!(found.iter().map(|s| s.key.to_string()).collect::<BTreeSet<_>>(), all);
    let order = |suspect: &Suspect| (suspect.deadline_ms, suspect.incarnation);
    assert!(found.is_sorted_by_key(order));
}

/// Another sweeper takes what was read ahead: it is refused, and what is after it still comes.
async fn suspects_reclaimed_between_pages_are_not_missed(engine: Engine) {
    let server = ServerOptions::new(engine).start().unwrap();
    let redis = connect(&server.url());
    let registry = redis.registry(id(), layout(TTL)).unwrap();
    holding(&registry, "heavy", TTL, &keys("heavy", 400)).await;
    holding(&registry, "light", TTL, &keys("light", 1)).await;
    eventually("the end of all", async || (suspects(&registry).await.len() == 401).then_some(()))
        .await;
    let (first, _) = page_after(&registry, Cursor::default()).await;
    let (ahead, _) = page_after(&registry, registry.after(&first[LIMIT - 1])).await;
    let beside = connect(&server.url()).registry(id(), layout(TTL)).unwrap();
    let theirs: Vec<Suspect> = suspects(&beside).await.into_iter().take(400).collect();
    reclaim(&beside, 1, theirs).await;
    let (mut cursor, mut left) = (registry.after(&ahead[LIMIT - 1]), Vec::new());
    loop {
        let (some, last) = page_after(&registry, cursor.clone()).await;
        cursor = some.last().map_or(cursor, |suspect| registry.after(suspect));
        left.extend(some);
        if last {
            break;
        }
    }
    assert!(left.iter().any(|suspect| suspect.owner.as_str() == "light"), "it was missed");
    let answer = reclaim(&registry, 2, left).await;
    let gone = answer.outcomes.iter().filter(|o| matches!(o, Outcome::Reclaimed(_)));
    assert_eq!(gone.count(), 1, "the one that was left");
}
