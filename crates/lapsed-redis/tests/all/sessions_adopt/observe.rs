//! The name of the sessions' hashes is in the configuration and may be wrong. Then no disconnected session seems to exist, and the
//! application's own set of them must stay as it is.

use std::time::{Duration, Instant};

use lapsed_core::sweep::{PassMode, Stopped, Sweep};
use lapsed_redis::{SessionsLayout, Template};

use crate::chat::{Chat, GRACE, layout, on_both_chats, pass, uuid};

on_both_chats! {
    with_a_wrong_session_key_every_session_stays_in_its_set_until_an_operator_confirms,
    sessions_that_are_found_need_no_confirmation,
    a_set_of_sessions_that_were_deleted_waits_for_a_confirmation,
}

fn wrong() -> SessionsLayout {
    let session_key = Template::new("sessions:{session}", "session").unwrap();
    SessionsLayout { session_key, ..layout(GRACE) }
}

fn indexed(chat: &Chat) -> String {
    chat.app.call(&["ZCARD", "disconnected_sessions"])
}

async fn with_a_wrong_session_key_every_session_stays_in_its_set_until_an_operator_confirms(
    chat: Chat,
) {
    chat.app.orphans(0, 40);
    chat.settle().await;
    chat.app.active(&uuid(100));
    let before = chat.app.picture();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        let mistaken = chat.with_layout(wrong());
        let report = pass(&mistaken.sweeper("cron"), PassMode::Reclaim).await;
        assert_eq!((report.reclaimed, report.stopped), (0, Stopped::Brake), "{report:?}");
        let said = report.detail.unwrap_or_default();
        let found = "0 of 40 disconnected sessions have a hash (`sessions:{session}`)";
        assert!(said.contains(found), "{said}");
    }
    let mistaken = chat.with_layout(wrong());
    let healed = mistaken.reconcile(PassMode::Reclaim).await;
    assert!(healed.finished && healed.drift() == 0, "{healed:?}");
    assert_eq!(healed.left.get("lapsed only observes"), Some(&40), "{healed:?}");
    assert_eq!(chat.app.picture(), before, "the application's keys are as they were");
    // Whoever confirms a wrong name loses the set: this is what the observation prevents.
    mistaken.sessions.confirm_adoption().await.unwrap();
    pass(&mistaken.sweeper("cron"), PassMode::Reclaim).await;
    assert_eq!(indexed(&chat), "0");
}

async fn sessions_that_are_found_need_no_confirmation(chat: Chat) {
    chat.app.orphans(0, 40);
    chat.settle().await;
    let first = pass(&chat.sweeper("cron"), PassMode::Reclaim).await;
    assert_eq!((first.reclaimed, first.stopped), (40, Stopped::Done), "{first:?}");
    // The application deletes hashes by itself and leaves the set: the names were found to be right before.
    for n in 0..3 {
        chat.app.index(&uuid(n), "1700000000");
    }
    let second = pass(&chat.sweeper("cron"), PassMode::Reclaim).await;
    assert_eq!((second.stopped, indexed(&chat).as_str()), (Stopped::Done, "0"), "{second:?}");
    assert!(chat.native().sessions.confirm_adoption().await.is_err());
}

async fn a_set_of_sessions_that_were_deleted_waits_for_a_confirmation(chat: Chat) {
    for n in 0..3 {
        chat.app.index(&uuid(n), "1700000000");
    }
    chat.settle().await;
    let held = pass(&chat.sweeper("cron"), PassMode::Reclaim).await;
    assert_eq!((held.stopped, indexed(&chat).as_str()), (Stopped::Brake, "3"), "{held:?}");
    chat.sessions.confirm_adoption().await.unwrap();
    let open = pass(&chat.sweeper("cron"), PassMode::Reclaim).await;
    assert_eq!((open.stopped, indexed(&chat).as_str()), (Stopped::Done, "0"), "{open:?}");
}
