//! A disk with the files of a store, which can lose power: what was synced survives, what was not may survive in part.
//!
//! Writes to a file go to an image (the page cache) and wait in a list until they are synced. When the power
//! fails, each waiting piece of a page is kept or lost by itself, as the chosen [`Keep`] says. A
//! handle that was opened before the power failed gets nothing but errors from then on.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use lapsed_embedded::{Backend, StoreFile};

use crate::random::mix;

/// The number of the database among the files.
const DATABASE: usize = 0;

/// The unit that a power failure keeps or loses as a whole, in bytes.
const SECTOR: usize = 512;

/// How much waits in the log of a simulated store before a checkpoint: a few batches, so that faults meet checkpoints,
/// logs of many batches, and both files of a log.
pub const CHECKPOINT_BYTES: usize = 4_000;

/// Which syncs report success without syncing: planted bugs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lies {
    #[default]
    Never,
    Always,
    /// Those of the database, but not those of its log.
    InTheDatabase,
}

/// What survives of the writes that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    Nothing,
    /// All of them: the failure came after the sync and before its answer.
    Everything,
    /// Some of the sectors, chosen by this seed.
    Some(u64),
}

/// The fault that the next sync meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncFault {
    Power(Keep),
    /// The sync returns an error once and the process goes on; `Keep` says which writes survive.
    Error(Keep),
}

#[derive(Debug, Default)]
struct State {
    /// The database and the two files of its log.
    files: [FileState; 3],
    opening: u64,
    sync_fault: Option<SyncFault>,
    fired: Option<SyncFault>,
    lies: Lies,
}

#[derive(Debug, Default)]
struct FileState {
    image: Vec<u8>,
    durable: Vec<u8>,
    waiting: Vec<Write>,
    /// Whether the length was changed since the last sync.
    resized: bool,
}

#[derive(Debug)]
enum Write {
    Data { offset: usize, data: Vec<u8> },
    Length(usize),
}

impl Write {
    /// Copies what it touched from what survived of it.
    fn undo(&self, image: &mut [u8], durable: &[u8]) {
        let Write::Data { offset, data } = self else { return };
        let range = *offset..offset + data.len();
        if let (Some(image), Some(durable)) = (image.get_mut(range.clone()), durable.get(range)) {
            image.copy_from_slice(durable);
        }
    }

    fn apply(&self, bytes: &mut Vec<u8>, keeps: impl Fn(usize) -> bool) {
        match self {
            Write::Length(len) => bytes.resize(*len, 0),
            Write::Data { offset, data } => {
                for (i, piece) in data.chunks(SECTOR).enumerate() {
                    let at = offset + i * SECTOR;
                    if keeps(at) && at + piece.len() <= bytes.len() {
                        bytes[at..at + piece.len()].copy_from_slice(piece);
                    }
                }
            }
        }
    }
}

/// The disk. Clones share their contents.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<Mutex<State>>);

impl Disk {
    /// A disk whose files are empty.
    pub fn new(lies: Lies) -> Self {
        let disk = Disk::default();
        disk.lock().lies = lies;
        disk
    }

    /// A handle of one of its files, which works until the power fails.
    pub fn handle(&self, file: StoreFile) -> Box<dyn Backend> {
        let file = match file {
            StoreFile::Database => DATABASE,
            StoreFile::Log(number) => 1 + number,
        };
        Box::new(Handle { disk: self.clone(), file, opening: self.lock().opening })
    }

    /// Sets or clears the fault of the next sync.
    pub fn set_sync_fault(&self, sync_fault: Option<SyncFault>) {
        self.lock().sync_fault = sync_fault;
    }

    /// Whether a fault is set for the next sync.
    pub fn is_armed(&self) -> bool {
        self.lock().sync_fault.is_some()
    }

    /// The sync fault that has happened since the last call.
    pub fn take_fired(&self) -> Option<SyncFault> {
        self.lock().fired.take()
    }

    /// Cuts the power now: open handles fail from now on.
    pub fn cut_power(&self, keep: Keep) {
        self.lock().cut_power(keep);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nobody panics while holding the lock")
    }
}

impl State {
    fn lies_in(&self, file: usize) -> bool {
        match self.lies {
            Lies::Never => false,
            Lies::Always => true,
            Lies::InTheDatabase => file == DATABASE,
        }
    }

    fn cut_power(&mut self, keep: Keep) {
        for number in 0..self.files.len() {
            let lies = self.lies_in(number);
            self.files[number].settle(keep, lies);
        }
        self.opening += 1;
        self.sync_fault = None;
    }

    fn sync(&mut self, file: usize) -> io::Result<()> {
        self.fired = self.fired.or(self.sync_fault);
        match self.sync_fault.take() {
            Some(SyncFault::Power(keep)) => {
                self.cut_power(keep);
                return Err(off());
            }
            Some(SyncFault::Error(keep)) => {
                let lies = self.lies_in(file);
                self.files[file].settle(keep, lies);
                return Err(io::Error::other("the disk answered an error"));
            }
            None => {}
        }
        if !self.lies_in(file) {
            self.files[file].sync();
        }
        Ok(())
    }
}

impl FileState {
    /// Keeps or loses the writes that were not synced.
    fn settle(&mut self, keep: Keep, lies: bool) {
        let keeps = |at: usize| match keep {
            Keep::Nothing => false,
            Keep::Everything => true,
            Keep::Some(seed) => mix(seed ^ (at / SECTOR) as u64) & 1 == 1,
        };
        for write in std::mem::take(&mut self.waiting) {
            if keep != Keep::Nothing || !lies {
                write.apply(&mut self.durable, keeps);
            }
            write.undo(&mut self.image, &self.durable);
        }
        // Where lengths differed, bytes may have been cut off or filled in after they were undone.
        if self.resized || lies {
            self.image.clone_from(&self.durable);
        }
        self.resized = false;
    }

    fn sync(&mut self) {
        self.resized = false;
        for write in std::mem::take(&mut self.waiting) {
            write.apply(&mut self.durable, |_| true);
        }
    }
}

fn off() -> io::Error {
    io::Error::other("the power is off")
}

#[derive(Debug)]
struct Handle {
    disk: Disk,
    file: usize,
    opening: u64,
}

impl Handle {
    fn on(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.disk.lock();
        if state.opening == self.opening { Ok(state) } else { Err(off()) }
    }
}

impl Backend for Handle {
    fn len(&self) -> io::Result<u64> {
        Ok(self.on()?.files[self.file].image.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.on()?;
        let from = offset as usize;
        let found = state.files[self.file].image.get(from..from + out.len());
        out.copy_from_slice(found.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.on()?;
        let file = &mut state.files[self.file];
        file.image.resize(len as usize, 0);
        file.waiting.push(Write::Length(len as usize));
        file.resized = true;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.on()?.sync(self.file)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.on()?;
        let file = &mut state.files[self.file];
        let write = Write::Data { offset: offset as usize, data: data.to_vec() };
        write.apply(&mut file.image, |_| true);
        file.waiting.push(write);
        Ok(())
    }
}
