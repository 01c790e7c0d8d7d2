//! Orphans of other job systems, put back in place by lapsed and by the system's own recovery: the same orphans, prepared
//! by the system's own library (the programs in `peers/`), on the same server, in one run. Beside it: what an idle pass
//! costs, and how long `detect` takes on a server with millions of keys.

mod killed;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_core::schedule::StopSignal;
use lapsed_core::store::Store;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{PassMode, Sweeper, SweeperParts};
use lapsed_core::{Kind, SystemId};
use lapsed_redis::{DetectOptions, Redis, RedisAddress, RescueLayout, RescuedInflight};

use super::inflight::lapsed::RecoveryTime;
use super::inflight::peers::{self, BULLMQ, CELERY, DRAMATIQ, GET_EVERY, Peer, RQ};
use super::probe::{Probe, p99};
use super::{BenchRedis, pass};
use crate::bench::{Bench, progress};
use crate::table::{Figure, FigureTable, FigureTarget};

pub const NAME: &str = "redis-rescue";

/// A peer, and the profile that rescues its jobs. Not here: Sidekiq, which recovers nothing by itself.
const RESCUED: [(Peer, &str); 4] =
    [(BULLMQ, "bullmq"), (RQ, "rq"), (DRAMATIQ, "dramatiq"), (CELERY, "celery")];

/// How long putting back may take before it is given up, what other clients may wait at most, and how long `detect` may take.
const PATIENCE: Duration = Duration::from_secs(120);
const P99_MAX_MS: f64 = 3.0;
const DETECT_MAX_S: f64 = 20.0;

pub fn run(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    bench.runtime.block_on(compare(bench, table))
}

async fn compare(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    let place = BenchRedis::new().await?;
    let up_since = Instant::now();
    let orphans = bench.sizes.orphans;
    for (nth, (peer, profile)) in RESCUED.iter().enumerate() {
        let (name, database) = (peer.name, nth + 1);
        progress(format!("{name}: preparing {orphans} orphans for its own recovery"));
        let own = peers::recover(&place, peer, database, orphans).await?;
        progress(format!("{name}: preparing {orphans} orphans for lapsed"));
        let ours = rescue(&place, peer, profile, database, orphans, table).await?;
        let what =
            format!("{orphans} orphans of {name} {} back in place, receipts included", own.version);
        let other = (own.call.as_str(), Figure::ms(own.took_ms));
        let target = Some(FigureTarget::AtLeast(10.0));
        table.compare(
            NAME,
            what,
            Figure::ms(ours.took_ms),
            other,
            own.took_ms / ours.took_ms,
            target,
        );
        tell_others(table, name, &ours, own.p99_ms);
    }
    killed::measure(&place, up_since, table).await?;
    detecting(bench, &place, table).await
}

/// Lets lapsed put back what the peer's program prepared.
async fn rescue(
    place: &BenchRedis,
    peer: &Peer,
    profile: &str,
    database: usize,
    orphans: usize,
    table: &mut FigureTable,
) -> Result<RecoveryTime> {
    let prepared = peers::prepare(place, peer, database, orphans)?;
    let redis = at_database(place, database)?;
    let layout = RescueLayout {
        limit: Some(Duration::ZERO),
        grace: Some(Duration::from_millis(1)),
        ..RescueLayout::new(profile, RecoveryPolicy::default())
    };
    let inflight = redis.rescued_inflight(SystemId::new(Kind::Inflight, profile)?, layout)?;
    let sweeper = sweeper(&redis, inflight);
    place.watch_slow().await?;
    let probe = Probe::every(place.server.port(), GET_EVERY)?;
    let began = Instant::now();
    until_back(&sweeper, orphans).await?;
    let took_ms = began.elapsed().as_secs_f64() * 1e3;
    let p99_ms = p99(probe.stop()?);
    let (longest_us, over) = place.slowest(&["evalsha"]).await?;
    let before = place.commands().await?;
    pass(&sweeper, 0).await?;
    let idle = place.commands().await? - before;
    table.measure(
        NAME,
        format!("commands of an idle pass over {}", peer.name),
        Figure::count(idle),
    );
    peers::end(prepared, place, database)?;
    Ok(RecoveryTime { took_ms, p99_ms, longest_us, over, batches: Vec::new() })
}

