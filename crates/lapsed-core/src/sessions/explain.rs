//! Explains why a session is, or is not, an orphan.

use serde_json::json;

use crate::error::Result;
use crate::name::Name;
use crate::owner::{Claim, Incarnation};
use crate::receipt::{Reason, Receipt};
use crate::sessions::{Session, Sessions};
use crate::sweep::{Refusal, Suspect};
use crate::system::Explanation;
use crate::system::explain::{Explainer, RECEIPTS_SEARCHED, seconds};

impl Sessions {
    pub(super) async fn explain_key(&self, key: &Name) -> Result<Explanation> {
        let sessions = &self.parts.entries;
        if let Some(session) = self.calls.quiet("get", sessions.get(key)).await? {
            return self.explain_session(key, &session).await;
        }
        let claim = Claim::newest(key.clone());
        if let Some(owner) = self.calls.quiet("owner", sessions.owner(&claim)).await? {
            return self.words().owner(key, &owner).await;
        }
        let receipt = self.words().last_receipt(key).await?;
        let (verdict, because) = match &receipt {
            Some(receipt) => ("reclaimed", vec![reclaimed(receipt)]),
            None => (
                "unknown",
                vec![format!(
                    "there is no session `{key}`, no owner has that name, and none of the last \
                     {RECEIPTS_SEARCHED} receipts is for it"
                )],
            ),
        };
        Ok(self.words().explanation(key, verdict, because, json!({ "receipt": receipt })))
    }

    async fn explain_session(&self, key: &Name, session: &Session) -> Result<Explanation> {
        let mut because = Vec::new();
        let verdict = match session.due_ms {
            None if session.references == 0 => {
                because.push(format!(
                    "`{key}` has no references, but the application has not marked it as disconnected; \
                     it is kept until it is marked"
                ));
                let refusal = self.refusal(session).await?;
                self.words().obstacle(&mut because, refusal).unwrap_or("active")
            }
            None => {
                let count = match session.references {
                    1 => "1 reference".to_owned(),
                    many => format!("{many} references"),
                };
                because.push(format!(
                    "`{key}` has {count}; it is kept as long as there is one. A reference ends when \
                     its owner disconnects it, or with its owner's incarnation"
                ));
                "active"
            }
            Some(due_ms) => self.explain_free(&mut because, session, due_ms).await?,
        };
        Ok(self.words().explanation(key, verdict, because, json!(session)))
    }

    async fn explain_free(
        &self,
        because: &mut Vec<String>,
        session: &Session,
        due_ms: u64,
    ) -> Result<&'static str> {
        let (id, now_ms) = (&session.id, session.now_ms);
        because.push(match session.disconnected_ms {
            Some(at_ms) => format!(
                "the last reference to `{id}` went {:.1} s ago",
                seconds(now_ms.saturating_sub(at_ms))
            ),
            None => format!("no client has connected to `{id}` since it was activated or resumed"),
        });
        if now_ms < due_ms {
            let left = seconds(due_ms - now_ms);
            because.push(format!(
                "its grace runs for another {left:.1} s on the store's clock; a client that connects \
                 or resumes it until then keeps it"
            ));
            let asked_ms = session.disconnected_ms.map(|at_ms| at_ms + self.grace_ms());
            if asked_ms.is_some_and(|asked_ms| asked_ms <= now_ms) {
                because.push(
                    "the store was away, and everybody must first have had a whole grace to \
                     connect again"
                        .to_owned(),
                );
                return Ok("spared");
            }
            return Ok("grace");
        }
        let late = seconds(now_ms - due_ms);
        because.push(format!("its grace period ended {late:.1} s ago on the store's clock"));
        let verdict = self.parts.brake.preview(&self.words().census().await?);
        if verdict.undeclared_max() == Some(0) {
            because.push(format!("the brake is {}", self.parts.brake.describe(&verdict, now_ms)));
            return Ok("spared");
        }
        let refusal = self.refusal(session).await?;
        if refusal == Some(Refusal::Active) {
            because.push(
                "but passes do not find it: it is not in the index of the disconnected. `lapsed \
                 reconcile` puts it there"
                    .to_owned(),
            );
            return Ok("unindexed");
        }
        because.push("the next pass deletes it, unless a client connects first".to_owned());
        Ok(self.words().obstacle(because, refusal).unwrap_or("orphan"))
    }

    async fn refusal(&self, session: &Session) -> Result<Option<Refusal>> {
        let broadcaster = session.profile.broadcaster_user_id.clone();
        let suspect = Suspect {
            key: session.id.clone(),
            owner: broadcaster.unwrap_or_else(|| session.id.clone()),
            incarnation: Incarnation(0),
            deadline_ms: session.due_ms.unwrap_or(session.now_ms),
            reason: Reason::Orphaned,
        };
        self.words().refusal(suspect).await
    }

    fn grace_ms(&self) -> u64 {
        self.grace().as_millis() as u64
    }

    pub(super) fn words(&self) -> Explainer<'_> {
        self.parts.explainer(&self.calls, &*self.parts.entries, ("reference", "references"))
    }
}

fn reclaimed(receipt: &Receipt) -> String {
    format!(
        "there is no session `{}`; it was deleted ({}, {:.1} s late), receipt {}",
        receipt.key,
        receipt.reason,
        seconds(receipt.evidence.late_ms),
        receipt.id
    )
}
