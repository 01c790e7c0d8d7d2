//! The same random days on PostgreSQL and on the embedded store: both must say the same of everything.
//!
//! Numbers and times differ and are left out, but not what they mean: whether an epoch has begun, whether
//! there is a beat, whose receipt it is. A failing day is replayed by its seed.

use std::collections::BTreeSet;

use lapsed_availability::{
    Flip, Flipped, ListedProvider, ProviderProfile, ProviderQuery, ProviderState, SessionChange,
    SessionOutcome, Truth,
};
use lapsed_core::clock::{Clock, ManualClock};
use lapsed_core::receipt::ReceiptQuery;
use lapsed_core::system::Restored;
use lapsed_core::{Name, Result};
use lapsed_embedded::{Embedded, Options};

use crate::fixture::{Bench, batch, name, system};

const STEPS: usize = 150;
/// Longer than anybody has been silent here.
const AN_AGE_MS: u64 = 1_000_000_000;

/// What is done, chosen before it is known what it will meet.
#[derive(Clone, Debug)]
enum Step {
    Put(Name, Option<String>),
    Online(Name, bool),
    Active(Name, bool),
    Session(SessionChange, u64),
    Beat(Vec<Name>),
    Refresh(Vec<Name>),
    /// Whom, whether in their present epoch, and how long silence must last.
    Flip(Vec<(Name, bool)>, u64),
    Settle(u64),
    Restore(usize),
}

struct Chance(ManualClock);

impl Chance {
    fn below(&self, most: u64) -> u64 {
        self.0.random() % most
    }

    fn provider(&self) -> Name {
        name(&format!("p{}", self.below(5)))
    }

    fn providers(&self) -> Vec<Name> {
        let some: BTreeSet<Name> = (0..=self.below(4)).map(|_| self.provider()).collect();
        some.into_iter().collect()
    }

    fn session(&self) -> SessionChange {
        let session = name(&format!("s{}", self.below(6)));
        match self.below(9) {
            0..3 => SessionChange::Accept { session, provider: self.provider() },
            3 => SessionChange::Extend { session },
            4 => SessionChange::Resume { session },
            5 => SessionChange::End { session },
            6 => SessionChange::Expire { session },
            7 => SessionChange::Cancel { session },
            _ => SessionChange::Reroute { session, to: self.provider() },
        }
    }

    fn step(&self, number: u64) -> Step {
        match self.below(16) {
            0 | 1 => Step::Put(
                self.provider(),
                (self.below(2) == 0).then(|| format!("name {}", self.below(3))),
            ),
            2..5 => Step::Online(self.provider(), true),
            5 => Step::Online(self.provider(), false),
            6 => Step::Active(self.provider(), self.below(3) > 0),
            7..11 => Step::Session(self.session(), 2),
            11 => Step::Beat(self.providers()),
            12 => Step::Refresh(self.providers()),
            13 => {
                let whom = self.providers().into_iter().map(|id| (id, self.below(4) > 0));
                Step::Flip(whom.collect(), if self.below(3) > 0 { 0 } else { AN_AGE_MS })
            }
            14 => Step::Settle(self.below(number + 1)),
            _ => Step::Restore(self.below(4) as usize),
        }
    }
}

/// A state without its numbers.
fn meaning(state: &ProviderState) -> String {
    let ProviderState { id, version, epoch, online, active, sessions, beat_age_ms } = state;
    let (begun, beat) = (version == epoch, beat_age_ms.is_some());
    format!("{id} online={online} active={active} sessions={sessions} begun={begun} beat={beat}")
}

fn meanings(states: &[ProviderState]) -> Vec<String> {
    let mut all: Vec<String> = states.iter().map(meaning).collect();
    all.sort();
    all
}

