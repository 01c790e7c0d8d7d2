//! Traps B8 to B12: units of time, large sets, a reconciliation among traffic, a leader whose renewals fail.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::chat::{App, Chat, GRACE, LONG_AGO, PATIENCE, name, named, on_both_chats, uuid};
use lapsed_core::clock::SystemClock;
use lapsed_core::leader::{Campaign, TermOptions};
use lapsed_core::schedule::StopSignal;
use lapsed_core::sessions::SessionsStore;
use lapsed_core::store::Store;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{PassMode, Sweep};
use lapsed_testbed::{Engine, Proxy, RedisServer};

on_both_chats! {
    trap_b8_no_unit_of_time_is_a_moment_early,
    trap_b8_units_mixed_over_many_pages_are_all_found,
    trap_b10_trap_b11_what_changes_during_a_reconciliation_is_neither_lost_nor_miscounted,
    trap_b12_failed_renewals_cost_no_term_and_never_make_two_leaders,
}

lapsed_testbed::steady_async_tests! {
    trap_b9_twenty_thousand_orphans_are_read_in_bounded_pages,
}

/// Whole seconds (which may have been cut off), fractions of them and milliseconds side by side, by
/// the server's clock, with a grace of two seconds.
async fn trap_b8_no_unit_of_time_is_a_moment_early(chat: Chat) {
    let grace = Duration::from_secs(2);
    let (chat, grace_ms) = (chat.with_grace(grace), grace.as_millis() as u64);
    let app = &chat.app;
    chat.settle().await;
    let now_ms = app.now_ms();
    let seconds = (now_ms / 1_000).to_string();
    let fraction = format!("{}.{:03}", now_ms / 1_000, now_ms % 1_000);
    for (n, at) in [seconds.as_str(), &fraction, &now_ms.to_string()].iter().enumerate() {
        app.disconnected(&uuid(n), at);
    }
    let sweeper = chat.sweeper("s");
    let (mut gone, began) = (BTreeSet::new(), Instant::now());
    while gone.len() < 3 {
        assert!(began.elapsed() < PATIENCE, "only {gone:?}");
        let orphans = chat.sessions.orphans(10).await.unwrap();
        let report = crate::chat::pass(&sweeper, PassMode::Reclaim).await;
        let after_ms = app.now_ms();
        for early in orphans.iter().map(ToString::to_string).chain(named(&report)) {
            assert!(
                after_ms >= now_ms + grace_ms,
                "{early} {} ms early",
                now_ms + grace_ms - after_ms
            );
        }
        gone.extend(named(&report));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for receipt in chat.receipts().await {
        let whole = receipt.key == name(&uuid(0));
        let expected = if whole { (now_ms / 1_000 + 1) * 1_000 } else { now_ms } + grace_ms;
        // A fraction is not exact in binary: it may come out a millisecond late, never early.
        let late_ms = receipt.evidence.deadline_ms - expected;
        assert!(late_ms <= u64::from(!whole), "{receipt:?}");
        assert!(receipt.at_ms >= expected, "{receipt:?}");
    }
}

/// Seconds come before milliseconds in the set whatever their times: no page may forget either.
async fn trap_b8_units_mixed_over_many_pages_are_all_found(chat: Chat) {
    let app = &chat.app;
    let base = app.now_s() - LONG_AGO;
    for n in 0..90 {
        let at = base + (n as u64) / 6;
        match n % 3 {
            0 => app.disconnected(&uuid(n), &at.to_string()),
            1 => app.disconnected(&uuid(n), &format!("{at}.{:03}", 10 * n)),
            _ => app.disconnected(&uuid(n), &(at * 1_000 + 10 * n as u64).to_string()),
        }
    }
    chat.settle().await;
    let census = chat.sessions.census().await.unwrap();
    assert_eq!((census.orphans, census.suspects), (90, 90), "{census:?}");
    let policy = Policy { batch: 7, ..Policy::default() };
    let dry = crate::chat::pass(&chat.sweeper_with("dry", policy.clone()), PassMode::DryRun).await;
    assert_eq!((dry.reclaimed, named(&dry).len()), (90, 90), "a dry run lists each once: {dry:?}");
    let real = crate::chat::pass(&chat.sweeper_with("s", policy), PassMode::Reclaim).await;
    assert_eq!(real.reclaimed, 90, "{real:?}");
    let orders: Vec<u64> = dry.entries.iter().map(|entry| entry.deadline_ms).collect();
    assert!(orders.is_sorted(), "the longest overdue first: {orders:?}");
}

/// No answer has more than was asked for, and what the server is asked grows with the batches only.
async fn trap_b9_twenty_thousand_orphans_are_read_in_bounded_pages() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let chat = Chat::at(App::connect(server.port(), 0), &server.url(), GRACE);
    let app = &chat.app;
    app.orphans(0, 20_000);
    chat.settle().await;
    assert_eq!(chat.sessions.orphans(10).await.unwrap().len(), 10);
    assert_eq!(chat.sessions.disconnected_count().await.unwrap(), 20_000);
    let calls = |command: &str| -> u64 {
        let stats = app.call(&["INFO", "commandstats"]);
        let line = stats.lines().find(|l| l.starts_with(&format!("cmdstat_{command}:")));
        let count = line.and_then(|l| l.split("calls=").nth(1)?.split(',').next()?.parse().ok());
        count.unwrap_or(0)
    };
    // The slow log as a record of everything: what was asked for, not how long a busy machine took.
    // The beginning will do: all 20,000 are there, and a range without a limit would answer them all.
    app.call(&["CONFIG", "SET", "slowlog-max-len", "20000"]);
    app.call(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    app.call(&["SLOWLOG", "RESET"]);
    let policy = Policy { max_ops: Some(400), ..Policy::default() };
    let batch = policy.batch;
    let first = crate::chat::pass(&chat.sweeper_with("first", policy), PassMode::Reclaim).await;
    app.call(&["CONFIG", "SET", "slowlog-log-slower-than", "-1"]);
    assert_eq!(first.reclaimed, 400, "{first:?}");
    let asked = recorded(app);
    assert!(asked.len() < 20_000, "the record is whole");
    let ranges: Vec<&Vec<String>> = asked.iter().filter(|c| c[0] == "ZRANGEBYSCORE").collect();
    let pages = ranges.iter().filter(|range| range[1] == "disconnected_sessions").count();
    assert!(pages > 2, "{pages} pages");
    for range in ranges {
        let limit = range.iter().position(|word| word == "LIMIT").expect("every range has a limit");
        // Of its own index of lives the census looks at 2,000, inside the server.
        let most = if range[1] == "disconnected_sessions" { batch } else { 2_000 };
        assert!(range[limit + 2].parse::<usize>().unwrap() <= most, "{range:?}");
    }
    for script in asked.iter().filter(|c| c[0].starts_with("EVAL")) {
        let keys: usize = script[2].parse().unwrap();
        assert!(keys <= 14 + 5 * batch, "{keys} keys in one step");
    }
    for whole in ["KEYS", "SCAN", "SMEMBERS"] {
        assert!(asked.iter().all(|c| c[0] != whole), "{whole}");
    }
    app.call(&["CONFIG", "RESETSTAT"]);
    let report = chat.sweep().await;
    assert_eq!((report.reclaimed, report.suspects), (19_600, 19_600), "{report:?}");
    assert!(app.keys().is_empty());
    let (ranges, batches) = (calls("zrangebyscore"), calls("evalsha"));
    assert!(ranges >= 40 && ranges <= 3 * batches, "{ranges} ranges, {batches} scripts");
    // What went out, over all answers: no single one carried them all.
    let out: u64 = app
        .call(&["INFO", "stats"])
        .lines()
        .find_map(|l| l.strip_prefix("total_net_output_bytes:")?.trim().parse().ok())
        .unwrap();
    assert!(out / batches < 100_000, "{out} bytes in {batches} batches");
    assert_eq!(chat.receipts().await.len(), 20_000);
}

/// The commands of the slow log, without those about itself.
fn recorded(app: &App) -> Vec<Vec<String>> {
    use lapsed_testbed::resp::Reply;
    let Reply::List(entries) = app.try_call(&["SLOWLOG", "GET", "20000"]).unwrap() else {
        panic!("no slow log")
    };
    let words = |entry: &Reply| match entry {
        Reply::List(parts) => match &parts[3] {
            Reply::List(words) => words.iter().map(ToString::to_string).collect(),
            other => panic!("{other}"),
        },
        other => panic!("{other}"),
    };
    let all: Vec<Vec<String>> = entries.iter().map(words).collect();
    all.into_iter().filter(|command| !command[0].eq_ignore_ascii_case("slowlog")).collect()
}

/// B10, B11: the original renamed a rebuilt set over the living one, and compared its own count with
/// a size that traffic moves.
async fn trap_b10_trap_b11_what_changes_during_a_reconciliation_is_neither_lost_nor_miscounted(
    chat: Chat,
) {
    let app = &chat.app;
    let at = (app.now_s() + LONG_AGO).to_string();
    (0..200).for_each(|n| app.session(&uuid(n), &at));
    (200..300).for_each(|n| app.active(&uuid(n)));
    let (over, url) = (Arc::new(AtomicBool::new(false)), chat.url.clone());
    let traffic = std::thread::spawn({
        let (over, (port, db)) = (over.clone(), place(&url));
        move || {
            let app = App::connect(port, db);
            let mut rounds = 0;
            while !over.load(Ordering::Relaxed) || rounds < 2 {
                for n in 200..300 {
                    app.let_go(&uuid(n));
                    if n % 2 == 0 {
                        app.reconnect(&uuid(n));
                    }
                }
                (200..300).filter(|n| n % 2 == 1).for_each(|n| app.reconnect(&uuid(n)));
                rounds += 1;
            }
            // In the end the odd ones are disconnected.
            (200..300).filter(|n| n % 2 == 1).for_each(|n| app.let_go(&uuid(n)));
        }
    });
    let mut added = BTreeSet::new();
    let (_stopper, stop) = StopSignal::channel();
    for _ in 0..3 {
        let plan = lapsed_core::reconcile::ReconcilePlan {
            after: Default::default(),
            page: 20,
            pause: Duration::ZERO,
            act: PassMode::Reclaim,
        };
        let mut told = 0;
        let report = lapsed_core::reconcile::run(
            &chat.id(),
            &chat.sessions,
            &SystemClock::new(),
            plan,
            &stop,
            &mut |page| {
                told += page.changes.len() as u64;
                added.extend(page.changes.iter().map(|change| change.key.clone()));
            },
        )
        .await
        .unwrap();
        assert!(report.finished);
        assert_eq!(told, report.drift(), "an exact account");
    }
    over.store(true, Ordering::Relaxed);
    traffic.join().unwrap();
    (0..200).for_each(|n| assert!(added.contains(&uuid(n)), "{n} was added"));
    chat.reconcile(PassMode::Reclaim).await;
    let again = chat.reconcile(PassMode::Reclaim).await;
    assert_eq!((again.drift(), again.agree), (0, true), "{again:?}");
    for n in 0..300 {
        let indexed = n < 200 || n % 2 == 1;
        assert_eq!(app.is_indexed(&uuid(n)), indexed, "{n}");
        let count = if n < 200 || indexed { 0 } else { 1 };
        assert_eq!(chat.sessions.get(&name(&uuid(n))).await.unwrap().unwrap().references, count);
    }
    let stats = app.call(&["INFO", "commandstats"]);
    assert!(!stats.contains("cmdstat_rename"), "nothing is renamed over anything");
}

fn place(url: &str) -> (u16, usize) {
    let (host, db) = url.rsplit_once('/').unwrap();
    (host.rsplit_once(':').unwrap().1.parse().unwrap(), db.parse().unwrap())
}

const TERM: TermOptions =
    TermOptions { ttl: Duration::from_millis(1_200), timeout: Duration::from_millis(300) };

/// Until the answer is there.
async fn awaited<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Renewals of the leader fail: first an answer is lost now and then, then answers are late, then
/// nothing arrives at all. A rival asks for the term all the time. The leader repeats a failed renewal
/// in time, because nothing delays the next one, and stops to lead before the rival begins.
async fn trap_b12_failed_renewals_cost_no_term_and_never_make_two_leaders(chat: Chat) {
    let (port, db) = place(&chat.url);
    let proxy = Proxy::start(port).unwrap();
    let url = format!("redis://127.0.0.1:{}/{db}", proxy.port());
    let beyond = Chat::at(App::connect(port, db), &url, GRACE);
    let (direct, system): (Arc<dyn Store>, _) = (Arc::new(chat.redis.clone()), chat.id());
    let candidate = |store: Arc<dyn Store>, who: &str| {
        Campaign::new(store, SystemClock::shared(), system.clone(), who, TERM)
    };
    let (campaign, one) = candidate(Arc::new(beyond.redis.clone()), "one-beyond-the-proxy");
    let (rival, two) = candidate(direct.clone(), "two");
    let (stopper, stop) = StopSignal::channel();
    let renewing =
        tokio::spawn(async move { campaign.run(async move { stop.stopped().await }).await });
    let first = awaited("the first leader", async || one.term()).await;
    let (rival_stopper, rival_stop) = StopSignal::channel();
    let rivalling = tokio::spawn(async move {
        while !rival_stop.is_stopped() {
            rival.renew().await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        rival.resign().await;
    });
    let both = Arc::new(AtomicUsize::new(0));
    let watch = tokio::spawn({
        let (one, two, both) = (one.clone(), two.clone(), both.clone());
        async move {
            loop {
                let (a, b) = (one.term(), two.term());
                // The second look: whoever let go between the two must not count.
                if a.is_some() && b.is_some() && one.term() == a {
                    both.fetch_add(1, Ordering::SeqCst);
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let renewed_after = async |until_ms: u64| {
        awaited("a renewal", async || {
            let term = direct.term(&system).await.unwrap().expect("somebody leads");
            (term.until_ms > until_ms).then_some(term.until_ms)
        })
        .await
    };
    let mut until_ms = renewed_after(0).await;
    for lost in 1..=2 {
        proxy.drop_answers_matching("\r\none-beyond-the-proxy\r\n");
        awaited("a renewal that fails", async || (proxy.dropped() >= lost).then_some(())).await;
        // The lost one, and the next.
        until_ms = renewed_after(until_ms).await;
        until_ms = renewed_after(until_ms).await;
        assert_eq!(one.term(), Some(first), "one failed renewal costs no term");
    }
    proxy.delay(TERM.timeout / 2);
    until_ms = renewed_after(until_ms).await;
    renewed_after(until_ms).await;
    proxy.cut();
    let second = awaited("the second leader", async || two.term()).await;
    assert!(second > first && one.term().is_none());
    assert_eq!(both.load(Ordering::SeqCst), 0, "never two at a time");
    proxy.delay(Duration::ZERO);
    proxy.mend().unwrap();
    rival_stopper.stop();
    rivalling.await.unwrap();
    let third = awaited("the first, leading again", async || one.term()).await;
    assert!(third > second);
    assert_eq!(both.load(Ordering::SeqCst), 0, "never two at a time");
    watch.abort();
    stopper.stop();
    renewing.await.unwrap();
}
