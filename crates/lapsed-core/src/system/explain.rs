//! The part of `explain` that all systems with owners share: whether an owner is alive and why, and
//! the receipt of a key that does not exist any more.

use serde_json::{Value, json};

use crate::error::Result;
use crate::name::Name;
use crate::owner::{Ending, Incarnation, OwnerInfo};
use crate::receipt::{Receipt, ReceiptQuery};
use crate::store::Store;
use crate::store_caller::StoreCaller;
use crate::sweep::brake::Brake;
use crate::sweep::{Batch, BatchId, Census, Outcome, PassMode, Refusal, Suspect, Sweep};
use crate::system::Explanation;

/// How many of the newest receipts are searched for a key that does not exist.
pub const RECEIPTS_SEARCHED: usize = 10_000;

/// Builds the explanations of one system.
pub struct Explainer<'a> {
    pub calls: &'a StoreCaller,
    pub sweep: &'a dyn Sweep,
    pub store: &'a dyn Store,
    pub brake: &'a Brake,
    /// Plural noun for what an owner of this system holds: `entries`, `references`.
    pub holds: &'static str,
}

/// What is known of the heartbeat of one incarnation.
#[derive(Clone, Copy, Debug)]
pub struct BeatState {
    /// How and when it ended, if it did.
    pub ended: Option<(Ending, u64)>,
    /// When its heartbeat runs out, including the store-away grace.
    pub due_ms: u64,
    /// How long one heartbeat lasts, in milliseconds; 0 if that is not known.
    pub ttl_ms: u64,
}

/// How a sentence refers to an owner. An application that writes its own keys has no incarnations.
fn newest(incarnation: Incarnation) -> String {
    match incarnation {
        Incarnation(0) => "it".to_owned(),
        incarnation => format!("its newest incarnation {incarnation}"),
    }
}

