//! A million sessions, of which a hundred are orphans: the SCAN of the original, and ours. Then a
//! hundred thousand orphans, receipts included; and the same hundred among few sessions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lapsed_core::store::Store;
use lapsed_core::sweep::{Sweep, Sweeper};
use lapsed_core::{Kind, SystemId};
use lapsed_redis::{RedisSessions, SessionsLayout, Template};

use super::probe::{Probe, p99};
use super::server_time::{MainThread, MeasuredSweep, tell_longest};
use super::{BenchRedis, original, pass, sweeper};
use crate::bench::{Bench, progress};
use crate::rounds::median;
use crate::table::{Figure, FigureTable, FigureTarget};

pub const NAME: &str = "redis-sessions";
const ORPHANS: usize = 100;
const MANY_ORPHANS: usize = 100_000;
const FEW: usize = 20_000;
/// How many orphans a second are to be deleted.
const LEAST_RATE: f64 = 40_000.0;
const GRACE: Duration = Duration::from_secs(2);

pub fn run(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    bench.runtime.block_on(compare(bench, table))
}

async fn compare(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    let sessions = bench.sizes.owners * bench.sizes.each;
    // Each on a server of its own: a SCAN goes over all keys there are.
    let (place, small) = (BenchRedis::new().await?, BenchRedis::new().await?);
    progress(format!("filling servers with {sessions} and {FEW} sessions"));
    let many = BenchSessions::create(&place, sessions).await?;
    let few = BenchSessions::create(&small, FEW).await?;
    place.watch_slow().await?;
    let idle = Probe::start(place.server.port())?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    table.measure(NAME, "somebody else's p99, idle", Figure::ms(p99(idle.stop()?)));

    let rounds = bench.sizes.rounds.min(3);
    let (mut scans, mut ours, mut among_few) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=rounds {
        progress(format!("round {round} of {rounds}"));
        many.orphan(&place, ORPHANS).await?;
        let began = Instant::now();
        let cutoff_s = place.ours.info().await?.now_ms / 1_000 - GRACE.as_secs();
        let mut connection = place.plain.clone();
        let found = original::orphans_by_scan(&mut connection, "session:", cutoff_s).await?;
        ensure!(found.len() == ORPHANS, "the scan found {}", found.len());
        for key in found {
            original::delete_orphan(&mut connection, "", key.trim_start_matches("session:"))
                .await?;
        }
        let scan_ms = began.elapsed().as_secs_f64() * 1e3;

        let our_ms = many.sweep(&place, ORPHANS).await?;
        let few_ms = few.sweep(&small, ORPHANS).await?;
        if round > 0 {
            scans.push(scan_ms);
            ours.push(our_ms);
            among_few.push(few_ms);
        }
    }
    let ratios = |a: &[f64], b: &[f64]| median(a.iter().zip(b).map(|(a, b)| a / b).collect());
    let ms = |times: &[f64]| Figure::ms(median(times.to_vec()));
    let what = format!("deleting {ORPHANS} orphans of {sessions}");
    let peer = ("SCAN, HGET, DEL", ms(&scans));
    table.compare(
        NAME,
        what,
        ms(&ours),
        peer,
        ratios(&scans, &ours),
        Some(FigureTarget::AtLeast(500.0)),
    );
    let what = format!("the same, among {sessions}");
    let other = format!("among {FEW}");
    let target = Some(FigureTarget::AtMost(1.5));
    table.compare(
        NAME,
        what,
        ms(&ours),
        (&other, ms(&among_few)),
        ratios(&ours, &among_few),
        target,
    );

    let orphans = MANY_ORPHANS.min(sessions / 10);
    progress(format!("{orphans} orphans at once"));
    many.orphan(&place, orphans).await?;
    let probe = Probe::start(place.server.port())?;
    let requests = place.ours.requests();
    let (cpu, held) = (place.worked().await?, place.scripts().await?);
    let began = Instant::now();
    many.timed.batches();
    let report = pass(&many.sweeper, orphans).await?;
    let took_ms = began.elapsed().as_secs_f64() * 1e3;
    let rate = orphans as f64 / (took_ms / 1e3);
    let requests = place.ours.requests() - requests;
    let worked = place.worked().await? - cpu;
    let after = place.scripts().await?;
    let mean = (after.1 - held.1) / (after.0 - held.0).max(1.0);
    let waited = p99(probe.stop()?);
    let what = format!("{orphans} orphans deleted, receipts included");
    let least = ("at least", Figure::per_second(LEAST_RATE));
    let (ratio, target) = (rate / LEAST_RATE, Some(FigureTarget::AtLeast(1.0)));
    table.compare(NAME, what, Figure::per_second(rate), least, ratio, target);
    let what = format!("the server's own work, beside the time of {orphans} orphans");
    let (other, target) = (("the pass", Figure::ms(took_ms)), Some(FigureTarget::AtLeast(0.8)));
    table.compare(NAME, what, Figure::ms(worked), other, worked / took_ms, target);
    table.measure(NAME, "mean of all calls of our scripts in it", Figure::us(mean));
    table.measure(NAME, "somebody else's p99 meanwhile", Figure::ms(waited));
    let what = format!("round trips of that pass over {}", report.suspects);
    table.measure(NAME, what, Figure::count(requests as f64));
    let (longest, over) = place.slowest(&["evalsha", "zrangebyscore"]).await?;
    let what = format!("longest call of ours, wall time ({over} over 2 ms)");
    table.measure(NAME, what, Figure::us(longest));
    tell_longest(table, NAME, &many.timed.batches());
    Ok(())
}

