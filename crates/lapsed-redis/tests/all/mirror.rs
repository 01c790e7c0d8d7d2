//! A mirror on real servers: what each of its keys is, and the traps that concern it.

use std::collections::BTreeSet;

use lapsed_availability::{
    Mirror, MirrorBeat, MirrorUpdate, ProviderBeat, ProviderState, SeenBeat,
};
use lapsed_core::sweep::{Cursor, PassMode, Refusal};
use lapsed_testbed::Engine;

use crate::mirror_world::{NEVER_MS, STALE_MS, World, batch, names_of, online, settings, told};
use crate::story::{eventually, name, names, on_both_engines};

on_both_engines! {
    states_are_stored_under_the_original_key_names,
    an_older_state_changes_nothing,
    trap_c1_beats_that_an_application_writes_at_once_are_noticed,
    trap_c3_a_counter_that_fell_to_zero_is_gone,
    trap_c5_a_ping_before_the_decision_wins_and_one_after_it_is_the_truths,
    trap_c7_the_deactivated_are_neither_counted_nor_available,
    trap_c10_a_beat_of_somebody_offline_leaves_nothing_behind,
    trap_c11_beats_are_dated_by_the_server,
    a_silent_provider_stays_offline_until_a_newer_toggle,
    a_decision_in_another_epoch_is_refused,
    a_sweeper_whose_term_is_over_decides_nothing,
    a_missing_heartbeat_is_not_a_death,
    what_the_application_writes_is_believed_or_left_alone,
}

async fn states_are_stored_under_the_original_key_names(engine: Engine) {
    let world = World::on(engine);
    assert_eq!(world.beat("a").await, None, "not seeded: it does not know");
    assert_eq!(world.available().await, None);
    let busy = ProviderState { sessions: 2, ..online("a", 5) };
    let off = ProviderState { active: false, ..online("b", 6) };
    let away = ProviderState { online: false, beat_age_ms: None, ..online("c", 7) };
    world.seed(&[busy, off, away]).await;
    let members = |set: &str| world.app.text(&["SMEMBERS", set]);
    assert_eq!(
        members("mitras:online").lines().collect::<BTreeSet<_>>(),
        BTreeSet::from(["a", "b"])
    );
    assert_eq!(members("mitras:deactivated"), "b");
    assert_eq!(world.app.text(&["GET", "mitra:capacity:a"]), "2");
    assert!(!world.exists("mitra:capacity:b"));
    let beat = world.app.text(&["GET", "mitra:heartbeat:a"]);
    assert!(beat.len() == 24 && beat.ends_with('Z') && beat.as_bytes()[10] == b'T', "{beat}");
    assert!(!world.exists("mitra:heartbeat:c"));
    assert_eq!(world.available().await.unwrap(), ["a"]);
    let seen = world.look("a").await;
    assert_eq!((seen.version, seen.epoch, seen.sessions), (Some(5), 1, Some(2)));
    let presence = world.mirror.presence(STALE_MS).await.unwrap();
    assert_eq!((presence.online, presence.pending_offline, presence.seeded), (2, 0, true));
    let nobody = world.look("nobody").await;
    assert_eq!((nobody.version, nobody.online, nobody.sessions), (None, false, Some(0)));
}

async fn an_older_state_changes_nothing(engine: Engine) {
    let world = World::on(engine);
    let away = ProviderState { online: false, epoch: 8, ..online("a", 8) };
    world.seed(&[away]).await;
    for version in [7, 8] {
        assert_eq!(world.tell(online("a", version)).await, 0, "{version}");
        assert!(!world.look("a").await.online);
    }
    assert_eq!(world.tell(ProviderState { epoch: 9, ..online("a", 9) }).await, 1);
    assert!(world.look("a").await.online);
    // Of two in one call the newer one stays, whatever their order.
    let both =
        [ProviderState { sessions: 1, ..online("a", 11) }, ProviderState { ..online("a", 10) }];
    assert_eq!(world.mirror.apply(&told(&both, 0), None).await.unwrap(), Some(1));
    assert_eq!(world.look("a").await.sessions, Some(1));
}

