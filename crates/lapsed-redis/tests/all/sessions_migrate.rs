//! Seed 001's migration: 1,000 sessions that no index knows, indexed while the service runs, and from
//! there on written through lapsed, while readers of the old keys still read them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::chat::{
    App, Chat, GRACE, LONG_AGO, PATIENCE, name, named, on_both_chats, sum, sweep_through, uuid,
};
use lapsed_core::clock::SystemClock;
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::reconcile::{Reconcile, ReconcilePlan, run};
use lapsed_core::schedule::StopSignal;
use lapsed_core::sessions::{SessionProfile, SessionsStore};
use lapsed_core::sweep::{Cursor, PassMode, Sweep};

on_both_chats! {
    a_reconciliation_does_what_the_originals_migration_does,
    a_dry_run_accounts_for_what_the_real_run_does,
    a_migration_that_was_stopped_goes_on_where_it_was,
    a_migration_under_traffic_and_sweeps_loses_no_session,
    from_adopt_to_native_exactly_the_orphans_go,
    readers_of_the_old_keys_keep_working,
    manual_changes_are_reconciled,
    references_to_manually_deleted_sessions_are_released,
}

/// 0..300 disconnected long ago, 300..700 active without a count, 700..900 with one, 900..1000 with a
/// count though marked as disconnected (B3). None in the index.
fn populate(app: &App) {
    let at = (app.now_s() - LONG_AGO).to_string();
    let script = "for i = 0, 999 do \
        local id = string.format('00000000-0000-4000-8000-%012d', i) \
        local gone = (i < 300 or i >= 900) and ARGV[1] or '0' \
        redis.call('HSET', 'session:' .. id, 'value', '0', 'broadcaster_user_id', 'b-' .. id, \
            'config_json', '{}', 'last_disconnect', gone, 'last_update', '1') \
        redis.call('SET', 'broadcaster:b-' .. id, id) \
        if i >= 700 then redis.call('SET', 'ref_count:' .. id, '1') end end";
    app.call(&["EVAL", script, "0", &at]);
}

fn alive(app: &App) -> BTreeSet<String> {
    (0..1_000).map(uuid).filter(|id| app.has_session(id)).collect()
}

fn the_living() -> BTreeSet<String> {
    (300..1_000).map(uuid).collect()
}

async fn a_reconciliation_does_what_the_originals_migration_does(chat: Chat) {
    let app = &chat.app;
    populate(app);
    app.call(&["SET", "session:a-string", "not a session"]);
    let before = app.picture();
    let dry = chat.reconcile(PassMode::DryRun).await;
    assert_eq!(app.picture(), before, "a dry run changes nothing");
    assert_eq!((dry.examined, dry.added, dry.removed, dry.corrected), (1_000, 300, 0, 0));
    assert_eq!((dry.left["active"], dry.finished, dry.agree), (700, true, false), "{dry:?}");
    let real = chat.reconcile(PassMode::Reclaim).await;
    assert_eq!((real.added, real.removed, real.corrected), (300, 0, 0), "{real:?}");
    assert_eq!((real.left["active"], real.left["indexed"]), (700, 300), "each looked at once more");
    assert_eq!(chat.sessions.disconnected_count().await.unwrap(), 300);
    let compared = chat.reconcile(PassMode::DryRun).await;
    assert_eq!((compared.drift(), compared.agree), (0, true), "{compared:?}");
    let mut after = app.picture();
    let index = after.remove("disconnected_sessions").unwrap();
    assert_eq!((after, index.split(' ').count()), (before, 600), "only the index was written");
    let extent = chat.sessions.extent().await.unwrap();
    assert!((2_600..2_610).contains(&extent), "{extent} rows to go over");
}

/// Every difference of the index is reported once, also one that both scans find.
async fn a_dry_run_accounts_for_what_the_real_run_does(chat: Chat) {
    let app = &chat.app;
    populate(app);
    for chat in [chat.clone(), chat.native()] {
        // Active, though indexed; no session at all; with another time.
        (600..610).for_each(|n| app.index(&uuid(n), "5"));
        (900..910).for_each(|n| app.index(&uuid(n), "5"));
        (5_000..5_003).for_each(|n| app.index(&uuid(n), "5"));
        (0..4).for_each(|n| app.index(&uuid(n), "5"));
        let dry = chat.reconcile(PassMode::DryRun).await;
        let real = chat.reconcile(PassMode::Reclaim).await;
        let account = |report: &lapsed_core::reconcile::ReconcileReport| {
            (report.added, report.removed, report.corrected)
        };
        assert_eq!(account(&dry), account(&real), "{dry:?} {real:?}");
        assert_eq!(real.removed, 23, "{real:?}");
        assert_eq!(real.added + real.corrected, 300, "{real:?}");
        assert!(chat.reconcile(PassMode::DryRun).await.agree);
    }
}

