//! Seed 001's chat service goes on as it is, and lapsed cleans up after it: its exact keys, written
//! by somebody who knows nothing of lapsed, on a real Redis and a real Valkey. The traps by number.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::chat::{
    App, Chat, GRACE, LONG_AGO, PATIENCE, layout, name, named, on_both_chats, skipped,
    sweep_through, uuid,
};
use lapsed::clock::SystemClock;
use lapsed::leader::{Campaign, TermOptions};
use lapsed::owner::{Claim, OwnerStore};
use lapsed::receipt::Reason;
use lapsed::schedule::Stop;
use lapsed::sessions::{Deleted, Profile, SessionsStore};
use lapsed::store::Store;
use lapsed::sweep::policy::Policy;
use lapsed::sweep::{Act, Outcome, Refusal, Sweep};
use lapsed::system::Restored;
use lapsed::{Error, Kind, SystemId};
use lapsed_redis::{SessionsLayout, Template};
use lapsed_testbed::{Cluster, Engine, Server};

on_both_chats! {
    trap_b1_a_hash_without_its_index_entry_is_healed_then_cleaned,
    trap_b2_a_reconnect_between_listing_and_reclaim_wins,
    trap_b2_each_half_of_a_reconnect_wins,
    trap_b2_a_disconnect_anew_begins_a_whole_grace,
    trap_b3_an_active_session_in_the_index_is_kept,
    trap_b4_what_was_refused_as_active_is_not_listed_again,
    trap_b5_a_count_without_an_owner_is_left_alone,
    trap_b5_written_through_lapsed_it_dies_with_its_owner,
    trap_b6_a_member_without_a_hash_is_removed_and_nothing_made,
    trap_b7_a_pointer_to_a_newer_session_is_kept,
    trap_b8_no_unit_of_time_is_a_moment_early,
    trap_b8_units_mixed_over_many_pages_are_all_found,
    trap_b10_trap_b11_what_changes_during_a_reconciliation_is_neither_lost_nor_miscounted,
    trap_b12_a_leader_whose_work_sleeps_goes_on_leading_alone,
    members_that_are_no_names_are_left_alone,
    bytes_that_are_no_text_are_carried_faithfully,
    what_cannot_be_read_is_counted_and_the_others_go_on,
    numbers_that_are_none_are_unreadable,
    a_dry_run_is_the_real_run_without_the_change,
    two_sweepers_count_exactly,
    receipts_tell_and_restore_puts_back,
    operations_write_exactly_the_originals_keys,
    a_time_to_live_of_the_applications_stays,
    another_key_under_the_index_is_said_clearly,
}

lapsed_testbed::steady_async_tests! {
    trap_b9_twenty_thousand_orphans_are_read_in_bounded_pages,
    trap_x6_on_a_cluster_an_untagged_layout_is_refused_and_a_tagged_one_works,
}

/// A pipeline broke off after the HSET.
async fn trap_b1_a_hash_without_its_index_entry_is_healed_then_cleaned(chat: Chat) {
    let app = &chat.app;
    let at = (app.now_s() - LONG_AGO).to_string();
    app.session(&uuid(1), &at);
    assert_eq!(chat.sweep().await.suspects, 0, "no index entry, no suspect");
    assert!(app.has_session(&uuid(1)));
    let dry = chat.reconcile(Act::DryRun).await;
    assert_eq!((dry.added, dry.agree, app.is_indexed(&uuid(1))), (1, false, false));
    let healed = chat.reconcile(Act::Reclaim).await;
    assert_eq!((healed.added, healed.removed, healed.corrected), (1, 0, 0), "{healed:?}");
    assert_eq!(app.call(&["ZSCORE", "disconnected_sessions", &uuid(1)]), at);
    assert_eq!(chat.sweep().await.reclaimed, 1);
    assert!(app.keys().is_empty(), "{:?}", app.keys());
}

async fn trap_b2_a_reconnect_between_listing_and_reclaim_wins(chat: Chat) {
    let app = &chat.app;
    app.orphan(&uuid(1));
    app.orphan(&uuid(2));
    chat.settle().await;
    let suspects = chat.suspects().await;
    assert_eq!(suspects.len(), 2);
    app.reconnect(&uuid(1));
    let answer = chat.reclaim(suspects).await;
    assert_eq!(answer.outcomes[0], Outcome::Refused(Refusal::Active));
    assert!(matches!(answer.outcomes[1], Outcome::Reclaimed(Some(_))), "{answer:?}");
    assert!(app.has_session(&uuid(1)) && !app.has_session(&uuid(2)));
    assert_eq!(app.call(&["GET", &format!("ref_count:{}", uuid(1))]), "1");
    assert_eq!(app.call(&["GET", &format!("broadcaster:b-{}", uuid(1))]), uuid(1));
}

