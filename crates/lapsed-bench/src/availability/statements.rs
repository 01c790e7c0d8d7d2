//! What PostgreSQL is asked a minute, with 300 providers that ping every 30 s and customers who never stop
//! asking: before the mirror by three processes, and by three real daemons of ours, with a leader and without
//! one. All three worlds live side by side for as long as the slowest cadence of ours (mirror and truth are
//! compared every five minutes); nothing is made faster, and everything is counted by the server's own log
//! of statements, BEGIN and COMMIT included. What is done at the start, or once an hour, is not waited for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::future::{join3, try_join_all};
use lapsed_core::schedule::StopSignal;

use super::NAME;
use super::daemons::Daemons;
use super::postgres_only::{self, PostgresOnly};
use super::servers::{AvailabilityServers, Database, Filling};
use crate::bench::{Bench, progress};
use crate::http::binary;
use crate::table::{Figure, FigureTable, FigureTarget};

const PROVIDERS: usize = 300;
const PROCESSES: usize = 3;
/// By then every daemon has made its first pass, and the leader leads.
const SETTLED: Duration = Duration::from_secs(40);
/// What comparing asks first: until it was seen, not every cadence has come round.
const COMPARING: &str = "ORDER BY m.\"id\" LIMIT";

pub async fn compare(
    bench: &Bench,
    site: &AvailabilityServers,
    table: &mut FigureTable,
) -> Result<()> {
    let Some(binary) = binary()? else {
        table.skip(NAME, "statements: build lapsed first, or set LAPSED_BIN");
        return Ok(());
    };
    let filling = Filling { providers: PROVIDERS, sessions: 1_000, is_counted: true };
    let old = site.database(filling).await?;
    let led = site.database(filling).await?;
    let unled = site.database(filling).await?;
    let dir = bench.path("daemons");
    let processes = try_join_all((0..PROCESSES).map(|_| PostgresOnly::connect(&old))).await?;
    let leader = Daemons::start(&binary, &dir, (site, &led), "leader", PROCESSES).await?;
    let all = Daemons::start(&binary, &dir, (site, &unled), "idempotent", PROCESSES).await?;
    let worlds = [&old, &led, &unled];
    let (stopper, stop) = StopSignal::channel();
    let watched = bench.sizes.statements_watched;
    progress(format!("{PROVIDERS} providers ping for {watched:?}: counting statements"));
    let counting = async {
        tokio::time::sleep(SETTLED).await;
        let before = worlds.map(|world| site.statements(world).len());
        let began = Instant::now();
        tokio::time::sleep(watched).await;
        let deadline = began + 2 * watched;
        while bench.sizes.is_whole
            && !is_compared(&site.statements(&led)[before[1]..])
            && Instant::now() < deadline
        {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let minutes = began.elapsed().as_secs_f64() / 60.0;
        let sent = worlds.map(|world| site.statements(world));
        stopper.stop();
        (before, sent, minutes)
    };
    let ids = |world: &Database| Arc::clone(&world.providers);
    let living = join3(
        postgres_only::live(processes, ids(&old), stop.clone()),
        leader.live(ids(&led), stop.clone()),
        all.live(ids(&unled), stop.clone()),
    );
    let ((one, two, three), (before, sent, minutes)) = futures::join!(living, counting);
    one.and(two).and(three)?;
    let [old, led, unled] = [0, 1, 2].map(|at| &sent[at][before[at]..]);
    // An empty question, by which a listener finds out whether its line is alive, is no statement.
    let rate =
        |sent: &[String]| sent.iter().filter(|text| !text.is_empty()).count() as f64 / minutes;
    let other = ("before: all asked of PostgreSQL", Figure::count(rate(old)));
    let target = Some(FigureTarget::AtLeast(200.0));
    for (sent, mode, target) in [(led, "one leads", target), (unled, "all sweep", None)] {
        let what = format!("statements a minute, {PROCESSES} daemons, {mode}");
        let ratio = rate(old) / rate(sent);
        table.compare(NAME, what, Figure::count(rate(sent)), other, ratio, target);
        let empty = sent.iter().filter(|text| text.is_empty()).count() as f64 / minutes;
        table.measure(
            NAME,
            format!("empty questions a minute beside them, {mode}"),
            Figure::count(empty),
        );
        list(mode, sent);
    }
    list("before", old);
    Ok(())
}

/// Only statements since counting began: a starting daemon reads all providers as well.
fn is_compared(sent: &[String]) -> bool {
    sent.iter().any(|text| text.contains(COMPARING))
}

/// Prints the statements with their counts to stderr.
fn list(whose: &str, sent: &[String]) {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for text in sent {
        let words: Vec<&str> = text.split_whitespace().collect();
        let short: String = words.join(" ").chars().take(110).collect();
        *kinds.entry(short).or_default() += 1;
    }
    for (text, count) in kinds {
        progress(format!("{whose}: {count} × {text}"));
    }
}
