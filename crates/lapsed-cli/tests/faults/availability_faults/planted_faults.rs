//! The checker finds what it is there to find: each wrong is planted in a world where nothing heals it, and
//! must be named.

use super::checker::{Complaint, check_history, check_stores};
use super::client::Client;
use super::history::{Change, Outcome, SessionIs, Span, now_us};
use super::observed::observe;
use super::world::{STALE_SECONDS, STILL, World};
use crate::support::until;
use lapsed_testbed::Persistence;

const A: &str = "00000000-0000-4000-8000-000000000001";
const B: &str = "00000000-0000-4000-8000-000000000002";
const S: &str = "00000000-0000-4000-9000-000000000001";

/// Two providers online, one with a session, in both stores.
fn small_world() -> (World, super::history::History) {
    let world = World::new(1, Persistence::None, STILL);
    world.make_providers(&[A.to_owned(), B.to_owned()]);
    let mut client = Client::new(&world, 0);
    for id in [A, B] {
        until("it to be online", || client.change(id, Change::Online).then_some(()));
    }
    let body = serde_json::json!({ "provider": A });
    until("a session", || {
        let (told, _) = client.call("POST", &format!("sessions/{S}/accept"), Some(body.clone()));
        matches!(told, super::client::CallResult::Fine(..)).then_some(())
    });
    let is = SessionIs { provider: A.to_owned(), status: "active".to_owned() };
    client.history.sessions.insert(S.to_owned(), Some(is));
    until("a beat that is noted", || {
        client.beat(&[A.to_owned(), B.to_owned()]);
        let noted = |id: &str| {
            let last = client.history.beats_of(id).last().unwrap();
            matches!(last.said, super::history::BeatAnswer::Noted(_))
        };
        (noted(A) && noted(B)).then_some(())
    });
    let history = client.history;
    (world, history)
}

/// What is wrong with the stores after this.
fn stores_after(world: &World, sql: &str, commands: &[&[&str]]) -> Vec<Complaint> {
    if !sql.is_empty() {
        world.sql(sql);
    }
    for command in commands {
        world.valkey.command(command).unwrap();
    }
    check_stores(&observe(world))
}

#[test]
fn planted_differences_between_the_stores_are_reported() {
    let (world, _) = small_world();
    until("both stores to agree", || check_stores(&observe(&world)).is_empty().then_some(()));
    let member = |found: &[Complaint], what: &str| {
        let is = |one: &Complaint| matches!(one, Complaint::Membership { why, .. } if why.contains(what));
        assert!(found.len() == 1 && is(&found[0]), "{what}: {found:?}");
    };
    member(&stores_after(&world, "", &[&["SREM", "mitras:online", A]]), "online is true");
    let put = ["SADD", "mitras:online", A];
    member(&stores_after(&world, "", &[&put, &["SADD", "mitras:deactivated", B]]), "deactivated");
    let put = ["SREM", "mitras:deactivated", B];
    let stranger = ["SADD", "mitras:online", "somebody-else"];
    member(&stores_after(&world, "", &[&put, &stranger]), "no provider with that id");
    let off = format!("UPDATE mitra_online_status SET is_online = false WHERE mitra_id = '{B}'");
    let found = stores_after(
        &world,
        &off,
        &[&["SREM", "mitras:online", "somebody-else"], &["SREM", "mitras:online", B]],
    );
    assert_eq!(found, [Complaint::HeartbeatLeft { id: B.to_owned() }]);
    let key = format!("mitra:heartbeat:{B}");
    assert_eq!(stores_after(&world, "", &[&["DEL", &key]]), []);
    let key = format!("mitra:capacity:{A}");
    for value in ["2", "0", "-1", "x"] {
        let found = stores_after(&world, "", &[&["SET", &key, value]]);
        assert!(matches!(&found[..], [Complaint::Capacity { .. }]), "{value}: {found:?}");
    }
    assert_eq!(stores_after(&world, "", &[&["SET", &key, "1"]]), []);
    let more =
        format!("INSERT INTO chat_sessions (mitra_id, status) VALUES ('{B}', 'pending_payment')");
    let found = stores_after(&world, &more, &[]);
    assert!(matches!(&found[..], [Complaint::Capacity { id, .. }] if id == B), "{found:?}");
    // The command finds it, too.
    assert!(!until("an answer of the command", || super::agree(&world)));
}

