//! Failovers with writes under way: a Redis replica, a master of a cluster, a PostgreSQL standby.
//!
//! Redis replicates asynchronously. In every other failover the primary hands over, which loses nothing; in the others
//! it is killed, and what the replica had not got is lost, as the documentation says. Those losses are counted.
//! Everything else must hold all the same: numbers only grow, nothing is reclaimed twice, nobody alive is reclaimed.

use std::time::{Duration, Instant};

use lapsed_testbed::{
    ByteProxy, Cluster, Engine, Persistence, PostgresServer, RedisServer, ServerOptions, until,
};

use super::campaign::Campaign;
use super::load::{Load, LoadParts};
use super::some_load;
use super::world::{Fleet, STALE_SECONDS, Stores, WORKERS};
use crate::availability_faults::random::SeededRandom;

const JOBS: LoadParts = LoadParts { jobs: true, sessions: false, leases: false, providers: false };
const PROVIDERS: LoadParts =
    LoadParts { jobs: false, sessions: true, leases: false, providers: true };

/// How long a primary may take to hand over.
const HAND_OVER: Duration = Duration::from_secs(30);

/// Load, failovers, and the account after each.
fn story(
    name: &str,
    stores: &Stores,
    parts: LoadParts,
    count: u64,
    mut fail_over: impl FnMut(u64) -> Loss,
) {
    let (began, mut random) = (Instant::now(), SeededRandom::new(7));
    let workers = if parts.jobs { WORKERS } else { 0 };
    let fleet = Fleet::start(stores, workers);
    let load = Load::start(&fleet.urls, &fleet.ledger, parts);
    let mut campaign = Campaign::new(&fleet, parts);
    campaign.settle(&fleet, &load, "the beginning");
    for nth in 0..count {
        some_load(&mut random);
        if fail_over(nth) == Loss::Documented && campaign.losses.is_none() {
            campaign.losses = Some(Vec::new());
        }
        campaign.take(&fleet, &format!("failover {nth}"));
        if nth % 5 == 4 {
            campaign.settle(&fleet, &load, &format!("failover {nth}"));
        }
    }
    campaign.settle(&fleet, &load, "the end");
    let losses = campaign.losses.take().unwrap_or_default();
    let kinds = losses.iter().fold(std::collections::BTreeMap::new(), |mut kinds, loss| {
        let text = format!("{loss:?}");
        *kinds.entry(text.split('(').next().unwrap_or_default().to_owned()).or_insert(0) += 1;
        kinds
    });
    let took = began.elapsed().as_secs_f64();
    println!(
        "{name}: {count} failovers in {took:.1} s; {}; documented losses: {kinds:?}",
        campaign.summary(&fleet)
    );
}

/// What a failover may lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Nothing,
    /// The last answered writes.
    Documented,
}

/// The first half hands over, so that nothing may be lost at all; in the second half the primary is killed.
fn kills_primary(nth: u64, count: u64) -> bool {
    nth >= count.div_ceil(2)
}

pub fn redis_replica(count: u64) {
    let primary = ServerOptions::new(Engine::Redis).persistence(Persistence::Aof).start().unwrap();
    let mut replica = RedisServer::replica_of(&primary).unwrap();
    let proxy = ByteProxy::start(primary.port()).unwrap();
    let url = format!("redis://127.0.0.1:{}/0", proxy.port());
    let stores = Stores { redis: Some(url), ..Stores::default() };
    let mut current = primary;
    story("redis replica", &stores, JOBS, count, |nth| {
        let loss = match kills_primary(nth, count) {
            true => {
                current.kill().unwrap();
                replica.promote().unwrap();
                Loss::Documented
            }
            false => {
                let port = replica.port().to_string();
                let order = ["FAILOVER", "TO", "127.0.0.1", &port, "TIMEOUT", "20000"];
                current.command(&order).unwrap();
                until("the hand-over", HAND_OVER, || {
                    Ok((replica.info("role")? == "master").then_some(()))
                })
                .unwrap();
                Loss::Nothing
            }
        };
        proxy.redirect(replica.port());
        let next = RedisServer::replica_of(&replica).unwrap();
        current = std::mem::replace(&mut replica, next).into_server();
        loss
    });
}

pub fn cluster_master(count: u64) {
    let options = ServerOptions::new(Engine::Redis)
        .persistence(Persistence::Aof)
        .extra("cluster-node-timeout", "2000");
    let mut cluster = Cluster::start_with(&options, 3).unwrap();
    cluster.add_replicas().unwrap();
    let stores = Stores { redis: Some(cluster.url()), ..Stores::default() };
    story("cluster master", &stores, JOBS, count, |nth| {
        // The master and the replica of one third of the slots change places.
        let pair = (nth % 3) as usize;
        let role = |node: usize| cluster.nodes()[node].info("role").unwrap();
        let (master, replica) =
            if role(pair) == "master" { (pair, pair + 3) } else { (pair + 3, pair) };
        if kills_primary(nth, count) {
            cluster.nodes()[master].kill().unwrap();
            cluster.take_over(replica).unwrap();
            cluster.nodes()[master].restart().unwrap();
            cluster.wait_replica(master).unwrap();
            return Loss::Documented;
        }
        cluster.fail_over_to(replica).unwrap();
        cluster.wait_replica(master).unwrap();
        Loss::Nothing
    });
}

/// The standby is synchronous, so that a commit that was answered is on it: nothing may be lost.
pub fn postgres_standby(count: u64) {
    let primary = PostgresServer::start().unwrap();
    let valkey = ServerOptions::new(Engine::Valkey).persistence(Persistence::Aof).start().unwrap();
    let database = primary.database().unwrap();
    let proxy = ByteProxy::start(primary.port()).unwrap();
    let stores = Stores {
        valkey: Some(valkey.port()),
        postgres: Some((proxy.port(), database.clone())),
        ..Stores::default()
    };
    let mut standby = PostgresServer::standby_of(&primary).unwrap();
    primary.require_standby().unwrap();
    let settings = format!(
        "CREATE TABLE IF NOT EXISTS app_config (key text PRIMARY KEY, value text NOT NULL); \
         INSERT INTO app_config (key, value) VALUES ('stale_after_seconds', '{STALE_SECONDS}'), \
         ('heartbeat_cadence_seconds', '1')"
    );
    primary.sql(&database, &settings).unwrap();
    let mut current = primary;
    story("postgres standby", &stores, PROVIDERS, count, |_| {
        current.kill().unwrap();
        standby.promote().unwrap();
        proxy.redirect(standby.port());
        // Until the next one follows, commits wait.
        let next = PostgresServer::standby_of(&standby).unwrap();
        current = std::mem::replace(&mut standby, next);
        Loss::Nothing
    });
}