/// Stopped after every page, by a process that is gone then: nothing is done twice, nothing left out.
async fn a_migration_that_was_stopped_goes_on_where_it_was(chat: Chat) {
    populate(&chat.app);
    let (mut cursor, mut added, mut runs) = (Cursor::default(), 0, 0);
    loop {
        let (stopper, stop) = StopSignal::channel();
        let plan = ReconcilePlan {
            after: cursor,
            page: 50,
            pause: Duration::ZERO,
            act: PassMode::Reclaim,
        };
        let clock = SystemClock::new();
        let other = chat.with_grace(GRACE);
        let report =
            run(&chat.id(), &other.sessions, &clock, plan, &stop, &mut |_| stopper.stop()).await;
        let report = report.unwrap();
        (added, runs) = (added + report.added, runs + 1);
        match report.next {
            Some(next) => {
                assert!(!report.finished && runs < 1_000);
                // As it would be written down and read again.
                let text = serde_json::to_string(&next).unwrap();
                cursor = serde_json::from_str(&text).unwrap();
            }
            None => break,
        }
    }
    assert!(runs > 10, "{runs}");
    assert_eq!(added, 300);
    assert!(chat.reconcile(PassMode::DryRun).await.agree);
}

async fn a_migration_under_traffic_and_sweeps_loses_no_session(chat: Chat) {
    populate(&chat.app);
    chat.settle().await;
    let over = Arc::new(AtomicBool::new(false));
    let (host, db) = chat.url.rsplit_once('/').unwrap();
    let (port, db) = (host.rsplit_once(':').unwrap().1.parse().unwrap(), db.parse().unwrap());
    let traffic = std::thread::spawn({
        let over = over.clone();
        move || {
            let app = App::connect(port, db);
            while !over.load(Ordering::Relaxed) {
                for n in 700..900 {
                    app.let_go(&uuid(n));
                    app.reconnect(&uuid(n));
                }
            }
        }
    });
    let sweeper = chat.sweeper("s");
    let (mut total, began) = (sweep_through(&sweeper).await, Instant::now());
    let mut added = 0;
    while total.reclaimed < 300 {
        assert!(began.elapsed() < PATIENCE, "{total:?}");
        let (report, swept) =
            tokio::join!(chat.reconcile(PassMode::Reclaim), sweep_through(&sweeper));
        added += report.added;
        total = sum(total, swept);
    }
    over.store(true, Ordering::Relaxed);
    traffic.join().unwrap();
    assert!(added >= 300, "{added}");
    assert_eq!((total.reclaimed, chat.receipts().await.len()), (300, 300), "{:?}", total.skipped);
    assert_eq!(alive(&chat.app), the_living());
    chat.reconcile(PassMode::Reclaim).await;
    assert!(chat.reconcile(PassMode::DryRun).await.agree);
}

async fn from_adopt_to_native_exactly_the_orphans_go(chat: Chat) {
    let app = &chat.app;
    populate(app);
    app.orphans(2_000, 50);
    assert_eq!(chat.sweep().await.reclaimed, 50, "adopted, it knows what the index knows");
    let native = chat.native();
    assert_eq!(native.sweep().await.reclaimed, 0, "nothing is indexed for it yet");
    let dry = native.reconcile(PassMode::DryRun).await;
    let real = native.reconcile(PassMode::Reclaim).await;
    assert_eq!((dry.added, real.added, real.removed, real.corrected), (300, 300, 0, 0));
    assert!(native.reconcile(PassMode::DryRun).await.agree);
    assert_eq!(native.sessions.census().await.unwrap().population, 1_000, "counted on the way");
    let report = native.sweep().await;
    assert_eq!(named(&report), (0..300).map(uuid).collect(), "{:?}", report.skipped);
    assert_eq!(alive(app), the_living());
    assert_eq!(native.sessions.census().await.unwrap().population, 700);
    // From here on a reference belongs to somebody, beside those that nobody owns.
    let beat = native.sessions.start(&name("server"), 60_000).await.unwrap();
    let claim = Claim::exact(name("server"), beat.incarnation);
    for (n, references) in [(300, 1), (700, 2)] {
        let id = name(&uuid(n));
        let standing = native.sessions.connect(Some(&claim), &id).await.unwrap().unwrap();
        assert_eq!((standing.references, standing.yours), (references, 1));
        native.sessions.disconnect(Some(&claim), &id).await.unwrap();
    }
    native.sessions.end(&claim).await.unwrap();
    let (sweeper, began) = (native.sweeper("s"), Instant::now());
    while app.has_session(&uuid(300)) {
        assert!(began.elapsed() < PATIENCE);
        sweep_through(&sweeper).await;
    }
    assert!(app.has_session(&uuid(700)), "somebody of whom lapsed knows nothing is connected");
}

