//! Sessions: made, connected to, let go, resumed, deleted.

use super::{SessionsFixture, name, names, profile};
use crate::owner::Claim;
use crate::sessions::{Deleted, SessionProfile};
use crate::system::System;

pub async fn a_session_goes_through_its_full_lifecycle(f: SessionsFixture) {
    let made = f.sessions.activate(&name("s"), &profile("v", "b")).await.unwrap();
    assert!(made.created);
    assert_eq!((made.session.references, made.session.disconnected_ms), (0, None));
    let server = f.start("server").await;
    let standing = f.connect(&server, "s").await;
    assert_eq!((standing.references, standing.yours, standing.changed), (1, 1, true));
    assert_eq!((standing.disconnected_ms, standing.incarnation), (None, server.incarnation));
    assert_eq!(f.session("s").await.unwrap().due_ms, None, "active: no grace runs");
    let before_ms = f.now_ms().await;
    let standing = f.disconnect(&server, "s").await;
    assert_eq!((standing.references, standing.yours), (0, 0));
    let gone_ms = standing.disconnected_ms.unwrap();
    assert!((before_ms..=f.now_ms().await).contains(&gone_ms), "in milliseconds");
    let session = f.session("s").await.unwrap();
    assert_eq!(session.disconnected_ms, Some(gone_ms));
    assert_eq!(session.due_ms, Some(gone_ms + f.grace_ms()));
    assert_eq!(f.sessions.disconnected_count().await.unwrap(), 1);
    let standing = f.connect(&server, "s").await;
    assert_eq!((standing.references, standing.disconnected_ms), (1, None));
    assert_eq!(f.sessions.disconnected_count().await.unwrap(), 0);
    f.disconnect(&server, "s").await;
    assert_eq!(f.sessions.of_broadcaster(&name("b")).await.unwrap(), Some(name("s")));
    assert_eq!(f.sessions.delete(&name("s")).await.unwrap(), Deleted::Deleted);
    assert_eq!(f.session("s").await, None);
    assert_eq!(f.sessions.of_broadcaster(&name("b")).await.unwrap(), None);
    assert_eq!(f.sessions.disconnected_count().await.unwrap(), 0);
    assert_eq!(f.sessions.delete(&name("s")).await.unwrap(), Deleted::Missing);
    assert!(f.receipts().await.is_empty(), "what is asked for is no reclaim");
}

/// It is active in the words of the original; its grace runs all the same.
pub async fn a_session_nobody_connects_to_is_not_disconnected(f: SessionsFixture) {
    f.activate(&["s"]).await;
    let session = f.session("s").await.unwrap();
    assert_eq!(session.disconnected_ms, None);
    assert!(session.due_ms.unwrap() <= session.now_ms + f.grace_ms());
    assert_eq!(f.sessions.disconnected_count().await.unwrap(), 0);
    assert_eq!(f.sessions.census().await.unwrap().population, 1);
}

/// Without a reference; with one there is nothing to resume.
pub async fn resuming_restarts_the_grace_period(f: SessionsFixture) {
    f.disconnected(&["s"]).await;
    let before = f.session("s").await.unwrap().due_ms.unwrap();
    (f.advance)(f.grace / 2).await;
    let standing = f.sessions.resume(&name("s")).await.unwrap().unwrap();
    assert_eq!((standing.references, standing.disconnected_ms), (0, None));
    let after = f.session("s").await.unwrap();
    assert!(after.due_ms.unwrap() >= before + f.grace_ms() / 2, "{after:?} was due {before}");
    assert_eq!(f.sessions.disconnected_count().await.unwrap(), 0);
    let server = f.start("server").await;
    f.connect(&server, "s").await;
    let standing = f.sessions.resume(&name("s")).await.unwrap().unwrap();
    assert_eq!((standing.references, standing.disconnected_ms), (1, None));
}

