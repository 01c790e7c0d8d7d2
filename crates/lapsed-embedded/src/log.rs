//! The write-ahead log: each batch is one record, durable before its callers are answered.
//!
//! Two files, used in turn. A checkpoint brings what one of them contains into the database while the other one
//! grows; then it empties the first. `docs/decisions/0015-embedded-log.md` lists the races and what closes each.
//!
//! A record, numbers little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 4 | [`MAGIC`], to find records behind damage |
//! | 1 | [`VERSION`] of the record |
//! | 8 | number of the batch: one more than that of the record before |
//! | 8 | length of the content |
//! | 8 | checksum (XXH3) of number, length and content, seeded with the number of this log |
//! | … | for each table: length of its name (2), name, number of rows (4), and for each row the length of its key (4), key, the length of its value plus 1, or 0 for "removed" (4), value |
//!
//! A record says what rows are after the batch, not what changed. Carrying it out twice changes nothing.

use std::io;
use std::sync::Arc;

use redb::StorageBackend;
use xxhash_rust::xxh3::Xxh3;

use crate::memtable::{BatchRows, Key, Memtable, Value};

const MAGIC: [u8; 4] = *b"lpsd";
const VERSION: u8 = 1;
const HEADER: usize = 4 + 1 + 8 + 8 + 8;

/// By how much a file grows at a time. The grown part is zero until it is written.
const GROW_BYTES: u64 = 1 << 20;

/// Why a log cannot be used as it is.
#[derive(Debug)]
pub(crate) enum LogError {
    Io(io::Error),
    /// What is wrong with the content.
    Damaged(String),
}

impl From<io::Error> for LogError {
    fn from(error: io::Error) -> Self {
        LogError::Io(error)
    }
}

fn damaged<T>(what: impl Into<String>) -> Result<T, LogError> {
    Err(LogError::Damaged(what.into()))
}

fn checksum(id: u64, seq: u64, content: &[u8]) -> u64 {
    let mut hash = Xxh3::with_seed(id);
    hash.update(&[VERSION]);
    hash.update(&seq.to_le_bytes());
    hash.update(&(content.len() as u64).to_le_bytes());
    hash.update(content);
    hash.digest()
}

fn put_bytes(record: &mut Vec<u8>, bytes: &[u8]) {
    record.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    record.extend_from_slice(bytes);
}

fn length_of(rows: &BatchRows) -> usize {
    let row =
        |(key, value): (&Key, &Value)| 8 + key.len() + value.as_ref().map_or(0, |it| it.len());
    rows.tables().map(|(table, rows)| 6 + table.len() + rows.iter().map(row).sum::<usize>()).sum()
}

/// The record of a batch in the log `id`.
pub(crate) fn encode(id: u64, seq: u64, rows: &BatchRows) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEADER + length_of(rows));
    record.resize(HEADER, 0);
    for (table, rows) in rows.tables() {
        record.extend_from_slice(&(table.len() as u16).to_le_bytes());
        record.extend_from_slice(table.as_bytes());
        record.extend_from_slice(&(rows.len() as u32).to_le_bytes());
        for (key, value) in rows {
            put_bytes(&mut record, key);
            match value {
                Some(value) => {
                    record.extend_from_slice(&(value.len() as u32 + 1).to_le_bytes());
                    record.extend_from_slice(value);
                }
                None => record.extend_from_slice(&0u32.to_le_bytes()),
            }
        }
    }
    let (length, sum) = ((record.len() - HEADER) as u64, checksum(id, seq, &record[HEADER..]));
    record[..4].copy_from_slice(&MAGIC);
    record[4] = VERSION;
    record[5..13].copy_from_slice(&seq.to_le_bytes());
    record[13..21].copy_from_slice(&length.to_le_bytes());
    record[21..29].copy_from_slice(&sum.to_le_bytes());
    record
}

/// Reads the content of a record.
struct Content<'a>(&'a [u8]);

impl<'a> Content<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<usize> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?) as usize)
    }

    fn rows(mut self) -> Option<BatchRows> {
        let mut rows = BatchRows::default();
        while !self.0.is_empty() {
            let length = u16::from_le_bytes(self.take(2)?.try_into().ok()?);
            let table: Arc<str> = Arc::from(std::str::from_utf8(self.take(length.into())?).ok()?);
            for _ in 0..self.number()? {
                let length = self.number()?;
                let key = self.take(length)?;
                let value = match self.number()? {
                    0 => None,
                    length => Some(self.take(length - 1)?),
                };
                rows.set(&table, key, value.map(Arc::from));
            }
        }
        Some(rows)
    }
}

