//! A file that is not written to before its content was checked.
//!
//! Opening a database writes to it (a recovery flag, a repair), but a damaged file must stay as it
//! is. So until everything was read and found correct, writes are kept in memory, on top of the
//! file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, RwLock};

use redb::StorageBackend;

#[derive(Debug, Clone)]
pub(crate) struct CheckedBackend {
    file: Arc<File>,
    over: Arc<RwLock<Option<Overlay>>>,
}

#[derive(Debug)]
struct Overlay {
    len: u64,
    writes: BTreeMap<u64, Vec<u8>>,
}

impl CheckedBackend {
    pub fn new(file: File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        let over = Overlay { len, writes: BTreeMap::new() };
        Ok(CheckedBackend { file: Arc::new(file), over: Arc::new(RwLock::new(Some(over))) })
    }

    /// Ends the checking phase: writes the kept changes to the file, and all later ones directly.
    pub fn trust(&self) -> io::Result<()> {
        let mut over = self.over.write().expect(LOCK);
        if let Some(kept) = over.take() {
            self.file.set_len(kept.len)?;
            for (offset, data) in &kept.writes {
                self.file.write_all_at(data, *offset)?;
            }
            self.file.sync_data()?;
        }
        Ok(())
    }
}

const LOCK: &str = "no holder of this lock panics";

impl Overlay {
    /// Kept writes may overlap: a newer one cuts the older ones.
    fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let start = self.writes.range(..offset).next_back().map_or(offset, |(at, _)| *at);
        let touched: Vec<u64> = self.writes.range(start..end).map(|(at, _)| *at).collect();
        for at in touched {
            let Some(old) = self.writes.remove(&at) else { continue };
            let old_end = at + old.len() as u64;
            if at < offset {
                let keep = old.len().min((offset - at) as usize);
                self.writes.insert(at, old[..keep].to_vec());
            }
            if old_end > end {
                self.writes.insert(end, old[(end - at) as usize..].to_vec());
            }
        }
        self.writes.insert(offset, data.to_vec());
    }

    fn read_over(&self, offset: u64, out: &mut [u8]) {
        let end = offset + out.len() as u64;
        let start = self.writes.range(..offset).next_back().map_or(offset, |(at, _)| *at);
        for (at, data) in self.writes.range(start..end) {
            let (from, to) = ((*at).max(offset), (at + data.len() as u64).min(end));
            if from < to {
                let part = &data[(from - at) as usize..(to - at) as usize];
                out[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
            }
        }
    }
}

impl StorageBackend for CheckedBackend {
    fn len(&self) -> io::Result<u64> {
        match &*self.over.read().expect(LOCK) {
            Some(over) => Ok(over.len),
            None => Ok(self.file.metadata()?.len()),
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let over = self.over.read().expect(LOCK);
        let Some(over) = &*over else { return self.file.read_exact_at(out, offset) };
        if offset + out.len() as u64 > over.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut done = 0;
        while done < out.len() {
            match self.file.read_at(&mut out[done..], offset + done as u64)? {
                0 => break,
                n => done += n,
            }
        }
        out[done..].fill(0);
        over.read_over(offset, out);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        match &mut *self.over.write().expect(LOCK) {
            Some(over) => {
                over.len = len;
                Ok(())
            }
            None => self.file.set_len(len),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        match &*self.over.read().expect(LOCK) {
            Some(_) => Ok(()),
            None => self.file.sync_data(),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.over.read().expect(LOCK).is_none() {
            return self.file.write_all_at(data, offset);
        }
        match &mut *self.over.write().expect(LOCK) {
            Some(over) => over.write(offset, data),
            None => self.file.write_all_at(data, offset)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn reads_see_writes_that_are_not_in_the_file_yet(writes in proptest::collection::vec(
            (0u64..60, proptest::collection::vec(any::<u8>(), 1..20)), 1..30)) {
            let mut plain = vec![0u8; 100];
            let mut over = Overlay { len: 100, writes: BTreeMap::new() };
            for (offset, data) in &writes {
                plain[*offset as usize..*offset as usize + data.len()].copy_from_slice(data);
                over.write(*offset, data);
            }
            let mut read = vec![0u8; 100];
            over.read_over(0, &mut read);
            prop_assert_eq!(&plain, &read);
            let mut part = vec![0u8; 31];
            over.read_over(17, &mut part);
            prop_assert_eq!(&plain[17..48], &part[..]);
        }
    }
}
