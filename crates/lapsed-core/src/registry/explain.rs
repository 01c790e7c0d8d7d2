//! Explains why a key is, or is not, dead.

use serde_json::json;

use crate::error::Result;
use crate::name::Name;
use crate::owner::{Claim, OwnerInfo};
use crate::receipt::Receipt;
use crate::registry::{AdoptedOwnerState, FoundEntry, Registry};
use crate::system::Explanation;
use crate::system::explain::{BeatState, Explainer, RECEIPTS_SEARCHED, of_incarnation};

impl Registry {
    pub(super) async fn explain_key(&self, key: &Name) -> Result<Explanation> {
        let found = self.calls.quiet("lookup", self.parts.entries.find(std::slice::from_ref(key)));
        if let Some(found) = found.await?.into_iter().next().flatten() {
            return self.explain_found(key, &found).await;
        }
        let claim = Claim::newest(key.clone());
        if let Some(owner) = self.calls.quiet("owner", self.parts.entries.owner(&claim)).await? {
            return self.explain_owner(key, &owner).await;
        }
        let receipt = self.words().last_receipt(key).await?;
        let (verdict, because) = match &receipt {
            Some(receipt) => ("reclaimed", vec![reclaimed(receipt)]),
            None => (
                "unknown",
                vec![format!(
                    "nothing is registered under `{key}`, no owner has that name, and none of \
                     the last {RECEIPTS_SEARCHED} receipts is for it"
                )],
            ),
        };
        Ok(self.words().explanation(key, verdict, because, json!({ "receipt": receipt })))
    }

    async fn explain_found(&self, key: &Name, found: &FoundEntry) -> Result<Explanation> {
        let holder = &found.holder;
        let (owner, state) = (&holder.owner, holder.incarnation);
        let mut because =
            vec![format!("`{key}` is registered to `{owner}`{}", of_incarnation(state))];
        let life = self.adopted_owner_state(owner).await?;
        let verdict = match &life {
            Some(life) => self.judge_adopted(&mut because, life, found.due_ms).await?,
            None => self.judge_beat(&mut because, found).await?,
        };
        let mut facts = json!({
            "owner": owner, "incarnation": state, "registered_ms": found.registered_ms,
            "due_ms": found.due_ms, "now_ms": found.now_ms,
        });
        if let Some(life) = life {
            facts["life"] = json!(life);
        }
        Ok(self.words().explanation(key, verdict, because, facts))
    }

    async fn explain_owner(&self, key: &Name, owner: &OwnerInfo) -> Result<Explanation> {
        let Some(life) = self.adopted_owner_state(key).await? else {
            return self.words().owner(key, owner).await;
        };
        let mut because = vec![self.words().owner_sentence(key, owner)];
        let verdict = self.judge_adopted(&mut because, &life, owner.due_ms).await?;
        let mut facts = json!(owner);
        facts["life"] = json!(life);
        Ok(self.words().explanation(key, verdict, because, facts))
    }

    /// `None` where owners send their heartbeats through lapsed.
    async fn adopted_owner_state(&self, owner: &Name) -> Result<Option<AdoptedOwnerState>> {
        let life = self.parts.entries.adopted_owner_state(owner);
        self.calls.quiet("adopted_owner_state", life).await
    }

    async fn judge_adopted(
        &self,
        because: &mut Vec<String>,
        life: &AdoptedOwnerState,
        due_ms: u64,
    ) -> Result<&'static str> {
        because.push(life.describe());
        let now_ms = self.words().census().await?.now_ms;
        match life {
            AdoptedOwnerState::Newcomer { .. } => Ok("spared"),
            AdoptedOwnerState::Alive => {
                let beat = BeatState { ended: None, due_ms, ttl_ms: 0 };
                self.words().judge(because, beat, now_ms).await
            }
            AdoptedOwnerState::HeartbeatGone { .. } | AdoptedOwnerState::NeverBeat { .. } => {
                self.words().overdue(because, now_ms).await
            }
        }
    }

    async fn judge_beat(
        &self,
        because: &mut Vec<String>,
        found: &FoundEntry,
    ) -> Result<&'static str> {
        let (owner, state) = (found.holder.owner.clone(), found.holder.incarnation);
        let claim = Claim { owner, incarnation: Some(state).filter(|i| i.0 > 0) };
        let info = self.calls.quiet("owner", self.parts.entries.owner(&claim)).await?;
        let ttl_ms = info.map_or(0, |info| info.ttl_ms);
        let beat = BeatState { ended: found.ended, due_ms: found.due_ms, ttl_ms };
        self.words().judge(because, beat, found.now_ms).await
    }

    pub(super) fn words(&self) -> Explainer<'_> {
        self.parts.explainer(&self.calls, &*self.parts.entries, ("entry", "entries"))
    }
}

fn reclaimed(receipt: &Receipt) -> String {
    format!(
        "nothing is registered under `{}`; it was taken from `{}`{} ({}, {:.1} s late), receipt {}",
        receipt.key,
        receipt.owner,
        of_incarnation(receipt.incarnation),
        receipt.reason,
        receipt.evidence.late_ms as f64 / 1e3,
        receipt.id
    )
}
