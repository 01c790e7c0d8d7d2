//! Cases about reads: which providers are available, and which store the answer came from.

use std::collections::BTreeSet;

use super::{AvailabilityFixture, name};
use crate::rules::SettingsPatch;
use crate::{ProviderBeat, ProviderQuery, SessionChange, Source};
use lapsed_core::error::Error;
use lapsed_core::sweep::Cursor;
use lapsed_core::system::System;

pub async fn available_is_online_active_fresh_and_below_capacity(b: AvailabilityFixture) {
    let [full, inactive, off] =
        [b.online("full").await, b.online("inactive").await, b.online("off").await];
    b.online("ok").await;
    b.provider("new").await;
    for session in ["s", "t"] {
        let (session, provider) = (name(session), full.clone());
        b.session(SessionChange::Accept { session, provider }).await;
    }
    b.it.deactivate(&inactive).await.unwrap();
    b.it.set_offline(&off).await.unwrap();
    assert_eq!(b.available().await, (vec!["ok".to_owned()], Source::Mirror));
    assert_eq!(b.it.count_available().await.unwrap().answer, 1);
    assert!(b.it.is_reachable(&full).await.unwrap().answer, "full, and there");
    let settings = b.it.settings().await.unwrap();
    let truth = b.truth.available(&settings, None, 10).await.unwrap();
    assert_eq!(truth.len(), 1);
    assert_eq!((truth[0].id.as_str(), truth[0].active_session_count), ("ok", 0));
    assert_eq!(b.truth.count_available(&settings).await.unwrap(), 1);
}

pub async fn silent_providers_are_unavailable_before_any_pass(b: AvailabilityFixture) {
    let [silent, alive] = [b.online("silent").await, b.online("alive").await];
    b.silence().await;
    assert_eq!(b.beat(&alive).await, ProviderBeat::Noted);
    assert_eq!(b.available().await.0, ["alive"]);
    assert!(!b.it.is_reachable(&silent).await.unwrap().answer);
    assert!(b.state(&silent).await.online, "nobody has set it offline yet");
    assert_eq!(b.beat(&silent).await, ProviderBeat::Noted, "it may come back until then");
    assert_eq!(b.available().await.0, ["alive", "silent"]);
}

/// In pages of a few, everybody once, also with those in between who are not available.
pub async fn pages_contain_each_provider_once(b: AvailabilityFixture) {
    let mut expected = BTreeSet::new();
    for n in 0..23 {
        let id = b.online(&format!("p{n:02}")).await;
        match n % 3 {
            0 => drop(b.it.deactivate(&id).await.unwrap()),
            _ => drop(expected.insert(id.to_string())),
        }
    }
    let (mut found, mut after, mut pages) = (BTreeSet::new(), Some(Cursor::default()), 0);
    while let Some(from) = after {
        let page = b.it.available(&from, 4).await.unwrap().answer;
        found.extend(page.available.iter().map(|one| one.id.to_string()));
        after = page.next;
        pages += 1;
        assert!(pages < 50, "it does not end");
    }
    assert_eq!(found, expected);
    let settings = b.it.settings().await.unwrap();
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = b.truth.available(&settings, after.as_ref(), 4).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.id.clone());
        found.extend(page.iter().map(|one| one.id.to_string()));
    }
    assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
    let wrong = b.it.available(&Cursor(Some("?".to_owned())), 4).await;
    assert!(matches!(wrong, Err(Error::Invalid(_))), "{wrong:?}");
}

/// A change takes effect at once, and invalid settings are refused.
pub async fn settings_are_live_and_checked(b: AvailabilityFixture) {
    let id = b.online("p").await;
    let provider = id.clone();
    b.session(SessionChange::Accept { session: name("s"), provider }).await;
    let patch = SettingsPatch { max_customers_per_mitra: Some(1), ..Default::default() };
    assert_eq!(b.it.set_settings(&patch).await.unwrap().max_customers_per_mitra, 1);
    assert!(b.available().await.0.is_empty(), "full now");
    let other = b.daemon();
    assert_eq!(other.settings().await.unwrap().max_customers_per_mitra, 1);
    let low = SettingsPatch {
        stale_after_seconds: Some(29),
        heartbeat_cadence_seconds: Some(30),
        ..Default::default()
    };
    assert!(matches!(b.it.set_settings(&low).await, Err(Error::Invalid(_))));
    let stale = b.it.settings_now().await.unwrap().stale_after_seconds;
    assert_eq!(stale, b.ttl.as_secs(), "nothing was changed");
}

