//! Whatever else is under these keys: no names, no text, no numbers, another type.

use std::collections::BTreeSet;

use crate::chat::{Chat, name, named, on_both_chats, skipped, sweep_through, uuid};
use lapsed_core::Error;
use lapsed_core::sessions::SessionsStore;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{PassMode, Sweep};
use lapsed_core::system::Restored;

on_both_chats! {
    members_that_are_no_names_are_left_alone,
    bytes_that_are_no_text_are_carried_faithfully,
    what_cannot_be_read_is_counted_and_the_others_go_on,
    numbers_that_are_none_are_unreadable,
    another_key_under_the_index_is_said_clearly,
}

/// A member of the set that is not a valid name is left as it is, and hides no other member.
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
    let healed = chat.reconcile(PassMode::Reclaim).await;
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
    let left = chat.reconcile(PassMode::Reclaim).await;
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
    let healed = chat.reconcile(PassMode::Reclaim).await;
    assert_eq!(healed.drift(), 0, "{healed:?}");
}

async fn another_key_under_the_index_is_said_clearly(chat: Chat) {
    let app = &chat.app;
    app.session(&uuid(1), "1");
    app.call(&["SET", "disconnected_sessions", "abc"]);
    let error = chat.sessions.census().await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    let report = crate::chat::pass(&chat.sweeper("s"), PassMode::Reclaim).await;
    assert_eq!((report.reclaimed, report.errors), (0, 1), "{report:?}");
    assert!(app.has_session(&uuid(1)));
    app.call(&["DEL", "disconnected_sessions"]);
    app.index(&uuid(1), "1");
    assert_eq!(chat.sweep().await.reclaimed, 1, "and it goes on by itself");
}
