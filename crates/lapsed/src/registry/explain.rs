//! Why a key is, or is not, dead: in words.

use serde_json::json;

use crate::error::Result;
use crate::name::Name;
use crate::owner::{Claim, Ending, OwnerInfo};
use crate::receipt::{Receipt, ReceiptQuery};
use crate::registry::{Found, Registry};
use crate::system::Explanation;

/// How many of the newest receipts are searched for a key that is not there.
const RECEIPTS_SEARCHED: usize = 10_000;

impl Registry {
    pub(super) async fn explain_key(&self, key: &Name) -> Result<Explanation> {
        let found = self.quiet_call("lookup", self.parts.registry.find(std::slice::from_ref(key)));
        if let Some(found) = found.await?.into_iter().next().flatten() {
            return self.explain_found(key, &found).await;
        }
        let claim = Claim::newest(key.clone());
        if let Some(owner) = self.quiet_call("owner", self.parts.registry.owner(&claim)).await? {
            return self.explain_owner(key, &owner).await;
        }
        let receipt = self.last_receipt(key).await?;
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
        Ok(self.explanation(key, verdict, because, json!({ "receipt": receipt })))
    }

    async fn explain_found(&self, key: &Name, found: &Found) -> Result<Explanation> {
        let holder = &found.holder;
        let (owner, life) = (&holder.owner, holder.incarnation);
        let mut because = vec![format!("`{key}` is registered to `{owner}`, incarnation {life}")];
        let verdict = self.judge(&mut because, found.ended, found.due_ms, found.now_ms).await?;
        let facts = json!({
            "owner": owner, "incarnation": life, "registered_ms": found.registered_ms,
            "due_ms": found.due_ms, "now_ms": found.now_ms,
        });
        Ok(self.explanation(key, verdict, because, facts))
    }

    async fn explain_owner(&self, key: &Name, owner: &OwnerInfo) -> Result<Explanation> {
        let mut because = vec![format!(
            "`{key}` is an owner; its newest incarnation {} holds {} entries",
            owner.incarnation, owner.held
        )];
        let now_ms = self.census().await?.now_ms;
        let verdict = self.judge(&mut because, owner.ended, owner.due_ms, now_ms).await?;
        Ok(self.explanation(key, verdict, because, json!(owner)))
    }

    /// The one place that puts life and death into words.
    async fn judge(
        &self,
        because: &mut Vec<String>,
        ended: Option<(Ending, u64)>,
        due_ms: u64,
        now_ms: u64,
    ) -> Result<&'static str> {
        let seconds = |ms: u64| ms as f64 / 1e3;
        if let Some((ending, at_ms)) = ended {
            let ago = seconds(now_ms.saturating_sub(at_ms));
            let (word, how) = match ending {
                Ending::Dead => ("dead", "was declared dead"),
                Ending::Retired => ("retired", "retired"),
            };
            because.push(format!(
                "that incarnation {how} {ago:.1} s ago; its entries are invalid and the next \
                 pass removes what is left of them"
            ));
            return Ok(word);
        }
        if now_ms < due_ms {
            let left = seconds(due_ms - now_ms);
            because.push(format!("its beat is good for another {left:.1} s on the store's clock"));
            return Ok("live");
        }
        let late = seconds(now_ms - due_ms);
        because.push(format!("its time ran out {late:.1} s ago on the store's clock"));
        let verdict = self.parts.brake.preview(&self.census().await?);
        if verdict.undeclared_max().is_none() {
            because.push("the next pass declares it dead, unless a beat arrives first".to_owned());
            return Ok("overdue");
        }
        because.push(format!("the brake is {}", verdict.describe(now_ms)));
        Ok("spared")
    }

    async fn last_receipt(&self, key: &Name) -> Result<Option<Receipt>> {
        let query = ReceiptQuery { limit: RECEIPTS_SEARCHED, ..ReceiptQuery::default() };
        let receipts = self.parts.store.receipts(&self.parts.id, query);
        let receipts = self.quiet_call("receipts", receipts).await?;
        Ok(receipts.into_iter().find(|r| r.key == *key))
    }

    fn explanation(
        &self,
        key: &Name,
        verdict: &str,
        because: Vec<String>,
        facts: serde_json::Value,
    ) -> Explanation {
        Explanation {
            system: self.parts.id.name.to_string(),
            kind: self.parts.id.kind.to_string(),
            key: key.to_string(),
            verdict: verdict.to_owned(),
            because,
            facts,
        }
    }
}

fn reclaimed(receipt: &Receipt) -> String {
    format!(
        "nothing is registered under `{}`; it was taken from `{}`, incarnation {} ({}, {:.1} s \
         late), receipt {}",
        receipt.key,
        receipt.owner,
        receipt.incarnation,
        receipt.reason,
        receipt.evidence.late_ms as f64 / 1e3,
        receipt.id
    )
}
