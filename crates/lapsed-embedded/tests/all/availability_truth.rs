//! Operations of the truth of availability, on the embedded store in memory.

use std::time::Duration;

use crate::fixture::providers::{Bench, START_MS, log, name};
use lapsed_availability::rules::{AvailabilitySettings, SettingsPatch};
use lapsed_availability::{
    ProviderBeat, ProviderProfile, ProviderQuery, SessionChange, SessionOutcome, SessionRefusal,
    SessionStatus, Truth,
};
use lapsed_core::Error;
use lapsed_embedded::LogStatus::{Offline, Online};

#[tokio::test]
async fn a_toggle_starts_an_epoch_and_writes_one_log_row() {
    let (b, clock) = Bench::in_memory();
    let made = b.add("p").await;
    assert!(made.changed && made.state.active && !made.state.online);
    assert_eq!((made.state.epoch, made.state.beat_age_ms), (0, None));
    assert!(!b.add("p").await.changed, "it is that already");
    let first = b.online("p").await;
    assert!(first.changed && first.state.version > made.state.version);
    assert_eq!(first.state.epoch, first.state.version);
    assert_eq!(first.state.beat_age_ms, Some(0), "that is a beat");
    clock.advance(Duration::from_secs(5));
    let second = b.online("p").await;
    assert!(!second.changed && second.state.epoch == second.state.version);
    assert!(second.state.epoch > first.state.epoch, "a second one begins an epoch, too");
    let off = b.offline("p").await;
    assert!(off.changed && off.state.epoch == off.state.version);
    let again = b.offline("p").await;
    assert!(!again.changed && again.state.version > off.state.version);
    assert_eq!(again.state.epoch, off.state.epoch);
    assert_eq!(b.log(), log(&[("p", Online), ("p", Offline)]));
    let listed = b.listed("p").await;
    assert_eq!(listed.last_online_ms, Some(START_MS + 5_000));
    assert_eq!(listed.last_offline_ms, Some(START_MS + 5_000));
    assert_eq!(b.truth.set_online(&name("nobody"), true).await.unwrap(), None);
    assert_eq!(b.truth.set_active(&name("nobody"), true).await.unwrap(), None);
    assert_eq!(b.truth.describe(&name("nobody")).await.unwrap(), None);
}

#[tokio::test]
async fn the_log_of_a_provider_is_newest_first_and_only_its_own() {
    let (b, clock) = Bench::in_memory();
    b.there(&["p", "p1", "p\u{1F600}"]).await;
    for round in 1..=3 {
        clock.advance(Duration::from_secs(1));
        b.offline("p").await;
        if round == 2 {
            b.offline("p1").await;
        }
        clock.advance(Duration::from_secs(1));
        b.online("p").await;
    }
    let log = b.truth.log(&name("p"), 100).await.unwrap();
    let told: Vec<_> = log.iter().map(|one| (one.online, one.at_ms - START_MS)).collect();
    let expected = [
        (true, 6_000),
        (false, 5_000),
        (true, 4_000),
        (false, 3_000),
        (true, 2_000),
        (false, 1_000),
        (true, 0),
    ];
    assert_eq!(told, expected);
    assert_eq!(b.truth.log(&name("p"), 2).await.unwrap(), log[..2]);
    assert_eq!(b.truth.log(&name("p1"), 9).await.unwrap().len(), 2);
    assert_eq!(b.truth.log(&name("p\u{1F600}"), 9).await.unwrap().len(), 1);
    assert_eq!(b.truth.log(&name("nobody"), 9).await.unwrap(), []);
}

#[tokio::test]
async fn a_display_name_is_changed_only_if_given() {
    let (b, _) = Bench::in_memory();
    b.add("p").await;
    let left = ProviderProfile { id: name("p"), display_name: None };
    assert!(!b.truth.put_provider(&left).await.unwrap().changed);
    assert_eq!(b.listed("p").await.display_name.as_deref(), Some("p by name"));
    let other = ProviderProfile { id: name("p"), display_name: Some("other".to_owned()) };
    assert!(b.truth.put_provider(&other).await.unwrap().changed);
    assert_eq!(b.listed("p").await.display_name.as_deref(), Some("other"));
}

