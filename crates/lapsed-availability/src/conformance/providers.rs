//! Cases about toggling and activating providers, and their heartbeats.

use futures::future::join_all;

use super::{AvailabilityFixture, has_beat, name, state_of};
use crate::{MirrorUpdate, ProviderBeat, Source};

pub async fn online_is_mirrored_with_a_heartbeat_and_offline_without(b: AvailabilityFixture) {
    let id = b.online("p").await;
    let seen = b.seen(&id).await;
    assert!(seen.online && has_beat(&seen) && !seen.deactivated, "{seen:?}");
    assert_eq!(b.beat(&id).await, ProviderBeat::Noted);
    assert_eq!(b.available().await, (vec!["p".to_owned()], Source::Mirror));
    let set = b.it.set_offline(&id).await.unwrap().unwrap();
    assert!(set.mirrored && set.answer.changed && !set.answer.state.online);
    let seen = b.seen(&id).await;
    assert!(!seen.online && !has_beat(&seen), "{seen:?}");
    assert_eq!(b.available().await.0, Vec::<String>::new());
    b.agree().await;
}

/// Setting an online provider online again starts an epoch, so earlier decisions are void.
pub async fn a_second_online_starts_an_epoch_without_a_flip(b: AvailabilityFixture) {
    let id = b.online("p").await;
    let before = b.state(&id).await;
    let again = b.it.set_online(&id).await.unwrap();
    let after = state_of(&again);
    assert!(!again.unwrap().answer.changed);
    assert!(after.epoch > before.epoch && after.version > before.version, "{before:?} {after:?}");
    assert_eq!(b.truth.log(&id, 10).await.unwrap().len(), 1);
    let off = b.it.set_offline(&id).await.unwrap().unwrap();
    let off_again = b.it.set_offline(&id).await.unwrap().unwrap();
    assert!(off.answer.changed && !off_again.answer.changed);
    b.agree().await;
}

pub async fn an_unknown_provider_is_refused_everywhere(b: AvailabilityFixture) {
    let id = name("nobody");
    assert!(b.it.set_online(&id).await.unwrap().is_none());
    assert!(b.it.set_offline(&id).await.unwrap().is_none());
    assert!(b.it.deactivate(&id).await.unwrap().is_none());
    assert_eq!(b.beat(&id).await, ProviderBeat::Offline);
    assert!(!b.it.is_reachable(&id).await.unwrap().answer);
    assert!(b.it.status(&id).await.unwrap().is_none());
    assert!(b.truth.read(&[id]).await.unwrap().is_empty());
    b.agree().await;
}

pub async fn trap_c10_a_heartbeat_of_an_offline_provider_is_not_recorded(b: AvailabilityFixture) {
    let id = b.provider("p").await;
    assert_eq!(b.beat(&id).await, ProviderBeat::Offline);
    assert!(!has_beat(&b.seen(&id).await));
    b.it.set_online(&id).await.unwrap();
    b.it.set_offline(&id).await.unwrap();
    assert_eq!(b.beat(&id).await, ProviderBeat::Offline);
    assert!(!has_beat(&b.seen(&id).await));
    assert_eq!(b.truth.beat(std::slice::from_ref(&id)).await.unwrap(), [ProviderBeat::Offline]);
    assert_eq!(b.truth.beat(&[name("nobody"), id]).await.unwrap(), [ProviderBeat::Offline; 2]);
}

pub async fn trap_c7_deactivated_providers_are_counted_nowhere(b: AvailabilityFixture) {
    let [id, other] = [b.online("p").await, b.online("q").await];
    assert_eq!(b.it.count_online().await.unwrap().answer, 2);
    let off = b.it.deactivate(&id).await.unwrap().unwrap();
    assert!(off.answer.changed && off.answer.state.online && !off.answer.state.active, "{off:?}");
    assert_eq!(b.available().await.0, ["q"]);
    assert_eq!(b.it.count_available().await.unwrap().answer, 1);
    assert_eq!(b.it.count_online().await.unwrap().answer, 1);
    assert!(!b.it.is_reachable(&id).await.unwrap().answer);
    assert!(b.it.is_reachable(&other).await.unwrap().answer);
    // And so says the truth when it is asked itself.
    let settings = b.it.settings().await.unwrap();
    assert_eq!(b.truth.count_available(&settings).await.unwrap(), 1);
    assert_eq!(b.truth.count_online().await.unwrap(), 1);
    let available = b.truth.available(&settings, None, 10).await.unwrap();
    assert_eq!(available.len(), 1);
    b.agree().await;
}