/// Of an existing one the disconnection is forgotten, and what is given is set.
pub async fn activating_again_keeps_absent_fields(f: SessionsFixture) {
    f.sessions.activate(&name("s"), &profile("v", "b")).await.unwrap();
    let server = f.start("server").await;
    f.connect(&server, "s").await;
    f.disconnect(&server, "s").await;
    let more = SessionProfile { config_json: Some("{}".to_owned()), ..SessionProfile::default() };
    let again = f.sessions.activate(&name("s"), &more).await.unwrap();
    assert!(!again.created);
    assert_eq!(again.session.disconnected_ms, None);
    let expected = SessionProfile { config_json: Some("{}".to_owned()), ..profile("v", "b") };
    assert_eq!(again.session.profile, expected);
    assert_eq!(f.session("s").await.unwrap().profile, expected);
    assert_eq!(f.sessions.disconnected_count().await.unwrap(), 0);
    f.connect(&server, "s").await;
    let connected = f.sessions.activate(&name("s"), &SessionProfile::default()).await.unwrap();
    assert_eq!((connected.session.references, connected.session.due_ms), (1, None));
}

pub async fn a_disconnect_never_goes_below_zero(f: SessionsFixture) {
    let one = f.connected("one", &["s"]).await;
    let two = f.start("two").await;
    let standing = f.disconnect(&two, "s").await;
    assert_eq!((standing.references, standing.yours, standing.changed), (1, 0, false));
    assert!(f.disconnect(&one, "s").await.changed);
    let gone_ms = f.session("s").await.unwrap().disconnected_ms;
    let standing = f.disconnect(&one, "s").await;
    assert_eq!((standing.references, standing.yours, standing.changed), (0, 0, false));
    assert_eq!(standing.disconnected_ms, gone_ms, "and its grace does not begin anew");
    assert_eq!(f.connect(&one, "s").await.references, 1);
}

/// Two tabs of one server: the session is free when both are gone.
pub async fn an_incarnation_may_have_several_references_to_a_session(f: SessionsFixture) {
    let server = f.connected("server", &["s"]).await;
    let other = f.start("other").await;
    let standing = f.connect(&server, "s").await;
    assert_eq!((standing.references, standing.yours), (2, 2));
    let standing = f.connect(&other, "s").await;
    assert_eq!((standing.references, standing.yours), (3, 1));
    assert_eq!(f.sessions.owner(&server).await.unwrap().unwrap().held, 1, "one session");
    f.disconnect(&server, "s").await;
    f.disconnect(&other, "s").await;
    assert_eq!(f.session("s").await.unwrap().disconnected_ms, None);
    let standing = f.disconnect(&server, "s").await;
    assert_eq!((standing.references, standing.yours), (0, 0));
    assert!(standing.disconnected_ms.is_some());
    assert_eq!(f.sessions.owner(&server).await.unwrap().unwrap().held, 0);
}

pub async fn a_deletion_is_refused_while_somebody_is_connected(f: SessionsFixture) {
    let server = f.connected("server", &["s"]).await;
    f.connect(&server, "s").await;
    let refused = f.sessions.delete(&name("s")).await.unwrap();
    assert_eq!(refused, Deleted::Active { references: 2 });
    assert_eq!(f.references("s").await, 2);
}

/// No operation creates a partial session, a reference to it, or an owner for it.
pub async fn trap_b6_a_missing_session_is_not_created(f: SessionsFixture) {
    let (server, ghost) = (f.start("server").await, name("ghost"));
    assert_eq!(f.sessions.connect(Some(&server), &ghost).await.unwrap(), None);
    assert_eq!(f.sessions.disconnect(Some(&server), &ghost).await.unwrap(), None);
    assert_eq!(f.sessions.resume(&ghost).await.unwrap(), None);
    assert_eq!(f.sessions.update(&ghost, &profile("v", "b")).await.unwrap(), None);
    let unheard_of = Claim::newest(name("unheard-of"));
    assert_eq!(f.sessions.connect(Some(&unheard_of), &ghost).await.unwrap(), None);
    assert_eq!(f.session("ghost").await, None);
    assert_eq!(f.sessions.of_broadcaster(&name("b")).await.unwrap(), None);
    assert_eq!(f.sessions.owner(&unheard_of).await.unwrap(), None);
    assert!(f.sessions.referred(&server, None, 10).await.unwrap().is_empty());
    assert_eq!(f.sessions.census().await.unwrap().population, 0);
    assert_eq!(f.sessions.disconnected_count().await.unwrap(), 0);
    f.elapse().await;
    assert!(f.suspects().await.is_empty());
}

