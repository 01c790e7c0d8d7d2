//! The part of `explain` that all systems with owners share: whether an owner is alive and why, and
//! the receipt of a key that does not exist any more.

use serde_json::{Value, json};

use crate::error::Result;
use crate::name::Name;
use crate::owner::{Ending, Incarnation, OwnerInfo};
use crate::receipt::{Receipt, ReceiptQuery};
use crate::store::Store;
use crate::store_caller::StoreCaller;
use crate::sweep::brake::{Brake, HeldBy};
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
    /// What an owner of this system holds, in the singular and in the plural: `entry`, `entries`.
    pub holds: (&'static str, &'static str),
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

/// How a sentence continues after the name of an owner: empty where the application writes the keys.
pub fn of_incarnation(incarnation: Incarnation) -> String {
    match incarnation {
        Incarnation(0) => String::new(),
        incarnation => format!(", incarnation {incarnation}"),
    }
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
        let mut because = vec![self.owner_sentence(key, owner)];
        let now_ms = self.census().await?.now_ms;
        let beat = BeatState { ended: owner.ended, due_ms: owner.due_ms, ttl_ms: owner.ttl_ms };
        let verdict = self.judge(&mut because, beat, now_ms).await?;
        Ok(self.explanation(key, verdict, because, json!(owner)))
    }

    /// What an owner holds, as a sentence.
    pub fn owner_sentence(&self, key: &Name, owner: &OwnerInfo) -> String {
        let (subject, held) = (newest(owner.incarnation), owner.held);
        let (one, many) = self.holds;
        let noun = if held == 1 { one } else { many };
        format!("`{key}` is an owner; {subject} holds {held} {noun}")
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
                self.holds.1
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
                because.extend(self.longer_hold(due_ms, now_ms).await?);
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
        let late = seconds(now_ms - due_ms);
        // In adopt mode no deadline is stored: all that is known is that there is no heartbeat.
        because.push(if now_ms == due_ms {
            "it has no heartbeat now".to_owned()
        } else if self.silent_since_return(due_ms, ttl_ms).await?.is_some() {
            format!(
                "it has sent no heartbeat since the store came back; the whole TTL that it had for \
                 one ended {late:.1} s ago on the store's clock"
            )
        } else {
            format!("its heartbeat ran out {late:.1} s ago on the store's clock")
        });
        self.overdue(because, now_ms).await
    }

    /// What becomes of an owner whose time is over: a pass declares it dead, or the brake spares it.
    pub async fn overdue(&self, because: &mut Vec<String>, now_ms: u64) -> Result<&'static str> {
        let census = self.census().await?;
        let verdict = self.brake.preview(&census);
        if verdict.undeclared_max().is_none() {
            because.push(
                "the next pass that runs declares it dead, unless a heartbeat arrives first"
                    .to_owned(),
            );
            return Ok("overdue");
        }
        because.push(format!("the brake is {}", self.brake.describe(&verdict, now_ms)));
        if verdict.held_by() == Some(HeldBy::MassDeath) && !self.brake.has_begun_hold(&census) {
            because
                .push("no pass has seen this yet; that time begins with the next pass".to_owned());
        }
        Ok("spared")
    }

    /// What the brake says if it holds for longer than an owner is spared until `due_ms`.
    async fn longer_hold(&self, due_ms: u64, now_ms: u64) -> Result<Option<String>> {
        let verdict = self.brake.preview(&self.census().await?);
        let longer = verdict.held_until_ms().is_some_and(|until_ms| until_ms > due_ms);
        Ok(longer.then(|| {
            format!("then the brake spares it: {}", self.brake.describe(&verdict, now_ms))
        }))
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
