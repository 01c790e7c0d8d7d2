//! The way of a call from a process to the store and back, and what can happen on it.

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::{Error, Result};

use crate::clock::ProcessTime;
use crate::ground::SimSystem;
use crate::world::SimWorld;

/// The wire of one process.
#[derive(Clone)]
pub struct Wire {
    /// What it leads to.
    pub world: Arc<SimWorld>,
    pub process: Arc<ProcessTime>,
}

/// What happens to one call.
#[derive(Clone, Copy, Debug, Default)]
struct Fate {
    request_lost: bool,
    answer_lost: bool,
    request_late_ms: u64,
    answer_late_ms: u64,
    silent: bool,
}

impl Wire {
    /// Sends `op` to the store. It is carried out there even if the caller no longer waits, unless
    /// it is lost on the way.
    pub async fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        op: impl FnOnce(&mut SimSystem, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.process.running().await;
        let fate = self.fate(what);
        if fate.request_lost {
            return self.lost(fate).await;
        }
        let answer = self.carried_out(fate, op).await;
        if fate.answer_lost {
            return self.lost(fate).await;
        }
        tokio::time::sleep(Duration::from_millis(fate.answer_late_ms)).await;
        self.process.running().await;
        answer
    }

    async fn carried_out<T: Send + 'static>(
        &self,
        fate: Fate,
        op: impl FnOnce(&mut SimSystem, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (world, process) = (self.world.clone(), self.process.clone());
        let carry = move || {
            let name = process.name.clone();
            world.carry_out(&process, |ground| op(ground, &name))
        };
        if fate.request_late_ms == 0 {
            return carry();
        }
        let late = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(fate.request_late_ms)).await;
            carry()
        });
        late.await.unwrap_or_else(|_| Err(no_answer()))
    }

    async fn lost<T>(&self, fate: Fate) -> Result<T> {
        if fate.silent {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(fate.answer_late_ms)).await;
        self.process.running().await;
        Err(no_answer())
    }

    fn fate(&self, what: &'static str) -> Fate {
        let (weather, chance) = (self.world.weather(), &self.world.chance);
        let late = |odds: f64| match odds > 0.0 && chance.odds(odds) {
            true => chance.between(1, weather.late_max_ms.max(1)),
            false => 0,
        };
        let hits = |odds: f64| odds > 0.0 && chance.odds(odds);
        let fate = Fate {
            request_lost: self.process.is_cut() || hits(weather.request_lost),
            answer_lost: hits(weather.answer_lost),
            request_late_ms: late(weather.request_late),
            answer_late_ms: late(weather.answer_late),
            silent: hits(weather.silence),
        };
        self.note(what, fate);
        fate
    }

    fn note(&self, what: &'static str, fate: Fate) {
        let kinds = [
            (fate.request_lost, "request lost"),
            (fate.answer_lost && !fate.request_lost, "answer lost"),
            (fate.request_late_ms > 0 && !fate.request_lost, "request late"),
            (fate.answer_late_ms > 0 && !fate.request_lost, "answer late"),
        ];
        let mut ground = self.world.ground();
        for (_, kind) in kinds.iter().filter(|(hit, _)| *hit) {
            ground.count_fault(kind);
            ground.note(&self.process.name, format_args!("{what}: {kind}"));
        }
    }
}

fn no_answer() -> Error {
    Error::Unavailable {
        store: "the simulated store".to_owned(),
        what: "no answer; it may have been carried out".to_owned(),
    }
}