/// A record within the bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    seq: u64,
    content: std::ops::Range<usize>,
}

/// The valid record that begins at `at`, if one does.
fn record_at(id: u64, bytes: &[u8], at: usize) -> Option<Record> {
    let header = bytes.get(at..at + HEADER)?;
    if header[..4] != MAGIC || header[4] != VERSION {
        return None;
    }
    let seq = u64::from_le_bytes(header[5..13].try_into().ok()?);
    let length = u64::from_le_bytes(header[13..21].try_into().ok()?);
    let sum = u64::from_le_bytes(header[21..29].try_into().ok()?);
    let content = at + HEADER..(at + HEADER).checked_add(usize::try_from(length).ok()?)?;
    (checksum(id, seq, bytes.get(content.clone())?) == sum).then_some(Record { seq, content })
}

/// What one file contains.
struct FileContent {
    bytes: Vec<u8>,
    records: Vec<Record>,
    /// Whether something else than zeros follows the last record: the rest of a record that was being written.
    torn: bool,
}

impl FileContent {
    fn parse(id: u64, bytes: Vec<u8>) -> Result<FileContent, LogError> {
        let (mut records, mut at) = (Vec::new(), 0);
        while let Some(record) = record_at(id, &bytes, at) {
            at = record.content.end;
            records.push(record);
        }
        let rest = without_zero_pages_at_the_end(&bytes[at..]);
        let starts = rest.windows(MAGIC.len()).enumerate().filter(|(_, window)| *window == MAGIC);
        if let Some(record) = starts.filter_map(|(i, _)| record_at(id, &bytes, at + i)).next() {
            return damaged(format!(
                "its log is damaged before batch {}: what was written there cannot be read",
                record.seq
            ));
        }
        if let Some(header) = rest.get(..5)
            && header[..4] == MAGIC
            && header[4] > VERSION
        {
            return damaged("its log was written by a newer version of lapsed");
        }
        Ok(FileContent { torn: rest.iter().any(|byte| *byte != 0), bytes, records })
    }

    fn first_seq(&self) -> Option<u64> {
        self.records.first().map(|record| record.seq)
    }
}

/// What precedes the zeros that the file has grown by. Whole pages are compared, not bytes:
/// when a store is opened after a kill, most of its log is such zeros.
fn without_zero_pages_at_the_end(bytes: &[u8]) -> &[u8] {
    const ZEROS: [u8; 4096] = [0; 4096];
    let pages = bytes.rchunks(ZEROS.len()).take_while(|page| **page == ZEROS[..page.len()]);
    &bytes[..bytes.len() - pages.map(<[u8]>::len).sum::<usize>()]
}

/// The two files of the log, which a checkpoint empties while the writer appends.
pub(crate) struct LogFiles([Box<dyn StorageBackend>; 2]);

impl LogFiles {
    /// Empties a file, or creates it. This must be durable before the file is used again: old records behind a new one
    /// would look like damage.
    pub fn empty(&self, file: usize) -> io::Result<()> {
        self.0[file].set_len(0)?;
        self.0[file].sync_data()
    }
}

/// The place where the next record is written.
pub(crate) struct Log {
    /// Different in each store, so that the log of another one is not taken for this one's.
    pub id: u64,
    files: Arc<LogFiles>,
    /// The file that records are appended to.
    current: usize,
    /// Where the next record begins in it.
    end: u64,
    /// The length of the current file; what lies behind `end` is zero.
    length: u64,
}

fn read_file(file: &dyn StorageBackend) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; file.len()? as usize];
    if !bytes.is_empty() {
        file.read(0, &mut bytes)?;
    }
    Ok(bytes)
}