/// Pipelines are not transactions: any part of a reconnect may be all that has arrived. Whichever it
/// is, somebody is coming back.
async fn trap_b2_each_half_of_a_reconnect_wins(chat: Chat) {
    let app = &chat.app;
    (1..=4).for_each(|n| app.orphan(&uuid(n)));
    chat.settle().await;
    let suspects = chat.suspects().await;
    assert_eq!(suspects.len(), 4);
    app.call(&["INCR", &format!("ref_count:{}", uuid(1))]);
    app.call(&["HSET", &format!("session:{}", uuid(2)), "last_disconnect", "0"]);
    app.call(&["ZREM", "disconnected_sessions", &uuid(3)]);
    let answer = chat.reclaim(suspects).await;
    for n in 0..3 {
        assert_eq!(answer.outcomes[n], Outcome::Refused(Refusal::Active), "half {n}");
        assert!(app.has_session(&uuid(n + 1)));
    }
    assert!(matches!(answer.outcomes[3], Outcome::Reclaimed(Some(_))), "{answer:?}");
    assert_eq!(chat.suspects().await, [], "and none of them is listed again (B4)");
}

/// It came back and went again meanwhile; of that, only the hash or only the index may know yet.
async fn trap_b2_a_disconnect_anew_begins_a_whole_grace(chat: Chat) {
    let app = &chat.app;
    (1..=3).for_each(|n| app.orphan(&uuid(n)));
    chat.settle().await;
    let suspects = chat.suspects().await;
    let now = app.now_s().to_string();
    app.call(&["HSET", &format!("session:{}", uuid(1)), "last_disconnect", &now]);
    app.index(&uuid(2), &now);
    let answer = chat.reclaim(suspects).await;
    assert_eq!(
        answer.outcomes[..2],
        [Outcome::Refused(Refusal::Alive), Outcome::Refused(Refusal::Alive)]
    );
    assert!(matches!(answer.outcomes[2], Outcome::Reclaimed(_)), "{answer:?}");
    chat.until_ms(app.now_ms() + 1_000 + GRACE.as_millis() as u64).await;
    let report = chat.sweep().await;
    assert_eq!(report.reclaimed, 2, "its grace is over like any other's: {report:?}");
}

/// The count falls to 0 here, rises there, and then the first marks "disconnected".
async fn trap_b3_an_active_session_in_the_index_is_kept(chat: Chat) {
    let app = &chat.app;
    app.orphan(&uuid(1));
    app.call(&["SET", &format!("ref_count:{}", uuid(1)), "1"]);
    app.active(&uuid(2));
    app.index(&uuid(2), "1");
    app.orphan(&uuid(3));
    let report = chat.sweep().await;
    assert_eq!((report.reclaimed, skipped(&report, "active")), (1, 2), "{report:?}");
    assert!(app.has_session(&uuid(1)) && app.has_session(&uuid(2)) && !app.has_session(&uuid(3)));
    assert!(!app.is_indexed(&uuid(1)) && !app.is_indexed(&uuid(2)));
    app.let_go(&uuid(1));
    chat.until_ms(app.now_ms() + 1_000 + GRACE.as_millis() as u64).await;
    assert_eq!(named(&chat.sweep().await), [uuid(1)].into(), "and it goes when it really is one");
}

async fn trap_b4_what_was_refused_as_active_is_not_listed_again(chat: Chat) {
    let app = &chat.app;
    app.orphan(&uuid(1));
    app.call(&["SET", &format!("ref_count:{}", uuid(1)), "2"]);
    let first = chat.sweep().await;
    assert_eq!((first.suspects, skipped(&first, "active")), (1, 1), "{first:?}");
    let second = chat.sweep().await;
    assert_eq!((second.suspects, second.examined), (0, 0), "{second:?}");
    assert_eq!(chat.sessions.disconnected_count().await.unwrap(), 0);
}