#[test]
fn planted_contradictions_to_answers_are_reported() {
    let (world, history) = small_world();
    let wrong = |sql: &str| {
        world.sql(sql);
        check_history(&observe(&world), &history, STALE_SECONDS)
    };
    assert_eq!(wrong("SELECT 1"), []);
    // A row too many, and one that says what was said before.
    let found = wrong(&format!(
        "INSERT INTO mitra_online_logs (mitra_id, status) VALUES ('{A}', 'online')"
    ));
    assert!(found.iter().any(|one| matches!(one, Complaint::LogBroken { .. })), "{found:?}");
    assert!(found.iter().any(|one| matches!(one, Complaint::FlipsMiscounted { .. })), "{found:?}");
    assert_eq!(found.len(), 2, "{found:?}");
    wrong("DELETE FROM mitra_online_logs WHERE id = (SELECT max(id) FROM mitra_online_logs)");
    // Offline without a row.
    let found =
        wrong(&format!("UPDATE mitra_online_status SET is_online = false WHERE mitra_id = '{B}'"));
    assert!(matches!(&found[..], [Complaint::LogBroken { id, .. }] if id == B), "{found:?}");
    // With a row, and without a receipt.
    let found = wrong(&format!(
        "INSERT INTO mitra_online_logs (mitra_id, status) VALUES ('{B}', 'offline')"
    ));
    assert!(matches!(&found[..], [Complaint::FlipsMiscounted { id, .. }] if id == B), "{found:?}");
    // With a receipt, at a time when it had just beaten; and the same with another one of that epoch.
    let noted_ms = history.beats_of(B).last().unwrap().span.done_us.div_ceil(1_000);
    let found = wrong(&receipt(1, noted_ms + 100));
    assert!(matches!(&found[..], [Complaint::AliveSetOffline { id, .. }] if id == B), "{found:?}");
    let found = wrong(&receipt(2, noted_ms + 1_000 * STALE_SECONDS + 100));
    assert!(found.contains(&Complaint::TwiceReclaimed { id: B.to_owned() }), "{found:?}");
    let found = wrong("DELETE FROM lapsed_receipts WHERE seq = 1");
    assert_eq!(found, [], "silent for long enough by then");
    // A session that is not as it was answered, or gone.
    let found = wrong("UPDATE chat_sessions SET status = 'ended'");
    assert!(matches!(&found[..], [Complaint::SessionLost { .. }]), "{found:?}");
    let found = wrong("DELETE FROM chat_sessions");
    assert!(matches!(&found[..], [Complaint::SessionLost { .. }]), "{found:?}");
}

fn receipt(seq: u64, at_ms: u64) -> String {
    format!(
        "INSERT INTO lapsed_receipts (system, seq, sweeper, batch, body) VALUES ('planted', {seq}, 'x', {seq}, \
         jsonb_build_object('key', '{B}', 'incarnation', 7, 'at_ms', {at_ms}))"
    )
}

/// A planted heartbeat makes a silent provider available, in the mirror and in the truth.
#[test]
fn a_listed_silent_provider_is_reported() {
    let (world, history) = small_world();
    let stale_us = STALE_SECONDS * 1_000_000;
    let last_us = history.beats_of(A).last().unwrap().span.done_us;
    until("both to be silent for too long", || {
        (now_us() > last_us + stale_us + 2_000).then_some(())
    });
    let listed = |world: &World| {
        let mut client = Client::new(world, 0);
        until("a list", || {
            client.list();
            client.history.listings.pop()
        })
    };
    let mut quiet = history.clone();
    quiet.listings.push(listed(&world));
    assert_eq!(check_history(&observe(&world), &quiet, STALE_SECONDS), []);
    let key = format!("mitra:heartbeat:{A}");
    for from in ["mirror", "truth"] {
        let mut history = history.clone();
        match from {
            "mirror" => {
                drop(world.valkey.command(&["SET", &key, "2999-01-01T00:00:00.000Z"]).unwrap())
            }
            _ => {
                world.sql("UPDATE mitra_online_status SET last_heartbeat_at = now()");
                world.valkey.kill().unwrap();
            }
        }
        let found = until("it to be listed", || {
            history.listings.push(listed(&world));
            let found = check_history(&observe_truth(&world), &history, STALE_SECONDS);
            (!found.is_empty()).then_some(found)
        });
        let is = |one: &Complaint| matches!(one, Complaint::SilentListed { .. });
        assert!(found.iter().all(is), "{from}: {found:?}");
    }
}

/// The mirror may be away.
fn observe_truth(world: &World) -> super::observed::Observed {
    super::observed::Observed {
        truth: super::observed::truth(world),
        mirror: super::observed::Mirror::default(),
    }
}

/// A beat that is refused right after one that was noted.
#[test]
fn a_live_provider_told_offline_is_reported() {
    let (world, mut history) = small_world();
    world.valkey.command(&["SREM", "mitras:online", A]).unwrap();
    let mut client = Client::new(&world, 0);
    client.beat(&[A.to_owned()]);
    history.merge(client.history);
    // However late this machine was with it.
    let beats = history.beats.get_mut(A).unwrap();
    let noted = beats[beats.len() - 2].span;
    beats.last_mut().unwrap().span =
        Span { sent_us: noted.done_us + 1, done_us: noted.done_us + 2 };
    let found = check_history(&observe(&world), &history, STALE_SECONDS);
    assert!(matches!(&found[..], [Complaint::AliveToldOffline { id, .. }] if id == A), "{found:?}");
    // Somebody said that it is offline, perhaps.
    let span = Span { sent_us: noted.sent_us, done_us: noted.done_us };
    history.toggle(A, Change::Offline, span, Outcome::Unknown);
    assert_eq!(check_history(&observe(&world), &history, STALE_SECONDS), []);
}
