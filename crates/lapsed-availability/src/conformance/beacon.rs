//! Cases about the snapshot that all daemons share.

use std::sync::atomic::Ordering;

use futures::future::join_all;

use super::AvailabilityFixture;
use crate::rules::SettingsPatch;
use crate::{Snapshot, SnapshotTurn, Source};

pub async fn all_daemons_share_one_snapshot(b: AvailabilityFixture) {
    b.online("p").await;
    let daemons = [b.daemon(), b.daemon(), b.daemon(), b.daemon()];
    let asked = join_all((0..80).map(|n| daemons[n % 4].beacon())).await;
    for answer in asked {
        let answer = answer.unwrap();
        assert_eq!(answer.answer, Snapshot { available: true, count: 1 });
        assert_eq!(answer.source, Source::Mirror);
    }
    let computed = daemons.iter().map(|one| one.counters().snapshots.load(Ordering::Relaxed));
    assert_eq!(computed.sum::<u64>(), 1);
}

pub async fn a_change_of_settings_drops_the_snapshot(b: AvailabilityFixture) {
    b.online("p").await;
    assert_eq!(b.it.beacon().await.unwrap().answer.count, 1);
    let patch = SettingsPatch { max_customers_per_mitra: Some(0), ..Default::default() };
    b.it.set_settings(&patch).await.unwrap();
    let beacon = b.it.beacon().await.unwrap().answer;
    assert_eq!(beacon, Snapshot { available: false, count: 0 });
}

pub async fn a_flip_drops_the_snapshot(b: AvailabilityFixture) {
    let id = b.online("p").await;
    assert_eq!(b.it.beacon().await.unwrap().answer.count, 1);
    b.it.set_offline(&id).await.unwrap();
    assert_eq!(b.it.beacon().await.unwrap().answer.count, 0);
    b.online("q").await;
    assert_eq!(b.it.beacon().await.unwrap().answer.count, 1);
    b.silence().await;
    assert_eq!(b.sweep().await.reclaimed, 1);
    assert_eq!(b.it.beacon().await.unwrap().answer.count, 0);
}

/// A snapshot whose computation began before a change is refused.
pub async fn a_snapshot_of_a_dropped_turn_is_refused(b: AvailabilityFixture) {
    let turn = b.mirror.snapshot(60_000).await.unwrap().unwrap();
    let SnapshotTurn::Yours(turn) = turn else { panic!("{turn:?}") };
    let other = b.mirror.snapshot(60_000).await.unwrap().unwrap();
    assert_eq!(other, SnapshotTurn::Theirs);
    b.mirror.drop_snapshot().await.unwrap();
    let stale = Snapshot { available: true, count: 7 };
    assert!(!b.mirror.put_snapshot(&turn, &stale, 60_000).await.unwrap());
    let next = b.mirror.snapshot(60_000).await.unwrap().unwrap();
    assert!(matches!(next, SnapshotTurn::Yours(_)), "{next:?}");
}
