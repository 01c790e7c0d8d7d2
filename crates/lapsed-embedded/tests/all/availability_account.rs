//! Random operations on the truth of availability, with a disk that fails and a store that is
//! opened again: versions, log, counts and receipts always agree.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::fixture::fragile::Fragile;
use crate::fixture::providers::{Bench, STALE_MS, START_MS, batch, name};
use lapsed_availability::{
    Flip, Flipped, ProviderBeat, ProviderProfile, ProviderQuery, ProviderState, SessionChange,
    SessionOutcome, Truth,
};
use lapsed_core::Result;
use lapsed_core::clock::ManualClock;
use lapsed_core::system::Restored;
use lapsed_embedded::LogStatus;
use proptest::collection::vec;
use proptest::prelude::*;

const PROVIDERS: [&str; 3] = ["a", "b", "c"];
const SESSIONS: [&str; 5] = ["s0", "s1", "s2", "s3", "s4"];
const MAX: u64 = 2;

#[derive(Clone, Debug)]
enum Op {
    Put(usize),
    Toggle(usize, bool),
    Activate(usize, bool),
    Beat(usize),
    Note(usize, u64),
    /// Flips a provider that the truth considers silent, as a mirror that lost a heartbeat would;
    /// in the current epoch or an earlier one.
    Flip(usize, u64),
    Settle(u64),
    Restore(u64),
    Session(usize, usize, usize),
    Refresh(usize),
    Wait(u64),
    /// Lets the disk fail after this many writes.
    Fail(i64),
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let p = || 0..PROVIDERS.len();
    prop_oneof![
        2 => p().prop_map(Op::Put),
        5 => (p(), any::<bool>()).prop_map(|(p, on)| Op::Toggle(p, on)),
        1 => (p(), any::<bool>()).prop_map(|(p, on)| Op::Activate(p, on)),
        3 => p().prop_map(Op::Beat),
        2 => (p(), 0..200_000u64).prop_map(|(p, age_ms)| Op::Note(p, age_ms)),
        6 => (p(), 0..2u64).prop_map(|(p, back)| Op::Flip(p, back)),
        1 => (1..40u64).prop_map(Op::Settle),
        2 => (1..9u64).prop_map(Op::Restore),
        6 => (0..7usize, 0..SESSIONS.len(), p()).prop_map(|(c, s, p)| Op::Session(c, s, p)),
        1 => p().prop_map(Op::Refresh),
        4 => (1..120_000u64).prop_map(Op::Wait),
        2 => (0..30i64).prop_map(Op::Fail),
        1 => Just(Op::Reopen),
    ]
}

fn change(which: usize, session: usize, provider: usize) -> SessionChange {
    let (session, provider) = (name(SESSIONS[session]), name(PROVIDERS[provider]));
    match which {
        0 => SessionChange::Accept { session, provider },
        1 => SessionChange::Extend { session },
        2 => SessionChange::Resume { session },
        3 => SessionChange::End { session },
        4 => SessionChange::Expire { session },
        5 => SessionChange::Cancel { session },
        _ => SessionChange::Reroute { session, to: provider },
    }
}

/// The store under test, and what its answers said.
struct Story {
    fragile: Fragile,
    clock: ManualClock,
    b: Bench,
    number: u64,
    /// The newest version that was answered for each provider.
    versions: BTreeMap<String, u64>,
    /// The latest heartbeat of each provider that was answered as recorded, on the manual clock.
    beats: BTreeMap<String, u64>,
    settled: Vec<u64>,
    flips: u64,
    toggles: u64,
    /// Upper bound of calls that failed but may have been carried out.
    doubts: u64,
}

fn open(fragile: &Fragile, clock: &ManualClock) -> Bench {
    let fragile = fragile.clone();
    Bench::on_bytes(clock, move |file| fragile.file(file))
}

impl Story {
    fn begin() -> Story {
        let (fragile, clock) = (Fragile::unlimited(), ManualClock::at(START_MS));
        Story {
            b: open(&fragile, &clock),
            fragile,
            clock,
            number: 100,
            versions: BTreeMap::new(),
            beats: BTreeMap::new(),
            settled: Vec::new(),
            flips: 0,
            toggles: 0,
            doubts: 0,
        }
    }

    fn now_ms(&self) -> u64 {
        use lapsed_core::clock::Clock;
        self.clock.mono().as_millis() as u64
    }

    fn note_version(&mut self, state: &ProviderState) {
        let last = self.versions.insert(state.id.to_string(), state.version).unwrap_or(0);
        assert!(state.version > last, "{state:?} after {last}");
        assert!(state.epoch <= state.version);
    }

