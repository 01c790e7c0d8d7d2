//! Traps B1 to B7: what the application does between two looks, or has left half-done.

use std::time::{Duration, Instant};

use crate::chat::{
    Chat, GRACE, LONG_AGO, PATIENCE, name, named, on_both_chats, skipped, sweep_through, uuid,
};
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::sessions::{Deleted, SessionProfile, SessionsStore};
use lapsed_core::sweep::{Outcome, PassMode, Refusal};

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
}

/// A pipeline broke off after the HSET.
async fn trap_b1_a_hash_without_its_index_entry_is_healed_then_cleaned(chat: Chat) {
    let app = &chat.app;
    let at = (app.now_s() - LONG_AGO).to_string();
    app.session(&uuid(1), &at);
    assert_eq!(chat.sweep().await.suspects, 0, "no index entry, no suspect");
    assert!(app.has_session(&uuid(1)));
    let dry = chat.reconcile(PassMode::DryRun).await;
    assert_eq!((dry.added, dry.agree, app.is_indexed(&uuid(1))), (1, false, false));
    let healed = chat.reconcile(PassMode::Reclaim).await;
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
/// is, a client is reconnecting.
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
    chat.reconcile(PassMode::Reclaim).await;
    assert_eq!(chat.sweep().await.suspects, 0);
    assert_eq!(app.call(&["GET", &format!("ref_count:{}", uuid(1))]), "1");
    assert!(app.has_session(&uuid(1)));
}

async fn trap_b5_written_through_lapsed_it_dies_with_its_owner(chat: Chat) {
    let chat = chat.native();
    let id = name(&uuid(1));
    chat.sessions.activate(&id, &SessionProfile::default()).await.unwrap();
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
    let (id, none) = (name(&uuid(3)), SessionProfile::default());
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