/// A crashed server never decrements. Who it was the keys do not say: a person has to decide.
async fn trap_b5_a_count_without_an_owner_is_left_alone(chat: Chat) {
    let app = &chat.app;
    app.active(&uuid(1));
    app.orphan(&uuid(2));
    assert_eq!(named(&chat.sweep().await), [uuid(2)].into());
    chat.reconcile(Act::Reclaim).await;
    assert_eq!(chat.sweep().await.suspects, 0);
    assert_eq!(app.call(&["GET", &format!("ref_count:{}", uuid(1))]), "1");
    assert!(app.has_session(&uuid(1)));
}

async fn trap_b5_written_through_lapsed_it_dies_with_its_owner(chat: Chat) {
    let chat = chat.native();
    let id = name(&uuid(1));
    chat.sessions.activate(&id, &Profile::default()).await.unwrap();
    let server = chat.sessions.start(&name("server"), GRACE.as_millis() as u64).await.unwrap();
    let claim = Claim::exact(name("server"), server.incarnation);
    assert_eq!(chat.sessions.connect(Some(&claim), &id).await.unwrap().unwrap().references, 1);
    // It crashes: no beat, no disconnect.
    let sweeper = chat.sweeper("s");
    let began = Instant::now();
    let mut total = sweep_through(&sweeper).await;
    while total.reclaimed == 0 {
        assert!(began.elapsed() < PATIENCE, "{total:?}");
        total = crate::chat::sum(total, sweep_through(&sweeper).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!((total.released, total.reclaimed, total.owners_ended), (1, 1, 1), "{total:?}");
    assert!(chat.app.keys().is_empty(), "{:?}", chat.app.keys());
}

async fn trap_b6_a_member_without_a_hash_is_removed_and_nothing_made(chat: Chat) {
    let app = &chat.app;
    app.index(&uuid(1), "1");
    app.orphan(&uuid(2));
    let report = chat.sweep().await;
    assert_eq!((report.reclaimed, skipped(&report, "gone")), (1, 1), "{report:?}");
    assert!(app.keys().is_empty(), "{:?}", app.keys());
    assert_eq!(chat.receipts().await.len(), 1, "there was nothing to write a receipt for");
    let (id, none) = (name(&uuid(3)), Profile::default());
    assert_eq!(chat.sessions.resume(&id).await.unwrap(), None);
    assert_eq!(chat.sessions.connect(None, &id).await.unwrap(), None);
    assert_eq!(chat.sessions.disconnect(None, &id).await.unwrap(), None);
    assert_eq!(chat.sessions.update(&id, &none).await.unwrap(), None);
    assert_eq!(chat.sessions.delete(&id).await.unwrap(), Deleted::Missing);
    assert!(app.keys().is_empty(), "{:?}", app.keys());
}

async fn trap_b7_a_pointer_to_a_newer_session_is_kept(chat: Chat) {
    let app = &chat.app;
    app.orphan(&uuid(1));
    app.orphan(&uuid(2));
    app.active(&uuid(9));
    app.call(&["SET", &format!("broadcaster:b-{}", uuid(1)), &uuid(9)]);
    let report = chat.sweep().await;
    assert_eq!(report.reclaimed, 2, "{report:?}");
    assert_eq!(app.call(&["GET", &format!("broadcaster:b-{}", uuid(1))]), uuid(9));
    assert!(!app.has(&format!("broadcaster:b-{}", uuid(2))));
    // And deleting by hand minds it, too.
    let at = app.now_s().to_string();
    app.disconnected(&uuid(3), &at);
    app.call(&["SET", &format!("broadcaster:b-{}", uuid(3)), &uuid(9)]);
    assert_eq!(chat.sessions.delete(&name(&uuid(3))).await.unwrap(), Deleted::Deleted);
    assert_eq!(app.call(&["GET", &format!("broadcaster:b-{}", uuid(3))]), uuid(9));
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
        let report = crate::chat::pass(&sweeper, Act::Reclaim).await;
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
    let dry = crate::chat::pass(&chat.sweeper_with("dry", policy.clone()), Act::DryRun).await;
    assert_eq!((dry.reclaimed, named(&dry).len()), (90, 90), "a dry run lists each once: {dry:?}");
    let real = crate::chat::pass(&chat.sweeper_with("s", policy), Act::Reclaim).await;
    assert_eq!(real.reclaimed, 90, "{real:?}");
    let orders: Vec<u64> = dry.entries.iter().map(|entry| entry.deadline_ms).collect();
    assert!(orders.is_sorted(), "the longest overdue first: {orders:?}");
}

/// No answer has more than was asked for, and what the server is asked grows with the batches only.
async fn trap_b9_twenty_thousand_orphans_are_read_in_bounded_pages() {
    let server = Server::start(Engine::Redis).unwrap();
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
    let first = crate::chat::pass(&chat.sweeper_with("first", policy), Act::Reclaim).await;
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
    let (_stopper, stop) = Stop::channel();
    for _ in 0..3 {
        let plan = lapsed::reconcile::Plan {
            after: Default::default(),
            page: 20,
            pause: Duration::ZERO,
            act: Act::Reclaim,
        };
        let mut told = 0;
        let report = lapsed::reconcile::run(
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
    chat.reconcile(Act::Reclaim).await;
    let again = chat.reconcile(Act::Reclaim).await;
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

/// Its work sleeps for several terms; renewing is a task of its own.
async fn trap_b12_a_leader_whose_work_sleeps_goes_on_leading_alone(chat: Chat) {
    let store: Arc<dyn Store> = Arc::new(chat.redis.clone());
    let options =
        TermOptions { ttl: Duration::from_millis(1_500), timeout: Duration::from_millis(700) };
    let stand = |who: &str| {
        let (campaign, leadership) =
            Campaign::new(store.clone(), SystemClock::shared(), chat.id(), who, options);
        let (stopper, stop) = Stop::channel();
        let task =
            tokio::spawn(async move { campaign.run(async move { stop.told().await }).await });
        (leadership, stopper, task)
    };
    let (one, stop_one, task_one) = stand("one");
    let began = Instant::now();
    while one.term().is_none() {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (two, stop_two, task_two) = stand("two");
    // Both work, and sleep in their work for longer than a term: they look only now and then.
    let watch = tokio::spawn({
        let (one, two) = (one.clone(), two.clone());
        async move {
            let (mut both, began) = (0, Instant::now());
            while began.elapsed() < Duration::from_millis(4_000) {
                let (a, b) = (one.term(), two.term());
                // The second look: whoever let go between the two must not count.
                both += u64::from(a.is_some() && b.is_some() && one.term() == a);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            both
        }
    });
    let (first, mut sleepy) = (one.term(), Vec::new());
    for _ in 0..2 {
        tokio::time::sleep(options.ttl + Duration::from_millis(300)).await;
        sleepy.push(one.term().or(two.term()));
    }
    assert_eq!(watch.await.unwrap(), 0, "never two at a time");
    assert!(first.is_some() && sleepy.iter().all(Option::is_some), "{first:?} {sleepy:?}");
    stop_one.stop();
    task_one.await.unwrap();
    let began = Instant::now();
    let next = loop {
        assert!(began.elapsed() < PATIENCE);
        if let Some(term) = two.term() {
            break term;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(Some(next) > first && one.term().is_none());
    stop_two.stop();
    task_two.await.unwrap();
}

/// Whatever is in the set: what has no name here is left as it is, and hides nobody.
async fn members_that_are_no_names_are_left_alone(chat: Chat) {
    let app = &chat.app;
    let long = "x".repeat(600);
    for member in [&b"\xff\xfe"[..], b"a\nb", b"\x00", b"", long.as_bytes()] {
        app.call(&[b"ZADD", &b"disconnected_sessions"[..], b"1", member]);
    }
    for n in 0..40 {
        let member = [b"\xff".as_slice(), n.to_string().as_bytes()].concat();
        app.call(&[b"ZADD", &b"disconnected_sessions"[..], b"2", &member]);
        app.call(&["ZADD", "disconnected_sessions", "3", &format!("line\n{n}")]);
    }
    for id in ["not-a-uuid", "mit leerzeichen", "ünïcödé", "{tag}:x"] {
        app.orphan(id);
    }
    assert_eq!(chat.sessions.orphans(100).await.unwrap().len(), 4);
    let policy = Policy { batch: 2, ..Policy::default() };
    chat.settle().await;
    let report = sweep_through(&chat.sweeper_with("s", policy)).await;
    assert_eq!((report.reclaimed, report.errors), (4, 0), "{report:?}");
    let healed = chat.reconcile(Act::Reclaim).await;
    assert!(healed.finished, "{healed:?}");
    assert!(app.keys().iter().all(|key| key == "disconnected_sessions"), "{:?}", app.keys());
    assert_eq!(chat.sweep().await.suspects, 0);
}

/// What a session carries may be any bytes: they are in its receipt, and come back as they were.
async fn bytes_that_are_no_text_are_carried_faithfully(chat: Chat) {
    let app = &chat.app;
    app.orphan(&uuid(1));
    let (key, raw) = (format!("session:{}", uuid(1)), b"\x00\xff\xfe\r\n\x80".as_slice());
    app.call(&[b"HSET", key.as_bytes(), b"value", raw]);
    app.call(&[b"HSET", key.as_bytes(), b"\xfffield", raw]);
    app.orphan(&uuid(2));
    let whole = |key: &str| app.try_call(&["HGETALL", key]).unwrap();
    assert!(chat.sessions.get(&name(&uuid(1))).await.unwrap().is_some());
    let before = whole(&key);
    let report = chat.sweep().await;
    assert_eq!((report.reclaimed, report.errors), (2, 0), "{report:?}");
    let receipts = chat.receipts().await;
    assert_eq!(receipts.len(), 2);
    let receipt = receipts.iter().find(|r| r.key == name(&uuid(1))).unwrap();
    let back = chat.sessions.restore(receipt.id.seq).await.unwrap();
    assert!(matches!(back, Restored::Restored { .. }), "{back:?}");
    let (before, after) = (pairs(before), pairs(whole(&key)));
    let but_time = |all: &BTreeSet<(Vec<u8>, Vec<u8>)>| -> BTreeSet<(Vec<u8>, Vec<u8>)> {
        all.iter().filter(|(field, _)| field != b"last_disconnect").cloned().collect()
    };
    assert_eq!(but_time(&before), but_time(&after));
    // A broadcaster without a name: nobody's pointer can be told, the session is left to a person.
    app.orphan(&uuid(3));
    app.call(&[b"HSET", format!("session:{}", uuid(3)).as_bytes(), b"broadcaster_user_id", raw]);
    app.orphan(&uuid(4));
    let report = chat.sweep().await;
    assert_eq!((report.reclaimed, report.errors), (1, 0), "{report:?}");
    assert!(app.has_session(&uuid(3)));
}

fn pairs(reply: lapsed_testbed::resp::Reply) -> BTreeSet<(Vec<u8>, Vec<u8>)> {
    use lapsed_testbed::resp::Reply;
    let Reply::List(items) = reply else { panic!("{reply}") };
    let text = |reply: &Reply| match reply {
        Reply::Text(bytes) => bytes.clone(),
        other => panic!("{other}"),
    };
    items.chunks(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect()
}

async fn what_cannot_be_read_is_counted_and_the_others_go_on(chat: Chat) {
    let app = &chat.app;
    (1..=6).for_each(|n| app.orphan(&uuid(n)));
    app.call(&["DEL", &format!("session:{}", uuid(1))]);
    app.call(&["SET", &format!("session:{}", uuid(1)), "abc"]);
    app.call(&["SET", &format!("ref_count:{}", uuid(2)), "abc"]);
    app.call(&["LPUSH", &format!("ref_count:{}", uuid(3)), "1"]);
    app.call(&["HSET", &format!("session:{}", uuid(4)), "last_disconnect", "yesterday"]);
    app.call(&["DEL", &format!("broadcaster:b-{}", uuid(5))]);
    app.call(&["LPUSH", &format!("broadcaster:b-{}", uuid(5)), "1"]);
    let before = app.keys();
    let dry = chat.dry_run().await;
    let report = chat.sweep().await;
    assert_eq!((report.reclaimed, skipped(&report, "unreadable")), (2, 4), "{report:?}");
    assert_eq!((dry.reclaimed, &dry.skipped), (2, &report.skipped));
    assert_eq!(named(&report), [uuid(5), uuid(6)].into());
    let gone: BTreeSet<String> = before.difference(&app.keys()).cloned().collect();
    let key = |what: &str, n| format!("{what}:{}", uuid(n));
    assert_eq!(
        gone,
        [key("session", 5), key("session", 6), key("broadcaster:b-", 6).replace("b-:", "b-")]
            .into()
    );
    let left = chat.reconcile(Act::Reclaim).await;
    assert_eq!(left.drift(), 0, "{left:?}");
    assert!(left.left["unreadable"] >= 4, "{left:?}");
    for (id, op) in [(uuid(1), "session"), (uuid(2), "count")] {
        let error = chat.sessions.connect(None, &name(&id)).await.unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{op}: {error}");
    }
    assert_eq!(app.call(&["GET", &format!("session:{}", uuid(1))]), "abc");
}

/// Lua reads `nan`, `inf`, `0x10` and ` 1 ` as numbers; Redis and the application do not.
async fn numbers_that_are_none_are_unreadable(chat: Chat) {
    let app = &chat.app;
    for (n, word) in ["nan", "inf", "-inf", "0x10", " 1 ", ""].iter().enumerate() {
        app.orphan(&uuid(n));
        app.call(&["HSET", &format!("session:{}", uuid(n)), "last_disconnect", word]);
        app.orphan(&uuid(100 + n));
        app.call(&["SET", &format!("ref_count:{}", uuid(100 + n)), word]);
    }
    app.orphan(&uuid(999));
    let report = chat.sweep().await;
    assert_eq!((report.reclaimed, skipped(&report, "unreadable")), (1, 12), "{report:?}");
    let healed = chat.reconcile(Act::Reclaim).await;
    assert_eq!(healed.drift(), 0, "{healed:?}");
}

async fn a_dry_run_is_the_real_run_without_the_change(chat: Chat) {
    let app = &chat.app;
    app.orphans(0, 130);
    (0..10).for_each(|n| drop(app.call(&["SET", &format!("ref_count:{}", uuid(n)), "1"])));
    app.index("nobody", "5");
    app.active(&uuid(500));
    app.disconnected(&uuid(501), &(app.now_s() + LONG_AGO).to_string());
    let before = app.picture();
    let dry = chat.dry_run().await;
    assert_eq!(app.picture(), before, "a dry run changes nothing");
    assert!(chat.receipts().await.is_empty());
    let real = chat.sweep().await;
    assert_eq!((dry.reclaimed, real.reclaimed), (120, 120), "{dry:?}");
    assert_eq!((named(&dry), &dry.skipped), (named(&real), &real.skipped));
    assert_eq!((skipped(&real, "active"), skipped(&real, "gone")), (10, 1));
}

async fn two_sweepers_count_exactly(chat: Chat) {
    chat.app.orphans(0, 1_000);
    chat.settle().await;
    let policy = Policy { batch: 13, ..Policy::default() };
    let other = chat.with_grace(GRACE);
    let (one, two) = (chat.sweeper_with("one", policy.clone()), other.sweeper_with("two", policy));
    let (one, two) = tokio::join!(sweep_through(&one), sweep_through(&two));
    assert_eq!(one.reclaimed + two.reclaimed, 1_000, "{} {}", one.reclaimed, two.reclaimed);
    let receipts = chat.receipts().await;
    let distinct: BTreeSet<&str> = receipts.iter().map(|r| r.key.as_str()).collect();
    assert_eq!((receipts.len(), distinct.len()), (1_000, 1_000));
    assert!(chat.app.keys().is_empty());
}

async fn receipts_tell_and_restore_puts_back(chat: Chat) {
    let app = &chat.app;
    app.orphan(&uuid(1));
    app.call(&["HSET", &format!("session:{}", uuid(1)), "another_field", "kept"]);
    app.call(&["SET", &format!("ref_count:{}", uuid(1)), "0"]);
    let mut before = app.picture();
    assert_eq!(chat.sweep().await.reclaimed, 1);
    assert!(app.keys().is_empty());
    let receipts = chat.receipts().await;
    let receipt = &receipts[0];
    assert_eq!((receipt.key.as_str(), receipt.reason), (uuid(1).as_str(), Reason::Orphaned));
    assert_eq!(receipt.owner, name(&format!("b-{}", uuid(1))));
    assert!(receipt.evidence.late_ms >= (LONG_AGO - 10) * 1_000, "{receipt:?}");
    assert!(receipt.removed.to_string().contains("\"another_field\":\"kept\""), "{receipt:?}");
    let at = app.now_s();
    let back = chat.sessions.restore(receipt.id.seq).await.unwrap();
    assert!(matches!(back, Restored::Restored { .. }), "{back:?}");
    let gone: u64 = app.field(&uuid(1), "last_disconnect").parse().unwrap();
    assert!((at..at + 10).contains(&gone), "with a whole grace before it: {gone}");
    app.call(&["HSET", &format!("session:{}", uuid(1)), "last_disconnect", "x"]);
    let mut after = app.picture();
    for picture in [&mut before, &mut after] {
        let session = picture.get_mut(&format!("session:{}", uuid(1))).unwrap();
        let words = session.split(' ').filter(|word| !word.starts_with("last_disconnect"));
        *session = words.collect::<Vec<_>>().join(" ");
        picture.remove("disconnected_sessions").unwrap();
        picture.remove(&format!("ref_count:{}", uuid(1)));
    }
    assert_eq!(before, after);
    app.call(&["HSET", &format!("session:{}", uuid(1)), "last_disconnect", &gone.to_string()]);
    let again = chat.sessions.restore(receipt.id.seq).await.unwrap();
    assert!(matches!(again, Restored::Refused { .. }), "{again:?}");
    chat.until_ms((gone + 1) * 1_000 + GRACE.as_millis() as u64).await;
    assert_eq!(chat.sweep().await.reclaimed, 1, "and then it goes like any other");
}

/// Through lapsed, without an owner: the keys and fields of the original, its units, nothing else.
async fn operations_write_exactly_the_originals_keys(chat: Chat) {
    let (app, sessions, id) = (&chat.app, &chat.sessions, name(&uuid(1)));
    let profile = Profile {
        value: Some("0.5".to_owned()),
        broadcaster_user_id: Some(name("b")),
        config_json: Some("{}".to_owned()),
    };
    let keys = |names: &[&str]| -> BTreeSet<String> {
        names.iter().map(|n| n.replace('#', &uuid(1))).collect()
    };
    assert!(sessions.activate(&id, &profile).await.unwrap().created);
    assert_eq!(app.keys(), keys(&["session:#", "broadcaster:b"]));
    let fields = app.call(&["HKEYS", &format!("session:{id}")]);
    let fields: BTreeSet<&str> = fields.lines().collect();
    let expected =
        ["value", "broadcaster_user_id", "config_json", "last_disconnect", "last_update"];
    assert_eq!(fields, expected.into());
    assert_eq!(
        (app.field(&uuid(1), "last_disconnect"), app.call(&["GET", "broadcaster:b"])),
        ("0".into(), uuid(1))
    );
    for count in 1..=2 {
        let standing = sessions.connect(None, &id).await.unwrap().unwrap();
        assert_eq!((standing.references, standing.incarnation), (count, None));
        assert_eq!(app.call(&["GET", &format!("ref_count:{id}")]), count.to_string());
    }
    assert_eq!(app.keys(), keys(&["session:#", "broadcaster:b", "ref_count:#"]));
    assert_eq!(sessions.delete(&id).await.unwrap(), Deleted::Active { references: 2 });
    assert_eq!(sessions.disconnect(None, &id).await.unwrap().unwrap().references, 1);
    assert_eq!(app.field(&uuid(1), "last_disconnect"), "0");
    let before = app.now_s();
    assert_eq!(sessions.disconnect(None, &id).await.unwrap().unwrap().references, 0);
    let gone: u64 = app.field(&uuid(1), "last_disconnect").parse().unwrap();
    assert!((before..=app.now_s() + 1).contains(&gone), "{gone} in seconds");
    assert_eq!(app.call(&["ZSCORE", "disconnected_sessions", &uuid(1)]), gone.to_string());
    assert!(!sessions.disconnect(None, &id).await.unwrap().unwrap().changed, "never below zero");
    assert_eq!(app.call(&["GET", &format!("ref_count:{id}")]), "0");
    assert_eq!(sessions.disconnected_count().await.unwrap(), 1);
    assert!(sessions.resume(&id).await.unwrap().unwrap().changed);
    assert_eq!(
        (app.field(&uuid(1), "last_disconnect"), app.is_indexed(&uuid(1))),
        ("0".into(), false)
    );
    let change = Profile { value: Some("0.7".to_owned()), ..Profile::default() };
    sessions.update(&id, &change).await.unwrap().unwrap();
    assert_eq!(
        (app.field(&uuid(1), "value"), app.field(&uuid(1), "config_json")),
        ("0.7".into(), "{}".into())
    );
    let session = sessions.get(&id).await.unwrap().unwrap();
    assert_eq!((session.references, session.disconnected_ms, session.due_ms), (0, None, None));
    assert_eq!(sessions.delete(&id).await.unwrap(), Deleted::Deleted);
    assert!(app.keys().is_empty(), "{:?}", app.keys());
    let error = sessions.beat(&Claim::newest(name("server"))).await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    // Whoever owns nothing here may say who it is: it does not matter.
    app.active(&uuid(1));
    let standing = sessions.connect(Some(&Claim::newest(name("server"))), &id).await.unwrap();
    assert_eq!(standing.unwrap().references, 2);
}

/// The application may let its keys expire: lapsed does not make them immortal.
async fn a_time_to_live_of_the_applications_stays(chat: Chat) {
    let (app, id) = (&chat.app, name(&uuid(1)));
    app.active(&uuid(1));
    let (session, count) = (format!("session:{id}"), format!("ref_count:{id}"));
    app.call(&["EXPIRE", &session, "1000"]);
    app.call(&["EXPIRE", &count, "1000"]);
    chat.sessions.connect(None, &id).await.unwrap();
    chat.sessions.disconnect(None, &id).await.unwrap();
    chat.sessions.update(&id, &Profile::default()).await.unwrap();
    for key in [&session, &count] {
        assert!(app.call(&["TTL", key]).parse::<i64>().unwrap() > 900, "{key}");
    }
}

async fn another_key_under_the_index_is_said_clearly(chat: Chat) {
    let app = &chat.app;
    app.session(&uuid(1), "1");
    app.call(&["SET", "disconnected_sessions", "abc"]);
    let error = chat.sessions.census().await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    let report = crate::chat::pass(&chat.sweeper("s"), Act::Reclaim).await;
    assert_eq!((report.reclaimed, report.errors), (0, 1), "{report:?}");
    assert!(app.has_session(&uuid(1)));
    app.call(&["DEL", "disconnected_sessions"]);
    app.index(&uuid(1), "1");
    assert_eq!(chat.sweep().await.reclaimed, 1, "and it goes on by itself");
}

/// On a cluster keys of several slots cannot be judged in one step: refused at once, in words; with a
/// hash tag it works.
async fn trap_x6_on_a_cluster_an_untagged_layout_is_refused_and_a_tagged_one_works() {
    let cluster = Cluster::start(Engine::Redis, 3).unwrap();
    let redis = lapsed_redis::Redis::new(&lapsed_redis::Address::new(&cluster.url())).unwrap();
    let id = SystemId::new(Kind::Sessions, "chat").unwrap();
    let Err(error) = redis.adopted_sessions(id.clone(), layout(GRACE)) else { panic!("accepted") };
    assert!(matches!(error, Error::Invalid(_)));
    for word in ["one slot", "hash tag", "{chat}:session:{session}", "native"] {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
    let template = |text: &str, place: &str| Template::new(text, place).unwrap();
    let tagged = SessionsLayout {
        session_key: template("{chat}:session:{session}", "session"),
        ref_count_key: template("{chat}:ref_count:{session}", "session"),
        broadcaster_key: template("{chat}:broadcaster:{broadcaster}", "broadcaster"),
        disconnected_key: "{chat}:disconnected_sessions".to_owned(),
        ..layout(GRACE)
    };
    let sessions = redis.adopted_sessions(id.clone(), tagged).unwrap();
    let node = cluster.master_of_slot(cluster.slot_of("{chat}")).unwrap();
    let app = App::connect(cluster.nodes()[node].port(), 0);
    let at = (app.now_s() - LONG_AGO).to_string();
    for n in 0..50 {
        let id = uuid(n);
        app.call(&[
            "HSET",
            &format!("{{chat}}:session:{id}"),
            "broadcaster_user_id",
            &format!("b-{id}"),
            "last_disconnect",
            &at,
        ]);
        app.call(&["SET", &format!("{{chat}}:broadcaster:b-{id}"), &id]);
    }
    let chat = Chat { app: Arc::new(app), redis, sessions, url: cluster.url(), grace: GRACE };
    let healed = chat.reconcile(Act::Reclaim).await;
    assert_eq!((healed.added, healed.finished), (50, true), "{healed:?}");
    assert_eq!(chat.reconcile(Act::DryRun).await.drift(), 0);
    assert_eq!(chat.sweep().await.reclaimed, 50);
    assert!(chat.app.call(&["KEYS", "{chat}:*"]).is_empty());
    assert_eq!(chat.receipts().await.len(), 50);
}
