//! What is done with these keys: swept, accounted for, put back, written, on a cluster too.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::chat::{
    App, Chat, GRACE, LONG_AGO, layout, name, named, on_both_chats, skipped, sweep_through, uuid,
};
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::receipt::Reason;
use lapsed_core::sessions::{Deleted, SessionProfile, SessionsStore};
use lapsed_core::sweep::PassMode;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::system::Restored;
use lapsed_core::{Error, Kind, SystemId};
use lapsed_redis::{SessionsLayout, Template};
use lapsed_testbed::{Cluster, Engine};

on_both_chats! {
    a_dry_run_is_the_real_run_without_the_change,
    two_sweepers_count_exactly,
    receipts_tell_and_restore_puts_back,
    operations_write_exactly_the_originals_keys,
    a_time_to_live_of_the_applications_stays,
}

lapsed_testbed::steady_async_tests! {
    trap_x6_on_a_cluster_an_untagged_layout_is_refused_and_a_tagged_one_works,
}

async fn a_dry_run_is_the_real_run_without_the_change(chat: Chat) {
    let app = &chat.app;
    app.orphans(0, 130);
    (0..10).for_each(|n| drop(app.call(&["SET", &format!("ref_count:{}", uuid(n)), "1"])));
    app.index("nobody", "5");
    app.active(&uuid(500));
    app.disconnected(&uuid(501), &(app.now_s() + LONG_AGO).to_string());
    let (before, keys) = (app.picture(), app.call(&["DBSIZE"]));
    let dry = chat.dry_run().await;
    assert_eq!(app.picture(), before, "a dry run changes nothing");
    assert_eq!(app.call(&["DBSIZE"]), keys, "nor does it leave a key of lapsed's own");
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
    let profile = SessionProfile {
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
    let change = SessionProfile { value: Some("0.7".to_owned()), ..SessionProfile::default() };
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
    chat.sessions.update(&id, &SessionProfile::default()).await.unwrap();
    for key in [&session, &count] {
        assert!(app.call(&["TTL", key]).parse::<i64>().unwrap() > 900, "{key}");
    }
}

/// On a cluster keys of several slots cannot be judged in one step: refused at once, in words; with a
/// hash tag it works.
async fn trap_x6_on_a_cluster_an_untagged_layout_is_refused_and_a_tagged_one_works() {
    let cluster = Cluster::start(Engine::Redis, 3).unwrap();
    let redis = lapsed_redis::Redis::new(&lapsed_redis::RedisAddress::new(&cluster.url())).unwrap();
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
    let healed = chat.reconcile(PassMode::Reclaim).await;
    assert_eq!((healed.added, healed.finished), (50, true), "{healed:?}");
    assert_eq!(chat.reconcile(PassMode::DryRun).await.drift(), 0);
    assert_eq!(chat.sweep().await.reclaimed, 50);
    assert!(chat.app.call(&["KEYS", "{chat}:*"]).is_empty());
    assert_eq!(chat.receipts().await.len(), 50);
}