pub async fn deactivated_providers_are_refused_until_activated(b: AvailabilityFixture) {
    let id = b.online("p").await;
    b.it.deactivate(&id).await.unwrap();
    assert_eq!(b.beat(&id).await, ProviderBeat::Deactivated);
    assert_eq!(b.truth.beat(std::slice::from_ref(&id)).await.unwrap(), [ProviderBeat::Deactivated]);
    assert!(!b.it.deactivate(&id).await.unwrap().unwrap().answer.changed);
    assert!(b.it.activate(&id).await.unwrap().unwrap().answer.changed);
    assert_eq!(b.beat(&id).await, ProviderBeat::Noted);
    assert_eq!(b.available().await.0, ["p"]);
    b.agree().await;
}

/// C2: a writer that read before a toggle writes to the mirror after it.
pub async fn trap_c2_an_older_state_is_not_applied(b: AvailabilityFixture) {
    let id = b.online("p").await;
    let read = b.state(&id).await;
    let now_ms = b.mirror.now_ms().await.unwrap();
    b.it.set_offline(&id).await.unwrap();
    let late = [MirrorUpdate { state: read, beat_ms: Some(now_ms) }];
    assert_eq!(b.mirror.apply(&late, None).await.unwrap(), Some(0));
    let seen = b.seen(&id).await;
    assert!(!seen.online && !has_beat(&seen), "{seen:?}");
    b.agree().await;
}

pub async fn trap_c6_the_log_has_one_row_per_flip(b: AvailabilityFixture) {
    let id = b.online("p").await;
    let [one, two] = [b.daemon(), b.daemon()];
    let offs = join_all([one.set_offline(&id), two.set_offline(&id)]).await;
    let flips =
        offs.into_iter().filter(|off| off.as_ref().unwrap().as_ref().unwrap().answer.changed);
    assert_eq!(flips.count(), 1);
    let log = b.truth.log(&id, 10).await.unwrap();
    assert_eq!(log.iter().map(|flap| flap.online).collect::<Vec<_>>(), [false, true]);
}

/// Whatever the order in which the mirror hears of them.
pub async fn after_concurrent_toggles_both_stores_agree(b: AvailabilityFixture) {
    let id = b.provider("p").await;
    let daemons = [b.daemon(), b.daemon(), b.daemon()];
    for _ in 0..5 {
        let toggles = (0..12).map(|n| {
            let (daemon, id) = (&daemons[n % 3], &id);
            async move {
                match n % 4 {
                    0 | 1 => daemon.set_online(id).await,
                    2 => daemon.set_offline(id).await,
                    _ if n > 5 => daemon.activate(id).await,
                    _ => daemon.deactivate(id).await,
                }
            }
        });
        for done in join_all(toggles).await {
            assert!(done.unwrap().unwrap().mirrored);
        }
        b.agree().await;
    }
    let log = b.truth.log(&id, 1_000).await.unwrap();
    let turns = log.windows(2).all(|pair| pair[0].online != pair[1].online);
    assert!(turns, "each row is a flip: {log:?}");
}

pub async fn names_are_stored_unchanged(b: AvailabilityFixture) {
    let id = b.online("p").await;
    let listed = b.it.describe(&id).await.unwrap().unwrap();
    assert_eq!(listed.display_name.as_deref(), Some("Name of p"));
    let profile = crate::ProviderProfile { id: id.clone(), display_name: None };
    b.it.put_provider(&profile).await.unwrap();
    let listed = b.it.describe(&id).await.unwrap().unwrap();
    assert_eq!(listed.display_name.as_deref(), Some("Name of p"));
    assert!(listed.is_online && listed.is_active);
    b.agree().await;
}