/// Ten providers: pings of different moments, what lapsed writes together and what it filled are no sign; a fifth
/// of one moment is.
async fn trap_c1_beats_that_an_application_writes_at_once_are_noticed(engine: Engine) {
    let world = World::on(engine);
    let ids: Vec<String> = (0..10).map(|n| format!("p{n}")).collect();
    let states: Vec<ProviderState> = ids.iter().map(|id| online(id, 1)).collect();
    world.seed(&states).await;
    let found = async || {
        let page = world.mirror.beats(&Cursor::default(), 100, NEVER_MS).await.unwrap().unwrap();
        page.mass_beats
    };
    let seen = async || world.mirror.presence(STALE_MS).await.unwrap().mass_beats_seen;
    assert_eq!(found().await, None, "filled by lapsed");
    let all: Vec<_> = ids.iter().map(|id| name(id)).collect();
    world.mirror.beat(&all).await.unwrap();
    assert_eq!(found().await, None, "beaten through lapsed");

    let write = |count: usize, at: &str| {
        for id in &ids[..count] {
            world.app.text(&["SET", &format!("mitra:heartbeat:{id}"), at]);
        }
    };
    // The moment of one ping, which is later than all of those.
    let before = world.app.text(&["GET", "mitra:heartbeat:p0"]);
    let at = eventually("a millisecond to pass", async || {
        world.mirror.beat(&all[9..]).await.unwrap();
        Some(world.app.text(&["GET", "mitra:heartbeat:p9"])).filter(|at| *at > before)
    })
    .await;
    write(3, &at);
    eventually("that moment to be over", async || {
        (world.mirror.now_ms().await.unwrap() > world.beat_ms("p9").await).then_some(())
    })
    .await;
    assert_eq!(found().await, None, "four may be chance");
    write(4, &at);
    let mass = found().await.unwrap();
    assert_eq!((mass.beats, mass.of, seen().await), (5, 10, 1));
    assert_eq!(found().await, Some(mass));
    assert_eq!(seen().await, 1, "each once");
    let presence = world.mirror.presence(STALE_MS).await.unwrap();
    assert_eq!(presence.mass_beats, Some(mass), "for whoever asks later");
    // A clock that is ahead: all of them count as now.
    write(10, "2100-01-01T00:00:00.000Z");
    assert_eq!((found().await, seen().await), (None, 1));
}

async fn trap_c3_a_counter_that_fell_to_zero_is_gone(engine: Engine) {
    let world = World::on(engine);
    world.seed(&[ProviderState { sessions: 3, ..online("a", 1) }]).await;
    assert_eq!(world.available().await.unwrap(), [""; 0], "full");
    world.tell(online("a", 2)).await;
    assert!(!world.exists("mitra:capacity:a"));
    assert_eq!(world.available().await.unwrap(), ["a"]);
}

async fn trap_c5_a_ping_before_the_decision_wins_and_one_after_it_is_the_truths(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(2).await;
    world.settled().await;
    let doom = world.silenced("m0", 1).await;
    assert!(doom.decided_ms >= doom.beat_ms + STALE_MS && doom.beat_ms > 0 && doom.epoch == 1);
    assert_eq!(world.beat("m0").await, Some(MirrorBeat::PendingOffline), "after it");
    assert!(!world.exists("mitra:heartbeat:m0") && !world.is_member("mitras:online", "m0"));
    // The sweeper has looked, and then the ping comes.
    assert_eq!(world.beat("m1").await, Some(MirrorBeat::Told(ProviderBeat::Noted)));
    assert_eq!(world.decide(&["m1"], NEVER_MS).await, [Err(Refusal::Alive)], "before it");
    assert!(world.is_member("mitras:online", "m1"));
}

