//! The receipts of one system: numbered log objects, each written twice.
//!
//! A log object is first written *open*, with the intentions: the objects to be changed, each with the epoch that
//! the change replaces, and the receipts for it. Then the changes are made; each names the log object in the write
//! that decides. Then the log object is written again as *final*, with only the changes that were confirmed. A
//! process that finds an open one past its deadline settles it: a change whose object names the log object was
//! made; any other is prevented (the object gets a new epoch) and removed. The next log object is created only
//! after the one before it is final, so an object never names two unsettled ones, and a receipt exists if and
//! only if its change was made, once.
//!
//! Log objects are deleted from the oldest on, the newest never. A process that stood still for long might create
//! one again that was deleted, so after creating one it checks that there is no newer one.
//!
//! Names count down, so that the newest is the first of a listing.

mod log_object;
mod open_object;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::leases::Subject;
use lapsed_core::receipt::{Receipt, ReceiptQuery, Retention};
use lapsed_core::sweep::BatchId;
use lapsed_core::{Error, Result, SystemId};
use object_store::UpdateVersion;
use tokio::sync::{Mutex, MutexGuard};

use crate::document::{OwedReceipt, receipt};
use crate::objects::{ListRequest, WriteCondition, Written};
use crate::system_context::{Found, SystemContext, namespace_of};
use log_object::{Entry, LogHead, LogObject};

/// Receipts of one log object have numbers below this, after the log object's own.
const RECEIPTS_PER_OBJECT: u64 = 1_000;
/// How long a log object may be open, by default.
pub(crate) const LOG_OPEN_MAX: Duration = Duration::from_secs(30);
/// How many times a write is tried while other writers are faster.
const TRIES: usize = 100;
/// How many foreign objects in the log's folder are skipped; the listing is one request in any case.
const STRAY_MAX: usize = 100;
/// The pause between two reads of a log object that another process has open.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// One change that is logged before it is made.
#[derive(Clone, Debug)]
pub(crate) struct Intent {
    pub(crate) subject: Subject,
    pub(crate) epoch: u64,
    /// The owed receipts, each with the sweeper and the number of its batch.
    pub(crate) debts: Vec<(OwedReceipt, String, u64)>,
}

/// A log object that this process has opened and must make final.
pub(crate) struct OpenLogObject<'l> {
    log: &'l Log,
    head: MutexGuard<'l, Option<LogHead>>,
    page: LogObject,
    version: UpdateVersion,
}

pub(crate) struct Log {
    context: Arc<SystemContext>,
    system: SystemId,
    /// How long a log object may be open before another process settles it.
    open_max: Duration,
    /// The newest final log object. The lock admits one writer of this process at a time.
    head: Mutex<Option<LogHead>>,
    /// The log objects that each batch has tried to make, which settling reads.
    tried: std::sync::Mutex<Vec<(BatchId, u64)>>,
}

impl Log {
    pub(crate) fn new(context: Arc<SystemContext>, system: SystemId, open_max: Duration) -> Self {
        Log { context, system, open_max, head: Mutex::default(), tried: Default::default() }
    }

    fn path(&self, number: u64) -> String {
        self.context.paths.system(&self.system, &format!("receipts/{:020}", u64::MAX - number))
    }

