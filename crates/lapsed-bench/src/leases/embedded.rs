//! tmp
use std::sync::Arc;
use anyhow::Result;
use crate::bench::{Bench, say};
use crate::table::{Figure, Table};
use super::etcd::Etcd;
use super::zookeeper::ZooKeeper;

pub const NAME: &str = "leases-embedded";

pub fn run(bench: &Bench, table: &mut Table) -> Result<()> {
    bench.runtime.block_on(async {
        let (n, clients, cycles, sessions) : (usize, usize, usize, usize) = (
            std::env::var("N")?.parse()?, std::env::var("CLIENTS")?.parse()?, std::env::var("CYCLES")?.parse()?, std::env::var("SESSIONS")?.parse()?);
        let zoo = ZooKeeper::start(&bench.path("zoo")).await?;
        say(zoo.version()?);
        for _ in 0..2 {
        let fell = zoo.expire(sessions, 20).await;
        say(format!("{fell:?}"));
        if let Ok(f) = fell { table.measure(NAME, "zk", Figure::per_second(f.per_second())); }
        }
        drop(zoo);
        let etcd = Arc::new(Etcd::start(&bench.path("etcd")).await?);
        say(etcd.version()?);
        for _ in 0..3 {
            table.measure(NAME, "cycles", Figure::per_second(etcd.cycles(cycles, clients).await?));
        }
        let fell = etcd.expire(n).await?;
        say(format!("{fell:?}"));
        table.measure(NAME, "etcd", Figure::per_second(fell.per_second()));
        Ok(())
    })
}
