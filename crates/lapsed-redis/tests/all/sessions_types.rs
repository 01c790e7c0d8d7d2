//! The key of a session holds another type than a hash, written by another user of the server. It
//! concerns that session alone: no count changes, and the receipts of the others are right.

use std::time::Instant;

use crate::chat::{Chat, PATIENCE, name, named, on_both_chats, pass, sum, uuid};
use lapsed_core::Error;
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::sessions::{SessionProfile, SessionsStore};
use lapsed_core::sweep::{PassMode, Stopped};

on_both_chats! {
    an_operation_on_it_changes_nothing,
    a_dead_owners_reference_to_it_does_not_stop_a_batch_in_its_middle,
}

async fn started(chat: &Chat, ttl_ms: u64, ids: &[String]) -> Claim {
    let beat = chat.sessions.start(&name("server"), ttl_ms).await.unwrap();
    let claim = Claim::exact(name("server"), beat.incarnation);
    for id in ids {
        chat.sessions.activate(&name(id), &SessionProfile::default()).await.unwrap();
        chat.sessions.connect(Some(&claim), &name(id)).await.unwrap();
    }
    claim
}

fn spoil(chat: &Chat, id: &str) {
    chat.app.call(&["DEL", &format!("session:{id}")]);
    chat.app.call(&["SET", &format!("session:{id}"), "something else"]);
}

/// The answer says that nothing was changed.
async fn an_operation_on_it_changes_nothing(chat: Chat) {
    let (native, id) = (chat.native(), name(&uuid(1)));
    let claim = started(&native, 60_000, &[uuid(1)]).await;
    spoil(&chat, &uuid(1));
    let before = chat.app.picture();
    for (sessions, claim) in [(&native.sessions, Some(&claim)), (&chat.sessions, None)] {
        for op in ["connect", "disconnect", "resume"] {
            let answer = match op {
                "connect" => sessions.connect(claim, &id).await.map(|_| ()),
                "disconnect" => sessions.disconnect(claim, &id).await.map(|_| ()),
                _ => sessions.resume(&id).await.map(|_| ()),
            };
            assert!(matches!(answer, Err(Error::Corrupt { .. })), "{op}: {answer:?}");
            assert_eq!(chat.app.picture(), before, "{op}");
        }
    }
}

/// A script is not undone: what it had written for others before it failed would stay.
async fn a_dead_owners_reference_to_it_does_not_stop_a_batch_in_its_middle(chat: Chat) {
    let chat = chat.native();
    let claim = started(&chat, 60_000, &[uuid(1), uuid(2), uuid(3)]).await;
    chat.sessions.activate(&name(&uuid(4)), &SessionProfile::default()).await.unwrap();
    spoil(&chat, &uuid(2));
    chat.sessions.end(&claim).await.unwrap();
    let sweeper = chat.sweeper("s");
    let began = Instant::now();
    let mut total = pass(&sweeper, PassMode::Reclaim).await;
    while [1, 3, 4].into_iter().any(|n| chat.app.has_session(&uuid(n))) {
        assert!(began.elapsed() < PATIENCE, "{total:?}");
        total = sum(total, pass(&sweeper, PassMode::Reclaim).await);
        assert_eq!((total.errors, total.stopped != Stopped::Error), (0, true), "{total:?}");
    }
    assert_eq!(total.released, 2, "{total:?}");
    assert_eq!(named(&total), [uuid(1), uuid(3), uuid(4)].into(), "{total:?}");
    assert!(crate::chat::skipped(&total, "unreadable") > 0, "{total:?}");
    assert_eq!(chat.receipts().await.len(), 3, "one each");
    // Once it can be read again its reference goes like any other.
    chat.app.call(&["DEL", &format!("session:{}", uuid(2))]);
    let began = Instant::now();
    while chat.app.has(&format!("ref_count:{}", uuid(2))) {
        assert!(began.elapsed() < PATIENCE, "{total:?}");
        pass(&sweeper, PassMode::Reclaim).await;
    }
    assert_eq!(chat.receipts().await.len(), 3);
}
