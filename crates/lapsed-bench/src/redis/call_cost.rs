//! What the index costs: every registration, beat and disconnect through lapsed beside the plain
//! commands of the original, one after the other on one connection each; and bytes an entry.

use std::time::{Duration, Instant};

use anyhow::Result;
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::registry::{RegistryStore, TakePolicy};
use lapsed_core::sessions::{SessionProfile, SessionsStore};
use lapsed_core::{Kind, Name, SystemId};
use lapsed_redis::{RegistryLayout, SessionsLayout, Template};

use super::BenchRedis;
use crate::bench::{Bench, progress};
use crate::rounds::median;
use crate::table::{Figure, FigureTable};

pub const NAME: &str = "redis-price";
const CALLS: usize = 3_000;
const ENTRIES: usize = 100_000;

pub fn run(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    bench.runtime.block_on(compare(bench, table))
}

/// Microseconds a call, and commands a call.
struct Cost {
    us: f64,
    commands: f64,
}

async fn cost<F: Future<Output = Result<()>>>(
    place: &BenchRedis,
    mut call: impl FnMut(usize) -> F,
) -> Result<Cost> {
    let mut rounds = Vec::new();
    let commands = place.commands().await?;
    for round in 0..5 {
        let began = Instant::now();
        for i in 0..CALLS / 5 {
            call(round * CALLS / 5 + i).await?;
        }
        rounds.push(began.elapsed().as_secs_f64() * 1e6 / (CALLS / 5) as f64);
    }
    let commands = (place.commands().await? - commands) / CALLS as f64;
    Ok(Cost { us: median(rounds), commands })
}

fn tell(table: &mut FigureTable, what: &str, ours: &Cost, plain: &Cost, plain_is: &str) {
    let what = format!("{what} ({:.0} commands, plain {:.0})", ours.commands, plain.commands);
    let other = (plain_is, Figure::us(plain.us));
    table.compare(NAME, what, Figure::us(ours.us), other, ours.us / plain.us, None);
}

async fn compare(_bench: &Bench, table: &mut FigureTable) -> Result<()> {
    let place = BenchRedis::new().await?;
    progress("paying the price of the index");
    registry(&place, table).await?;
    sessions(&place, table).await
}

async fn registry(place: &BenchRedis, table: &mut FigureTable) -> Result<()> {
    let layout = RegistryLayout {
        registry_key: "ours:registry".to_owned(),
        heartbeat_key: Template::new("ours:heartbeat:{owner}", "owner")
            .expect("it has a place for the owner"),
        heartbeat_ttl: Duration::from_secs(3_600),
        shards: 1,
    };
    let registry = &place.ours.registry(SystemId::new(Kind::Registry, "price")?, layout)?;
    let owner = Name::new("instance-1")?;
    let beat = registry.start(&owner, 3_600_000).await?;
    let claim = &Claim::exact(owner, beat.incarnation);
    let ours = cost(place, |i| async move {
        let key = Name::new(&format!("imei-{i:015}"))?;
        registry.register(claim, &[key], TakePolicy::Always).await?;
        Ok(())
    });
    let ours = ours.await?;
    let plain = cost(place, |i| async move {
        let mut cmd = redis::cmd("HSET");
        let _: i64 = place
            .ask(cmd.arg("plain:registry").arg(format!("imei-{i:015}")).arg("instance-1"))
            .await?;
        Ok(())
    });
    tell(table, "a registration", &ours, &plain.await?, "HSET");
    let ours = cost(place, |_| async move {
        registry.beat(claim).await?;
        Ok(())
    });
    let ours = ours.await?;
    let plain = cost(place, |_| async move {
        let mut cmd = redis::cmd("SET");
        let _: String =
            place.ask(cmd.arg("plain:heartbeat:instance-1").arg(1).arg("EX").arg(90)).await?;
        Ok(())
    });
    tell(table, "a beat", &ours, &plain.await?, "SET EX");

    let before = place.memory().await?;
    let lua = "for i = ARGV[1], ARGV[2] do redis.call('HSET', 'plain:many', 'imei-' .. \
               string.format('%015.0f', i), 'instance-1') end return 1";
    place.fill(lua, ENTRIES).await?;
    let plain = (place.memory().await? - before) / ENTRIES as f64;
    let keys: Result<Vec<Name>> =
        (0..ENTRIES).map(|i| Ok(Name::new(&format!("many-{i:015}"))?)).collect();
    let before = place.memory().await?;
    registry.register(claim, &keys?, TakePolicy::Always).await?;
    let ours = (place.memory().await? - before) / ENTRIES as f64;
    let other = ("the hash alone", Figure::bytes(plain));
    table.compare(NAME, "memory an entry, native", Figure::bytes(ours), other, ours / plain, None);
    Ok(())
}

async fn sessions(place: &BenchRedis, table: &mut FigureTable) -> Result<()> {
    let template = |what: &str, name: &str| {
        Template::new(&format!("price:{what}:{{{name}}}"), name).expect("it has a place for a name")
    };
    let layout = SessionsLayout {
        session_key: template("session", "session"),
        ref_count_key: template("ref_count", "session"),
        broadcaster_key: template("broadcaster", "broadcaster"),
        disconnected_key: "price:disconnected_sessions".to_owned(),
        grace: Duration::from_secs(3_600),
        heartbeat_ttl: Duration::from_secs(3_600),
        shards: 1,
    };
    let chat = &place.ours.sessions(SystemId::new(Kind::Sessions, "price")?, layout)?;
    let owner = Name::new("server-1")?;
    let beat = chat.start(&owner, 3_600_000).await?;
    let claim = &Claim::exact(owner, beat.incarnation);
    for i in 0..CALLS {
        chat.activate(&Name::new(&format!("s{i}"))?, &SessionProfile::default()).await?;
        chat.connect(Some(claim), &Name::new(&format!("s{i}"))?).await?;
    }
    let ours = cost(place, |i| async move {
        chat.disconnect(Some(claim), &Name::new(&format!("s{i}"))?).await?;
        Ok(())
    });
    let ours = ours.await?;
    let plain = cost(place, |i| async move {
        let mut pipeline = redis::pipe();
        pipeline.cmd("DECR").arg(format!("plain:ref_count:s{i}"));
        pipeline
            .cmd("HSET")
            .arg(format!("plain:session:s{i}"))
            .arg("last_disconnect")
            .arg(1_794_811_620);
        pipeline
            .cmd("ZADD")
            .arg("plain:disconnected_sessions")
            .arg(1_794_811_620)
            .arg(format!("s{i}"));
        let _: Vec<i64> = pipeline.query_async(&mut place.plain.clone()).await?;
        Ok(())
    });
    tell(table, "a disconnect", &ours, &plain.await?, "DECR, HSET, ZADD in one pipeline");
    Ok(())
}
