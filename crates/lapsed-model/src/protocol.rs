//! The steps that are possible in a state.

use stateright::{Model, Property};

use crate::bug::ProtocolBug;
use crate::world::{
    IncarnationNumber, ModelBatch, ModelSweeper, ModelWorld, ReclaimRequest, SweeperState,
};

/// Bounds of the state space: every order of events within them is explored.
const TIME_MAX: u8 = 4;
const INCARNATIONS_MAX: usize = 2;
const REGISTRATIONS_MAX: u8 = 2;
/// The most batches of both sweepers together.
const BATCHES_MAX: u8 = 2;
const RESTARTS_MAX: u8 = 1;

/// The protocol, correct or with one planted bug.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReclaimProtocol {
    /// What is built wrongly; `None` for the protocol as it is.
    pub bug: Option<ProtocolBug>,
}

/// One atomic step of one participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelAction {
    /// The store's clock moves on.
    Tick,
    /// The owner starts once more, under the same name.
    Start,
    /// An incarnation sends a heartbeat. One that has ended is a zombie.
    Beat { incarnation: u8 },
    /// An incarnation registers the entry.
    Register { incarnation: u8 },
    /// A sweeper reads a page of suspects.
    ReadSuspects { sweeper: u8 },
    /// A sweeper sends its suspect to be reclaimed.
    Send { sweeper: u8 },
    /// A request of that sweeper reaches the store, which carries it out or refuses it.
    Deliver { sweeper: u8, number: u8 },
    /// A request of that sweeper is lost.
    LoseRequest { sweeper: u8, number: u8 },
    /// An answer reaches the sweeper.
    Answer { sweeper: u8, number: u8 },
    /// An answer is lost.
    LoseAnswer { sweeper: u8, number: u8 },
    /// A sweeper stops waiting for its answer.
    GiveUp { sweeper: u8 },
    /// A sweeper asks for the receipts of the batch that is in doubt.
    Settle { sweeper: u8 },
    /// The store restarts: a tick passes, connections break, and what it has written stays.
    Restart,
    /// Only with a planted bug: the receipt of an earlier removal is written.
    WriteReceipt,
}

impl ReclaimProtocol {
    fn sweeper_actions(world: &ModelWorld, actions: &mut Vec<ModelAction>) {
        let sent: u8 = world.sweepers.iter().map(|sweeper| sweeper.batches).sum();
        for (sweeper, of) in (0..).zip(&world.sweepers) {
            let next = match of.state {
                SweeperState::Idle if sent < BATCHES_MAX => ModelAction::ReadSuspects { sweeper },
                SweeperState::Idle => continue,
                SweeperState::Suspects(_) => ModelAction::Send { sweeper },
                SweeperState::Waits(_) => ModelAction::GiveUp { sweeper },
                SweeperState::InDoubt(_) => ModelAction::Settle { sweeper },
            };
            actions.push(next);
        }
    }

    fn network_actions(world: &ModelWorld, actions: &mut Vec<ModelAction>) {
        for ReclaimRequest { batch: ModelBatch { sweeper, number }, .. } in &world.requests {
            let (sweeper, number) = (*sweeper, *number);
            actions.push(ModelAction::Deliver { sweeper, number });
            actions.push(ModelAction::LoseRequest { sweeper, number });
        }
        for (ModelBatch { sweeper, number }, _) in &world.answers {
            let (sweeper, number) = (*sweeper, *number);
            actions.push(ModelAction::Answer { sweeper, number });
            actions.push(ModelAction::LoseAnswer { sweeper, number });
        }
    }

    fn owner_actions(world: &ModelWorld, actions: &mut Vec<ModelAction>) {
        if world.store.incarnations.len() < INCARNATIONS_MAX {
            actions.push(ModelAction::Start);
        }
        for incarnation in 1..=world.store.incarnations.len() as IncarnationNumber {
            actions.push(ModelAction::Beat { incarnation });
            if world.registrations < REGISTRATIONS_MAX {
                actions.push(ModelAction::Register { incarnation });
            }
        }
    }

    fn deliver(self, world: &mut ModelWorld, batch: ModelBatch) {
        let Some(request) = take_request(world, batch) else { return };
        let reclaimed = world.reclaim(&request, self.bug);
        world.answers.insert((batch, reclaimed));
    }

    fn answer(self, world: &mut ModelWorld, batch: ModelBatch) {
        let Some(answer) = world.answers.iter().find(|(of, _)| *of == batch).copied() else {
            return;
        };
        world.answers.remove(&answer);
        let late = self.bug == Some(ProtocolBug::LateAnswerCounted);
        let sweeper = &mut world.sweepers[usize::from(batch.sweeper)];
        let waits = sweeper.state == SweeperState::Waits(batch);
        if waits {
            sweeper.state = SweeperState::Idle;
        }
        if (waits || late) && answer.1 {
            sweeper.counted += 1;
        }
    }

