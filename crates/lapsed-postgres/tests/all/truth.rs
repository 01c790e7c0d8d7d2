//! What the truth of availability says and does.

use lapsed_availability::rules::{AvailabilitySettings, SettingsPatch};
use lapsed_availability::{
    ListedProvider, ProviderBeat, ProviderProfile, ProviderQuery, SessionChange, SessionOutcome,
    SessionRefusal, SessionStatus, Truth,
};
use lapsed_core::Error;

use crate::fixture::{Bench, name};

#[tokio::test]
async fn a_toggle_begins_an_epoch_and_leaves_one_log_row() {
    let b = Bench::new().await;
    let made = b.add("p").await;
    assert!(made.changed && made.state.active && !made.state.online);
    assert_eq!(made.state.beat_age_ms, None);
    assert!(!b.add("p").await.changed, "it is that already");
    let first = b.online("p").await;
    assert!(first.changed && first.state.version > made.state.version);
    assert_eq!(first.state.epoch, first.state.version);
    assert!(first.state.beat_age_ms.is_some(), "that is a beat");
    let second = b.online("p").await;
    assert!(!second.changed && second.state.epoch == second.state.version);
    assert!(second.state.epoch > first.state.epoch, "a second one begins an epoch, too");
    let off = b.offline("p").await;
    assert!(off.changed && off.state.epoch == off.state.version);
    let again = b.offline("p").await;
    assert!(!again.changed && again.state.version > off.state.version);
    assert_eq!(again.state.epoch, off.state.epoch);
    assert_eq!(b.log(), ["p online", "p offline"]);
    let listed = b.truth.describe(&name("p")).await.unwrap().unwrap();
    assert!(listed.last_online_ms <= listed.last_offline_ms && listed.last_online_ms.is_some());
    assert_eq!(b.truth.set_online(&name("nobody"), true).await.unwrap(), None);
    assert_eq!(b.truth.set_active(&name("nobody"), true).await.unwrap(), None);
    assert_eq!(b.truth.describe(&name("nobody")).await.unwrap(), None);
    assert_eq!(b.sql("SELECT count(*) FROM lapsed_availability"), "1", "nothing of a stranger");
}

#[tokio::test]
async fn a_name_is_changed_or_left() {
    let b = Bench::new().await;
    b.add("p").await;
    let left = ProviderProfile { id: name("p"), display_name: None };
    assert!(!b.truth.put_provider(&left).await.unwrap().changed);
    let other = ProviderProfile { id: name("p"), display_name: Some("other".to_owned()) };
    assert!(b.truth.put_provider(&other).await.unwrap().changed);
    let listed = b.truth.describe(&name("p")).await.unwrap().unwrap();
    assert_eq!(listed.display_name.as_deref(), Some("other"));
}

#[tokio::test]
async fn deactivating_revokes_logins_in_the_same_transaction() {
    let b = Bench::new().await;
    b.there(&["a", "b"]).await;
    b.sql("INSERT INTO auth_sessions (user_id) VALUES ('a'), ('a'), ('b')");
    b.sql("INSERT INTO auth_sessions (user_id, revoked_at) VALUES ('a', now() - interval '1 day')");
    let barred = b.truth.set_active(&name("a"), false).await.unwrap().unwrap();
    assert_eq!((barred.changed, barred.revoked), (true, 2));
    assert!(!barred.state.active && barred.state.online);
    assert_eq!(b.sql("SELECT user_id FROM auth_sessions WHERE revoked_at IS NULL"), "b");
    let again = b.truth.set_active(&name("a"), false).await.unwrap().unwrap();
    assert_eq!((again.changed, again.revoked), (false, 0));
    let back = b.truth.set_active(&name("a"), true).await.unwrap().unwrap();
    assert!(back.changed && back.state.active && back.revoked == 0);
}