async fn take(truth: &dyn Truth, step: &Step, number: u64) -> Result<String> {
    let state = |changed: &lapsed_availability::ProviderChange| {
        format!(
            "{} changed={} revoked={}",
            meaning(&changed.state),
            changed.changed,
            changed.revoked
        )
    };
    Ok(match step {
        Step::Put(id, display_name) => {
            let profile = ProviderProfile { id: id.clone(), display_name: display_name.clone() };
            state(&truth.put_provider(&profile).await?)
        }
        Step::Online(id, online) => {
            format!("{:?}", truth.set_online(id, *online).await?.as_ref().map(state))
        }
        Step::Active(id, active) => {
            format!("{:?}", truth.set_active(id, *active).await?.as_ref().map(state))
        }
        Step::Session(change, max) => match truth.change_session(change, *max).await? {
            SessionOutcome::Done { session, changed, touched } => {
                format!("{session:?} changed={changed} {:?}", meanings(&touched))
            }
            refused => format!("{refused:?}"),
        },
        Step::Beat(ids) => format!("{:?}", truth.beat(ids).await?),
        Step::Refresh(ids) => {
            let ids: Vec<_> = ids.iter().map(|id| (id.clone(), 0)).collect();
            format!("{:?}", meanings(&truth.refresh(&ids).await?))
        }
        Step::Flip(whom, stale_ms) => {
            let mut flips = Vec::new();
            for (id, present) in whom {
                let state = truth.read(std::slice::from_ref(id)).await?.pop();
                let epoch = state.map_or(0, |state| state.epoch) + u64::from(!present);
                flips.push(Flip { id: id.clone(), epoch, silent_ms: Some(1), decided_ago_ms: 0 });
            }
            let answers = truth.flip(&batch(number), &flips, *stale_ms).await?;
            let told = answers.iter().map(|answer| match answer {
                Flipped::Offline(receipt, state) => format!("{} {}", receipt.key, meaning(state)),
                Flipped::Left(why, state) => format!("{why} {:?}", state.as_ref().map(meaning)),
            });
            format!("{:?}", told.collect::<Vec<_>>())
        }
        Step::Settle(earlier) => {
            let receipts = truth.settle(&batch(*earlier).id).await?;
            format!("{:?}", receipts.iter().map(|receipt| &receipt.key).collect::<Vec<_>>())
        }
        Step::Restore(place) => {
            let query = ReceiptQuery { limit: 9, ..ReceiptQuery::default() };
            let receipts = truth.services().receipts(&system(), query).await?;
            let seq = receipts.get(*place).map_or(1 << 40, |receipt| receipt.id.seq);
            let (restored, state) = truth.restore(seq).await?;
            let restored = matches!(restored, Restored::Restored { .. });
            format!("restored={restored} {:?}", state.as_ref().map(meaning))
        }
    })
}

/// Everything that there is to see.
async fn look(truth: &dyn Truth) -> Vec<String> {
    let states = truth.page(None, 100).await.unwrap();
    let mut all = meanings(&states);
    for state in &states {
        let flaps = truth.log(&state.id, 1_000).await.unwrap();
        all.push(format!("{:?}", flaps.iter().map(|flap| flap.online).collect::<Vec<_>>()));
    }
    let listing = ProviderQuery { limit: 100, ..ProviderQuery::default() };
    for ListedProvider { id, display_name, is_online, last_online_ms, last_offline_ms, .. } in
        truth.list(&listing).await.unwrap()
    {
        let (on, off) = (last_online_ms.is_some(), last_offline_ms.is_some());
        all.push(format!("{id} {display_name:?} {is_online} {on} {off}"));
    }
    let settings = truth.settings().await.unwrap();
    all.push(format!("{:?}", truth.available(&settings, None, 100).await.unwrap()));
    all.push(format!("{}", truth.count_available(&settings).await.unwrap()));
    all.push(format!("{}", truth.count_online().await.unwrap()));
    let query = ReceiptQuery { after: Some(0), limit: 1_000, ..ReceiptQuery::default() };
    for receipt in truth.services().receipts(&system(), query).await.unwrap() {
        all.push(format!("{} {} {}", receipt.key, receipt.batch, receipt.restored_ms.is_some()));
    }
    all
}

async fn a_day(seed: u64) {
    let b = Bench::new().await;
    let store = Embedded::in_memory(Options::default()).unwrap();
    let embedded = store.availability(system()).unwrap();
    let chance = Chance(ManualClock::at(0));
    for _ in 0..seed {
        chance.below(1);
    }
    let mut story = Vec::new();
    for number in 0..STEPS as u64 {
        let step = chance.step(number);
        let ours = take(&b.truth, &step, number).await;
        let theirs = take(&*embedded, &step, number).await;
        let same = match (&ours, &theirs) {
            (Ok(ours), Ok(theirs)) => ours == theirs,
            (Err(ours), Err(theirs)) => ours.kind() == theirs.kind(),
            _ => false,
        };
        story.push(format!("{number}: {step:?}"));
        assert!(
            same,
            "seed {seed}:\n{}\nPostgreSQL: {ours:?}\nembedded:   {theirs:?}",
            story.join("\n")
        );
    }
    assert_eq!(look(&b.truth).await, look(&*embedded).await, "seed {seed}:\n{}", story.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_days_end_the_same() {
    for seed in 1..=6 {
        a_day(seed * 1_000).await;
    }
}
