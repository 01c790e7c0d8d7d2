//! A request whose answer was never kept, or whose two attempts are carried out at the same time by two daemons.

use lapsed_availability::Truth;
use lapsed_core::Error;
use lapsed_core::request::{CurrentRequest, KeptRequest, RequestId};
use lapsed_core::store::Store;

use crate::fixture::{Bench, name, system};

fn attempt(number: u32) -> RequestId {
    RequestId::new("key", "f", &format!("attempt-{number}")).unwrap()
}

#[tokio::test]
async fn a_change_is_noted_with_its_request_and_not_made_twice() {
    let bench = Bench::new().await;
    bench.add("a").await;
    let store = &bench.postgres;
    let online = |number: u32| {
        let truth = &bench.truth;
        async move {
            let (id, current) = (name("a"), CurrentRequest::new(system(), attempt(number)));
            current.carry_out(truth.set_online(&id, true)).await
        }
    };
    assert_eq!(store.kept_request(&system(), &attempt(1)).await.unwrap(), KeptRequest::Unknown);
    // Both at the same time: one of the two is rolled back.
    let (first, second) = tokio::join!(online(1), online(2));
    let done = [&first, &second].map(|answer| answer.is_ok());
    assert_eq!(done.iter().filter(|done| **done).count(), 1, "{first:?} {second:?}");
    assert_eq!(store.kept_request(&system(), &attempt(3)).await.unwrap(), KeptRequest::Begun);
    // A late one does not undo what came in between.
    bench.offline("a").await;
    let late = online(3).await;
    assert!(matches!(late, Err(Error::Unavailable { .. })), "{late:?}");
    assert!(!bench.truth.read(&[name("a")]).await.unwrap()[0].online);
    let other = RequestId::new("key", "g", "attempt-4").unwrap();
    let reused = store.kept_request(&system(), &other).await;
    assert!(matches!(reused, Err(Error::KeyReused { .. })), "{reused:?}");
    store.keep_answer(&system(), &attempt(1), "yes\nand more").await.unwrap();
    let kept = store.kept_request(&system(), &attempt(3)).await.unwrap();
    assert_eq!(kept, KeptRequest::Answered("yes\nand more".to_owned()));
}

/// A request that changed nothing is forgotten, and one that is too old does not count.
#[tokio::test]
async fn forgotten_requests_are_carried_out() {
    let bench = Bench::new().await;
    bench.add("a").await;
    let offline = |number: u32| {
        let truth = &bench.truth;
        async move {
            let (id, current) = (name("a"), CurrentRequest::new(system(), attempt(number)));
            current.carry_out(truth.set_online(&id, false)).await
        }
    };
    offline(1).await.unwrap();
    bench.postgres.forget_request(&system(), &attempt(1)).await.unwrap();
    offline(2).await.unwrap();
    bench.sql("UPDATE lapsed_notes SET at = at - interval '601 seconds' WHERE book = 'key'");
    let kept = bench.postgres.kept_request(&system(), &attempt(3)).await.unwrap();
    assert_eq!(kept, KeptRequest::Unknown);
    offline(3).await.unwrap();
}