    async fn act(&mut self, op: &Op) -> Result<()> {
        let truth = self.b.truth.clone();
        match *op {
            Op::Put(p) => {
                let profile = ProviderProfile { id: name(PROVIDERS[p]), display_name: None };
                self.note_version(&truth.put_provider(&profile).await?.state);
            }
            Op::Toggle(p, online) => {
                if let Some(changed) = truth.set_online(&name(PROVIDERS[p]), online).await? {
                    self.note_version(&changed.state);
                    self.toggles += u64::from(changed.changed);
                    if online {
                        self.beats.insert(PROVIDERS[p].to_owned(), self.now_ms());
                    }
                }
            }
            Op::Activate(p, active) => {
                if let Some(changed) = truth.set_active(&name(PROVIDERS[p]), active).await? {
                    self.note_version(&changed.state);
                }
            }
            Op::Beat(p) => {
                if truth.beat(&[name(PROVIDERS[p])]).await? == [ProviderBeat::Noted] {
                    self.beats.insert(PROVIDERS[p].to_owned(), self.now_ms());
                }
            }
            Op::Note(p, age_ms) => {
                truth.note_beats(&[(name(PROVIDERS[p]), age_ms)], u64::MAX).await?;
            }
            Op::Flip(p, back) => self.flip(PROVIDERS[p], back).await?,
            Op::Settle(back) => {
                let number = self.number.saturating_sub(back);
                if truth.settle(&batch(number).id).await?.is_empty() {
                    self.settled.push(number);
                }
            }
            Op::Restore(seq) => {
                if let (Restored::Restored { key, .. }, state) = truth.restore(seq).await? {
                    self.note_version(&state.unwrap());
                    self.toggles += 1;
                    self.beats.insert(key, self.now_ms());
                }
            }
            Op::Session(which, session, provider) => {
                let change = change(which, session, provider);
                if let SessionOutcome::Done { touched, .. } =
                    truth.change_session(&change, MAX).await?
                {
                    touched.iter().for_each(|state| self.note_version(state));
                }
            }
            Op::Refresh(p) => {
                for state in truth.refresh(&[(name(PROVIDERS[p]), 0)]).await? {
                    self.note_version(&state);
                }
            }
            Op::Wait(ms) => self.clock.advance(Duration::from_millis(ms)),
            Op::Fail(writes) => self.fragile.left.store(writes, Ordering::SeqCst),
            Op::Reopen => {
                self.fragile.left.store(i64::MIN, Ordering::SeqCst);
                drop(truth);
                // Replaced by another store first, so that the old one is closed.
                self.b = open(&Fragile::unlimited(), &self.clock);
                self.b = open(&self.fragile, &self.clock);
            }
        }
        Ok(())
    }

    async fn flip(&mut self, id: &str, back: u64) -> Result<()> {
        let Some(state) = self.b.truth.read(&[name(id)]).await?.pop() else { return Ok(()) };
        self.number += 1;
        // Sometimes a batch number that may have been settled already.
        let number = self.number - back * 3;
        let epoch = state.epoch.saturating_sub(back);
        let flip = Flip { id: name(id), epoch, silent_ms: None, decided_ago_ms: 0 };
        let answer = self.b.truth.flip(&batch(number), &[flip], STALE_MS).await;
        if self.settled.contains(&number) {
            assert!(answer.is_err(), "batch {number} was settled as not carried out");
            return Ok(());
        }
        match &answer?[0] {
            Flipped::Offline(_, after) => {
                self.note_version(after);
                assert!(state.online && back == 0, "{state:?}");
                let beat_ms = self.beats.get(id).copied().unwrap_or(0);
                assert!(self.now_ms() >= beat_ms + STALE_MS, "P1: {id} beat at {beat_ms}");
                self.flips += 1;
                self.toggles += 1;
            }
            Flipped::Left(_, after) => {
                let after = after.clone().unwrap();
                assert_eq!(after.online, state.online);
                self.versions.insert(id.to_owned(), after.version);
            }
        }
        Ok(())
    }

    /// Checks that data which is stored in several places agrees.
    async fn check(&self) {
        let log = self.b.log();
        let listing = ProviderQuery { limit: 10, ..ProviderQuery::default() };
        let listed = self.b.truth.list(&listing).await.unwrap();
        let states = self.b.truth.page(None, 10).await.unwrap();
        for (one, state) in listed.iter().zip(&states) {
            let mine = log.iter().filter(|(id, _)| *id == one.id.as_str());
            let mine: Vec<LogStatus> = mine.map(|(_, status)| *status).collect();
            assert!(mine.windows(2).all(|pair| pair[0] != pair[1]), "{}: {mine:?}", one.id);
            assert!(mine.first().is_none_or(|first| *first == LogStatus::Online));
            assert_eq!(mine.last() == Some(&LogStatus::Online), one.is_online, "{}", one.id);
            let flaps = self.b.truth.log(&one.id, 1_000).await.unwrap();
            let flaps = flaps.iter().rev().map(|flap| flap.online);
            assert!(flaps.eq(mine.iter().map(|status| *status == LogStatus::Online)));
            let mut sessions = 0;
            for id in SESSIONS {
                let session = self.b.session(id).await.filter(|session| session.occupies());
                sessions += u64::from(session.is_some_and(|s| s.provider == Some(one.id.clone())));
            }
            assert_eq!(one.active_session_count, sessions);
            assert!(sessions <= MAX);
            assert_eq!((state.online, state.active), (one.is_online, one.is_active));
            let newest = self.versions.get(one.id.as_str()).copied().unwrap_or(0);
            assert!(state.version >= newest);
        }
        let receipts = self.b.receipts().await.len() as u64;
        assert!((self.flips..=self.flips + self.doubts).contains(&receipts));
        let logged = log.len() as u64;
        assert!((self.toggles..=self.toggles + self.doubts).contains(&logged));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn counts_and_log_agree_after_random_operations(ops in vec(op(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut story = Story::begin();
            for op in &ops {
                if story.act(op).await.is_err() {
                    story.doubts += 1;
                    story.fragile.left.store(i64::MIN, Ordering::SeqCst);
                }
                story.check().await;
            }
        });
    }
}
