//! The same operations on a mirror in memory and on real servers: both must agree, whatever the order.

use std::sync::Arc;

use lapsed_availability::memory::MemoryMirror;
use lapsed_availability::{Mirror, MirrorEntry, MirrorUpdate, ProviderState, SeenBeat};
use lapsed_core::Name;
use lapsed_core::clock::{Clock, ManualClock, SystemClock};
use lapsed_core::sweep::{Batch, Cursor, PassMode};
use lapsed_redis::MirrorLayout;

use crate::fixture::{CLUSTER, REDIS, VALKEY, connect, fresh};
use crate::mirror_world::{NEVER_MS, STALE, batch, settings};
use crate::story::name;

/// How many providers there are, and how many steps a run has.
const PROVIDERS: u64 = 6;
const STEPS: usize = 400;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_does_as_memory_does() {
    compare(&REDIS.url(), 11).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn valkey_does_as_memory_does() {
    compare(&VALKEY.url(), 23).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_x6_a_cluster_does_as_memory_does() {
    compare(&CLUSTER.url(), 37).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_x6_a_cluster_with_keys_in_many_slots_is_refused() {
    let id = crate::fixture::id(lapsed_core::Kind::Availability);
    let refused = connect(&CLUSTER.url()).mirror(id, MirrorLayout::default(), STALE);
    assert!(refused.err().unwrap().to_string().contains("hash tag"));
}

/// Numbers that come again with the same seed.
struct Dice(ManualClock);

impl Dice {
    fn below(&self, most: u64) -> u64 {
        self.0.random() % most
    }
}

/// What both must agree on; the time of a heartbeat is each mirror's own clock.
fn comparable(seen: &MirrorEntry) -> (String, bool, bool, Option<u64>, bool, Option<u64>) {
    let beats = matches!(seen.beat, SeenBeat::At(_));
    let identity = format!("{} {:?} {}", seen.id, seen.version, seen.epoch);
    (
        identity,
        seen.online,
        seen.deactivated,
        seen.sessions,
        beats,
        seen.pending_offline.map(|d| d.epoch),
    )
}

async fn compare(url: &str, seed: u64) {
    let layout = MirrorLayout::under(&format!("{{{}}}:", fresh("model")));
    let id = crate::fixture::id(lapsed_core::Kind::Availability);
    let real = connect(url).mirror(id, layout, STALE).unwrap();
    let model = MemoryMirror::new(SystemClock::shared(), None);
    let both: [Arc<dyn Mirror>; 2] = [Arc::new(model), real];
    let dice = Dice(ManualClock::at(seed));
    for _ in 0..seed {
        dice.below(2);
    }
    // What was told before anybody began to seed is of no life that counts: there both begin.
    let first = [both[0].begin_seed().await.unwrap(), both[1].begin_seed().await.unwrap()];
    let mut attempts: Vec<[String; 2]> = vec![first];
    for step in 0..STEPS {
        let said = format!("seed {seed}, step {step}");
        match dice.below(12) {
            0 => {
                let [a, b] = [&both[0], &both[1]];
                let begun = [a.begin_seed().await.unwrap(), b.begin_seed().await.unwrap()];
                attempts.push(begun);
            }
            1 if !attempts.is_empty() => {
                let at = dice.below(attempts.len() as u64) as usize;
                let attempt = attempts.swap_remove(at);
                let ended = [
                    both[0].end_seed(&attempt[0]).await.unwrap(),
                    both[1].end_seed(&attempt[1]).await.unwrap(),
                ];
                assert_eq!(ended[0], ended[1], "{said}");
            }
            2..=6 => tell(&both, &dice, attempts.last(), &said).await,
            7 => beat(&both, &dice, &said).await,
            8 => forget(&both, &dice, &said).await,
            _ => decide(&both, &dice, &said).await,
        }
        agree(&both, &said).await;
    }
}

fn somebody(dice: &Dice) -> Name {
    name(&format!("p{}", dice.below(PROVIDERS)))
}

async fn tell(both: &[Arc<dyn Mirror>; 2], dice: &Dice, attempt: Option<&[String; 2]>, said: &str) {
    let states: Vec<ProviderState> = (0..1 + dice.below(3))
        .map(|_| ProviderState {
            id: somebody(dice),
            version: 1 + dice.below(40),
            epoch: dice.below(6),
            online: dice.below(3) > 0,
            active: dice.below(4) > 0,
            sessions: dice.below(4),
            beat_age_ms: (dice.below(3) > 0).then(|| dice.below(5_000)),
        })
        .collect();
    let in_attempt = dice.below(2) == 0;
    let mut newer = Vec::new();
    for (mirror, at) in both.iter().zip([0, 1]) {
        let now_ms = mirror.now_ms().await.unwrap();
        let told: Vec<MirrorUpdate> = crate::mirror_world::told(&states, now_ms);
        let attempt = attempt.filter(|_| in_attempt).map(|attempt| attempt[at].as_str());
        newer.push(mirror.apply(&told, attempt).await.unwrap());
    }
    assert_eq!(newer[0], newer[1], "{said}: {states:?}");
}

async fn beat(both: &[Arc<dyn Mirror>; 2], dice: &Dice, said: &str) {
    let ids = [somebody(dice), somebody(dice), name("stranger")];
    let answers = [both[0].beat(&ids).await.unwrap(), both[1].beat(&ids).await.unwrap()];
    assert_eq!(answers[0], answers[1], "{said}");
}

async fn forget(both: &[Arc<dyn Mirror>; 2], dice: &Dice, said: &str) {
    let id = somebody(dice);
    let version = both[0].look(std::slice::from_ref(&id)).await.unwrap().seen[0].version;
    let version = if dice.below(2) == 0 { version } else { Some(dice.below(40)) };
    let ids = [(id, version)];
    let gone = [both[0].forget(&ids).await.unwrap(), both[1].forget(&ids).await.unwrap()];
    // One of whom nothing is left but its row counts in memory only.
    assert!(gone[0] >= gone[1], "{said}: {gone:?}");
}

async fn decide(both: &[Arc<dyn Mirror>; 2], dice: &Dice, said: &str) {
    let (who, epoch) = (somebody(dice), dice.below(6));
    let act = if dice.below(3) == 0 { PassMode::DryRun } else { PassMode::Reclaim };
    // Everybody is silent for so long, or nobody is; in between is each one's own clock.
    let stale_ms = if dice.below(2) == 0 { 0 } else { NEVER_MS };
    let batch = Batch { act, ..batch(&[who.as_str()], epoch) };
    let mut answers = Vec::new();
    for mirror in both {
        let answer = mirror.decide(&batch, stale_ms).await.unwrap().remove(0);
        answers.push(answer.map(|doom| doom.epoch));
    }
    if stale_ms == 0 || !beat_is_missing(both, &who).await {
        assert_eq!(answers[0], answers[1], "{said}: {who} in {epoch}, {stale_ms}");
    }
}

/// Of a provider without a heartbeat each mirror has its own opinion.
async fn beat_is_missing(both: &[Arc<dyn Mirror>; 2], who: &Name) -> bool {
    let seen = both[1].look(std::slice::from_ref(who)).await.unwrap().seen;
    matches!(seen[0].beat, SeenBeat::Missing(_))
}

async fn agree(both: &[Arc<dyn Mirror>; 2], said: &str) {
    let ids: Vec<Name> = (0..PROVIDERS).map(|n| name(&format!("p{n}"))).collect();
    let looks = [both[0].look(&ids).await.unwrap().seen, both[1].look(&ids).await.unwrap().seen];
    for (model, real) in looks[0].iter().zip(&looks[1]) {
        assert_eq!(comparable(model), comparable(real), "{said}");
    }
    let mut sums = Vec::new();
    for mirror in both {
        let presence = mirror.presence(NEVER_MS).await.unwrap();
        let count = mirror.count_online().await.unwrap();
        let page = mirror.available(&settings(3), &Cursor::default(), 100, false).await.unwrap();
        let pending_offline: Vec<Name> =
            mirror.pending_offline(100).await.unwrap().into_iter().map(|(id, _)| id).collect();
        let mut pending_offline: Vec<String> =
            pending_offline.iter().map(Name::to_string).collect();
        pending_offline.sort();
        let counts = (presence.seeded, presence.online, presence.pending_offline);
        sums.push((counts, count, page.map(|page| (page.available, page.count)), pending_offline));
    }
    assert_eq!(sums[0], sums[1], "{said}");
}