impl Explainer<'_> {
    pub async fn census(&self) -> Result<Census> {
        self.calls.quiet("census", self.sweep.census()).await
    }

    /// Explains why an owner is, or is not, dead.
    pub async fn owner(&self, key: &Name, owner: &OwnerInfo) -> Result<Explanation> {
        let mut because = vec![format!(
            "`{key}` is an owner; {} holds {} {}",
            newest(owner.incarnation),
            owner.held,
            self.holds
        )];
        let now_ms = self.census().await?.now_ms;
        let beat = BeatState { ended: owner.ended, due_ms: owner.due_ms, ttl_ms: owner.ttl_ms };
        let verdict = self.judge(&mut because, beat, now_ms).await?;
        Ok(self.explanation(key, verdict, because, json!(owner)))
    }

    /// Adds sentences about an incarnation's state to `because` and returns the verdict in one
    /// word.
    pub async fn judge(
        &self,
        because: &mut Vec<String>,
        beat: BeatState,
        now_ms: u64,
    ) -> Result<&'static str> {
        let BeatState { ended, due_ms, ttl_ms } = beat;
        if let Some((ending, at_ms)) = ended {
            let ago = seconds(now_ms.saturating_sub(at_ms));
            let (word, how) = match ending {
                Ending::Dead => ("dead", "was declared dead"),
                Ending::Retired => ("retired", "retired"),
            };
            because.push(format!(
                "that incarnation {how} {ago:.1} s ago; its {} are invalid and the next \
                 pass removes what is left of them",
                self.holds
            ));
            return Ok(word);
        }
        if now_ms < due_ms {
            let left = seconds(due_ms - now_ms);
            if let Some(back_ms) = self.silent_since_return(due_ms, ttl_ms).await? {
                let ago = seconds(now_ms.saturating_sub(back_ms));
                because.push(format!(
                    "it has sent no heartbeat since the store came back {ago:.1} s ago; it is \
                     spared for another {left:.1} s on the store's clock, because after an absence \
                     of the store every owner has a whole TTL to send one"
                ));
                return Ok("spared");
            }
            because.push(match due_ms {
                u64::MAX => {
                    "its heartbeat never expires (its key has no TTL), so it counts as alive \
                             until that key is deleted"
                        .to_owned()
                }
                _ => format!("its heartbeat is valid for another {left:.1} s on the store's clock"),
            });
            return Ok("live");
        }
        // In adopt mode no deadline is stored: all that is known is that there is no heartbeat.
        because.push(match now_ms - due_ms {
            0 => "it has no heartbeat now".to_owned(),
            late_ms => {
                format!("its heartbeat ran out {:.1} s ago on the store's clock", seconds(late_ms))
            }
        });
        let verdict = self.brake.preview(&self.census().await?);
        if verdict.undeclared_max().is_none() {
            because.push(
                "the next pass that runs declares it dead, unless a heartbeat arrives first"
                    .to_owned(),
            );
            return Ok("overdue");
        }
        because.push(format!("the brake is {}", self.brake.describe(&verdict, now_ms)));
        Ok("spared")
    }

    /// When the store came back from an absence, if nothing but that is why an owner is not due
    /// before `due_ms`: a heartbeat after the return would have given it more than one TTL from then.
    async fn silent_since_return(&self, due_ms: u64, ttl_ms: u64) -> Result<Option<u64>> {
        let counted_ms = self.census().await?.back_ms;
        let back_ms = match counted_ms {
            // The census leaves it out where nobody was alive before the absence.
            0 => self.calls.quiet("info", self.store.info()).await?.back_ms,
            back_ms => back_ms,
        };
        Ok((back_ms > 0 && ttl_ms > 0 && due_ms == back_ms + ttl_ms).then_some(back_ms))
    }

    /// Whether a pass would reclaim `suspect`: evaluates the guard in a dry run. `None`: it would.
    pub async fn refusal(&self, suspect: Suspect) -> Result<Option<Refusal>> {
        let id = BatchId { sweeper: "explain".into(), number: 0 };
        let batch = Batch { id, suspects: vec![suspect], act: PassMode::DryRun, term: None };
        let answer = self.calls.quiet("reclaim", self.sweep.reclaim(batch)).await?;
        Ok(match answer.outcomes.first() {
            Some(Outcome::Refused(refusal)) => Some(*refusal),
            _ => None,
        })
    }

    /// Why passes do not reclaim something that is over although its owner is dead and the brake is
    /// open. Adds a sentence to `because` and returns the verdict.
    pub fn obstacle(
        &self,
        because: &mut Vec<String>,
        refusal: Option<Refusal>,
    ) -> Option<&'static str> {
        let refusal = refusal?;
        let words = match refusal {
            Refusal::Unreadable => {
                "but passes leave it as it is: what is stored of it cannot be read, and has to be \
                 mended or removed by hand"
            }
            Refusal::NotTaken => {
                "but passes leave it where it is: what it would go to does not take it (another \
                 type, or no permission); each pass tries again"
            }
            Refusal::Busy => "but the application's own collector is at work; passes wait for it",
            Refusal::Moved => "but another owner holds it by now",
            _ => return None,
        };
        because.push(words.to_owned());
        Some(refusal.as_str())
    }

    /// The newest receipt for `key`, if it is among the last [`RECEIPTS_SEARCHED`].
    pub async fn last_receipt(&self, key: &Name) -> Result<Option<Receipt>> {
        let query = ReceiptQuery { limit: RECEIPTS_SEARCHED, ..ReceiptQuery::default() };
        let receipts = self.store.receipts(&self.calls.id, query);
        let receipts = self.calls.quiet("receipts", receipts).await?;
        Ok(receipts.into_iter().find(|r| r.key == *key))
    }

    pub fn explanation(
        &self,
        key: &Name,
        verdict: &str,
        because: Vec<String>,
        facts: Value,
    ) -> Explanation {
        Explanation {
            system: self.calls.id.name.to_string(),
            kind: self.calls.id.kind.to_string(),
            key: key.to_string(),
            verdict: verdict.to_owned(),
            because,
            facts,
        }
    }
}

pub fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}
