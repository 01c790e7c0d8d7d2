//! Sessions, and how many of them a provider has.

use futures::future::join_all;

use super::{AvailabilityFixture, name};
use crate::SessionChange::{Accept, Cancel, End, Expire, Extend, Reroute, Resume};
use crate::{SessionChange, SessionOutcome, SessionRefusal, SessionStatus};
use lapsed_core::name::Name;

fn accept(session: &str, provider: &Name) -> SessionChange {
    Accept { session: name(session), provider: provider.clone() }
}

async fn counts(b: &AvailabilityFixture, id: &Name) -> (u64, Option<u64>) {
    (b.state(id).await.sessions, b.seen(id).await.sessions)
}

pub async fn a_session_is_accepted_extended_resumed_and_ended(b: AvailabilityFixture) {
    let id = b.online("p").await;
    let done = b.session(accept("s", &id)).await;
    assert!(done.mirrored);
    assert_eq!(counts(&b, &id).await, (1, Some(1)));
    b.session(accept("t", &id)).await;
    assert_eq!(counts(&b, &id).await, (2, Some(2)));
    assert!(b.available().await.0.is_empty(), "full");
    b.session(End { session: name("s") }).await;
    assert_eq!(counts(&b, &id).await, (1, Some(1)));
    assert_eq!(b.available().await.0, ["p"]);
    b.session(Cancel { session: name("t") }).await;
    assert_eq!(counts(&b, &id).await, (0, Some(0)));
    let session = b.it.session(&name("s")).await.unwrap().unwrap();
    assert_eq!((session.status, session.provider), (SessionStatus::Ended, Some(id)));
    b.agree().await;
}

/// Active, waiting to be paid for, active again: the provider is occupied all the time.
pub async fn extending_keeps_the_provider_occupied(b: AvailabilityFixture) {
    let id = b.online("p").await;
    b.session(accept("s", &id)).await;
    b.session(Extend { session: name("s") }).await;
    let session = b.it.session(&name("s")).await.unwrap().unwrap();
    assert_eq!(session.status, SessionStatus::PendingPayment);
    assert_eq!(counts(&b, &id).await, (1, Some(1)));
    b.session(Resume { session: name("s") }).await;
    assert_eq!(counts(&b, &id).await, (1, Some(1)));
    b.session(Extend { session: name("s") }).await;
    b.session(Expire { session: name("s") }).await;
    assert_eq!(counts(&b, &id).await, (0, Some(0)));
    b.agree().await;
}

/// One less here and one more there, in one step.
pub async fn rerouting_moves_one_session_between_providers(b: AvailabilityFixture) {
    let [p, q] = [b.online("p").await, b.online("q").await];
    b.session(accept("s", &p)).await;
    b.session(Reroute { session: name("s"), to: q.clone() }).await;
    assert_eq!(counts(&b, &p).await, (0, Some(0)));
    assert_eq!(counts(&b, &q).await, (1, Some(1)));
    let same = b.session(Reroute { session: name("s"), to: q.clone() }).await;
    assert!(matches!(same.answer, SessionOutcome::Done { changed: false, .. }), "{same:?}");
    assert_eq!(counts(&b, &q).await, (1, Some(1)));
    b.agree().await;
}

/// A second end changes nothing, and nothing below nothing is counted.
pub async fn an_ended_session_stays_ended(b: AvailabilityFixture) {
    let id = b.online("p").await;
    b.session(accept("s", &id)).await;
    b.session(End { session: name("s") }).await;
    for again in [End { session: name("s") }, Cancel { session: name("s") }] {
        let done = b.session(again).await;
        assert!(matches!(done.answer, SessionOutcome::Done { changed: false, .. }), "{done:?}");
    }
    let over = SessionRefusal::Over(SessionStatus::Ended);
    assert_eq!(b.refused(accept("s", &id)).await, over);
    assert_eq!(b.refused(Extend { session: name("s") }).await, over);
    assert_eq!(b.refused(Reroute { session: name("s"), to: id.clone() }).await, over);
    assert_eq!(b.refused(End { session: name("none") }).await, SessionRefusal::NoSuchSession);
    assert_eq!(counts(&b, &id).await, (0, Some(0)));
}

/// Nobody gets more than it can have, nor what it may not have.
pub async fn full_and_deactivated_providers_get_no_session(b: AvailabilityFixture) {
    let [p, q] = [b.online("p").await, b.online("q").await];
    b.session(accept("s", &p)).await;
    b.session(accept("t", &p)).await;
    let full = SessionRefusal::Full { sessions: 2, max: 2 };
    assert_eq!(b.refused(accept("u", &p)).await, full);
    assert!(b.it.session(&name("u")).await.unwrap().is_none(), "nothing was made");
    b.session(accept("v", &q)).await;
    assert_eq!(b.refused(Reroute { session: name("v"), to: p.clone() }).await, full);
    b.it.deactivate(&q).await.unwrap();
    assert_eq!(b.refused(accept("w", &q)).await, SessionRefusal::Deactivated);
    assert_eq!(b.refused(accept("w", &name("nobody"))).await, SessionRefusal::NoSuchProvider);
    b.agree().await;
}

pub async fn a_session_is_accepted_by_one_provider(b: AvailabilityFixture) {
    let [p, q] = [b.online("p").await, b.online("q").await];
    let both = [accept("s", &p), accept("s", &q)];
    let answers = join_all(both.iter().map(|change| b.it.change_session(change))).await;
    let done = answers
        .iter()
        .filter(|answer| matches!(answer.as_ref().unwrap().answer, SessionOutcome::Done { .. }));
    assert_eq!(done.count(), 1, "{answers:?}");
    assert_eq!(b.state(&p).await.sessions + b.state(&q).await.sessions, 1);
    b.agree().await;
}

/// C8: two concurrent changes update the mirror in any order.
pub async fn trap_c8_concurrent_changes_end_with_the_truths_count(b: AvailabilityFixture) {
    let many =
        crate::rules::SettingsPatch { max_customers_per_mitra: Some(1_000), ..Default::default() };
    b.it.set_settings(&many).await.unwrap();
    let ids = [b.online("p").await, b.online("q").await];
    let daemons = [b.daemon(), b.daemon(), b.daemon(), b.daemon()];
    let story = |n: usize| {
        let (daemon, ids) = (&daemons[n % 4], &ids);
        async move {
            let session = name(&format!("s{n}"));
            let mut changes =
                vec![Accept { session: session.clone(), provider: ids[n % 2].clone() }];
            if n.is_multiple_of(3) {
                changes.push(Reroute { session: session.clone(), to: ids[(n + 1) % 2].clone() });
            }
            if !n.is_multiple_of(5) {
                changes.push(End { session });
            }
            for change in changes {
                daemon.change_session(&change).await.unwrap();
            }
        }
    };
    join_all((0..40).map(story)).await;
    let states = [b.state(&ids[0]).await.sessions, b.state(&ids[1]).await.sessions];
    assert_eq!(states[0] + states[1], 8, "every fifth of forty goes on");
    for (id, sessions) in ids.iter().zip(states) {
        assert_eq!(b.seen(id).await.sessions, Some(sessions));
    }
    b.agree().await;
}