/// The original's readers: ZRANGEBYSCORE in seconds, HGETALL, GET.
async fn readers_of_the_old_keys_keep_working(chat: Chat) {
    let (app, chat) = (chat.app.clone(), chat.native());
    let sessions = &chat.sessions;
    let id = name(&uuid(1));
    let beat = sessions.start(&name("server"), 60_000).await.unwrap();
    let claim = Claim::exact(name("server"), beat.incarnation);
    let profile = SessionProfile {
        value: Some("0.5".to_owned()),
        broadcaster_user_id: Some(name("b")),
        config_json: Some("{}".to_owned()),
    };
    let reads = |last_disconnect: &str, count: &str, indexed: bool| {
        assert_eq!(app.field(&uuid(1), "last_disconnect"), last_disconnect);
        assert_eq!(app.call(&["GET", &format!("ref_count:{}", uuid(1))]), count);
        let cutoff = (app.now_s() + 1).to_string();
        let listed = app.call(&["ZRANGEBYSCORE", "disconnected_sessions", "-inf", &cutoff]);
        assert_eq!(listed.lines().any(|line| line == uuid(1)), indexed);
        let fields = app.call(&["HKEYS", &format!("session:{}", uuid(1))]);
        let fields: BTreeSet<&str> = fields.lines().collect();
        let expected =
            ["value", "broadcaster_user_id", "config_json", "last_disconnect", "last_update"];
        assert_eq!(fields, expected.into());
    };
    sessions.activate(&id, &profile).await.unwrap();
    reads("0", "(nil)", false);
    assert_eq!(app.call(&["GET", "broadcaster:b"]), uuid(1));
    sessions.connect(Some(&claim), &id).await.unwrap();
    sessions.connect(Some(&claim), &id).await.unwrap();
    reads("0", "2", false);
    sessions.disconnect(Some(&claim), &id).await.unwrap();
    reads("0", "1", false);
    let before = app.now_s();
    sessions.disconnect(Some(&claim), &id).await.unwrap();
    let gone = app.field(&uuid(1), "last_disconnect");
    assert!((before..=app.now_s() + 1).contains(&gone.parse().unwrap()), "{gone} in seconds");
    reads(&gone, "0", true);
    assert_eq!(app.call(&["ZSCORE", "disconnected_sessions", &uuid(1)]), gone);
    sessions.resume(&id).await.unwrap();
    reads("0", "0", false);
    // The owner dies: the count falls, and the grace begins, for these readers as well.
    sessions.connect(Some(&claim), &id).await.unwrap();
    sessions.end(&claim).await.unwrap();
    chat.settle().await;
    let report = sweep_through(&chat.sweeper("s")).await;
    assert_eq!((report.released, report.reclaimed), (1, 0), "{report:?}");
    reads(&app.field(&uuid(1), "last_disconnect"), "0", true);
    assert_ne!(app.field(&uuid(1), "last_disconnect"), "0");
}