async fn trap_c7_the_deactivated_are_neither_counted_nor_available(engine: Engine) {
    let world = World::on(engine);
    let off = ProviderState { active: false, ..online("b", 1) };
    world.seed(&[online("a", 1), off.clone(), online("c", 1)]).await;
    assert_eq!(world.mirror.count_online().await.unwrap(), Some(2));
    assert_eq!(world.available().await.unwrap(), ["a", "c"]);
    assert_eq!(world.beat("b").await, Some(MirrorBeat::Told(ProviderBeat::Deactivated)));
    let gone = ProviderState { active: false, online: false, ..online("c", 2) };
    world.tell(gone).await;
    assert_eq!(world.mirror.count_online().await.unwrap(), Some(1), "not twice");
    world.tell(ProviderState { version: 3, active: true, ..off }).await;
    assert_eq!(world.mirror.count_online().await.unwrap(), Some(2));
    let count = world.mirror.available(&settings(3), &Cursor::default(), 10, true).await.unwrap();
    let count = count.unwrap();
    assert_eq!((count.count, count.available.len()), (2, 0));
}

async fn trap_c10_a_beat_of_somebody_offline_leaves_nothing_behind(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(1).await;
    let off = ProviderState { active: false, ..online("off", 1) };
    world.tell(off).await;
    world.app.call(&["DEL", "mitra:heartbeat:off"]);
    let asked = names(&["stranger", "m0", "off"]);
    let answers = world.mirror.beat(&asked).await.unwrap().unwrap();
    assert_eq!(
        answers,
        [ProviderBeat::Offline, ProviderBeat::Noted, ProviderBeat::Deactivated]
            .map(MirrorBeat::Told)
    );
    assert!(!world.exists("mitra:heartbeat:stranger") && !world.exists("mitra:heartbeat:off"));
    world.tell(ProviderState { online: false, ..online("m0", 2) }).await;
    assert_eq!(world.beat("m0").await, Some(MirrorBeat::Told(ProviderBeat::Offline)));
    assert!(!world.exists("mitra:heartbeat:m0"));
    assert_eq!(world.mirror.beat(&[]).await.unwrap(), Some(Vec::new()));
}

async fn trap_c11_beats_are_dated_by_the_server(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(1).await;
    let before_ms = world.mirror.now_ms().await.unwrap();
    world.beat("m0").await;
    let after_ms = world.mirror.now_ms().await.unwrap();
    let SeenBeat::At(at_ms) = world.look("m0").await.beat else { panic!("no beat") };
    assert!((before_ms..=after_ms).contains(&at_ms), "{before_ms} {at_ms} {after_ms}");
    // A beat from a clock that is ahead counts as one of now, also when it is told.
    let ahead = [MirrorUpdate { state: online("m1", 1), beat_ms: Some(after_ms + NEVER_MS) }];
    world.mirror.apply(&ahead, None).await.unwrap();
    let future = world.iso(NEVER_MS as i64).await;
    assert!(future <= world.iso(0).await, "the server caps it: {future}");
    world.app.call(&["SET", "mitra:heartbeat:m0", "2999-01-01T00:00:00.000Z"]);
    for who in ["m0", "m1"] {
        let looked = world.mirror.look(&[name(who)]).await.unwrap();
        let SeenBeat::At(at_ms) = looked.seen[0].beat else { panic!("no beat") };
        assert!(at_ms <= looked.now_ms && looked.seeded, "{who}");
    }
    assert_eq!(world.decide(&["m0", "m1"], NEVER_MS).await, [Err(Refusal::Alive); 2]);
    // A beat only goes forward: an older one that the truth tells changes nothing.
    world.beat("m0").await;
    let SeenBeat::At(newest_ms) = world.look("m0").await.beat else { panic!("no beat") };
    let older = [MirrorUpdate { state: online("m0", 9), beat_ms: Some(newest_ms - 1_000) }];
    assert_eq!(world.mirror.apply(&older, None).await.unwrap(), Some(1));
    assert_eq!(world.look("m0").await.beat, SeenBeat::At(newest_ms));
}

