//! What every store must keep of a brake. The suites of the systems run it on their stores.
#![allow(clippy::unwrap_used)]

use futures::future::join_all;

use crate::name::SystemId;
use crate::store::Store;
use crate::sweep::brake::{BrakeRecord, BrakeSetting, MassHold};

/// The race for a step or an override: of those who replace the same record, one is accepted.
pub async fn a_brake_record_is_replaced_by_one_of_many(store: &dyn Store, system: &SystemId) {
    let read = store.brake(system).await.unwrap();
    let steps = |steps| {
        let hold = MassHold { since_ms: 1, until_ms: 2, steps, stepped_ms: 2, decided: false };
        BrakeRecord { hold: Some(hold), ..read.next() }
    };
    let wanted: Vec<BrakeRecord> = (1..=8).map(steps).collect();
    let swaps = wanted.iter().map(|next| store.swap_brake(system, next));
    let accepted: Vec<bool> = join_all(swaps).await.into_iter().map(Result::unwrap).collect();
    let winners: Vec<usize> = (0..8).filter(|n| accepted[*n]).collect();
    assert_eq!(winners.len(), 1, "{accepted:?}");
    assert_eq!(store.brake(system).await.unwrap(), wanted[winners[0]]);
    assert!(!store.swap_brake(system, &wanted[winners[0]]).await.unwrap(), "nor twice");
    let setting = BrakeSetting::Override { reason: "a drill".to_owned() };
    store.set_brake(system, setting).await.unwrap();
    let ordered = store.brake(system).await.unwrap();
    assert_eq!(ordered.version, read.version + 2, "an order is a change like any other");
    let takers = ["one", "two"].map(|sweeper| ordered.taken_by(sweeper, 9).unwrap());
    let takes = takers.iter().map(|next| store.swap_brake(system, next));
    let taken: Vec<bool> = join_all(takes).await.into_iter().map(Result::unwrap).collect();
    assert!(taken[0] != taken[1], "an override is taken by one: {taken:?}");
    store.set_brake(system, BrakeSetting::Auto).await.unwrap();
    let left = store.brake(system).await.unwrap();
    assert_eq!((left.setting, left.overriding), (BrakeSetting::Auto, None));
    let cleared = BrakeRecord { hold: None, ..store.brake(system).await.unwrap().next() };
    assert!(store.swap_brake(system, &cleared).await.unwrap());
}