/// Somebody changes counts and times by hand although everything is written through lapsed.
async fn manual_changes_are_reconciled(chat: Chat) {
    let (app, chat) = (chat.app.clone(), chat.native());
    let sessions = &chat.sessions;
    let mut claims = Vec::new();
    for owner in ["one", "two"] {
        let beat = sessions.start(&name(owner), 60_000).await.unwrap();
        claims.push(Claim::exact(name(owner), beat.incarnation));
    }
    for n in 1..=4 {
        sessions.activate(&name(&uuid(n)), &SessionProfile::default()).await.unwrap();
        for claim in &claims {
            sessions.connect(Some(claim), &name(&uuid(n))).await.unwrap();
        }
    }
    // 1: the count is lost, and one of two goes: the other is still there.
    app.call(&["DEL", &format!("ref_count:{}", uuid(1))]);
    let standing = sessions.disconnect(Some(&claims[0]), &name(&uuid(1))).await.unwrap().unwrap();
    assert_eq!((standing.references, standing.disconnected_ms), (1, None));
    // 2: the count is too low; 3: marked as disconnected though it is not.
    app.call(&["SET", &format!("ref_count:{}", uuid(2)), "1"]);
    app.call(&["DEL", &format!("ref_count:{}", uuid(3))]);
    app.disconnected(&uuid(3), "5");
    let dry = chat.reconcile(PassMode::DryRun).await;
    assert_eq!(app.call(&["GET", &format!("ref_count:{}", uuid(2))]), "1");
    let real = chat.reconcile(PassMode::Reclaim).await;
    assert_eq!((dry.drift(), real.drift() >= 2), (real.drift(), true), "{dry:?} {real:?}");
    for n in 2..=4 {
        assert_eq!(app.call(&["GET", &format!("ref_count:{}", uuid(n))]), "2", "{n}");
        assert!(!app.is_indexed(&uuid(n)), "{n}");
    }
    assert!(chat.reconcile(PassMode::DryRun).await.agree);
    let report = chat.sweep().await;
    assert_eq!((report.reclaimed, app.has_session(&uuid(3))), (0, true), "{report:?}");
    // 4: disconnected, and then resumed and disconnected anew by hand: the later time counts.
    for claim in &claims {
        sessions.disconnect(Some(claim), &name(&uuid(4))).await.unwrap();
    }
    app.index(&uuid(77), "5");
    app.call(&["ZADD", &own_key(&app, "idle"), "5", &uuid(77)]);
    app.call(&["ZADD", &own_key(&app, "idle"), "5", &uuid(78)]);
    let (dry, real) =
        (chat.reconcile(PassMode::DryRun).await, chat.reconcile(PassMode::Reclaim).await);
    assert_eq!((dry.removed, real.removed), (2, 2), "a ghost in both indexes is one: {dry:?}");
    let later = (app.now_s() + LONG_AGO).to_string();
    app.call(&["HSET", &format!("session:{}", uuid(4)), "last_disconnect", &later]);
    app.index(&uuid(4), &later);
    chat.until_ms(app.now_ms() + GRACE.as_millis() as u64).await;
    let report = chat.sweep().await;
    assert_eq!((report.reclaimed, crate::chat::skipped(&report, "alive")), (0, 1), "{report:?}");
    assert_eq!(chat.reconcile(PassMode::Reclaim).await.corrected, 1);
    assert_eq!(chat.sweep().await.suspects, 0, "and it is not listed before its time");
}

/// A key of lapsed's own.
fn own_key(app: &App, what: &str) -> String {
    let keys = app.call(&["KEYS", &format!("lapsed:*:{what}")]);
    keys.lines().next().unwrap().to_owned()
}

/// The application deletes sessions that owners still refer to.
async fn references_to_manually_deleted_sessions_are_released(chat: Chat) {
    let (app, chat) = (chat.app.clone(), chat.native());
    let sessions = &chat.sessions;
    let beat = sessions.start(&name("server"), 60_000).await.unwrap();
    let claim = Claim::exact(name("server"), beat.incarnation);
    for n in 0..250 {
        sessions.activate(&name(&uuid(n)), &SessionProfile::default()).await.unwrap();
        sessions.connect(Some(&claim), &name(&uuid(n))).await.unwrap();
    }
    for n in 0..240 {
        app.call(&["DEL", &format!("session:{}", uuid(n)), &format!("ref_count:{}", uuid(n))]);
    }
    assert_eq!(sessions.referred(&claim, None, 1_000).await.unwrap().len(), 250);
    let dry = chat.reconcile(PassMode::DryRun).await;
    let real = chat.reconcile(PassMode::Reclaim).await;
    assert_eq!((dry.removed, real.removed), (240, 240), "{real:?}");
    assert!(chat.reconcile(PassMode::DryRun).await.agree);
    assert_eq!(sessions.referred(&claim, None, 1_000).await.unwrap().len(), 10);
    let info = sessions.owner(&claim).await.unwrap().unwrap();
    assert_eq!(info.held, 10);
    let refs = app.call(&["KEYS", "lapsed:*:refs:*"]);
    assert_eq!(refs.lines().count(), 10, "what each life has of it is gone, too");
    assert_eq!(sessions.census().await.unwrap().population, 10);
    // Made anew, it begins at nothing.
    sessions.activate(&name(&uuid(0)), &SessionProfile::default()).await.unwrap();
    let standing = sessions.connect(Some(&claim), &name(&uuid(0))).await.unwrap().unwrap();
    assert_eq!((standing.references, standing.yours), (1, 1));
}
