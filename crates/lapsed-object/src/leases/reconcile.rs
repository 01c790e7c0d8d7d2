//! Making the index agree with the records: a lease that no entry points to is given one.
//!
//! Records are listed page by page and read one by one; nothing is built aside. Entries that point to
//! nothing are not looked for here: a sweep finds and removes them when their bucket is over. Its
//! requests have a budget of their own, so that it never uses up what acquiring needs.

use async_trait::async_trait;
use lapsed_core::Result;
use lapsed_core::leases::DECISIONS;
use lapsed_core::reconcile::{Healed, IndexChange, Reconcile, Reconciled};
use lapsed_core::sweep::{Cursor, PassMode};

use super::{ObjectLeases, run_bounded};
use crate::names::namespace;
use crate::objects::ListRequest;
use crate::system_context::{Found, index_name};

/// The result of comparing one object with the index.
enum Comparison {
    Left(&'static str),
    Missing(IndexChange),
}

#[async_trait]
impl Reconcile for ObjectLeases {
    async fn reconcile(&self, after: Cursor, limit: usize, act: PassMode) -> Result<Reconciled> {
        let mut at = ReconcileCursor::parse(after.0.as_deref());
        loop {
            let Some(place) = at.namespace.clone() else {
                let Some(first) = self.next_place(None).await? else {
                    return Ok(Reconciled::default());
                };
                at = ReconcileCursor { namespace: Some(first), name: None };
                continue;
            };
            let prefix = self.objects_of(&place);
            let request = ListRequest {
                prefix: &prefix,
                after: at.name.as_deref(),
                limit,
                ..ListRequest::default()
            };
            let listing = self.reconciling.objects.list(request).await?;
            if let Some(last) = listing.names.last().cloned() {
                let mut page = self.compare_all(&place, listing.names, act).await?;
                page.next = Some(Cursor(Some(format!("{place}\0{last}"))));
                return Ok(page);
            }
            match self.next_place(Some(&place)).await? {
                Some(next) => at = ReconcileCursor { namespace: Some(next), name: None },
                None => return Ok(Reconciled::default()),
            }
        }
    }

    async fn extent(&self) -> Result<u64> {
        let mut count = 0;
        let mut place = self.next_place(None).await?;
        while let Some(namespace) = place {
            let prefix = self.objects_of(&namespace);
            let mut token = None;
            loop {
                let request =
                    ListRequest { prefix: &prefix, token, limit: 1_000, ..ListRequest::default() };
                let listing = self.reconciling.objects.list(request).await?;
                count += listing.names.len() as u64;
                token = listing.token;
                if token.is_none() {
                    break;
                }
            }
            place = self.next_place(Some(&namespace)).await?;
        }
        Ok(count)
    }

    fn requests_sent(&self) -> u64 {
        self.reconciling.objects.sent()
    }

    /// The estimated number of requests: each object and its entry are read, and the listings come on top.
    async fn cost(&self) -> Result<Option<u64>> {
        let rows = self.extent().await?;
        Ok(Some(rows * 2 + rows.div_ceil(1_000)))
    }
}

impl ObjectLeases {
    /// The path under which the records of a namespace, or the markers of decisions, are listed.
    fn objects_of(&self, place: &str) -> String {
        match place {
            DECISIONS => self.reconciling.paths.marker(""),
            namespace => self.reconciling.paths.metas(namespace),
        }
    }

    /// The next place to compare: decisions first, then each namespace.
    async fn next_place(&self, after: Option<&str>) -> Result<Option<String>> {
        let after = match after {
            None => return Ok(Some(DECISIONS.to_owned())),
            Some(DECISIONS) => None,
            Some(namespace) => Some(namespace),
        };
        let mut token = None;
        loop {
            let request = ListRequest {
                prefix: self.reconciling.paths.root(),
                flat: true,
                after,
                token,
                limit: 1_000,
            };
            let listing = self.reconciling.objects.list(request).await?;
            let mut found = listing.folders.into_iter().filter(|name| namespace(name).is_some());
            if let Some(next) = found.next() {
                return Ok(Some(next));
            }
            token = listing.token;
            if token.is_none() {
                return Ok(None);
            }
        }
    }

    async fn compare_all(
        &self,
        place: &str,
        names: Vec<String>,
        act: PassMode,
    ) -> Result<Reconciled> {
        let mut page = Reconciled { examined: names.len() as u64, ..Reconciled::default() };
        let looks = names.into_iter().map(|name| self.compare(place, name, act)).collect();
        for looked in run_bounded(looks).await {
            match looked? {
                Comparison::Left(why) => *page.left.entry(why.to_owned()).or_default() += 1,
                Comparison::Missing(change) => page.changes.push(change),
            }
        }
        Ok(page)
    }

    async fn compare(&self, place: &str, name: String, act: PassMode) -> Result<Comparison> {
        let path = format!("{}{name}", self.objects_of(place));
        let namespace = Some(place).filter(|place| *place != DECISIONS);
        let held = match self.reconciling.find(&path, namespace).await? {
            Found::Document(held) => held,
            Found::Nothing => return Ok(Comparison::Left("gone")),
            Found::Unreadable(what) => {
                tracing::warn!(system = %self.id, what, "left for a person to look at");
                return Ok(Comparison::Left("unreadable"));
            }
        };
        let (doc, subject) = (&held.doc, held.doc.subject());
        // An object that owes receipts also needs an entry: in its old bucket, or in the current one.
        let due_ms = match doc.deadline_ms() {
            Some(deadline_ms) => deadline_ms,
            None if doc.owed.is_empty() => {
                if act == PassMode::Reclaim {
                    self.watch(&self.reconciling, &held).await?;
                }
                return Ok(Comparison::Left("free"));
            }
            None => self.reconciling.clock_reading().await?.judging_ms,
        };
        let (index, escaped) = index_name(&subject);
        let mut buckets = vec![self.bucket(due_ms)];
        buckets.extend(doc.bucket.clone().filter(|bucket| *bucket != buckets[0]));
        for bucket in &buckets {
            let entry = self.reconciling.paths.entry(&index, bucket, &escaped);
            if self.reconciling.objects.get(&entry).await?.is_some() {
                return Ok(Comparison::Left("indexed"));
            }
        }
        if act == PassMode::Reclaim {
            self.reconciling.write_entry(&subject, &buckets[0]).await?;
        }
        Ok(Comparison::Missing(IndexChange {
            key: subject.name().to_string(),
            what: Healed::Added,
            why: format!("no entry of the index pointed to it; filed under {}", buckets[0]),
        }))
    }
}

/// The position of a reconciliation, which is kept between its pages.
struct ReconcileCursor {
    namespace: Option<String>,
    name: Option<String>,
}

impl ReconcileCursor {
    fn parse(cursor: Option<&str>) -> ReconcileCursor {
        let parts = cursor.and_then(|cursor| cursor.split_once('\0'));
        ReconcileCursor {
            namespace: parts.map(|(namespace, _)| namespace.to_owned()),
            name: parts.map(|(_, name)| name.to_owned()),
        }
    }
}