/// C7, C10: a heartbeat counts only for online and active providers, and leaves nothing behind for
/// others.
#[tokio::test]
async fn trap_c10_a_heartbeat_of_an_offline_provider_is_not_recorded() {
    let (b, clock) = Bench::in_memory();
    b.there(&["on", "barred"]).await;
    b.add("off").await;
    let barred = b.truth.set_active(&name("barred"), false).await.unwrap().unwrap();
    assert!(barred.changed && barred.state.online && !barred.state.active);
    assert_eq!(barred.revoked, 0);
    clock.advance(Duration::from_millis(300));
    let ids = ["on", "off", "barred", "nobody"].map(name);
    let beats = b.truth.beat(&ids).await.unwrap();
    assert_eq!(
        beats,
        [
            ProviderBeat::Noted,
            ProviderBeat::Offline,
            ProviderBeat::Deactivated,
            ProviderBeat::Offline
        ]
    );
    assert_eq!(b.state("on").await.beat_age_ms, Some(0));
    assert_eq!(b.state("off").await.beat_age_ms, None);
    assert_eq!(b.state("barred").await.beat_age_ms, Some(300));
    assert_eq!(b.truth.read(&[name("nobody")]).await.unwrap(), []);
    assert_eq!(b.truth.extent().await.unwrap(), 3);
}

/// C1, C9: heartbeats only go forward, and the same heartbeat sent again makes nobody fresher.
#[tokio::test]
async fn trap_c9_an_older_heartbeat_changes_nothing() {
    let (b, clock) = Bench::in_memory();
    b.there(&["a", "b"]).await;
    let off = b.there(&["off"]).await.pop().unwrap();
    b.offline("off").await;
    clock.advance(Duration::from_secs(20));
    let (version, note) = (b.state("a").await.version, |id, age_ms| [(name(id), age_ms)]);
    assert_eq!(b.truth.note_beats(&note("a", 30_000), u64::MAX).await.unwrap(), 0);
    assert_eq!(b.state("a").await.beat_age_ms, Some(20_000));
    assert_eq!(b.truth.note_beats(&note("a", 5_000), u64::MAX).await.unwrap(), 1);
    assert_eq!(b.state("a").await.beat_age_ms, Some(5_000));
    assert_eq!(b.state("a").await.version, version, "no version for a beat");
    // The same heartbeat four times more, each with a longer transfer.
    for _ in 0..4 {
        clock.advance(Duration::from_millis(60_000));
        let age_ms = b.state("a").await.beat_age_ms.unwrap();
        assert_eq!(b.truth.note_beats(&note("a", age_ms - 900), u64::MAX).await.unwrap(), 0);
    }
    assert_eq!(b.truth.note_beats(&note("off", 0), u64::MAX).await.unwrap(), 0);
    assert_eq!(b.truth.note_beats(&note("nobody", 0), u64::MAX).await.unwrap(), 0);
    assert_eq!(b.listed("off").await.last_heartbeat_ms, Some(START_MS), "{off:?}");
    // A heartbeat that is older than the clock itself.
    assert_eq!(b.truth.note_beats(&note("b", u64::MAX), u64::MAX).await.unwrap(), 0);
}