async fn a_silent_provider_stays_offline_until_a_newer_toggle(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(3).await;
    world.settled().await;
    let dooms = [world.silenced("m0", 1).await, world.silenced("m1", 1).await];
    // In the order in which they were decided, and again what was decided before.
    let waiting = world.mirror.pending_offline(10).await.unwrap();
    assert_eq!(waiting, [(name("m0"), dooms[0]), (name("m1"), dooms[1])]);
    assert_eq!(world.mirror.pending_offline(1).await.unwrap(), waiting[..1]);
    assert_eq!(world.decide(&["m0"], NEVER_MS).await, [Ok(dooms[0])]);
    assert_eq!(world.look("m0").await.pending_offline, Some(dooms[0]));
    // The truth does not know yet, and tells of another change.
    world.tell(ProviderState { sessions: 1, ..online("m0", 2) }).await;
    let seen = world.look("m0").await;
    assert_eq!(
        (seen.online, seen.sessions, seen.pending_offline),
        (false, Some(1), Some(dooms[0]))
    );
    // A newer toggle ends it; so does the truth having set it offline.
    world.tell(ProviderState { epoch: 3, ..online("m0", 3) }).await;
    world.tell(ProviderState { online: false, ..online("m1", 2) }).await;
    let (m0, m1) = (world.look("m0").await, world.look("m1").await);
    assert_eq!((m0.online, m0.pending_offline), (true, None));
    assert_eq!((m1.online, m1.pending_offline), (false, None));
    assert!(world.mirror.pending_offline(10).await.unwrap().is_empty());
    assert_eq!(world.mirror.presence(STALE_MS).await.unwrap().pending_offline, 0);
}

async fn a_decision_in_another_epoch_is_refused(engine: Engine) {
    let world = World::on(engine);
    world.seed(&[ProviderState { epoch: 5, ..online("a", 5) }]).await;
    world.settled().await;
    let asked = world.decide_in(&["a", "stranger"], 4, STALE_MS).await;
    assert_eq!(asked, [Err(Refusal::Moved); 2]);
    // A dry run says what would be, and changes nothing.
    let dry = |who| lapsed_core::sweep::Batch { act: PassMode::DryRun, ..batch(&[who], 5) };
    eventually("the end of its time", async || {
        world.mirror.decide(&dry("a"), STALE_MS).await.unwrap()[0].ok()
    })
    .await;
    assert!(
        world.look("a").await.online && world.mirror.pending_offline(1).await.unwrap().is_empty()
    );
}

async fn a_sweeper_whose_term_is_over_decides_nothing(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(1).await;
    world.settled().await;
    let terms = world.mirror.terms().unwrap();
    let system = crate::mirror_world::id();
    let first = terms.campaign(&system, "first", 60_000).await.unwrap().unwrap();
    assert!(terms.campaign(&system, "second", 60_000).await.unwrap().is_none());
    terms.resign(&system, first.number).await.unwrap();
    let second = terms.campaign(&system, "second", 60_000).await.unwrap().unwrap();
    let by = |term: u64| lapsed_core::sweep::Batch { term: Some(term), ..batch(&["m0"], 1) };
    eventually("the end of its time", async || {
        let old = world.mirror.decide(&by(first.number), STALE_MS).await.unwrap();
        assert_eq!(old, [Err(Refusal::NotLeader)]);
        world.mirror.decide(&by(second.number), STALE_MS).await.unwrap()[0].ok()
    })
    .await;
}

