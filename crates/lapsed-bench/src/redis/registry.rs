//! A million entries of a hundred instances, of which one that holds 1 % has died: the janitor of the
//! original as written, ours on the very same keys (adopt), and ours with its index (native). They
//! take turns on one server; each time the dead instance's entries are put back first.
//!
//! Beside it: what somebody else who uses that server waits meanwhile, the longest that one call of
//! ours holds it, and what a pass sends.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use futures::future::try_join_all;
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::registry::{RegistryStore, TakePolicy};
use lapsed_core::sweep::{Sweep, Sweeper};
use lapsed_core::{Kind, Name, SystemId};
use lapsed_redis::{NativeRegistry, RegistryLayout, Template};
use std::sync::Arc;

use super::probe::{Probe, p99};
use super::server_time::{MainThread, MeasuredSweep, tell_longest};
use super::{BenchRedis, original, pass, sweeper};
use crate::bench::{Bench, progress};
use crate::rounds::median;
use crate::table::{Figure, FigureTable, FigureTarget};

pub const NAME: &str = "redis-registry";
const INSTANCES: usize = 100;
const FEW: usize = 20_000;
/// Long enough for the living to be beaten for once; the dead get a shorter one.
const TTL: Duration = Duration::from_secs(2);
const DYING_TTL_MS: u64 = 300;

pub fn run(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    bench.runtime.block_on(compare(bench, table))
}

