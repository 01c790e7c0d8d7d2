//! Listeners, a tail and a store at the same time: no listener misses a receipt or is sent one
//! twice, however small the ring is.

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::clock::SystemClock;
use lapsed_core::owner::Claim;
use lapsed_core::receipt::NoObserver;
use lapsed_core::registry::{Registry, TakePolicy};
use lapsed_core::schedule::{StopHandle, StopSignal};
use lapsed_core::{Kind, Name};

use super::*;
use crate::config::Overrides;
use crate::node::Config;
use crate::node::OpenSystems;

const SYSTEMS: [&str; 2] = ["a", "b"];
const LISTENERS: usize = 8;
const ROUNDS: usize = 30;

/// Two registries on a real store, and a feed of both.
struct Stage {
    _dir: tempfile::TempDir,
    node: OpenSystems,
    feeds: Feeds,
    slots: Arc<ListenerSlots>,
    _stopper: StopHandle,
}

impl Stage {
    fn open(room: usize) -> Stage {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lapsed.toml");
        let data = dir.path().join("data");
        let mut text = format!("[store.main]\nurl = \"embedded:{}\"\n", data.display());
        for name in SYSTEMS {
            text += &format!("[[system]]\nkind = \"registry\"\nname = \"{name}\"\n");
        }
        std::fs::write(&file, text).unwrap();
        let config = Config::load(Some(&file), &Overrides::default(), &|_| None).unwrap();
        let node = OpenSystems::open(&config, SystemClock::shared(), Arc::new(NoObserver)).unwrap();
        let (stopper, stop) = StopSignal::channel();
        let mut feeds = Feeds::new(node.journal().clone(), stop);
        feeds.room = room;
        let slots = ListenerSlots::new(LISTENERS, Default::default());
        Stage { _dir: dir, node, feeds, slots, _stopper: stopper }
    }

    async fn listen(&self, cursor: Option<&str>) -> EventListener {
        let systems = self.node.systems().to_vec();
        let cursor = cursor.map(|text| ReceiptCursor::parse(text, &systems).unwrap());
        let slot = self.slots.take().unwrap();
        self.feeds.listen(systems, cursor, slot, CutFlag::default()).await.unwrap()
    }

    /// Creates `count` receipts by reclaiming entries of `owner`.
    async fn reclaim(&self, system: &str, owner: &str, count: usize) {
        let live = self.node.find(Kind::Registry, system).unwrap();
        let registry = live.operations::<Registry>().unwrap();
        let owner = Name::new(owner).unwrap();
        registry.start(&owner, None).await.unwrap();
        let keys: Vec<Name> =
            (0..count).map(|n| Name::new(&format!("{owner}-{n}")).unwrap()).collect();
        let claim = Claim::newest(owner);
        registry.register_many(&claim, &keys, TakePolicy::Always).await.unwrap();
        registry.retire(&claim).await.unwrap();
    }
}

/// What a listener has received: by its ids, each event is one further than the one before, in one
/// system.
#[derive(Default)]
struct Heard {
    cursor: Option<String>,
    places: [u64; 2],
}

impl Heard {
    /// Reads the first `most` events of the bytes that were sent.
    fn take(&mut self, bytes: &[u8], most: usize) {
        let text = std::str::from_utf8(bytes).unwrap();
        for event in
            text.split("\n\n").filter(|event| event.starts_with("event: receipt")).take(most)
        {
            let id = event.lines().find_map(|line| line.strip_prefix("id: ")).unwrap();
            let data = event.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
            let places: Vec<u64> = id
                .split(',')
                .map(|place| place.rsplit(':').next().unwrap().parse().unwrap())
                .collect();
            let moved: Vec<usize> = (0..2).filter(|i| places[*i] != self.places[*i]).collect();
            let [system] = moved[..] else { panic!("{:?} to {id}", self.places) };
            assert_eq!(places[system], self.places[system] + 1, "{:?} to {id}", self.places);
            let receipt: serde_json::Value = serde_json::from_str(data).unwrap();
            let wanted = format!("registry-{}-{}", SYSTEMS[system], places[system]);
            assert_eq!(receipt["id"], wanted, "the id goes with its receipt");
            self.places[system] = places[system];
            self.cursor = Some(id.to_owned());
        }
    }
}

/// Listens until all receipts have arrived; sometimes loses its stream in the middle of a page.
async fn follow(stage: &Stage, number: usize, totals: [u64; 2]) {
    let mut heard = Heard::default();
    let mut listener = stage.listen(Some("registry/a:0,registry/b:0")).await;
    let mut turn = number;
    while heard.places != totals {
        let bytes = listener.next().await.expect("the feed was not stopped");
        turn += 1;
        if !turn.is_multiple_of(7) {
            heard.take(&bytes, usize::MAX);
        } else {
            heard.take(&bytes, turn % 11);
            drop(listener);
            let from = heard.cursor.clone().unwrap_or("registry/a:0,registry/b:0".to_owned());
            listener = stage.listen(Some(&from)).await;
        }
        // Every second listener is slow.
        if number.is_multiple_of(2) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn no_listener_misses_a_receipt(room: usize) {
    let stage = Arc::new(Stage::open(room));
    let count = |round: usize| 1 + round * 13 % 97;
    let mut totals = [0, 0];
    (0..ROUNDS).for_each(|round| totals[round % 2] += count(round) as u64);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..LISTENERS {
        let stage = stage.clone();
        tasks.spawn(async move { follow(&stage, number, totals).await });
    }
    for round in 0..ROUNDS {
        stage.reclaim(SYSTEMS[round % 2], &format!("owner-{round}"), count(round)).await;
    }
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap()
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("all hear everything");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_listener_misses_a_receipt_with_a_ring_of_one_page() {
    no_listener_misses_a_receipt(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_listener_misses_a_receipt_with_a_small_ring() {
    no_listener_misses_a_receipt(20_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_listener_misses_a_receipt_with_the_usual_ring() {
    no_listener_misses_a_receipt(ROOM).await;
}

/// Listeners that keep up are sent the same buffer, not a copy each.
#[tokio::test]
async fn those_who_keep_up_share_their_bytes() {
    let stage = Stage::open(ROOM);
    let (mut one, mut other) = (stage.listen(None).await, stage.listen(None).await);
    stage.reclaim("a", "owner", 3).await;
    let (one, other) = (one.next().await.unwrap(), other.next().await.unwrap());
    assert_eq!(one.as_ptr(), other.as_ptr());
    assert_eq!(one.len(), other.len());
}

/// A cursor beyond the newest receipt is not an error: receipts up to it are skipped, later ones
/// are sent.
#[tokio::test]
async fn a_cursor_ahead_of_the_feed_waits_for_its_turn() {
    let stage = Stage::open(ROOM);
    let mut ahead = stage.listen(Some("registry/a:2,registry/b:0")).await;
    stage.reclaim("b", "first", 1).await;
    stage.reclaim("a", "second", 3).await;
    let mut heard = Heard { cursor: None, places: [2, 0] };
    while heard.places != [3, 1] {
        heard.take(&ahead.next().await.unwrap(), usize::MAX);
    }
}

#[tokio::test]
async fn dropped_listeners_free_their_slots() {
    let stage = Stage::open(ROOM);
    let mut all = Vec::new();
    for _ in 0..LISTENERS {
        all.push(stage.listen(None).await);
    }
    assert!(stage.slots.take().is_none());
    all.pop();
    assert!(stage.slots.take().is_some());
}
