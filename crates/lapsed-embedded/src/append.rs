//! Appending batches to the log, and when a checkpoint brings them into the database.

use std::sync::Arc;
use std::time::Duration;

use crate::checkpoint::bring_in;
use crate::fault::Tried;
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

impl OpenStore {
    /// Brings everything that was found in the log into the database and empties the log, before the first batch. So
    /// nothing relies on a page of the log whose sync may have failed.
    fn prepare(&self, appending: &mut Appending) -> Tried<()> {
        if let Some(found) = &self.view().frozen
            && !bring_in(self, found)?
        {
            return Err(io_fault(std::io::ErrorKind::StorageFull.into()));
        }
        appending.log.files().empty_all().map_err(io_fault)?;
        self.location.sync_names().map_err(io_fault)?;
        // Durable before the first record, because an older version does not know the log.
        let txn = self.database().begin_write()?;
        txn.open_table(definition(META))?.insert(&b"format"[..], &number(FORMAT)[..])?;
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
        appending.log.append(seq, &rows).map_err(io_fault)?;
        active.apply(seq, rows);
        Ok(())
    }

    /// Begins a checkpoint, unless one is under way.
    fn begin_checkpoint(self: &Arc<Self>, appending: &mut Appending, threaded: bool) -> Tried<()> {
        let waiting = self.view().active.bytes();
        let is_running = appending.checkpoint.as_ref().is_some_and(|it| !it.is_finished());
        if is_running && waiting < self.options.checkpoint_bytes.saturating_mul(CHECKPOINT_LAG_MAX)
        {
            return Ok(());
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
            while !bring_in(&store, &frozen)? {
                if store.is_closing() {
                    return Ok(());
                }
                std::thread::sleep(ROOM_POLL);
            }
            files.empty(file).map_err(io_fault)?;
            shrink_if_mostly_free(&store)
        };
        if !threaded {
            return work();
        }
        let thread = std::thread::Builder::new().name("lapsed-checkpoint".to_owned());
        let store = self.clone();
        let work = move || work().inspect_err(|_| store.fail());
        appending.checkpoint = Some(thread.spawn(work).map_err(io_fault)?);
        Ok(())
    }

    /// Brings everything into the database, so that the log is empty. What fails here is in the log.
    pub fn finish(&self) -> Tried<()> {
        let mut appending = self.appending();
        wait_for(appending.checkpoint.take())?;
        let view = self.view();
        if !appending.is_ready || (view.frozen.is_none() && view.active.is_empty()) {
            return Ok(());
        }
        for rows in view.frozen.iter().chain([&view.active]) {
            if !bring_in(self, rows)? {
                return Ok(());
            }
        }
        appending.log.files().empty_all().map_err(io_fault)
    }
}
