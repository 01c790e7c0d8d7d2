//! The connection from a process to the store, with the faults that a call can meet.

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::{Error, Result};

use crate::clock::ProcessTime;
use crate::system::SimSystem;
use crate::world::SimWorld;

/// The connection of one process to the store.
#[derive(Clone)]
pub struct StoreConnection {
    /// The world that holds the store.
    pub world: Arc<SimWorld>,
    pub process: Arc<ProcessTime>,
}

/// The faults that one call meets.
#[derive(Clone, Copy, Debug, Default)]
struct CallFault {
    request_lost: bool,
    answer_lost: bool,
    request_late_ms: u64,
    answer_late_ms: u64,
    silent: bool,
}

impl StoreConnection {
    /// Sends `op` to the store. Unless the request is lost, the store carries it out even if the
    /// caller no longer waits.
    pub async fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        op: impl FnOnce(&mut SimSystem, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.process.running().await;
        let fault = self.fault(what);
        if fault.request_lost {
            return self.lost(fault).await;
        }
        let answer = self.carried_out(fault, op).await;
        if fault.answer_lost {
            return self.lost(fault).await;
        }
        tokio::time::sleep(Duration::from_millis(fault.answer_late_ms)).await;
        self.process.running().await;
        answer
    }

    async fn carried_out<T: Send + 'static>(
        &self,
        fault: CallFault,
        op: impl FnOnce(&mut SimSystem, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (world, process) = (self.world.clone(), self.process.clone());
        let carry = move || {
            let name = process.name.clone();
            world.carry_out(&process, |sim| op(sim, &name))
        };
        if fault.request_late_ms == 0 {
            return carry();
        }
        let late = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(fault.request_late_ms)).await;
            carry()
        });
        late.await.unwrap_or_else(|_| Err(no_answer()))
    }

    async fn lost<T>(&self, fault: CallFault) -> Result<T> {
        if fault.silent {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(fault.answer_late_ms)).await;
        self.process.running().await;
        Err(no_answer())
    }

    fn fault(&self, what: &'static str) -> CallFault {
        let (faults, random) = (self.world.faults(), &self.world.random);
        let late = |odds: f64| match odds > 0.0 && random.odds(odds) {
            true => random.between(1, faults.late_max_ms.max(1)),
            false => 0,
        };
        let hits = |odds: f64| odds > 0.0 && random.odds(odds);
        let fault = CallFault {
            request_lost: self.process.is_cut() || hits(faults.request_lost),
            answer_lost: hits(faults.answer_lost),
            request_late_ms: late(faults.request_late),
            answer_late_ms: late(faults.answer_late),
            silent: hits(faults.silence),
        };
        self.note(what, fault);
        fault
    }

    fn note(&self, what: &'static str, fault: CallFault) {
        let kinds = [
            (fault.request_lost, "request lost"),
            (fault.answer_lost && !fault.request_lost, "answer lost"),
            (fault.request_late_ms > 0 && !fault.request_lost, "request late"),
            (fault.answer_late_ms > 0 && !fault.request_lost, "answer late"),
        ];
        let mut sim = self.world.sim();
        for (_, kind) in kinds.iter().filter(|(hit, _)| *hit) {
            sim.count_fault(kind);
            sim.note(&self.process.name, format_args!("{what}: {kind}"));
        }
    }
}

fn no_answer() -> Error {
    Error::Unavailable {
        store: "the simulated store".to_owned(),
        what: "no answer; it may have been carried out".to_owned(),
    }
}