    /// Opens the next log object with these intentions. Waits for, or settles, one that is open.
    pub(crate) async fn open(&self, id: &BatchId, intents: &[Intent]) -> Result<OpenLogObject<'_>> {
        let mut head = self.head.lock().await;
        for _ in 0..TRIES {
            let known = self.newest(&mut head).await?;
            let number = known.number + 1;
            let mut page = self.page(id, intents, known).await?;
            let body = page.encode(self.context.nonce());
            self.note(id, number);
            if let Written::Done(version) =
                self.context.objects.put(&self.path(number), body, WriteCondition::IfAbsent).await?
            {
                if self.newest_number().await? == Some(number) {
                    return Ok(OpenLogObject { log: self, head, page, version });
                }
                // Another process had made and deleted this object before, and newer ones exist. Nothing
                // refers to this one yet, so it is deleted.
                self.context.objects.delete(&self.path(number)).await?;
                *head = None;
                continue;
            }
            // Another process was first: read its log object.
            *head = Some(self.wait_until_final(number, known).await?);
        }
        Err(self.too_busy())
    }

    fn too_busy(&self) -> Error {
        Error::Throttled {
            store: self.context.name().to_owned(),
            what: format!("the receipts of {} are being written by too many at once", self.system),
        }
    }

    /// The number of the newest log object: the first name of the listing that is one of a log object.
    async fn newest_number(&self) -> Result<Option<u64>> {
        let prefix = self.context.paths.system(&self.system, "receipts/");
        let request = ListRequest { prefix: &prefix, limit: STRAY_MAX, ..ListRequest::default() };
        let listing = self.context.objects.list(request).await?;
        let number = |name: &String| {
            let is_one = name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit());
            name.parse::<u64>().ok().filter(|_| is_one).map(|name| u64::MAX - name)
        };
        Ok(listing.names.iter().find_map(number))
    }

    async fn page(&self, id: &BatchId, intents: &[Intent], head: LogHead) -> Result<LogObject> {
        let number = head.number + 1;
        let mut seq = number * RECEIPTS_PER_OBJECT;
        let mut entries = Vec::with_capacity(intents.len());
        for intent in intents {
            let mut receipts = Vec::with_capacity(intent.debts.len());
            for (debt, sweeper, batch) in &intent.debts {
                let by = (sweeper.as_str(), *batch);
                receipts.push(receipt(&self.system, seq, &intent.subject, debt, by)?);
                seq += 1;
            }
            let subject = intent.subject.name().to_string();
            entries.push(Entry { subject, epoch: intent.epoch, receipts });
        }
        let now = self.context.clock_reading().await?;
        Ok(LogObject {
            epoch: 0,
            nonce: String::new(),
            number,
            oldest: head.oldest.max(1),
            before: head.total,
            made_ms: now.granting_ms,
            open_until_ms: Some(now.granting_ms + self.open_max.as_millis() as u64),
            sweeper: id.sweeper.to_string(),
            batch: id.number,
            entries,
        })
    }

    /// The newest final log object that this process knows. The first call lists the folder.
    async fn newest(&self, head: &mut Option<LogHead>) -> Result<LogHead> {
        if let Some(head) = head {
            return Ok(*head);
        }
        let found = match self.newest_number().await? {
            None => LogHead::default(),
            Some(number) => self.wait_until_final(number, LogHead::default()).await?,
        };
        *head = Some(found);
        Ok(found)
    }

    /// Waits until that log object is final, and settles it after its deadline. If it does not exist, nothing
    /// changes.
    async fn wait_until_final(&self, number: u64, before: LogHead) -> Result<LogHead> {
        loop {
            let read = match self.read(number).await {
                Err(Error::Corrupt { what, .. }) => {
                    return self.skip_unreadable(number, before, &what).await;
                }
                read => read?,
            };
            let Some((page, version)) = read else { return Ok(before) };
            let Some(until_ms) = page.open_until_ms else { return Ok(LogHead::of(&page)) };
            if self.context.clock_reading().await?.is_over(until_ms) {
                return Ok(LogHead::of(&self.settle_page(page, version).await?));
            }
            let pause = lapsed_core::clock::jittered(&*self.context.clock, LOOK_EVERY, 0.5);
            self.context.clock.sleep(pause).await;
        }
    }

    /// Continues after a log object that cannot be read: only its receipts are lost. What it would have said
    /// about older ones is known, or is in the newest of them that can be read.
    async fn skip_unreadable(&self, number: u64, before: LogHead, what: &str) -> Result<LogHead> {
        tracing::warn!(system = %self.system, what, "receipts left out");
        if before.number + 1 == number {
            return Ok(LogHead { number, ..before });
        }
        for older in (1..number).rev().take(TRIES) {
            if let Some(page) = self.read_or_skip(older).await? {
                return Ok(LogHead { number, ..LogHead::of(&page) });
            }
        }
        Ok(LogHead { number, oldest: number, total: 0 })
    }

    async fn read(&self, number: u64) -> Result<Option<(LogObject, UpdateVersion)>> {
        let path = self.path(number);
        let Some(read) = self.context.objects.get(&path).await? else { return Ok(None) };
        let page = serde_json::from_slice(&read.body).map_err(|error| Error::Corrupt {
            store: self.context.name().to_owned(),
            what: format!("{path} is not a log of receipts ({error})"),
        })?;
        Ok(Some((page, read.version)))
    }

    /// Reads a log object for a listing; an unreadable one must not hide the others.
    async fn read_or_skip(&self, number: u64) -> Result<Option<LogObject>> {
        match self.read(number).await {
            Err(Error::Corrupt { what, .. }) => {
                tracing::warn!(system = %self.system, what, "receipts left out");
                Ok(None)
            }
            other => Ok(other?.map(|(page, _)| page)),
        }
    }

    /// Finds out which changes of an open log object were made, prevents the others, and makes it final.
    async fn settle_page(&self, page: LogObject, version: UpdateVersion) -> Result<LogObject> {
        let mut confirmed = BTreeSet::new();
        for entry in &page.entries {
            if self.was_done(page.number, entry).await? {
                confirmed.insert(entry.subject.clone());
            }
        }
        self.finish(page, version, &confirmed).await
    }

    /// Whether the change was made. If it was not, it is prevented from now on.
    async fn was_done(&self, number: u64, entry: &Entry) -> Result<bool> {
        let subject = Subject::parse(&entry.subject)?;
        for _ in 0..TRIES {
            let path = self.context.path(&subject);
            let found = self.context.find(&path, namespace_of(&subject)).await?;
            // A change replaces what it has read, so it cannot succeed where the object is missing or
            // unreadable.
            let Found::Document(held) = found else { return Ok(false) };
            if held.doc.logged_in == number {
                return Ok(true);
            }
            if held.doc.epoch > entry.epoch {
                return Ok(false);
            }
            if self.context.replace(&held, held.doc.clone()).await?.is_some() {
                return Ok(false);
            }
        }
        Err(self.too_busy())
    }

    /// Makes the log object final. If another process has done so, its version counts.
    async fn finish(
        &self,
        mut page: LogObject,
        version: UpdateVersion,
        confirmed: &BTreeSet<String>,
    ) -> Result<LogObject> {
        page.entries.retain(|entry| confirmed.contains(&entry.subject));
        page.open_until_ms = None;
        let path = self.path(page.number);
        let body = page.encode(self.context.nonce());
        match self.context.objects.put(&path, body, WriteCondition::IfUnchanged(version)).await? {
            Written::Done(_) => Ok(page),
            Written::Lost => match self.read(page.number).await? {
                Some((theirs, _)) if theirs.open_until_ms.is_none() => Ok(theirs),
                _ => Err(Error::Unavailable {
                    store: self.context.name().to_owned(),
                    what: format!(
                        "{path} was overwritten by another writer; nothing else should write here"
                    ),
                }),
            },
        }
    }

    /// Settles a batch that had no answer: returns the receipts of what was done, and prevents the rest.
    pub(crate) async fn settle(&self, id: &BatchId) -> Result<Vec<Receipt>> {
        let numbers: Vec<u64> = {
            let tried = self.tried.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            tried.iter().filter(|(known, _)| known == id).map(|(_, number)| *number).collect()
        };
        let mut receipts = Vec::new();
        for number in numbers {
            let Some((page, version)) = self.read(number).await? else { continue };
            if page.sweeper != *id.sweeper || page.batch != id.number {
                continue;
            }
            let page = match page.open_until_ms {
                Some(_) => self.settle_page(page, version).await?,
                None => page,
            };
            let theirs =
                |receipt: &&Receipt| receipt.sweeper == id.sweeper && receipt.batch == id.number;
            receipts.extend(page.receipts().filter(theirs).cloned());
        }
        Ok(receipts)
    }

    /// Whether the log object `number`, and therefore every one before it, is final.
    pub(crate) async fn is_final(&self, number: u64) -> Result<bool> {
        let known = *self.head.lock().await;
        if number == 0 || known.is_some_and(|head| head.number >= number) {
            return Ok(true);
        }
        Ok(self.newest_including_others().await?.number >= number)
    }

    fn note(&self, id: &BatchId, number: u64) {
        const KEPT: usize = 1_000;
        let mut tried = self.tried.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if tried.len() >= KEPT {
            tried.drain(..KEPT / 2);
        }
        tried.push((id.clone(), number));
    }

    /// The newest log object of any process. One that is open and still in time is left to its process.
    async fn newest_including_others(&self) -> Result<LogHead> {
        let mut head = self.head.lock().await;
        let mut known = self.newest(&mut head).await?;
        loop {
            let (page, version) = match self.read(known.number + 1).await {
                Ok(Some(read)) => read,
                Ok(None) => break,
                Err(Error::Corrupt { what, .. }) => {
                    known = self.skip_unreadable(known.number + 1, known, &what).await?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            known = match page.open_until_ms {
                None => LogHead::of(&page),
                Some(until_ms) if self.context.clock_reading().await?.is_over(until_ms) => {
                    LogHead::of(&self.settle_page(page, version).await?)
                }
                Some(_) => break,
            };
        }
        *head = Some(known);
        Ok(known)
    }

    /// Reads receipts, one log object after the other.
    pub(crate) async fn receipts(&self, query: &ReceiptQuery) -> Result<Vec<Receipt>> {
        let head = self.newest_including_others().await?;
        let mut found = Vec::new();
        let mut next = match (query.after, query.before) {
            (Some(after), _) => (after / RECEIPTS_PER_OBJECT).max(head.oldest.max(1)),
            (None, Some(before)) => head.number.min(before / RECEIPTS_PER_OBJECT),
            (None, None) => head.number,
        };
        while next >= head.oldest.max(1) && next <= head.number && found.len() < query.limit {
            if let Some(page) = self.read_or_skip(next).await? {
                let fits = |receipt: &&Receipt| match (query.after, query.before) {
                    (Some(after), _) => receipt.id.seq > after,
                    (None, Some(before)) => receipt.id.seq < before,
                    (None, None) => true,
                };
                let room = query.limit - found.len();
                match query.after {
                    Some(_) => found.extend(page.receipts().filter(fits).take(room).cloned()),
                    None => found.extend(page.receipts().rev().filter(fits).take(room).cloned()),
                }
            }
            match query.after {
                Some(_) => next += 1,
                None => next -= 1,
            }
        }
        Ok(found)
    }

    pub(crate) async fn receipt(&self, seq: u64) -> Result<Option<Receipt>> {
        let page = self
            .read(seq / RECEIPTS_PER_OBJECT)
            .await?
            .filter(|(page, _)| page.open_until_ms.is_none());
        let Some((page, _)) = page else { return Ok(None) };
        Ok(page.receipts().find(|receipt| receipt.id.seq == seq).cloned())
    }

    /// Marks the receipt `seq` as restored.
    pub(crate) async fn mark_restored(&self, seq: u64, at_ms: u64) -> Result<()> {
        for _ in 0..TRIES {
            let Some((mut page, version)) = self.read(seq / RECEIPTS_PER_OBJECT).await? else {
                return Ok(());
            };
            let receipts = page.entries.iter_mut().flat_map(|entry| &mut entry.receipts);
            for receipt in receipts.filter(|receipt| receipt.id.seq == seq) {
                receipt.restored_ms = Some(at_ms);
            }
            let body = page.encode(self.context.nonce());
            let path = self.path(seq / RECEIPTS_PER_OBJECT);
            if let Written::Done(_) =
                self.context.objects.put(&path, body, WriteCondition::IfUnchanged(version)).await?
            {
                return Ok(());
            }
        }
        Err(self.too_busy())
    }

    /// Deletes log objects whose receipts need not be kept, oldest first. Returns the number of deleted
    /// receipts.
    pub(crate) async fn prune(&self, retention: &Retention, rows: usize) -> Result<u64> {
        let mut guard = self.head.lock().await;
        let mut head = self.newest(&mut guard).await?;
        let now = self.context.clock_reading().await?.judging_ms;
        let mut pruned = 0;
        // The newest log object stays, because the next number follows from it.
        while head.oldest.max(1) < head.number && pruned < rows as u64 {
            let number = head.oldest.max(1);
            // An unreadable log object stays for a person to examine.
            let Some(page) = self.read_or_skip(number).await? else {
                head.oldest = number + 1;
                continue;
            };
            let newest_ms = page.receipts().map(|receipt| receipt.at_ms).max();
            let too_old = newest_ms.unwrap_or(page.made_ms) + retention.age_ms < now;
            let too_many = head.total.saturating_sub(page.before) > retention.count;
            if !too_old && !too_many {
                break;
            }
            self.context.objects.delete(&self.path(number)).await?;
            pruned += page.count();
            head.oldest = number + 1;
        }
        *guard = Some(head);
        Ok(pruned)
    }
}