/// C7, C10: a beat counts for those online and active only, and leaves nothing behind for others.
#[tokio::test]
async fn trap_c10_a_beat_of_somebody_offline_leaves_nothing() {
    let b = Bench::new().await;
    b.there(&["on", "barred"]).await;
    b.add("off").await;
    b.truth.set_active(&name("barred"), false).await.unwrap();
    b.age("10 s");
    let before = b.postgres.statements();
    let ids = ["on", "off", "barred", "nobody", "on"].map(name);
    let beats = b.truth.beat(&ids).await.unwrap();
    assert_eq!(b.postgres.statements() - before, 1);
    use ProviderBeat::{Deactivated, Noted, Offline};
    assert_eq!(beats, [Noted, Offline, Deactivated, Offline, Noted]);
    assert!(b.state("on").await.beat_age_ms.unwrap() < 10_000);
    assert_eq!(b.state("off").await.beat_age_ms, None);
    assert!(b.state("barred").await.beat_age_ms.unwrap() >= 10_000);
    assert_eq!(b.truth.read(&[name("nobody")]).await.unwrap(), []);
    assert_eq!(b.truth.extent().await.unwrap(), 3);
}

/// C1, C9: heartbeats only move forward, and the same heartbeat reported again makes no provider fresher.
#[tokio::test]
async fn trap_c9_an_older_beat_changes_nothing() {
    let b = Bench::new().await;
    b.there(&["a", "off"]).await;
    b.offline("off").await;
    b.age("1000 s");
    let version = b.state("a").await.version;
    let note = |id, age_ms| [(name(id), age_ms)];
    assert_eq!(b.truth.note_beats(&note("a", 2_000_000), u64::MAX).await.unwrap(), 0);
    assert!(b.state("a").await.beat_age_ms.unwrap() >= 1_000_000);
    let before = b.postgres.statements();
    assert_eq!(b.truth.note_beats(&note("a", 500_000), u64::MAX).await.unwrap(), 1);
    assert_eq!(b.postgres.statements() - before, 1);
    let age_ms = b.state("a").await.beat_age_ms.unwrap();
    assert!((500_000..900_000).contains(&age_ms), "{age_ms}");
    assert_eq!(b.state("a").await.version, version, "no version for a beat");
    assert_eq!(b.truth.note_beats(&note("a", age_ms - 400), u64::MAX).await.unwrap(), 0, "jitter");
    for (id, age_ms) in [("off", 0), ("nobody", 0), ("a", u64::MAX)] {
        assert_eq!(b.truth.note_beats(&note(id, age_ms), u64::MAX).await.unwrap(), 0, "{id}");
    }
    let twice = [(name("a"), 300_000), (name("a"), 100_000), (name("a"), 200_000)];
    assert_eq!(b.truth.note_beats(&twice, u64::MAX).await.unwrap(), 1);
    assert!(b.state("a").await.beat_age_ms.unwrap() < 200_000);
}

/// C11: waiting for a lock makes no heartbeat younger.
#[tokio::test]
async fn trap_c1_a_beat_that_waited_is_as_old_as_it_is() {
    let b = Bench::new().await;
    b.there(&["a"]).await;
    b.age("1000 s");
    let holding =
        b.hold("SELECT FROM mitra_online_status WHERE mitra_id = 'a' FOR UPDATE", 1.5).await;
    assert_eq!(b.truth.note_beats(&[(name("a"), 10_000)], u64::MAX).await.unwrap(), 1);
    holding.join().unwrap();
    let behind = "SELECT extract(epoch FROM updated_at - last_heartbeat_at) >= 10.5 \
                  FROM mitra_online_status WHERE mitra_id = 'a'";
    assert_eq!(b.sql(behind), "t", "it was noted later than it arrived, and is as old as it was");
}

