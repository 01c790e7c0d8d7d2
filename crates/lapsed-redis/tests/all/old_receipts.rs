//! Receipts that an earlier version wrote, a field a key instead of one packed value, lie in front of
//! the new ones: they are listed with them, put back from, and pruned in their turn.

use crate::chat::{Chat, name, on_both_chats, uuid};
use lapsed_core::receipt::{Reason, Retention};
use lapsed_core::sessions::SessionsStore;
use lapsed_core::sweep::{Sweep, TidyLimits};
use lapsed_core::system::Restored;

on_both_chats! {
    receipts_of_before_are_read_restored_and_pruned,
}

const PREFIX: &str = "lapsed:{disconnected_sessions}:sessions/chat:";

/// Two sessions, as they were written before. Their numbers are 11 and 12.
fn write_old(chat: &Chat) {
    let (stream, at) = (format!("{PREFIX}receipts"), chat.app.now_ms().to_string());
    let mut item =
        vec!["XADD", &stream, "12-0", "o", "", "i", "0", "t", &at, "s", "before", "b", "7"];
    item.extend(["p", "1"]);
    let (first, second) = (uuid(1), uuid(2));
    for id in [&first, &second] {
        item.extend(["k", id, "o", "b-1", "d", "1700000001000", "r", "o", "x", "1"]);
        item.extend(["h:value", "0.5", "h:broadcaster_user_id", "b-1", "h:last_disconnect", "9"]);
    }
    chat.app.call(&item);
    chat.app.call(&["HSET", &format!("{PREFIX}meta"), "receipts", "2"]);
}

async fn receipts_of_before_are_read_restored_and_pruned(chat: Chat) {
    write_old(&chat);
    chat.app.orphan(&uuid(3));
    assert_eq!(chat.sweep().await.reclaimed, 1);
    let mut receipts = chat.receipts().await;
    receipts.sort_by_key(|receipt| receipt.id.seq);
    let keys: Vec<String> = receipts.iter().map(|receipt| receipt.key.to_string()).collect();
    assert_eq!(keys, [uuid(1), uuid(2), uuid(3)]);
    let old = &receipts[1];
    assert_eq!((old.id.seq, old.reason, &old.owner), (12, Reason::Orphaned, &name("b-1")));
    assert_eq!((old.evidence.deadline_ms, old.batch), (1_700_000_001_000, 7));
    assert_eq!(old.removed["fields"]["value"], "0.5");
    assert_eq!(old.removed["pointer"], true);

    let back = chat.sessions.restore(11).await.unwrap();
    assert!(matches!(back, Restored::Restored { .. }), "{back:?}");
    assert_eq!(chat.app.field(&uuid(1), "value"), "0.5");
    assert_eq!(chat.app.call(&["GET", "broadcaster:b-1"]), uuid(1));

    for (keep, left) in [(2, vec![uuid(2), uuid(3)]), (1, vec![uuid(3)]), (0, Vec::new())] {
        let retention = Retention { count: keep, ..Retention::default() };
        let limits = TidyLimits { rows: 100, undeclared_max: None, retention, term: None };
        assert_eq!(chat.sessions.tidy(limits).await.unwrap().receipts_pruned, 1);
        let mut keys: Vec<String> =
            chat.receipts().await.iter().map(|receipt| receipt.key.to_string()).collect();
        keys.sort();
        assert_eq!(keys, left);
    }
    assert_eq!(chat.app.call(&["XLEN", &format!("{PREFIX}receipts")]), "0");
}
