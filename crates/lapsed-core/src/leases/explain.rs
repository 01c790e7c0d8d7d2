//! Explains why a lease or a decision has, or has not, expired.

use serde_json::json;

use crate::error::Result;
use crate::leases::{DecisionInfo, LeaseInfo, Leases, Subject};
use crate::name::Name;
use crate::receipt::Receipt;
use crate::system::Explanation;
use crate::system::explain::{Explainer, RECEIPTS_SEARCHED, seconds};

impl Leases {
    pub(super) async fn explain_key(&self, key: &str) -> Result<Explanation> {
        let subject = Subject::parse(key)?;
        match &subject {
            Subject::Lease(lease) => {
                match self.calls.quiet("peek", self.parts.entries.peek(lease)).await? {
                    Some(described) => self.explain_lease(&subject.name(), &described).await,
                    None => self.explain_absence(&subject).await,
                }
            }
            Subject::Decision(txn) => {
                match self.calls.quiet("peek", self.parts.entries.peek_decision(txn)).await? {
                    Some((decided, over)) => {
                        Ok(self.explain_decision(&subject.name(), &decided, over))
                    }
                    None => self.explain_absence(&subject).await,
                }
            }
        }
    }

    async fn explain_lease(&self, key: &Name, described: &LeaseInfo) -> Result<Explanation> {
        let (token, now_ms) = (described.token, described.now_ms);
        let mut because = Vec::new();
        let verdict = match &described.lease {
            None => {
                because.push(format!("nobody holds `{key}`; its newest token is {token}"));
                if let Some(receipt) = self.words().last_receipt(key).await? {
                    because.push(cleared(&receipt));
                }
                "free"
            }
            Some(lease) if !described.expired => {
                let left = seconds(lease.deadline_ms.saturating_sub(now_ms));
                because.push(format!(
                    "`{}` holds it by token {token}, for another {left:.1} s on the store's clock \
                     unless it renews",
                    lease.owner
                ));
                "live"
            }
            Some(lease) => {
                let late = seconds(now_ms.saturating_sub(lease.deadline_ms));
                because.push(format!(
                    "the lease of `{}` by token {token} ran out {late:.1} s ago on the store's clock",
                    lease.owner
                ));
                because.push(
                    "it holds nothing any more: the next operation on the key clears it first, and the \
                     sweep clears it when the system is idle"
                        .to_owned(),
                );
                "overdue"
            }
        };
        if let Some(staged) = &described.staged {
            because.push(format!(
                "it has staged work of the transaction `{}`; before the lease ends that is looked up, \
                 and decided `rollback` if nobody has decided it",
                staged.txn
            ));
        }
        Ok(self.words().explanation(key, verdict, because, json!(described)))
    }

    fn explain_decision(&self, key: &Name, decided: &DecisionInfo, over: bool) -> Explanation {
        let mut because = vec![format!(
            "the transaction `{}` was decided {:.1} s ago: {}",
            decided.txn,
            seconds(decided.now_ms.saturating_sub(decided.decided_ms)),
            decided.decision
        )];
        let verdict = if over {
            because.push("it has expired: the next read or pass deletes it".to_owned());
            "overdue"
        } else {
            let left = seconds(decided.deadline_ms.saturating_sub(decided.now_ms));
            because.push(format!("it is kept for another {left:.1} s on the store's clock"));
            "live"
        };
        self.words().explanation(key, verdict, because, json!(decided))
    }

    async fn explain_absence(&self, subject: &Subject) -> Result<Explanation> {
        let key = subject.name();
        let receipt = self.words().last_receipt(&key).await?;
        let (verdict, because) = match (&receipt, subject) {
            (Some(receipt), _) => ("reclaimed", cleared(receipt)),
            (None, Subject::Lease(_)) => ("unknown", format!("`{key}` was never leased")),
            (None, Subject::Decision(txn)) => (
                "unknown",
                format!(
                    "there is no decision on `{txn}`, and none of the last {RECEIPTS_SEARCHED} \
                     receipts is for one"
                ),
            ),
        };
        Ok(self.words().explanation(&key, verdict, vec![because], json!({ "receipt": receipt })))
    }

    fn words(&self) -> Explainer<'_> {
        self.parts.explainer(&self.calls, &*self.parts.entries, ("lease", "leases"))
    }
}

fn cleared(receipt: &Receipt) -> String {
    format!(
        "`{}` of `{}` was cleared {:.1} s late ({}), receipt {}",
        receipt.key,
        receipt.owner,
        seconds(receipt.evidence.late_ms),
        receipt.reason,
        receipt.id
    )
}