async fn compare(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    let entries = bench.sizes.owners * bench.sizes.each;
    let dying = entries / 100;
    let place = BenchRedis::new().await?;
    progress(format!("filling a server with {entries} entries, twice"));
    let plain = AdoptedRegistry::create(&place, entries, dying).await?;
    let many = NativeBench::create(&place, "many", entries - dying).await?;
    let few = NativeBench::create(&place, "few", FEW).await?;
    let adopted = place.ours.adopted_registry(id("adopted")?, plain.layout())?;
    let adopted = MeasuredSweep::new(Arc::new(adopted), MainThread::of(&place).await?);
    let adopt_sweeper = sweeper(&place, adopted.clone());
    settle(&place).await?;
    place.watch_slow().await?;
    let idle = Probe::start(place.server.port())?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let idle = p99(idle.stop()?);

    let rounds = bench.sizes.rounds.min(3);
    let mut took = [const { Vec::new() }; 4];
    let mut waits: [Vec<f64>; 3] = Default::default();
    let mut sent = (0, 0, 0.0);
    let mut worked: [Vec<f64>; 2] = Default::default();
    let mut scripts = (0.0, 0.0);
    let mut scans = Vec::new();
    for round in 0..=rounds + 1 {
        progress(format!("round {round} of {rounds}"));
        // The last round is for the other clients of the server; its probe takes part of the machine,
        // so what is timed is timed without it.
        let is_probed = round == rounds + 1;
        let probed = |waits: &mut Vec<f64>, probe: Option<Probe>| -> Result<()> {
            if let Some(probe) = probe {
                waits.extend(probe.stop()?);
            }
            Ok(())
        };
        let probe = || is_probed.then(|| Probe::start(place.server.port())).transpose();

        plain.revive(&place, dying).await?;
        let (watcher, began) = (probe()?, Instant::now());
        let gone = original::janitor(&mut place.plain.clone(), &plain.hash, &plain.beat).await?;
        let seed_ms = began.elapsed().as_secs_f64() * 1e3;
        probed(&mut waits[0], watcher)?;
        ensure!(gone == dying as u64, "the janitor evicted {gone}");

        plain.revive(&place, dying).await?;
        plain.let_one_die(&place, &adopt_sweeper).await?;
        scans.push(plain.scan(&place).await?);
        let (cpu, held) = (place.worked().await?, place.scripts().await?);
        let (watcher, began) = (probe()?, Instant::now());
        pass(&adopt_sweeper, dying).await?;
        let adopt_ms = began.elapsed().as_secs_f64() * 1e3;
        let adopt_worked = place.worked().await? - cpu;
        scripts = since(scripts, held, place.scripts().await?);
        probed(&mut waits[1], watcher)?;

        many.let_one_die(dying).await?;
        let (requests, commands) = (place.ours.requests(), place.commands().await?);
        let (cpu, held) = (place.worked().await?, place.scripts().await?);
        let (watcher, began) = (probe()?, Instant::now());
        let report = pass(&many.sweeper, dying).await?;
        let many_ms = began.elapsed().as_secs_f64() * 1e3;
        let many_worked = place.worked().await? - cpu;
        scripts = since(scripts, held, place.scripts().await?);
        probed(&mut waits[2], watcher)?;
        let requests = place.ours.requests() - requests;
        sent = (requests, report.suspects, place.commands().await? - commands);

        few.let_one_die(dying).await?;
        let began = Instant::now();
        pass(&few.sweeper, dying).await?;
        let few_ms = began.elapsed().as_secs_f64() * 1e3;
        if round == 0 || is_probed {
            continue; // caches and learned batch sizes belong to nobody's figure
        }
        worked[0].push(adopt_worked);
        worked[1].push(many_worked);
        for (slot, ms) in took.iter_mut().zip([seed_ms, adopt_ms, many_ms, few_ms]) {
            slot.push(ms);
        }
    }
    let ratio = |over: usize, under: usize| {
        median(took[over].iter().zip(&took[under]).map(|(a, b)| a / b).collect())
    };
    let ms = |side: usize| Figure::ms(median(took[side].clone()));
    let what = |how: &str| format!("{how}: evicting {dying} of {entries}");
    let original = ("HGETALL, EXISTS, HGET + HDEL", ms(0));
    table.compare(
        NAME,
        what("native"),
        ms(2),
        original,
        ratio(0, 2),
        Some(FigureTarget::AtLeast(150.0)),
    );
    table.compare(
        NAME,
        what("adopt"),
        ms(1),
        original,
        ratio(0, 1),
        Some(FigureTarget::AtLeast(4.0)),
    );
    // Of the first and the last round nothing else is counted.
    let scans = &scans[1..=took[1].len()];
    let ratios = scans.iter().zip(&took[1]).map(|(scan, adopt)| scan / adopt).collect();
    let bare = ("one bare HSCAN of the hash", Figure::ms(median(scans.to_vec())));
    let target = Some(FigureTarget::AtLeast(0.9));
    table.compare(NAME, what("adopt"), ms(1), bare, median(ratios), target);
    let among = format!("native: {dying} among {entries}");
    let other = format!("among {FEW}");
    table.compare(
        NAME,
        among,
        ms(2),
        (&other, ms(3)),
        ratio(2, 3),
        Some(FigureTarget::AtMost(1.5)),
    );
    let [seed_waits, adopt_waits, many_waits] = waits;
    let (seed_p99, adopt_p99, many_p99) = (p99(seed_waits), p99(adopt_waits), p99(many_waits));
    table.measure(NAME, "somebody else's p99, idle", Figure::ms(idle));
    let beside = ("during the original", Figure::ms(seed_p99));
    let target = Some(FigureTarget::AtLeast(50.0));
    let during = "somebody else's p99 during a native pass";
    table.compare(NAME, during, Figure::ms(many_p99), beside, seed_p99 / many_p99, target);
    let during = "somebody else's p99 during an adopt pass";
    table.compare(NAME, during, Figure::ms(adopt_p99), beside, seed_p99 / adopt_p99, target);
    let (longest, over) = place.slowest(&["evalsha", "hscan", "zrangebylex"]).await?;
    let what = format!("longest call of ours, wall time ({over} over 2 ms)");
    table.measure(NAME, what, Figure::us(longest));
    tell_longest(table, NAME, &[adopted.batches(), many.timed.batches()].concat());
    let mean = scripts.1 / scripts.0.max(1.0);
    table.measure(NAME, "mean of all calls of our scripts in it", Figure::us(mean));
    for (how, worked) in ["adopt", "native"].iter().zip(worked) {
        let what = format!("{how}: what the server itself worked in a pass");
        table.measure(NAME, what, Figure::ms(median(worked)));
    }
    let what = format!("round trips of a native pass over {}", sent.1);
    table.measure(NAME, what, Figure::count(sent.0 as f64));
    let what = "commands in it, those inside scripts included";
    table.measure(NAME, what, Figure::count(sent.2));
    Ok(())
}

/// Adds what came between two readings.
fn since(sum: (f64, f64), before: (f64, f64), after: (f64, f64)) -> (f64, f64) {
    (sum.0 + after.0 - before.0, sum.1 + after.1 - before.1)
}

fn id(name: &str) -> Result<SystemId> {
    Ok(SystemId::new(Kind::Registry, name)?)
}

