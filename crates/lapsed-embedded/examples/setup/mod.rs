//! What the examples stand on: a store in memory and a clock that is moved by hand, so that a minute and a
//! half pass at once. A service opens `Embedded::open(folder, Options::default())` and takes
//! `SystemClock::shared()`; the rest is the same.

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::clock::{Clock, ManualClock};
use lapsed_core::schedule::StopSignal;
use lapsed_core::store::Store;
use lapsed_core::sweep::brake::{Brake, BrakePolicy};
use lapsed_core::sweep::{PassMode, PassReport, Sweeper, SweeperParts};
use lapsed_core::system::System;
use lapsed_embedded::{Embedded, Options};

/// A store, and its time.
pub struct ExampleSetup {
    pub store: Embedded,
    time: ManualClock,
}

impl ExampleSetup {
    pub fn new() -> lapsed_core::Result<ExampleSetup> {
        let time = ManualClock::at(1_700_000_000_000);
        let options = Options { clock: Arc::new(time.clone()), ..Options::default() };
        Ok(ExampleSetup { store: Embedded::in_memory(options)?, time })
    }

    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.time.clone())
    }

    /// Holds back when too many would be dead at once.
    pub fn brake(&self, threshold: Duration) -> Arc<Brake> {
        Arc::new(Brake::new(BrakePolicy::default(), threshold))
    }

    pub fn wait(&self, seconds: u64) {
        self.time.advance(Duration::from_secs(seconds));
        println!("... {seconds} s later");
    }

    /// One pass over a system whose receipts are in `store`. A service has `lapsed_core::schedule::run` make them.
    pub async fn sweep(&self, system: &dyn System, store: Arc<dyn Store>) -> PassReport {
        let sweep = system.sweep();
        let sweeper = Sweeper::new(
            SweeperParts::new("example".to_owned(), sweep.clone(), store)
                .brake(self.brake(sweep.threshold()))
                .clock(self.clock()),
        );
        let (_stopper, stop) = StopSignal::channel();
        sweeper.pass(PassMode::Reclaim, 100, &stop).await
    }
}