/// Sessions that are written through lapsed, in the layout of the original.
struct BenchSessions {
    sessions: RedisSessions,
    timed: Arc<MeasuredSweep<RedisSessions>>,
    sweeper: Sweeper,
}

impl BenchSessions {
    /// Active ones, as our own writing leaves them: the hash, the count, and nothing in any index.
    async fn create(place: &BenchRedis, count: usize) -> Result<BenchSessions> {
        let template = |what: &str, name: &str| {
            Template::new(&format!("{what}:{{{name}}}"), name).expect("it has a place for a name")
        };
        let layout = SessionsLayout {
            session_key: template("session", "session"),
            ref_count_key: template("ref_count", "session"),
            broadcaster_key: template("broadcaster", "broadcaster"),
            disconnected_key: "disconnected_sessions".to_owned(),
            grace: GRACE,
            heartbeat_ttl: GRACE,
            shards: 1,
        };
        let sessions = place.ours.sessions(SystemId::new(Kind::Sessions, "chat")?, layout)?;
        let lua = "for i = ARGV[1], ARGV[2] do local id = 'live-' .. string.format('%032.0f', i) \
                   redis.call('HSET', 'session:' .. id, 'value', '0.5', 'broadcaster_user_id', 'b' .. i, \
                   'config_json', '{\"decay\":1}', 'last_disconnect', '0', 'last_update', '1794811620374') \
                   redis.call('SET', 'ref_count:' .. id, '1') end return 1";
        place.fill(lua, count).await?;
        let timed = MeasuredSweep::new(Arc::new(sessions.clone()), MainThread::of(place).await?);
        let sweeper = sweeper(place, timed.clone());
        Ok(BenchSessions { sessions, timed, sweeper })
    }

    /// So many whose grace has been over for a while: written as ours does, and with a time in the
    /// past, so that nothing need be waited for.
    async fn orphan(&self, place: &BenchRedis, count: usize) -> Result<()> {
        let since_ms = place.ours.info().await?.now_ms - 60_000;
        let lua = format!(
            "for i = ARGV[1], ARGV[2] do local id = 'dead-' .. string.format('%032.0f', i) \
             redis.call('HSET', 'session:' .. id, 'value', '0.5', 'broadcaster_user_id', 'x' .. i, \
             'config_json', '{{\"decay\":1}}', 'last_disconnect', '{0}', 'last_update', '{1}') \
             redis.call('SET', 'ref_count:' .. id, '0') redis.call('SET', 'broadcaster:x' .. i, id) \
             redis.call('ZADD', 'disconnected_sessions', '{0}', id) \
             redis.call('ZADD', 'lapsed:{{disconnected_sessions}}:sessions/chat:idle', '{1}', id) end return 1",
            since_ms / 1_000,
            since_ms
        );
        place.fill(&lua, count).await?;
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            // Filling holds the server for long, which counts as an absence.
            let census = self.sessions.census().await?;
            if census.orphans == count as u64 && census.back_ms == 0 {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the orphans are not there: {census:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn sweep(&self, place: &BenchRedis, orphans: usize) -> Result<f64> {
        self.orphan(place, orphans).await?;
        let began = Instant::now();
        pass(&self.sweeper, orphans).await?;
        Ok(began.elapsed().as_secs_f64() * 1e3)
    }
}
