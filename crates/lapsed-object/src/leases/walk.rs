//! A walk through the index: one namespace after the other, bucket by bucket, page by page.
//! Namespaces are listed each time, never cached (D10). Only buckets whose time has passed are read.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lapsed_core::leases::DECISIONS;
use lapsed_core::{Name, Result};

use super::ObjectLeases;
use crate::names::namespace;
use crate::objects::ListRequest;
use crate::system_context::StoredObject;

/// How many walks and how many suspects are kept.
const WALKS_MAX: usize = 16;
const SEEN_MAX: usize = 20_000;
const EMPTY_MAX: usize = 1_000;
/// The most entries of a page.
const PAGE: usize = 1_000;

/// One entry of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) namespace: String,
    pub(crate) bucket: String,
    pub(crate) name: String,
}

impl Entry {
    /// The position immediately after this entry.
    pub(crate) fn cursor(&self) -> String {
        format!("{}\0{}\0{}", self.namespace, self.bucket, self.name)
    }

    fn parse(cursor: &str) -> Option<Entry> {
        let mut parts = cursor.splitn(3, '\0').map(str::to_owned);
        Some(Entry { namespace: parts.next()?, bucket: parts.next()?, name: parts.next()? })
    }
}

/// A suspect as it was listed: its entries and the object that they point to.
#[derive(Clone, Debug)]
pub(crate) struct ListedSuspect {
    pub(crate) entries: Vec<Entry>,
    pub(crate) held: Option<StoredObject>,
}

/// One page of one bucket that is still to be listed.
#[derive(Debug)]
struct Page {
    namespace: String,
    bucket: String,
    after: Option<String>,
    token: Option<String>,
}

/// The position of a walk through the index.
#[derive(Debug)]
pub(crate) struct Walk {
    entries: VecDeque<Entry>,
    page: Option<Page>,
    /// The pages of the namespace that the walk is in.
    buckets: VecDeque<Page>,
    namespaces: VecDeque<String>,
    /// Where the walk resumes, within the first namespace.
    from: Option<Entry>,
    /// The next page of namespaces: the name after which it begins, and its token. `None`: there is none.
    more: Option<(Option<String>, Option<String>)>,
    /// Whether the decisions are still to be read. They come last, so that staged work of an expired lease
    /// finds the decision that it waits for.
    decisions: bool,
}

impl Walk {
    /// A walk from the beginning of the index, or from the position `after`.
    pub(crate) fn new(after: Option<&str>) -> Walk {
        let from = after.and_then(Entry::parse);
        let first = from.as_ref().map(|entry| entry.namespace.clone());
        let among_decisions = first.as_deref() == Some(DECISIONS);
        Walk {
            entries: VecDeque::new(),
            page: None,
            buckets: VecDeque::new(),
            namespaces: first.clone().into_iter().collect(),
            from,
            more: (!among_decisions).then_some((first, None)),
            decisions: !among_decisions,
        }
    }

    /// The next entry of a bucket whose time has passed.
    pub(crate) async fn next(&mut self, leases: &ObjectLeases) -> Result<Option<Entry>> {
        loop {
            if let Some(entry) = self.entries.pop_front() {
                return Ok(Some(entry));
            }
            if let Some(page) = self.page.take() {
                self.list_entries(leases, page).await?;
            } else if let Some(page) = self.buckets.pop_front() {
                self.page = Some(page);
            } else if let Some(namespace) = self.namespaces.pop_front() {
                self.list_buckets(leases, namespace).await?;
            } else if let Some((after, token)) = self.more.take() {
                self.list_namespaces(leases, after, token).await?;
            } else if std::mem::take(&mut self.decisions) {
                self.namespaces.push_back(DECISIONS.to_owned());
            } else {
                return Ok(None);
            }
        }
    }

    async fn list_entries(&mut self, leases: &ObjectLeases, page: Page) -> Result<()> {
        let prefix = leases.context.paths.entry(&page.namespace, &page.bucket, "");
        let request = ListRequest {
            prefix: &prefix,
            after: page.after.as_deref(),
            token: page.token.clone(),
            limit: PAGE,
            ..ListRequest::default()
        };
        let listing = leases.context.objects.list(request).await?;
        if page.after.is_none() && page.token.is_none() && listing.names.is_empty() {
            leases.walks.found_empty(prefix.trim_end_matches('/'));
        }
        for name in listing.names {
            let (namespace, bucket) = (page.namespace.clone(), page.bucket.clone());
            self.entries.push_back(Entry { namespace, bucket, name });
        }
        self.page = listing.token.map(|token| Page { token: Some(token), ..page });
        Ok(())
    }

