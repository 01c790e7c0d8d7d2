//! Appending batches to the log, and when a checkpoint brings them into the database.

use std::sync::Arc;
use std::time::Duration;

use crate::checkpoint::{TransactionSize, bring_in};
use crate::fault::{Fault, Tried};
use crate::log::encode;
use crate::memtable::{BatchRows, Memtable};
use crate::open_store::{Appending, OpenStore, io_fault, wait_for};
use crate::shrink::shrink_if_mostly_free;
use crate::snapshot::View;
use crate::tables::{FORMAT, META, definition, number};

/// How often a checkpoint looks whether there is room on the disk again.
const ROOM_POLL: Duration = Duration::from_millis(50);

/// A checkpoint that is still under way delays the next one until this many times as much as usual is waiting. Then
/// batches wait for it.
const CHECKPOINT_LAG_MAX: usize = 4;

/// Key in `meta` of the number that the checksums of this store's log begin with.
pub(crate) const LOG_ID: &[u8] = b"log_id";

/// Marks the store as failed unless the checkpoint has ended well, also if it panics.
struct FailUnlessDone(Option<Arc<OpenStore>>);

impl Drop for FailUnlessDone {
    fn drop(&mut self) {
        if let Some(store) = &self.0 {
            store.fail();
        }
    }
}

impl OpenStore {
    /// Brings everything that was found in the log into the database and empties the log, before the first batch. So
    /// nothing relies on a page of the log whose sync may have failed.
    fn prepare(&self, appending: &mut Appending) -> Tried<()> {
        let (active, frozen) = {
            let view = self.view();
            (view.active.clone(), view.frozen.clone())
        };
        // There are active rows only if `finish` has failed before: then the log is all that has them.
        for found in frozen.iter().chain((!active.is_empty()).then_some(&active)) {
            if !self.location.has_room_for(2 * found.bytes() as u64)
                || !bring_in(self, found, TransactionSize::WHOLE)?
            {
                return Err(Fault::Full);
            }
        }
        appending.log.restart().map_err(io_fault)?;
        self.location.sync_names().map_err(io_fault)?;
        // Durable before the first record, because an older version does not know the log.
        let txn = self.database().begin_write()?;
        {
            let mut meta = txn.open_table(definition(META))?;
            meta.insert(&b"format"[..], &number(FORMAT)[..])?;
            meta.insert(LOG_ID, &number(appending.log.id)[..])?;
        }
        txn.commit()?;
        appending.is_ready = true;
        Ok(())
    }

    /// Makes a batch durable and shows it to readers. `threaded`: checkpoints have a thread of their own.
    pub fn append(self: &Arc<Self>, rows: BatchRows, threaded: bool) -> Tried<()> {
        let mut appending = self.appending();
        if !appending.is_ready {
            self.prepare(&mut appending)?;
        }
        if self.is_due() {
            self.begin_checkpoint(&mut appending, threaded)?;
        }
        let active = self.view().active.clone();
        let seq = active.last_seq() + 1;
        let record = encode(appending.log.id, seq, &rows);
        if !self.location.has_room_for(record.len() as u64) {
            return Err(Fault::Full);
        }
        appending.log.append(&record).map_err(io_fault)?;
        active.note_logged(record.len());
        active.apply(seq, rows);
        Ok(())
    }

    /// Begins a checkpoint, unless one is under way.
    fn begin_checkpoint(self: &Arc<Self>, appending: &mut Appending, threaded: bool) -> Tried<()> {
        let waiting = self.view().active.waiting_bytes();
        let is_running = appending.checkpoint.as_ref().is_some_and(|it| !it.is_finished());
        if is_running && waiting < self.options.checkpoint_bytes.saturating_mul(CHECKPOINT_LAG_MAX)
        {
            return Ok(());
        }
        if is_running && !self.location.has_room() {
            return Err(Fault::Full);
        }
        wait_for(appending.checkpoint.take())?;
        let frozen = self.view().active.clone();
        let file = appending.log.switch();
        self.replace_view(|view| View {
            active: Arc::new(Memtable::new(frozen.last_seq())),
            frozen: Some(frozen.clone()),
            base: view.base.clone(),
        });
        let (store, files) = (self.clone(), appending.log.files());
        let work = move || -> Tried<()> {
            let mut guard = FailUnlessDone(Some(store.clone()));
            while !bring_in(&store, &frozen, TransactionSize::BOUNDED)? {
                if store.is_closing() {
                    guard.0 = None;
                    return Ok(());
                }
                std::thread::sleep(ROOM_POLL);
            }
            files.empty(file).map_err(io_fault)?;
            shrink_if_mostly_free(&store)?;
            guard.0 = None;
            Ok(())
        };
        if !threaded {
            return work();
        }
        let thread = std::thread::Builder::new().name("lapsed-checkpoint".to_owned());
        appending.checkpoint = Some(thread.spawn(work).map_err(io_fault)?);
        Ok(())
    }

    /// Brings everything into the database, so that the log is empty. What fails here is in the log.
    pub fn finish(&self) -> Tried<()> {
        self.begin_closing();
        let mut appending = self.appending();
        wait_for(appending.checkpoint.take())?;
        let (active, frozen) = {
            let view = self.view();
            (view.active.clone(), view.frozen.clone())
        };
        if !appending.is_ready || (frozen.is_none() && active.is_empty()) {
            return Ok(());
        }
        appending.is_ready = false;
        for rows in frozen.iter().chain([&active]) {
            if !bring_in(self, rows, TransactionSize::BOUNDED)? {
                return Ok(());
            }
        }
        appending.log.restart().map_err(io_fault)
    }
}