#[tokio::test]
async fn a_refresh_is_above_whatever_the_mirror_has_seen() {
    let b = Bench::new().await;
    let states = b.there(&["a", "b"]).await;
    let ahead = states[1].version + 1_000_000_000_000;
    let ids = [(name("b"), ahead), (name("a"), 0), (name("nobody"), 7), (name("a"), 1)];
    let fresh = b.truth.refresh(&ids).await.unwrap();
    assert_eq!(fresh.iter().map(|state| state.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(fresh[0].version > states[0].version);
    assert_eq!(fresh[1].version, ahead + 1);
    assert_eq!(fresh[0].epoch, states[0].epoch, "nobody has toggled");
    assert!(b.offline("b").await.state.version > fresh[1].version);
    b.truth.refresh(&[(name("a"), u64::MAX)]).await.unwrap();
    assert!(b.online("a").await.state.online, "a version at the end of all numbers is survived");
}

/// C7: who can take work now; counts, pages and lists agree.
#[tokio::test]
async fn trap_c7_only_those_online_active_fresh_and_with_room_are_available() {
    let b = Bench::new().await;
    b.there(&["stale"]).await;
    b.age("1000 s");
    b.there(&["a", "barred", "c", "full", "gone"]).await;
    b.add("never").await;
    b.offline("gone").await;
    b.truth.set_active(&name("barred"), false).await.unwrap();
    for n in 0..3 {
        b.accept(&format!("s{n}"), "full", 3).await;
    }
    b.accept("s9", "c", 3).await;
    let settings =
        AvailabilitySettings { stale_after_seconds: 900, ..AvailabilitySettings::default() };
    let all = b.truth.available(&settings, None, 9).await.unwrap();
    let found: Vec<_> = all.iter().map(|a| (a.id.as_str(), a.active_session_count)).collect();
    assert_eq!(found, [("a", 0), ("c", 1)]);
    assert_eq!(b.truth.available(&settings, None, 1).await.unwrap(), all[..1]);
    assert_eq!(b.truth.available(&settings, Some(&name("a")), 9).await.unwrap(), all[1..]);
    assert_eq!(b.truth.count_available(&settings).await.unwrap(), 2);
    let lax = AvailabilitySettings { require_ping: false, max_customers_per_mitra: 9, ..settings };
    assert_eq!(b.truth.count_available(&lax).await.unwrap(), 4, "a, c, full, stale");
    let none = AvailabilitySettings { max_customers_per_mitra: 0, ..settings };
    assert_eq!(b.truth.count_available(&none).await.unwrap(), 0);
    assert_eq!(b.truth.available(&none, None, 9).await.unwrap(), []);
    assert_eq!(b.truth.count_online().await.unwrap(), 4);
    let ids = |listed: Vec<ListedProvider>| -> Vec<String> {
        listed.iter().map(|one| one.id.to_string()).collect()
    };
    let listing = ProviderQuery { after: Some(name("barred")), limit: 2, online_only: false };
    assert_eq!(ids(b.truth.list(&listing).await.unwrap()), ["c", "full"]);
    let listing = ProviderQuery { after: Some(name("c")), limit: 9, online_only: true };
    assert_eq!(ids(b.truth.list(&listing).await.unwrap()), ["full", "stale"]);
    let mut paged = Vec::new();
    while let Ok(page) = b.truth.page(paged.last(), 2).await
        && !page.is_empty()
    {
        paged.extend(page.into_iter().map(|state| state.id));
    }
    assert_eq!(paged.len() as u64, b.truth.extent().await.unwrap());
    assert!(paged.is_sorted());
}

#[tokio::test]
async fn settings_are_kept_if_they_make_sense() {
    let b = Bench::new().await;
    assert_eq!(b.truth.settings().await.unwrap(), AvailabilitySettings::default());
    let wish = SettingsPatch { stale_after_seconds: Some(29), ..SettingsPatch::default() };
    assert!(matches!(b.truth.set_settings(&wish).await, Err(Error::Invalid(_))));
    assert_eq!(b.truth.settings().await.unwrap(), AvailabilitySettings::default());
    let wish = SettingsPatch {
        heartbeat_cadence_seconds: Some(10),
        require_ping: Some(false),
        ..SettingsPatch::default()
    };
    b.truth.set_settings(&wish).await.unwrap();
    let wish = SettingsPatch { stale_after_seconds: Some(29), ..SettingsPatch::default() };
    let now = b.truth.set_settings(&wish).await.unwrap();
    assert_eq!((now.stale_after_seconds, now.heartbeat_cadence_seconds), (29, 10));
    assert!(!now.require_ping);
    assert_eq!(b.truth.settings().await.unwrap(), now);
    // What the application wrote, in its own way.
    b.sql("UPDATE app_config SET value = '\"45\"' WHERE key = 'stale_after_seconds'");
    assert_eq!(b.truth.settings().await.unwrap().stale_after_seconds, 45);
    b.sql("UPDATE app_config SET value = '\"many\"' WHERE key = 'stale_after_seconds'");
    let wrong = b.truth.settings().await.unwrap_err();
    assert!(matches!(&wrong, Error::Corrupt { .. }), "{wrong}");
    assert!(wrong.to_string().contains("stale_after_seconds"), "{wrong}");
}

/// C8, C3: capacity is what the sessions say, in every step of a session's way.
#[tokio::test]
async fn sessions_go_their_way_and_capacity_follows() {
    use SessionChange::{Cancel, End, Expire, Extend, Reroute, Resume};
    let b = Bench::new().await;
    b.there(&["a", "b"]).await;
    let session = name("s");
    let before = b.state("a").await.version;
    let SessionOutcome::Done { changed: true, touched, .. } = b.accept("s", "a", 1).await else {
        panic!("accepted")
    };
    assert_eq!((touched.len(), touched[0].sessions), (1, 1));
    assert!(touched[0].version > before);
    assert_eq!(touched[0].version, b.state("a").await.version);
    let SessionOutcome::Done { changed: false, touched, .. } = b.accept("s", "a", 1).await else {
        panic!("again, though it is full")
    };
    assert_eq!(touched, []);
    let full = SessionRefusal::Full { sessions: 1, max: 1 };
    assert_eq!(b.accept("t", "a", 1).await, SessionOutcome::Refused(full));
    assert_eq!(b.session("t").await, None);
    let taken = SessionRefusal::Taken(name("a"));
    assert_eq!(b.accept("s", "b", 1).await, SessionOutcome::Refused(taken));
    for change in [Extend { session: session.clone() }, Resume { session: session.clone() }] {
        let SessionOutcome::Done { changed: true, touched, .. } = b.change(change, 1).await else {
            panic!("extended, resumed")
        };
        assert_eq!(touched, [], "its provider stays as occupied as it was");
    }
    let reroute = Reroute { session: session.clone(), to: name("b") };
    let SessionOutcome::Done { touched, .. } = b.change(reroute.clone(), 1).await else {
        panic!("rerouted")
    };
    let counts: Vec<_> = touched.iter().map(|s| (s.id.as_str(), s.sessions)).collect();
    assert_eq!(counts, [("a", 0), ("b", 1)]);
    let expire = b.change(Expire { session: session.clone() }, 1).await;
    let SessionOutcome::Done { touched, .. } = expire else { panic!("expired") };
    assert_eq!((touched.len(), touched[0].sessions), (1, 0));
    for change in [End { session: session.clone() }, Cancel { session: session.clone() }] {
        let outcome = b.change(change, 1).await;
        assert!(matches!(outcome, SessionOutcome::Done { changed: false, .. }), "{outcome:?}");
    }
    let over = SessionOutcome::Refused(SessionRefusal::Over(SessionStatus::Expired));
    assert_eq!(b.change(reroute, 1).await, over);
    assert_eq!(b.accept("s", "a", 1).await, over);
    assert_eq!((b.state("a").await.sessions, b.state("b").await.sessions), (0, 0));
    let unknown = SessionOutcome::Refused(SessionRefusal::NoSuchSession);
    assert_eq!(b.change(End { session: name("none") }, 1).await, unknown);
}

#[tokio::test]
async fn a_session_is_refused_for_a_deactivated_or_unknown_provider() {
    let b = Bench::new().await;
    b.there(&["a", "barred"]).await;
    b.truth.set_active(&name("barred"), false).await.unwrap();
    b.accept("s", "a", 3).await;
    for (provider, why) in
        [("barred", SessionRefusal::Deactivated), ("nobody", SessionRefusal::NoSuchProvider)]
    {
        assert_eq!(b.accept("t", provider, 3).await, SessionOutcome::Refused(why.clone()));
        let reroute = SessionChange::Reroute { session: name("s"), to: name(provider) };
        assert_eq!(b.change(reroute, 3).await, SessionOutcome::Refused(why));
    }
    assert_eq!(b.session("t").await, None);
    assert_eq!(b.session("s").await.unwrap().provider, Some(name("a")));
    assert_eq!(b.state("a").await.sessions, 1);
}