    /// Lists the buckets whose time has passed, oldest first.
    async fn list_buckets(&mut self, leases: &ObjectLeases, namespace: String) -> Result<()> {
        let from = self.from.take();
        let now_ms = leases.context.clock_reading().await?.judging_ms;
        let prefix = leases.context.paths.index(&namespace);
        let mut token = None;
        loop {
            let request =
                ListRequest { prefix: &prefix, flat: true, token, limit: PAGE, after: None };
            let listing = leases.context.objects.list(request).await?;
            for bucket in listing.folders {
                let begins = from.as_ref().is_none_or(|from| from.bucket <= bucket);
                let over = leases.width.end_ms(&bucket).is_some_and(|end_ms| end_ms <= now_ms);
                if begins && over {
                    let resumed = from.as_ref().filter(|from| from.bucket == bucket);
                    let after = resumed.map(|from| from.name.clone());
                    let namespace = namespace.clone();
                    self.buckets.push_back(Page { namespace, bucket, after, token: None });
                }
            }
            token = listing.token;
            if token.is_none() {
                return Ok(());
            }
        }
    }

    async fn list_namespaces(
        &mut self,
        leases: &ObjectLeases,
        after: Option<String>,
        token: Option<String>,
    ) -> Result<()> {
        let request = ListRequest {
            prefix: leases.context.paths.root(),
            flat: true,
            after: after.as_deref(),
            token,
            limit: PAGE,
        };
        let listing = leases.context.objects.list(request).await?;
        let found = listing.folders.into_iter().filter(|name| namespace(name).is_some());
        self.namespaces.extend(found);
        self.more = listing.token.map(|token| (after, Some(token)));
        Ok(())
    }

    /// Whether the walk has certainly read everything.
    pub(crate) fn is_over(&self) -> bool {
        self.entries.is_empty()
            && self.page.is_none()
            && self.buckets.is_empty()
            && self.namespaces.is_empty()
            && self.more.is_none()
            && !self.decisions
    }
}

/// The walks in progress, by their position, and the suspects that they have read.
#[derive(Default)]
pub(crate) struct Walks {
    kept: Mutex<VecDeque<(String, Walk)>>,
    seen: Mutex<HashMap<Name, ListedSuspect>>,
    /// Buckets that a listing names and that are empty.
    empty: Mutex<BTreeSet<String>>,
}

impl Walks {
    /// The walk that was kept at this position; a new walk if there is none.
    pub(crate) fn resume(&self, after: Option<&str>) -> Walk {
        let mut kept = lock(&self.kept);
        let place = after.and_then(|after| kept.iter().position(|(at, _)| at == after));
        let known = place.and_then(|place| kept.remove(place));
        known.map_or_else(|| Walk::new(after), |(_, walk)| walk)
    }

    /// Keeps a walk for the call that continues at the position `at`.
    pub(crate) fn keep(&self, at: String, walk: Walk) {
        let mut kept = lock(&self.kept);
        if kept.len() >= WALKS_MAX {
            kept.pop_front();
        }
        kept.push_back((at, walk));
    }

    /// Some servers keep each part of a name as a folder and list empty folders, too.
    fn found_empty(&self, path: &str) {
        let mut empty = lock(&self.empty);
        if empty.len() < EMPTY_MAX {
            empty.insert(path.to_owned());
        }
    }

    /// Takes at most `max` of the buckets that were found empty.
    pub(crate) fn take_empty(&self, max: usize) -> Vec<String> {
        let mut empty = lock(&self.empty);
        let taken: Vec<String> = empty.iter().take(max).cloned().collect();
        empty.retain(|path| !taken.contains(path));
        taken
    }

    pub(crate) fn see(&self, key: Name, seen: ListedSuspect) {
        let mut all = lock(&self.seen);
        if all.len() >= SEEN_MAX {
            all.clear();
        }
        all.insert(key, seen);
    }

    pub(crate) fn seen(&self, key: &Name) -> Option<ListedSuspect> {
        lock(&self.seen).get(key).cloned()
    }

    /// Takes the suspect `key`, because what was read of it may be used only once.
    pub(crate) fn take(&self, key: &Name) -> Option<ListedSuspect> {
        lock(&self.seen).remove(key)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