/// Until the server has been there for longer than the thresholds used here.
async fn settle(place: &BenchRedis) -> Result<()> {
    use lapsed_core::store::Store;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let info = place.ours.info().await?;
        if info.now_ms > info.back_ms + TTL.as_millis() as u64 + 1_000 {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the server does not settle");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A registry in the application's own keys, as the original writes them.
struct AdoptedRegistry {
    hash: String,
    beat: String,
}

impl AdoptedRegistry {
    async fn create(place: &BenchRedis, entries: usize, dying: usize) -> Result<AdoptedRegistry> {
        let plain = AdoptedRegistry {
            hash: "connections:registry".into(),
            beat: "instance:heartbeat:".into(),
        };
        let living = entries - dying;
        let lua = format!(
            "for i = ARGV[1], ARGV[2] do redis.call('HSET', '{}', 'imei-' .. string.format('%015.0f', i), \
             'instance-' .. (i % {})) end return 1",
            plain.hash,
            INSTANCES - 1
        );
        place.fill(&lua, living).await?;
        for instance in 0..INSTANCES - 1 {
            let mut cmd = redis::cmd("SET");
            cmd.arg(format!("{}instance-{instance}", plain.beat)).arg(1).arg("EX").arg(36_000);
            let _: String = place.ask(&cmd).await?;
        }
        Ok(plain)
    }

    fn layout(&self) -> RegistryLayout {
        RegistryLayout {
            registry_key: self.hash.clone(),
            heartbeat_key: Template::new(&format!("{}{{owner}}", self.beat), "owner")
                .expect("it has a place for the owner"),
            heartbeat_ttl: TTL,
            shards: 1,
        }
    }

    /// The dead instance's entries once more.
    async fn revive(&self, place: &BenchRedis, dying: usize) -> Result<()> {
        let lua = format!(
            "for i = ARGV[1], ARGV[2] do redis.call('HSET', '{}', 'gone-' .. i, 'instance-dead') end return 1",
            self.hash
        );
        place.fill(&lua, dying).await
    }

    /// The dead instance is seen alive once, without which nothing of it would be taken; then its heartbeat is gone.
    async fn let_one_die(&self, place: &BenchRedis, sweeper: &Sweeper) -> Result<()> {
        let heartbeat = format!("{}instance-dead", self.beat);
        let _: String =
            place.ask(redis::cmd("SET").arg(&heartbeat).arg(1).arg("EX").arg(60)).await?;
        pass(sweeper, 0).await?;
        let gone: u64 = place.ask(redis::cmd("DEL").arg(&heartbeat)).await?;
        ensure!(gone == 1, "the heartbeat was not there");
        Ok(())
    }

    /// How long it takes to read the whole hash with HSCAN, in pages as large as ours, in milliseconds.
    async fn scan(&self, place: &BenchRedis) -> Result<f64> {
        let (mut cursor, began) = ("0".to_owned(), Instant::now());
        loop {
            let mut cmd = redis::cmd("HSCAN");
            cmd.arg(&self.hash).arg(&cursor).arg("COUNT").arg(500);
            let (next, _entries): (String, Vec<Vec<u8>>) = place.ask(&cmd).await?;
            if next == "0" {
                return Ok(began.elapsed().as_secs_f64() * 1e3);
            }
            cursor = next;
        }
    }
}

/// The same, written through lapsed.
struct NativeBench {
    registry: NativeRegistry,
    timed: Arc<MeasuredSweep<NativeRegistry>>,
    sweeper: Sweeper,
    deaths: std::cell::Cell<u64>,
}

impl NativeBench {
    async fn create(place: &BenchRedis, name: &str, entries: usize) -> Result<NativeBench> {
        let layout = RegistryLayout {
            registry_key: format!("{name}:registry"),
            heartbeat_key: Template::new(&format!("{name}:heartbeat:{{owner}}"), "owner")
                .expect("it has a place for the owner"),
            heartbeat_ttl: TTL,
            shards: 1,
        };
        let registry = place.ours.registry(id(name)?, layout)?;
        let owners = INSTANCES - 1;
        for owner in 0..owners {
            let owner_name = Name::new(&format!("instance-{owner}"))?;
            let beat = registry.start(&owner_name, 36_000_000).await?;
            let claim = Claim::exact(owner_name, beat.incarnation);
            let keys: Result<Vec<Name>> = (owner..entries)
                .step_by(owners)
                .map(|i| Ok(Name::new(&format!("imei-{i:015}"))?))
                .collect();
            let keys = keys?;
            let parts =
                keys.chunks(500).map(|part| registry.register(&claim, part, TakePolicy::Always));
            try_join_all(parts).await?;
        }
        let timed = MeasuredSweep::new(Arc::new(registry.clone()), MainThread::of(place).await?);
        let sweeper = sweeper(place, timed.clone());
        Ok(NativeBench { registry, timed, sweeper, deaths: std::cell::Cell::new(0) })
    }

    async fn let_one_die(&self, dying: usize) -> Result<()> {
        self.deaths.set(self.deaths.get() + 1);
        let owner = Name::new(&format!("mortal-{}", self.deaths.get()))?;
        let beat = self.registry.start(&owner, DYING_TTL_MS).await?;
        let claim = Claim::exact(owner, beat.incarnation);
        let keys: Result<Vec<Name>> =
            (0..dying).map(|i| Ok(Name::new(&format!("gone-{i}"))?)).collect();
        self.registry.register(&claim, &keys?, TakePolicy::Always).await?;
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let census = self.registry.census().await?;
            if census.suspects == dying as u64 && census.back_ms == 0 {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("it does not die: {census:?}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