/// A mirror has more heartbeats than one job records.
#[tokio::test]
async fn thousands_of_heartbeats_are_recorded_in_one_call() {
    let (b, clock) = Bench::in_memory();
    let ids: Vec<String> = (0..2_300).map(|n| format!("p{n:04}")).collect();
    b.there(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    clock.advance(Duration::from_secs(30));
    let beats: Vec<_> = ids.iter().map(|id| (name(id), 2_000)).collect();
    assert_eq!(b.truth.note_beats(&beats, u64::MAX).await.unwrap(), 2_300);
    assert_eq!(b.truth.note_beats(&beats, u64::MAX).await.unwrap(), 0);
    let ages = b.truth.page(None, 3_000).await.unwrap();
    assert!(ages.iter().all(|state| state.beat_age_ms == Some(2_000)));
}

#[tokio::test]
async fn a_refresh_takes_a_version_above_the_mirrors() {
    let (b, _) = Bench::in_memory();
    let states = b.there(&["a", "b"]).await;
    let ids = [(name("a"), 0), (name("nobody"), 7), (name("b"), states[1].version + 1_000_000)];
    let fresh = b.truth.refresh(&ids).await.unwrap();
    assert_eq!(fresh.iter().map(|state| state.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(fresh[0].version > states[0].version);
    assert_eq!(fresh[1].version, states[1].version + 1_000_001);
    assert_eq!(fresh[0].epoch, states[0].epoch, "nobody has toggled");
    assert!(b.offline("b").await.state.version > fresh[1].version);
}

/// C7: available providers; counts, pages and lists agree.
#[tokio::test]
async fn trap_c7_only_those_online_active_fresh_and_with_room_are_available() {
    let (b, clock) = Bench::in_memory();
    b.there(&["stale"]).await;
    clock.advance(Duration::from_secs(60));
    b.there(&["a", "barred", "c", "full", "gone"]).await;
    b.add("never").await;
    b.offline("gone").await;
    b.truth.set_active(&name("barred"), false).await.unwrap();
    clock.advance(Duration::from_secs(30));
    for n in 0..3 {
        b.accept(&format!("s{n}"), "full", 3).await;
    }
    b.accept("s9", "c", 3).await;
    let settings = AvailabilitySettings::default();
    let all = b.truth.available(&settings, None, 9).await.unwrap();
    let found: Vec<_> = all.iter().map(|a| (a.id.as_str(), a.active_session_count)).collect();
    assert_eq!(found, [("a", 0), ("c", 1)]);
    assert_eq!(b.truth.available(&settings, None, 1).await.unwrap(), all[..1]);
    assert_eq!(b.truth.available(&settings, Some(&name("a")), 9).await.unwrap(), all[1..]);
    assert_eq!(b.truth.count_available(&settings).await.unwrap(), 2);
    let lax = AvailabilitySettings { require_ping: false, max_customers_per_mitra: 9, ..settings };
    assert_eq!(b.truth.count_available(&lax).await.unwrap(), 4, "a, c, full, stale");
    assert_eq!(b.truth.count_online().await.unwrap(), 4);
    let ids = |listed: Vec<lapsed_availability::ListedProvider>| -> Vec<String> {
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
async fn only_valid_settings_are_stored() {
    let (b, _) = Bench::in_memory();
    assert_eq!(b.truth.settings().await.unwrap(), AvailabilitySettings::default());
    let wish = SettingsPatch { stale_after_seconds: Some(29), ..SettingsPatch::default() };
    assert!(matches!(b.truth.set_settings(&wish).await, Err(Error::Invalid(_))));
    assert_eq!(b.truth.settings().await.unwrap(), AvailabilitySettings::default());
    let wish = SettingsPatch { heartbeat_cadence_seconds: Some(10), ..SettingsPatch::default() };
    b.truth.set_settings(&wish).await.unwrap();
    let wish = SettingsPatch { stale_after_seconds: Some(29), ..SettingsPatch::default() };
    let now = b.truth.set_settings(&wish).await.unwrap();
    assert_eq!((now.stale_after_seconds, now.heartbeat_cadence_seconds), (29, 10));
    assert_eq!(b.truth.settings().await.unwrap(), now);
}

/// C8, C3: capacity equals the number of sessions after every change of a session.
#[tokio::test]
async fn capacity_follows_the_status_of_sessions() {
    use SessionChange::{Cancel, End, Expire, Extend, Reroute, Resume};
    let (b, _) = Bench::in_memory();
    b.there(&["a", "b"]).await;
    let session = name("s");
    let before = b.state("a").await.version;
    let SessionOutcome::Done { changed: true, touched, .. } = b.accept("s", "a", 1).await else {
        panic!("accepted")
    };
    assert_eq!((touched.len(), touched[0].sessions), (1, 1));
    assert!(touched[0].version > before);
    assert_eq!(touched[0], b.state("a").await);
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
    let SessionOutcome::Done { touched, .. } =
        b.change(Expire { session: session.clone() }, 1).await
    else {
        panic!("expired")
    };
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
async fn deactivated_and_unknown_providers_get_no_session() {
    let (b, _) = Bench::in_memory();
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
