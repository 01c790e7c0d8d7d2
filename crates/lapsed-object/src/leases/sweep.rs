//! Implements the engine's [`Sweep`] trait for leases.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::leases::{DECISIONS, Subject, TTL_MS};
use lapsed_core::owner::Incarnation;
use lapsed_core::receipt::{Reason, Receipt};
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Census, Cursor, PageRequest, PassMode, Suspect, SuspectPage,
    Sweep, Tidied, TidyLimits,
};
use lapsed_core::{Error, Name, Result, SystemId};

use super::ObjectLeases;
use super::walk::{Entry, ListedSuspect};
use crate::names::unescape;
use crate::system_context::{Found, index_name};

/// The owner of a suspect whose entry points to a key without a holder.
const NOBODY: &str = "-";

/// The requests that a pass has sent so far.
#[derive(Default)]
pub(crate) struct PassBudget {
    began: AtomicU64,
}

#[async_trait]
impl Sweep for ObjectLeases {
    fn system(&self) -> &SystemId {
        &self.id
    }

    fn threshold(&self) -> Duration {
        Duration::from_millis(TTL_MS)
    }

    /// A pass begins here, and so does its budget. There is no count to be had without looking at all.
    async fn survey(&self, _act: PassMode) -> Result<Option<Census>> {
        self.pass_budget.began.store(self.context.objects.sent(), Ordering::Relaxed);
        Ok(None)
    }

    async fn census(&self) -> Result<Census> {
        let now = self.context.clock_reading().await?;
        let (now_ms, store) = (now.judging_ms, "object".to_owned());
        Ok(Census { now_ms, store, uncounted: true, ..Census::default() })
    }

    async fn suspects(&self, request: PageRequest) -> Result<SuspectPage> {
        if request.undeclared_max == Some(0) {
            return Ok(SuspectPage { last: true, ..SuspectPage::default() });
        }
        self.check_budget()?;
        let mut walk = self.walks.resume(request.after.0.as_deref());
        let mut entries = Vec::new();
        while entries.len() < request.limit {
            let Some(entry) = walk.next(self).await? else { break };
            entries.push(entry);
        }
        let looks = entries.iter().map(|entry| self.target(entry)).collect();
        let found: Result<Vec<Found>> = self.run_entries(looks).await.into_iter().collect();
        let found = entries.into_iter().zip(found?).collect();
        let page = self.suspect_page(found, walk.is_over());
        if let Some(last) = page.suspects.last() {
            let Cursor(at) = self.after(last);
            self.walks.keep(at.unwrap_or_default(), walk);
        }
        Ok(page)
    }

    fn after(&self, suspect: &Suspect) -> Cursor {
        let seen = self.walks.seen(&suspect.key).and_then(|seen| seen.entries.into_iter().next());
        let entry = seen.or_else(|| self.expected_entry(suspect));
        Cursor(entry.map(|entry| entry.cursor()))
    }

    async fn reclaim(&self, batch: Batch) -> Result<BatchAnswer> {
        self.check_budget()?;
        self.reclaim_batch(batch).await
    }

    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        const KEPT: usize = 1_000;
        {
            let mut settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
            if settled.len() >= KEPT {
                settled.drain(..KEPT / 2);
            }
            settled.push(batch.clone());
        }
        self.log.settle(batch).await
    }

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied> {
        if let Some(term) = limits.term
            && self.context.term(&self.id).await? != Some(term)
        {
            return Ok(Tidied::default());
        }
        for path in self.walks.take_empty(limits.rows) {
            // On a store without folders this path names nothing; with folders, only an empty one is deleted.
            self.context.objects.delete(&path).await?;
        }
        let receipts_pruned = self.log.prune(&limits.retention, limits.rows).await?;
        let has_more = receipts_pruned >= limits.rows as u64;
        Ok(Tidied { receipts_pruned, has_more, ..Tidied::default() })
    }
}

impl ObjectLeases {
    fn check_budget(&self) -> Result<()> {
        let Some(max) = self.requests_per_pass else { return Ok(()) };
        let spent = self.context.objects.sent() - self.pass_budget.began.load(Ordering::Relaxed);
        if spent < max {
            return Ok(());
        }
        Err(Error::Throttled {
            store: self.context.name().to_owned(),
            what: format!("the budget of {max} requests per pass is used up (`requests_per_pass`)"),
        })
    }

    /// The object that an entry points to.
    pub(crate) async fn target(&self, entry: &Entry) -> Result<Found> {
        let (path, namespace) = match entry.namespace.as_str() {
            DECISIONS => (self.context.paths.marker(&entry.name), None),
            namespace => (self.context.paths.meta(namespace, &entry.name), Some(namespace)),
        };
        self.context.find(&path, namespace).await
    }

    /// The suspects that the entries point to, each once.
    fn suspect_page(&self, found: Vec<(Entry, Found)>, last: bool) -> SuspectPage {
        let mut page = SuspectPage { examined: found.len() as u64, last, ..SuspectPage::default() };
        for (entry, found) in found {
            let suspect = self.suspect(&entry, &found);
            let listed = page.suspects.iter().any(|known| known.key == suspect.key);
            let mut seen = match listed {
                true => self.walks.take(&suspect.key),
                false => None,
            }
            .unwrap_or(ListedSuspect { entries: Vec::new(), held: None });
            seen.entries.push(entry);
            if let Found::Document(held) = found {
                seen.held = Some(*held);
            }
            self.walks.see(suspect.key.clone(), seen);
            if !listed {
                page.suspects.push(suspect);
            }
        }
        page
    }

    fn suspect(&self, entry: &Entry, found: &Found) -> Suspect {
        let end_ms = self.width.end_ms(&entry.bucket).unwrap_or_default();
        let nobody = || Name::new(NOBODY).expect("a good name");
        let reason = match entry.namespace.as_str() {
            DECISIONS => Reason::DecisionExpired,
            _ => Reason::LeaseExpired,
        };
        let (key, holder, deadline_ms) = match found {
            Found::Document(held) => {
                (held.doc.subject().name(), held.doc.holder(), held.doc.deadline_ms())
            }
            Found::Nothing | Found::Unreadable(_) => (named(entry), None, None),
        };
        let (owner, token) = holder.unwrap_or((nobody(), 0));
        Suspect {
            key,
            owner,
            incarnation: Incarnation(token),
            deadline_ms: deadline_ms.unwrap_or(end_ms.saturating_sub(1)),
            reason,
        }
    }

    /// The entry that a suspect must have had, if this process has not listed it.
    pub(crate) fn expected_entry(&self, suspect: &Suspect) -> Option<Entry> {
        let subject = Subject::parse(suspect.key.as_str()).ok()?;
        let (namespace, name) = index_name(&subject);
        Some(Entry { namespace, bucket: self.bucket(suspect.deadline_ms), name })
    }
}

/// The name of a suspect whose entry has no readable target.
fn named(entry: &Entry) -> Name {
    let key = unescape(&entry.name).unwrap_or_else(|| entry.name.clone());
    let name = Name::new(&format!("{}/{key}", entry.namespace));
    name.unwrap_or_else(|_| Name::new(NOBODY).expect("a good name"))
}
