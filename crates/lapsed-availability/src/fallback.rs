//! Beats while the mirror does not take them: they go to the truth, those of many callers in one
//! statement. Whoever comes while one is under way waits for it and is in the next.

use std::sync::Mutex;

use tokio::sync::oneshot;

use crate::operations::LOCK;
use crate::{PAGE_MAX, ProviderBeat, Truth};
use lapsed_core::error::{Error, Result};
use lapsed_core::name::Name;

type Waiting = (Vec<Name>, oneshot::Sender<Result<Vec<ProviderBeat>>>);

/// The beats that wait.
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
                // Whoever was sending it went away: it may have been noted. Repeating is safe.
                Err(oneshot::error::TryRecvError::Closed) => {
                    return truth.beat(ids).await.and_then(|beats| all_of(ids, beats));
                }
                Err(oneshot::error::TryRecvError::Empty) => self.send(truth).await,
            }
        }
    }

    /// Sends those that wait, up to a page of them.
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
        // Whoever went away meanwhile beats again, or does not: sent only now, its beat would be younger
        // than it is.
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

/// One answer a beat.
fn all_of(ids: &[Name], beats: Vec<ProviderBeat>) -> Result<Vec<ProviderBeat>> {
    match beats.len() == ids.len() {
        true => Ok(beats),
        false => Err(Error::Unavailable {
            store: "the truth".to_owned(),
            what: "it answered fewer beats than it was given".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_went_away_is_not_sent_later() {
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
