//! The handle of a live owner: it sends heartbeats, and it never trusts its TTL for too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::clock::{Clock, ManualClock};
use lapsed_core::owner::{
    Beat, Claim, Ending, Incarnation, Owner, OwnerInfo, OwnerOptions, OwnerStore,
};
use lapsed_core::registry::conformance::RegistryFixture;
use lapsed_core::{Error, Name, Result};

/// A real registry whose heartbeats can be dropped.
struct Line {
    registry: Arc<dyn OwnerStore>,
    cut: AtomicBool,
    beats: AtomicU32,
}

#[async_trait]
impl OwnerStore for Line {
    async fn start(&self, owner: &Name, ttl_ms: u64) -> Result<Beat> {
        self.registry.start(owner, ttl_ms).await
    }
    async fn beat(&self, claim: &Claim) -> Result<Beat> {
        if self.cut.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.beats.fetch_add(1, Ordering::SeqCst);
        self.registry.beat(claim).await
    }
    async fn end(&self, claim: &Claim) -> Result<OwnerInfo> {
        self.registry.end(claim).await
    }
    async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        self.registry.owners(after, limit).await
    }
    async fn owner(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        self.registry.owner(claim).await
    }
}

async fn bench() -> (RegistryFixture, ManualClock, Arc<Line>) {
    let (f, clock) = crate::fixture::in_memory();
    let f = f.settled().await;
    let line = Line { registry: f.registry.clone(), cut: false.into(), beats: 0.into() };
    (f, clock, Arc::new(line))
}

async fn start(line: &Arc<Line>, clock: &ManualClock) -> Owner {
    let options = OwnerOptions::with_ttl(Duration::from_secs(90));
    Owner::start(line.clone(), Arc::new(clock.clone()), "i-1", options).await.unwrap()
}

/// Moves the clock in small steps and lets the background task run.
async fn run(clock: &ManualClock, span: Duration) {
    let step = Duration::from_secs(1);
    for _ in 0..span.as_secs() {
        clock.advance(step);
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    }
}

/// Waits for something that must have happened already, with a short limit.
async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), work).await.expect("it has happened")
}

#[tokio::test]
async fn an_owner_sends_heartbeats_at_a_third_of_its_ttl() {
    let (f, clock, line) = bench().await;
    let owner = start(&line, &clock).await;
    f.register(owner.claim(), &["a"]).await;
    run(&clock, Duration::from_secs(900)).await;
    let beats = line.beats.load(Ordering::SeqCst);
    assert!((27..=34).contains(&beats), "{beats} beats in ten TTLs");
    assert!(owner.is_live());
    assert_eq!(f.sweep().await.reclaimed, 0);
    assert_eq!(f.holder("a").await, Some(owner.incarnation()));
}

/// The trusted time counts from when the last answered heartbeat was sent, so the owner is lost
/// before the store may declare it dead.
#[tokio::test]
async fn an_owner_that_is_cut_off_is_lost_before_the_store_ends_it() {
    let (f, clock, line) = bench().await;
    let owner = start(&line, &clock).await;
    f.register(owner.claim(), &["a"]).await;
    run(&clock, Duration::from_secs(100)).await;
    line.cut.store(true, Ordering::SeqCst);
    let info = f.registry.owner(owner.claim()).await.unwrap().unwrap();
    while owner.is_live() {
        assert!(clock.wall_ms() < info.due_ms, "it believed longer than the store");
        run(&clock, Duration::from_secs(1)).await;
    }
    run(&clock, Duration::from_secs(6)).await;
    let lost = soon(owner.lost()).await;
    assert_eq!(lost.ending, None, "nobody told it: it knew by itself");
}

/// An owner that was declared dead learns it from its next heartbeat, with what it held.
#[tokio::test]
async fn trap_a4_a_dead_owner_learns_it_from_its_next_heartbeat() {
    let (f, clock, line) = bench().await;
    let owner = start(&line, &clock).await;
    f.register(owner.claim(), &["a", "b"]).await;
    run(&clock, Duration::from_secs(1)).await;
    // The process is frozen: the clock runs, the process does not.
    clock.advance(Duration::from_secs(88));
    f.registry.end(owner.claim()).await.unwrap();
    run(&clock, Duration::from_secs(1)).await;
    let lost = soon(owner.lost()).await;
    assert_eq!(lost.ending, Some(Ending::Retired));
    assert_eq!(lost.held.len(), 2);
    assert!(!owner.is_live());
    assert!(owner.trusted_for().is_zero());
}

/// The host sleeps: its monotonic clock stands still, and by that clock the owner would still be
/// trusted.
#[tokio::test]
async fn trap_x8_after_a_sleep_the_monotonic_clock_is_not_trusted() {
    let (f, clock, line) = bench().await;
    let owner = start(&line, &clock).await;
    f.register(owner.claim(), &["a"]).await;
    run(&clock, Duration::from_secs(30)).await;
    line.cut.store(true, Ordering::SeqCst);
    clock.jump_wall(3_600_000);
    assert!(!owner.is_live(), "by the wall an hour has passed");
    // The handle checks its clocks ten times per TTL.
    run(&clock, Duration::from_secs(15)).await;
    soon(owner.lost()).await;
}

/// A wall clock that was set back does not prolong the trusted time.
#[tokio::test]
async fn trap_x8_a_wall_clock_set_back_prolongs_no_trust() {
    let (_f, clock, line) = bench().await;
    let owner = start(&line, &clock).await;
    line.cut.store(true, Ordering::SeqCst);
    clock.jump_wall(-3_600_000);
    run(&clock, Duration::from_secs(91)).await;
    assert!(!owner.is_live());
}

#[tokio::test]
async fn retiring_ends_an_owner_at_once() {
    let (f, clock, line) = bench().await;
    let owner = start(&line, &clock).await;
    let claim = owner.claim().clone();
    f.register(&claim, &["a"]).await;
    owner.retire().await.unwrap();
    let info = f.registry.owner(&claim).await.unwrap().expect("its end is remembered");
    assert_eq!(info.ended.map(|(ending, _)| ending), Some(Ending::Retired));
    assert_eq!(f.holder("a").await, None);
    assert!(matches!(f.registry.beat(&claim).await, Err(Error::Lost(_))));
}

#[tokio::test]
async fn an_interval_not_below_the_ttl_is_refused() {
    let (_f, clock, line) = bench().await;
    let options = OwnerOptions {
        every: Some(Duration::from_secs(90)),
        ..OwnerOptions::with_ttl(Duration::from_secs(90))
    };
    let clock: Arc<dyn Clock> = Arc::new(clock);
    let refused = Owner::start(line.clone(), clock.clone(), "i-1", options).await;
    assert!(matches!(refused, Err(Error::Invalid(why)) if why.contains("below the TTL")));
    let zero = OwnerOptions::with_ttl(Duration::ZERO);
    assert!(matches!(Owner::start(line, clock, "i-1", zero).await, Err(Error::Invalid(_))));
}

#[tokio::test]
async fn an_owner_of_a_system_retires_with_a_receipt_for_everything_it_held() {
    let (f, _clock, _line) = bench().await;
    let owner = f.system().owner("i-1").await.unwrap();
    f.register(owner.claim(), &["a", "b"]).await;
    assert_eq!(owner.retire().await.unwrap().reclaimed, 2);
    let receipts = f.receipts().await;
    let keys: Vec<&str> = receipts.iter().map(|receipt| receipt.key.as_str()).collect();
    assert_eq!(keys.len(), 2, "one receipt for each entry: {keys:?}");
}
