//! A registry from its opening to its receipts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lapsed::{Every, Manual, Observer, Receipt, Restored, open};

use crate::stores::{each, ms, until};

#[tokio::test]
async fn it_opens_in_one_line_and_an_owner_that_leaves_releases_everything_with_receipts() {
    for (lapsed, _folder) in each().await {
        let devices =
            lapsed.registry("devices").ttl(Duration::from_secs(90)).start().await.unwrap();
        let me = devices.join("gateway-1").await.unwrap();
        me.register("imei-1").await.unwrap();
        me.register_many(&["imei-2", "imei-3"]).await.unwrap();
        assert!(me.unregister("imei-3").await.unwrap());
        assert_eq!(devices.lookup("imei-1").await.unwrap().unwrap().owner(), "gateway-1");
        assert_eq!(me.leave().await.unwrap().reclaimed, 2);
        assert!(devices.lookup("imei-1").await.unwrap().is_none());
        let receipts = devices.receipts(10).await.unwrap();
        let mut keys: Vec<&str> = receipts.iter().map(|receipt| receipt.key.as_str()).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["imei-1", "imei-2"]);
        assert!(receipts.iter().all(|receipt| receipt.reason.as_str() == "owner_retired"));
    }
}

#[tokio::test]
async fn a_key_that_another_owner_holds_is_taken_or_left_as_the_caller_says() {
    let lapsed = open("memory:").await.unwrap();
    let devices = lapsed.registry("devices").start().await.unwrap();
    let (a, b) = (devices.join("a").await.unwrap(), devices.join("b").await.unwrap());
    a.register("imei-1").await.unwrap();
    assert!(!b.register_if_free("imei-1").await.unwrap());
    b.register("imei-1").await.unwrap();
    assert_eq!(devices.lookup("imei-1").await.unwrap().unwrap().incarnation(), b.incarnation());
    assert_eq!(devices.explain("imei-1").await.unwrap().verdict, "live");
}

/// Counts what a pass in the background reclaimed.
#[derive(Default)]
struct Count(AtomicU64);

impl Observer for Count {
    fn reclaimed(&self, _receipt: &Receipt) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn what_a_dead_owner_held_is_swept_in_the_background_and_can_be_restored() {
    for (lapsed, _folder) in each().await {
        let count = Arc::new(Count::default());
        let devices = lapsed.registry("devices").ttl(ms(300)).sweep(Every(ms(50)));
        let devices = devices.observer(count.clone()).start().await.unwrap();
        let me = devices.join("gateway-1").await.unwrap();
        me.register("imei-1").await.unwrap();
        drop(me); // no more heartbeats
        until("the dead are swept", || async { count.0.load(Ordering::Relaxed) == 1 }).await;
        let receipts = devices.receipts(10).await.unwrap();
        assert_eq!(receipts[0].reason.as_str(), "owner_dead");
        let _again = devices.join("gateway-1").await.unwrap();
        let restored = devices.restore(&receipts[0]).await.unwrap();
        assert!(matches!(restored, Restored::Restored { .. }), "{restored:?}");
        assert!(devices.lookup("imei-1").await.unwrap().is_some());
    }
}

#[tokio::test]
async fn with_a_manual_schedule_nothing_is_reclaimed_before_the_caller_runs_a_pass() {
    for (lapsed, _folder) in each().await {
        let devices = lapsed.registry("devices").ttl(ms(200)).sweep(Manual).start().await.unwrap();
        let me = devices.join("gateway-1").await.unwrap();
        me.register("imei-1").await.unwrap();
        drop(me);
        until("a dry run finds it", || async { devices.dry_run().await.reclaimed == 1 }).await;
        assert!(devices.receipts(10).await.unwrap().is_empty());
        assert_eq!(devices.pass().await.reclaimed, 1);
        assert_eq!(devices.receipts(10).await.unwrap().len(), 1);
    }
}

/// This thread is held up, and with it the heartbeats; meanwhile another one runs the passes.
#[tokio::test]
async fn an_owner_that_was_declared_dead_is_told_so() {
    let lapsed = open("memory:").await.unwrap();
    let devices = lapsed.registry("devices").ttl(ms(300)).sweep(Manual).start().await.unwrap();
    let me = devices.join("gateway-1").await.unwrap();
    me.register("imei-1").await.unwrap();
    assert!(me.is_live());
    let sweeping = devices.clone();
    let sweeper = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let swept = || async { sweeping.pass().await.reclaimed == 1 };
        runtime.block_on(until("the owner is declared dead", swept));
    });
    sweeper.join().unwrap();
    assert!(!me.is_live(), "the handle does not trust longer than the store may");
    let lost = tokio::time::timeout(Duration::from_secs(20), me.lost()).await.unwrap();
    assert!(lost.to_string().contains("was declared dead"), "{lost}");
    assert_eq!(lost.held[0].as_str(), "imei-1");
    assert!(matches!(me.register("imei-2").await, Err(lapsed::Error::Lost(_))));
}

#[tokio::test]
async fn dropping_the_last_handle_stops_the_passes() {
    struct Passes(AtomicU64);
    impl Observer for Passes {
        fn passed(&self, _report: &lapsed::PassReport) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let lapsed = open("memory:").await.unwrap();
    let passes = Arc::new(Passes(AtomicU64::new(0)));
    let observer: Arc<dyn Observer> = passes.clone();
    let devices = lapsed.registry("devices").sweep(Every(ms(20))).observer(observer);
    let devices = devices.start().await.unwrap();
    let clone = devices.clone();
    drop(devices);
    until("a clone keeps it sweeping", || async { passes.0.load(Ordering::Relaxed) > 2 }).await;
    let observed = Arc::downgrade(&passes);
    drop(clone);
    drop(passes);
    // The task in the background owned the last reference of the observer.
    until("the task has ended", || async { observed.upgrade().is_none() }).await;
}

#[tokio::test]
async fn stopping_waits_for_the_background_so_that_the_folder_can_be_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("embedded:{}", folder.path().display());
    for _ in 0..2 {
        let lapsed = open(&url).await.unwrap();
        let devices = lapsed.registry("devices").start().await.unwrap();
        devices.stop().await;
        drop(lapsed);
    }
}