pub async fn without_required_heartbeats_nobody_is_silent(b: AvailabilityFixture) {
    b.online("p").await;
    let patch = SettingsPatch { require_ping: Some(false), ..Default::default() };
    b.it.set_settings(&patch).await.unwrap();
    b.silence().await;
    assert_eq!(b.available().await.0, ["p"]);
    let report = b.sweep().await;
    assert_eq!((report.suspects, report.reclaimed), (0, 0), "{report:?}");
}

/// Reads go to the truth after a mirror lost its data, until it is seeded again.
pub async fn an_unseeded_mirror_is_not_read(b: AvailabilityFixture) {
    let id = b.online("p").await;
    (b.lose)().await;
    assert_eq!(b.available().await, (vec!["p".to_owned()], Source::Truth));
    assert_eq!(b.it.count_online().await.unwrap().source, Source::Truth);
    let reachable = b.it.is_reachable(&id).await.unwrap();
    assert_eq!((reachable.answer, reachable.source), (true, Source::Truth));
    let beat = b.it.heartbeat(std::slice::from_ref(&id)).await.unwrap();
    assert_eq!((beat.answer[0], beat.source), (ProviderBeat::Noted, Source::Truth));
    let beacon = b.it.beacon().await.unwrap();
    assert_eq!((beacon.answer.count, beacon.source), (1, Source::Truth));
    assert_eq!(b.it.beacon().await.unwrap().source, Source::Cache);
    b.it.look_after().await.unwrap();
    assert_eq!(b.available().await, (vec!["p".to_owned()], Source::Mirror));
    b.agree().await;
}

pub async fn a_list_contains_names_and_session_counts(b: AvailabilityFixture) {
    let id = b.online("p").await;
    b.provider("q").await;
    let provider = id.clone();
    b.session(SessionChange::Accept { session: name("s"), provider }).await;
    let all = b.it.list(&ProviderQuery { limit: 10, ..ProviderQuery::default() }).await.unwrap();
    assert_eq!(all.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["p", "q"]);
    assert_eq!((all[0].active_session_count, all[0].is_online), (1, true));
    assert!(all[0].last_online_ms.is_some() && all[1].last_online_ms.is_none());
    let online = ProviderQuery { limit: 10, online_only: true, ..ProviderQuery::default() };
    assert_eq!(b.it.list(&online).await.unwrap().len(), 1);
    let rest = ProviderQuery { limit: 10, after: Some(id.clone()), ..ProviderQuery::default() };
    assert_eq!(b.it.list(&rest).await.unwrap()[0].id.as_str(), "q");
    let status = b.it.status(&id).await.unwrap().unwrap().answer;
    assert!(status.is_online && status.is_reachable && status.is_available, "{status:?}");
}

pub async fn explain_gives_reasons(b: AvailabilityFixture) {
    let id = b.online("p").await;
    let verdict = async |id: &str| b.it.explain(id).await.unwrap().verdict;
    assert_eq!(verdict("p").await, "available");
    assert_eq!(verdict("nobody").await, "unknown");
    b.it.deactivate(&id).await.unwrap();
    assert_eq!(verdict("p").await, "deactivated");
    b.it.activate(&id).await.unwrap();
    b.silence().await;
    assert_eq!(verdict("p").await, "overdue");
    assert_eq!(b.sweep().await.reclaimed, 1);
    let told = b.it.explain("p").await.unwrap();
    assert_eq!(told.verdict, "offline");
    assert!(told.because.iter().any(|why| why.contains("receipt")), "{told:?}");
}
