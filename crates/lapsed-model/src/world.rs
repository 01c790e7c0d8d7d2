//! The state that the checker explores: store, network, sweepers, and what an outside observer has seen.

use std::collections::BTreeSet;

/// How long one heartbeat lasts, in ticks of the store's clock.
pub(crate) const TTL: u8 = 2;

/// The number of an incarnation. The first one is 1.
pub(crate) type IncarnationNumber = u8;

/// A batch is known by its sweeper and that sweeper's own count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ModelBatch {
    pub sweeper: u8,
    pub number: u8,
}

/// A request to reclaim the entry, sent and not yet carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ReclaimRequest {
    pub batch: ModelBatch,
    pub suspected: IncarnationNumber,
}

/// One incarnation as the store knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IncarnationRow {
    pub started: u8,
    pub deadline: u8,
    pub ended: bool,
}

/// The durable state of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct StoreState {
    pub now: u8,
    /// Since when the store has been serving without a gap.
    pub back: u8,
    pub incarnations: Vec<IncarnationRow>,
    /// The incarnation that holds the entry.
    pub holder: Option<IncarnationNumber>,
    /// The batches that have a receipt.
    pub receipts: Vec<ModelBatch>,
    /// Batches that were settled without a receipt: their requests are refused from then on.
    pub settled: BTreeSet<ModelBatch>,
    /// Only with a planted bug: batches whose removal is done and whose receipt is still to be written.
    pub unwritten: Vec<ModelBatch>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum SweeperState {
    #[default]
    Idle,
    /// It has read a page of suspects, and that page grows old.
    Suspects(IncarnationNumber),
    /// It has sent a request and waits for the answer.
    Waits(ModelBatch),
    /// It has stopped waiting. The request may or may not have been carried out.
    InDoubt(ModelBatch),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ModelSweeper {
    pub state: SweeperState,
    pub batches: u8,
    /// How many reclaims this sweeper has counted.
    pub counted: u8,
}

/// What an observer outside of the store has seen. No step of the protocol reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Observed {
    /// How often the entry was removed by a reclaim.
    pub removals: u8,
    /// Whether an entry was taken from an incarnation that was alive, or that had no time to beat after a restart.
    pub living_reclaimed: bool,
    /// Whether a call of an ended incarnation was accepted.
    pub zombie_accepted: bool,
    /// Whether a call of an ended incarnation was refused.
    pub zombie_refused: bool,
    /// Whether a sweeper found the receipt of a batch whose answer it had not received.
    pub doubt_settled: bool,
}

/// One state of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ModelWorld {
    pub(crate) store: StoreState,
    pub(crate) requests: BTreeSet<ReclaimRequest>,
    /// Answers on their way; each says whether the batch reclaimed the entry.
    pub(crate) answers: BTreeSet<(ModelBatch, bool)>,
    pub(crate) sweepers: [ModelSweeper; 2],
    pub(crate) registrations: u8,
    pub(crate) restarts: u8,
    pub(crate) observed: Observed,
}

impl ModelWorld {
    /// Whether every sweeper has an answer for everything that it sent.
    pub(crate) fn is_settled(&self) -> bool {
        self.sweepers
            .iter()
            .all(|sweeper| matches!(sweeper.state, SweeperState::Idle | SweeperState::Suspects(_)))
    }

    pub(crate) fn counted(&self) -> usize {
        self.sweepers.iter().map(|sweeper| usize::from(sweeper.counted)).sum()
    }
}
