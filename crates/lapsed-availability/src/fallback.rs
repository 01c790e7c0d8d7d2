//! Heartbeats while the mirror does not accept them: they go to the truth, those of many callers in
//! one statement. A heartbeat that arrives while a statement is under way is part of the next one.

use std::sync::Mutex;

use tokio::sync::oneshot;

use crate::LOCK;
use crate::{PAGE_MAX, ProviderBeat, Truth};
use lapsed_core::error::{Error, Result};
use lapsed_core::name::Name;

type Waiting = (Vec<Name>, oneshot::Sender<Result<Vec<ProviderBeat>>>);

/// Heartbeats that wait for the next statement.
#[derive(Default)]
pub(crate) struct Beats {
    waiting: Mutex<Vec<Waiting>>,
    turn: tokio::sync::Mutex<()>,
}

impl Beats {
    pub async fn beat(&self, truth: &dyn Truth, ids: &[Name]) -> Result<Vec<ProviderBeat>> {
        let (sender, mut answer) = oneshot::channel();
        self.waiting.lock().expect(LOCK).push((ids.to_vec(), sender));
        let _turn = self.turn.lock().await;
        loop {
            match answer.try_recv() {
                Ok(answer) => return answer,
                // The caller that was sending it went away, so it may have been recorded. Repeating
                // it is safe.
                Err(oneshot::error::TryRecvError::Closed) => {
                    return truth.beat(ids).await.and_then(|beats| all_of(ids, beats));
                }
                Err(oneshot::error::TryRecvError::Empty) => self.send(truth).await,
            }
        }
    }

    /// Sends the waiting heartbeats, up to one page.
    async fn send(&self, truth: &dyn Truth) {
        let round = self.take();
        let ids: Vec<Name> = round.iter().flat_map(|(ids, _)| ids.iter().cloned()).collect();
        let answer = truth.beat(&ids).await;
        let mut beats = answer.as_ref().map(|beats| beats.iter().copied()).ok();
        for (ids, sender) in round {
            let share = match (&mut beats, &answer) {
                (Some(beats), _) => all_of(&ids, beats.take(ids.len()).collect()),
                (None, Err(error)) => Err(error.clone()),
                (None, Ok(_)) => all_of(&ids, Vec::new()),
            };
            let _ = sender.send(share);
        }
    }

    fn take(&self) -> Vec<Waiting> {
        let mut waiting = self.waiting.lock().expect(LOCK);
        // A caller that went away sends its next heartbeat itself; sent now, its old one would look
        // newer than it is.
        waiting.retain(|(_, sender)| !sender.is_closed());
        let mut total = 0;
        let fits = |(ids, _): &&Waiting| {
            let first = total == 0;
            total += ids.len();
            first || total <= PAGE_MAX
        };
        let count = waiting.iter().take_while(fits).count();
        waiting.drain(..count).collect()
    }
}

/// Checks that there is one answer per heartbeat.
fn all_of(ids: &[Name], beats: Vec<ProviderBeat>) -> Result<Vec<ProviderBeat>> {
    match beats.len() == ids.len() {
        true => Ok(beats),
        false => Err(Error::Unavailable {
            store: "the truth".to_owned(),
            what: "it returned fewer answers than it got heartbeats".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeats_of_callers_that_left_are_not_sent() {
        let beats = Beats::default();
        let mut waits = Vec::new();
        for id in ["gone", "here", "lost"] {
            let (sender, answer) = oneshot::channel();
            beats.waiting.lock().unwrap().push((vec![Name::new(id).unwrap()], sender));
            waits.extend((id == "here").then_some(answer));
        }
        let round: Vec<Name> = beats.take().into_iter().flat_map(|(ids, _)| ids).collect();
        assert_eq!(round, [Name::new("here").unwrap()]);
        assert!(beats.take().is_empty());
    }
}