/// The pointer of a broadcaster goes with the session that it points to, and with no other.
pub async fn trap_b7_a_broadcasters_newer_session_is_kept(f: SessionsFixture) {
    f.sessions.activate(&name("old"), &profile("1", "b")).await.unwrap();
    f.sessions.activate(&name("new"), &profile("2", "b")).await.unwrap();
    assert_eq!(f.sessions.of_broadcaster(&name("b")).await.unwrap(), Some(name("new")));
    f.sessions.delete(&name("old")).await.unwrap();
    assert_eq!(f.sessions.of_broadcaster(&name("b")).await.unwrap(), Some(name("new")));
    f.sessions.delete(&name("new")).await.unwrap();
    assert_eq!(f.sessions.of_broadcaster(&name("b")).await.unwrap(), None);
}

/// The rest stays, and so do the references and the grace.
pub async fn an_update_keeps_absent_fields(f: SessionsFixture) {
    f.sessions.activate(&name("s"), &profile("v", "b")).await.unwrap();
    let server = f.start("server").await;
    f.connect(&server, "s").await;
    f.disconnect(&server, "s").await;
    let before = f.session("s").await.unwrap();
    let given = SessionProfile { value: Some("w".to_owned()), ..SessionProfile::default() };
    let updated = f.sessions.update(&name("s"), &given).await.unwrap().unwrap();
    assert_eq!(updated.profile, profile("w", "b"));
    assert_eq!((updated.references, updated.due_ms), (0, before.due_ms));
    let stored = f.session("s").await.unwrap();
    assert_eq!(stored.profile, profile("w", "b"));
    assert!(stored.updated_ms >= before.updated_ms);
    assert_eq!(stored.disconnected_ms, before.disconnected_ms);
}

/// Updated to another broadcaster: the first has none any more, the second this one.
pub async fn the_pointer_moves_with_a_session_to_its_new_broadcaster(f: SessionsFixture) {
    f.sessions.activate(&name("s"), &profile("v", "one")).await.unwrap();
    f.sessions.update(&name("s"), &profile("v", "two")).await.unwrap();
    assert_eq!(f.sessions.of_broadcaster(&name("one")).await.unwrap(), None);
    assert_eq!(f.sessions.of_broadcaster(&name("two")).await.unwrap(), Some(name("s")));
}

/// By id, from any place on, and only one's own.
pub async fn references_of_an_incarnation_are_paged(f: SessionsFixture) {
    let one = f.connected("one", &["a", "ab", "b", "c"]).await;
    f.connected("two", &["aa"]).await;
    let page = |after: Option<&'static str>| {
        let (sessions, claim) = (f.sessions.clone(), one.clone());
        async move { sessions.referred(&claim, after.map(name).as_ref(), 2).await.unwrap() }
    };
    assert_eq!(page(None).await, names(&["a", "ab"]));
    assert_eq!(page(Some("ab")).await, names(&["b", "c"]));
    assert!(page(Some("c")).await.is_empty());
}

pub async fn explain_gives_reasons(f: SessionsFixture) {
    let system = f.system();
    let verdict = |key: &'static str| {
        let system = &system;
        async move {
            let told = system.explain(key).await.unwrap();
            assert!(!told.because.is_empty());
            (told.verdict, told.because.join("; "))
        }
    };
    let server = f.connected("server", &["active"]).await;
    assert_eq!(verdict("active").await.0, "active");
    assert_eq!(verdict("server").await.0, "live");
    assert_eq!(verdict("nothing").await.0, "unknown");
    f.activate(&["new"]).await;
    let (word, why) = verdict("new").await;
    assert_eq!(word, "grace", "{why}");
    assert!(why.contains("no client has connected"), "{why}");
    f.disconnect(&server, "active").await;
    let (word, why) = verdict("active").await;
    assert_eq!(word, "grace", "{why}");
    f.outlive(f.grace, &[&server]).await;
    let (word, why) = verdict("active").await;
    assert_eq!(word, "orphan", "{why}");
    f.sweep().await;
    let (word, why) = verdict("active").await;
    assert_eq!(word, "reclaimed", "{why}");
}