/// The key was evicted by the server or deleted: a provider that is online has as long as any other to
/// send a heartbeat, which creates the key again.
async fn a_missing_heartbeat_is_not_a_death(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(2).await;
    world.settled().await;
    world.app.call(&["DEL", "mitra:heartbeat:m0", "mitra:heartbeat:m1"]);
    assert_eq!(world.look("m0").await.beat, SeenBeat::Missing(None));
    let dry = lapsed_core::sweep::Batch { act: PassMode::DryRun, ..batch(&["m0"], 1) };
    assert_eq!(world.mirror.decide(&dry, NEVER_MS).await.unwrap(), [Err(Refusal::Alive)]);
    assert_eq!(world.look("m0").await.beat, SeenBeat::Missing(None), "a dry run notes nothing");
    let asked = world.decide(&["m0", "m1"], STALE_MS).await;
    assert_eq!(asked, [Err(Refusal::Alive); 2]);
    let SeenBeat::Missing(Some(first_ms)) = world.look("m0").await.beat else { panic!("missed") };
    let page = world.mirror.beats(&Cursor::default(), 10, NEVER_MS).await.unwrap().unwrap();
    assert_eq!(page.beats.len(), 2, "a missing one is always old: {page:?}");
    assert!(page.beats.iter().all(|one| matches!(one.beat, SeenBeat::Missing(Some(_)))));
    // One beats, and its key is dropped once more: it counts from then.
    assert_eq!(world.beat("m1").await, Some(MirrorBeat::Told(ProviderBeat::Noted)));
    world.app.call(&["DEL", "mitra:heartbeat:m1"]);
    assert_eq!(world.look("m1").await.beat, SeenBeat::Missing(None));
    let doom = world.silenced("m0", 1).await;
    assert_eq!(doom.beat_ms, 0, "none was seen");
    assert!(doom.decided_ms >= first_ms + STALE_MS);
    // The same where the application beats by itself, and a pass sees it.
    world.decide(&["m1"], NEVER_MS).await;
    assert!(matches!(world.look("m1").await.beat, SeenBeat::Missing(Some(_))));
    let now = world.iso(0).await;
    world.app.call(&["SET", "mitra:heartbeat:m1", &now]);
    world.mirror.beats(&Cursor::default(), 10, NEVER_MS).await.unwrap().unwrap();
    world.app.call(&["DEL", "mitra:heartbeat:m1"]);
    assert_eq!(world.look("m1").await.beat, SeenBeat::Missing(None));
}

async fn what_the_application_writes_is_believed_or_left_alone(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(4).await;
    world.settled().await;
    let (past, now) = (world.iso(-(NEVER_MS as i64)).await, world.iso(0).await);
    world.app.call(&["SET", "mitra:heartbeat:m0", &past]);
    world.app.call(&["SET", "mitra:heartbeat:m1", "yesterday, about noon"]);
    world.app.call(&["SADD", "mitras:online", "stranger"]);
    world.app.call(&["SET", "mitra:heartbeat:stranger", &past]);
    world.app.call(&["SET", "mitra:heartbeat:m2", &now]);
    world.app.call(&["SET", "mitra:heartbeat:m3", &now]);
    world.app.call(&["SET", "mitra:capacity:m2", "-1"]);
    world.app.call(&["SET", "mitra:capacity:m3", "many"]);
    assert_eq!(world.look("m2").await.sessions, None, "below nothing");
    assert_eq!(world.look("m3").await.sessions, None);
    assert_eq!(world.look("m1").await.beat, SeenBeat::Unreadable);
    assert_eq!(world.available().await.unwrap(), ["m2"]);
    let page = world.mirror.beats(&Cursor::default(), 10, STALE_MS * 100).await.unwrap().unwrap();
    let listed: Vec<lapsed_core::Name> = page.beats.iter().map(|one| one.id.clone()).collect();
    assert_eq!(
        (names_of(&listed), page.examined),
        (vec!["m0".into(), "m1".into(), "stranger".into()], 5)
    );
    world.silenced("m0", 1).await;
    assert_eq!(world.decide(&["m1"], STALE_MS).await, [Err(Refusal::Unreadable)]);
    // Nobody has told anything of the stranger: its epoch is 0.
    let doom = world.silenced("stranger", 0).await;
    assert_eq!(doom.epoch, 0);
    assert_eq!(world.mirror.forget(&[(name("stranger"), None)]).await.unwrap(), 1);
    assert_eq!(world.look("stranger").await.pending_offline, None);
    // A beat, and the next state, heal what could not be read.
    assert_eq!(world.beat("m1").await, Some(MirrorBeat::Told(ProviderBeat::Noted)));
    world.tell(ProviderState { sessions: 1, ..online("m3", 2) }).await;
    let (m1, m3) = (world.look("m1").await, world.look("m3").await);
    assert!(matches!((m1.beat, m3.sessions), (SeenBeat::At(_), Some(1))));
}