/// Makes passes until all are back. Jobs of RQ whose deadline has passed while they were prepared need a second one: lapsed
/// hides them from RQ's own cleanup first.
async fn until_back(sweeper: &Sweeper, orphans: usize) -> Result<()> {
    let (_stopper, stop) = StopSignal::channel();
    let (deadline, mut back) = (Instant::now() + PATIENCE, 0);
    while back < orphans as u64 {
        let report = sweeper.pass(PassMode::Reclaim, 0, &stop).await;
        back += report.reclaimed;
        anyhow::ensure!(Instant::now() < deadline, "{back} of {orphans} are back: {report:?}");
    }
    Ok(())
}

fn at_database(place: &BenchRedis, database: usize) -> Result<Redis> {
    let url = format!("redis://127.0.0.1:{}/{database}", place.server.port());
    Ok(Redis::new(&RedisAddress::new(&url))?)
}

/// As the daemon sweeps a rescued system.
fn sweeper(redis: &Redis, inflight: RescuedInflight) -> Sweeper {
    let store: Arc<dyn Store> = Arc::new(redis.clone());
    let parts = SweeperParts::new("bench-rescue".to_owned(), Arc::new(inflight), store);
    Sweeper::new(parts.policy(Policy { share: 0.75, ..Policy::default() }))
}

fn tell_others(table: &mut FigureTable, name: &str, ours: &RecoveryTime, own_p99_ms: f64) {
    let what = format!(
        "somebody else's p99 while lapsed puts back {name}'s (during its own: {own_p99_ms:.0} ms)"
    );
    let limit = ("the limit", Figure::ms(P99_MAX_MS));
    let target = Some(FigureTarget::AtMost(1.0));
    table.compare(NAME, what, Figure::ms(ours.p99_ms), limit, ours.p99_ms / P99_MAX_MS, target);
    let what = format!("longest call of lapsed for {name} ({} over 2 ms)", ours.over);
    let limit = ("the limit", Figure::us(2_000.0));
    table.compare(
        NAME,
        what,
        Figure::us(ours.longest_us),
        limit,
        ours.longest_us / 2_000.0,
        target,
    );
}

/// Plain keys that belong to nobody, for `detect` to go through.
const FILL: &str = "for i = ARGV[1], ARGV[2] do redis.call('SET', 'cache:' .. i, i) end return 1";

async fn detecting(bench: &Bench, place: &BenchRedis, table: &mut FigureTable) -> Result<()> {
    let keys = bench.sizes.orphans * 100;
    progress(format!("detect: filling {keys} keys"));
    place.fill(FILL, keys).await?;
    let probe = Probe::every(place.server.port(), GET_EVERY)?;
    let began = Instant::now();
    let found = place.ours.detect(DetectOptions::default(), &mut |_, _| {}).await?;
    let took_s = began.elapsed().as_secs_f64();
    let p99_ms = p99(probe.stop()?);
    anyhow::ensure!(found.found.is_empty(), "nothing was there to be found: {found:?}");
    let target = Some(FigureTarget::AtMost(1.0));
    let what = format!("detect on {keys} keys");
    let limit = ("the limit", Figure::seconds(DETECT_MAX_S));
    table.compare(NAME, what, Figure::seconds(took_s), limit, took_s / DETECT_MAX_S, target);
    let limit = ("the limit", Figure::ms(P99_MAX_MS));
    let what = "somebody else's p99 during detect";
    table.compare(NAME, what, Figure::ms(p99_ms), limit, p99_ms / P99_MAX_MS, target);
    Ok(())
}