impl Log {
    /// Reads both files and changes nothing. `contained` is the number of the last batch that the database contains; the
    /// later ones are returned. The files must be emptied before anything is appended.
    pub fn open(
        files: [Box<dyn StorageBackend>; 2],
        id: u64,
        contained: u64,
    ) -> Result<(Log, Memtable), LogError> {
        let parse = |file: &dyn StorageBackend| FileContent::parse(id, read_file(file)?);
        let mut contents = [parse(&*files[0])?, parse(&*files[1])?];
        contents.sort_by_key(|content| content.first_seq().unwrap_or(u64::MAX));
        let [older, newer] = &contents;
        if older.torn && !newer.records.is_empty() {
            return damaged(
                "the older file of its log ends in the middle of a batch, and the newer one goes on",
            );
        }
        if older.torn || newer.torn {
            tracing::warn!(
                "the last record of the log is incomplete: a process ended while it wrote it, and nobody was answered"
            );
        }
        let rows = Memtable::new(contained);
        for content in &contents {
            for record in &content.records {
                if record.seq <= contained {
                    continue;
                }
                let next = rows.last_seq() + 1;
                if record.seq != next {
                    return damaged(format!(
                        "batch {next} is missing in its log, which goes on with batch {}",
                        record.seq
                    ));
                }
                let Some(batch) = Content(&content.bytes[record.content.clone()]).rows() else {
                    return damaged(format!("batch {next} of its log cannot be read"));
                };
                rows.apply(next, batch);
            }
        }
        let files = Arc::new(LogFiles(files));
        Ok((Log { id, files, current: 0, end: 0, length: 0 }, rows))
    }

    pub fn files(&self) -> Arc<LogFiles> {
        self.files.clone()
    }

    /// Appends a record and makes it durable. After an error, whether it will be found again is unknown: the store must
    /// be opened again.
    pub fn append(&mut self, record: &[u8]) -> io::Result<()> {
        let file = &self.files.0[self.current];
        let end = self.end + record.len() as u64;
        if end > self.length {
            let length = end.next_multiple_of(GROW_BYTES);
            file.set_len(length)?;
            self.length = length;
        }
        file.write(self.end, record)?;
        file.sync_data()?;
        self.end = end;
        Ok(())
    }

    /// Empties both files, or creates them, and begins at their start.
    pub fn restart(&mut self) -> io::Result<()> {
        (self.current, self.end, self.length) = (0, 0, 0);
        self.files.empty(0)?;
        self.files.empty(1)
    }

    /// Goes on in the other file, which is empty, and returns the number of the one that was used so far.
    pub fn switch(&mut self) -> usize {
        let before = self.current;
        (self.current, self.end, self.length) = (1 - before, 0, 0);
        before
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use proptest::prelude::*;
    use redb::backends::InMemoryBackend;

    use super::*;
    use crate::memtable::KeyRange;

    const ID: u64 = 7;

    fn file(bytes: &[u8]) -> Box<dyn StorageBackend> {
        let file = InMemoryBackend::new();
        file.set_len(bytes.len() as u64).unwrap();
        file.write(0, bytes).unwrap();
        Box::new(file)
    }

    fn batch(rows: &[(&str, &str, Option<&str>)]) -> BatchRows {
        let mut batch = BatchRows::default();
        for (table, key, value) in rows {
            batch.set(&Arc::from(*table), key.as_bytes(), value.map(|v| Arc::from(v.as_bytes())));
        }
        batch
    }

    fn record(seq: u64) -> Vec<u8> {
        encode(
            ID,
            seq,
            &batch(&[("t", "last", Some(&seq.to_string())), ("u", &format!("k{seq}"), Some("v"))]),
        )
    }

    fn records(seqs: std::ops::RangeInclusive<u64>) -> Vec<u8> {
        seqs.flat_map(record).collect()
    }

    /// The number of the last batch that is found, or what is wrong.
    fn last(older: &[u8], newer: &[u8], contained: u64) -> Result<u64, String> {
        match Log::open([file(older), file(newer)], ID, contained) {
            Ok((_, rows)) => Ok(rows.last_seq()),
            Err(LogError::Damaged(what)) => Err(what),
            Err(LogError::Io(error)) => panic!("{error}"),
        }
    }

    #[test]
    fn batches_of_both_files_are_found_in_order_whichever_is_older() {
        assert_eq!(last(&records(1..=3), &records(4..=6), 0), Ok(6));
        assert_eq!(last(&records(4..=6), &records(1..=3), 0), Ok(6));
        assert_eq!(last(&[], &[], 7), Ok(7), "an empty log");
    }

    #[test]
    fn batches_that_the_database_contains_are_skipped() {
        assert_eq!(last(&records(1..=3), &records(4..=6), 4), Ok(6));
        assert_eq!(last(&records(1..=3), &[], 9), Ok(9));
        let (_, rows) = Log::open([file(&records(1..=6)), file(&[])], ID, 5).unwrap();
        let all = KeyRange {
            from: std::ops::Bound::Unbounded,
            to: std::ops::Bound::Unbounded,
            backwards: false,
        };
        let keys: Vec<_> = rows.table("u").unwrap().page(all, 9, u64::MAX);
        assert_eq!(keys.len(), 1, "only batch 6 is read");
    }

    /// A crash while a record is being written: any part of it may be there, and zeros behind it.
    #[test]
    fn a_torn_last_record_is_cut_off_wherever_it_is_torn() {
        let (whole, next) = (records(1..=2), record(3));
        for written in 0..next.len() {
            let mut bytes = whole.clone();
            bytes.extend_from_slice(&next[..written]);
            bytes.resize(whole.len() + next.len() + 100, 0);
            assert_eq!(last(&bytes, &[], 0), Ok(2), "{written} bytes");
            assert_eq!(
                last(&bytes[..whole.len() + written], &[], 0),
                Ok(2),
                "{written} bytes, cut off"
            );
        }
    }

    #[test]
    fn damage_before_another_batch_is_refused() {
        let bytes = records(1..=4);
        let second = record(1).len();
        for at in second..second + record(2).len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x40;
            let refused = last(&bytes, &[], 0);
            assert!(
                refused.clone().is_err_and(|what| what.contains("damaged")),
                "{at}: {refused:?}"
            );
        }
    }