    /// Finds the receipts of a batch. If there are none, the store refuses the batch from now on, in the same step.
    fn settle(self, world: &mut ModelWorld, batch: ModelBatch) {
        let found = world.store.receipts.contains(&batch);
        if !found && self.bug != Some(ProtocolBug::LateRequestCarriedOut) {
            world.store.settled.insert(batch);
        }
        let sweeper = &mut world.sweepers[usize::from(batch.sweeper)];
        sweeper.counted += u8::from(found);
        sweeper.state = SweeperState::Idle;
        world.observed.doubt_settled |= found;
    }

    fn sweep(self, world: &mut ModelWorld, number: u8) {
        let suspect = world.suspect(self.bug);
        let sweeper = &mut world.sweepers[usize::from(number)];
        match sweeper.state {
            SweeperState::Idle => {
                sweeper.state = suspect.map_or(SweeperState::Idle, SweeperState::Suspects);
            }
            SweeperState::Suspects(suspected) => {
                let batch = next_batch(sweeper, number);
                sweeper.state = SweeperState::Waits(batch);
                world.requests.insert(ReclaimRequest { batch, suspected });
            }
            SweeperState::Waits(batch) => sweeper.state = SweeperState::InDoubt(batch),
            SweeperState::InDoubt(batch) => self.settle(world, batch),
        }
    }
}

fn next_batch(sweeper: &mut ModelSweeper, number: u8) -> ModelBatch {
    sweeper.batches += 1;
    ModelBatch { sweeper: number, number: sweeper.batches }
}

fn take_request(world: &mut ModelWorld, batch: ModelBatch) -> Option<ReclaimRequest> {
    let request = world.requests.iter().find(|request| request.batch == batch).copied()?;
    world.requests.remove(&request);
    Some(request)
}

fn restart(world: &mut ModelWorld) {
    world.store.now += 1;
    world.store.back = world.store.now;
    world.restarts += 1;
    world.requests.clear();
    world.answers.clear();
    // A removal without its receipt stays so: the store does not know of it any more.
    world.store.unwritten.clear();
}

impl Model for ReclaimProtocol {
    type State = ModelWorld;
    type Action = ModelAction;

    fn init_states(&self) -> Vec<ModelWorld> {
        let mut world = ModelWorld::default();
        world.start();
        world.register(1, None);
        vec![world]
    }

    fn actions(&self, world: &ModelWorld, actions: &mut Vec<ModelAction>) {
        if world.store.now < TIME_MAX {
            actions.push(ModelAction::Tick);
            if world.restarts < RESTARTS_MAX {
                actions.push(ModelAction::Restart);
            }
        }
        Self::owner_actions(world, actions);
        Self::sweeper_actions(world, actions);
        Self::network_actions(world, actions);
        if !world.store.unwritten.is_empty() {
            actions.push(ModelAction::WriteReceipt);
        }
    }

    fn next_state(&self, last: &ModelWorld, action: ModelAction) -> Option<ModelWorld> {
        let mut world = last.clone();
        match action {
            ModelAction::Tick => world.store.now += 1,
            ModelAction::Restart => restart(&mut world),
            ModelAction::Start => world.start(),
            ModelAction::Beat { incarnation } => world.beat(incarnation, self.bug),
            ModelAction::Register { incarnation } => world.register(incarnation, self.bug),
            ModelAction::ReadSuspects { sweeper }
            | ModelAction::Send { sweeper }
            | ModelAction::GiveUp { sweeper }
            | ModelAction::Settle { sweeper } => self.sweep(&mut world, sweeper),
            ModelAction::Deliver { sweeper, number } => {
                self.deliver(&mut world, ModelBatch { sweeper, number });
            }
            ModelAction::LoseRequest { sweeper, number } => {
                take_request(&mut world, ModelBatch { sweeper, number });
            }
            ModelAction::Answer { sweeper, number } => {
                self.answer(&mut world, ModelBatch { sweeper, number });
            }
            ModelAction::LoseAnswer { sweeper, number } => {
                world.answers.retain(|(of, _)| *of != ModelBatch { sweeper, number });
            }
            ModelAction::WriteReceipt => {
                let batch = world.store.unwritten.remove(0);
                world.store.receipts.push(batch);
            }
        }
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("P1 the living are never reclaimed", |_, world: &ModelWorld| {
                !world.observed.living_reclaimed
            }),
            Property::always("P3 every reclaim has one receipt", |_, world: &ModelWorld| {
                world.store.receipts.len() == usize::from(world.observed.removals)
            }),
            Property::always("P3 every receipt is counted once", |_, world: &ModelWorld| {
                let counted = world.counted();
                let written = world.store.receipts.len();
                counted <= written && (!world.is_settled() || counted == written)
            }),
            Property::always("P5 a zombie changes nothing", |_, world: &ModelWorld| {
                !world.observed.zombie_accepted
            }),
            Property::sometimes("an entry is reclaimed", |_, world: &ModelWorld| {
                world.observed.removals > 0
            }),
            Property::sometimes(
                "an entry is reclaimed twice, registered again in between",
                |_, world: &ModelWorld| world.observed.removals > 1,
            ),
            Property::sometimes("a zombie is refused", |_, world: &ModelWorld| {
                world.observed.zombie_refused
            }),
            Property::sometimes(
                "a batch in doubt is settled by its receipt",
                |_, world: &ModelWorld| world.observed.doubt_settled,
            ),
        ]
    }
}