    #[test]
    fn the_log_of_another_store_is_not_read() {
        let (log, _) = (records(1..=3), ());
        let Ok((_, rows)) = Log::open([file(&log), file(&[])], ID + 1, 0) else {
            panic!("refused")
        };
        assert!(rows.is_empty());
    }

    #[test]
    fn a_missing_batch_is_refused() {
        for (older, newer) in [(records(1..=2), records(4..=5)), (records(2..=3), Vec::new())] {
            let refused = last(&older, &newer, 0);
            assert!(refused.clone().is_err_and(|what| what.contains("missing")), "{refused:?}");
        }
        let torn = [records(1..=2), record(3)[..20].to_vec()].concat();
        assert!(last(&torn, &records(4..=4), 0).is_err());
        assert!(
            last(&torn, &records(3..=4), 0).is_err(),
            "nothing is written behind a torn record"
        );
    }

    #[test]
    fn a_record_of_a_newer_version_is_refused() {
        let mut newer = record(2);
        newer[4] = VERSION + 1;
        let refused = last(&[record(1), newer].concat(), &[], 0);
        assert!(refused.is_err_and(|what| what.contains("newer version")));
    }

    #[test]
    fn what_is_appended_is_found_again() {
        let (files, opened) = (InMemoryBackend::new(), InMemoryBackend::new());
        let (mut log, rows) = Log::open([Box::new(files), Box::new(opened)], ID, 0).unwrap();
        assert!(rows.is_empty());
        for seq in 1..=3 {
            log.append(&encode(ID, seq, &batch(&[("t", "k", Some(&seq.to_string()))]))).unwrap();
        }
        assert_eq!(log.switch(), 0);
        log.append(&encode(ID, 4, &batch(&[("t", "k", None)]))).unwrap();
        let contents: Vec<Vec<u8>> =
            log.files.0.iter().map(|file| read_file(&**file).unwrap()).collect();
        assert_eq!(last(&contents[0], &contents[1], 0), Ok(4));
        log.files().empty(0).unwrap();
        assert_eq!(last(&read_file(&*log.files.0[0]).unwrap(), &contents[1], 3), Ok(4));
    }

    type Written = Vec<(u8, Vec<u8>, Option<Vec<u8>>)>;

    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written(rows in proptest::collection::vec(
            (0u8..4, proptest::collection::vec(any::<u8>(), 0..20),
             proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40))), 0..20)) {
            let rows: Written = rows;
            let mut written = BatchRows::default();
            for (table, key, value) in &rows {
                let table: Arc<str> = Arc::from(format!("table-{table}"));
                written.set(&table, key, value.as_deref().map(Arc::from));
            }
            let bytes = encode(ID, 7, &written);
            let found = record_at(ID, &bytes, 0).unwrap();
            prop_assert_eq!(found.seq, 7);
            let read = Content(&bytes[found.content]).rows().unwrap();
            prop_assert!(read.tables().eq(written.tables()));
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = FileContent::parse(ID, bytes.clone()).map(|content| content.records.len());
            let _ = Content(&bytes).rows();
        }
    }
}
