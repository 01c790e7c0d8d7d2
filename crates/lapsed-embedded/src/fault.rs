//! Failures inside a batch, distinguished by their effect on the batch.

use lapsed_core::Error;

/// Result of a job.
pub(crate) type Tried<T> = std::result::Result<T, Fault>;

/// Why one job of a batch failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The job's answer is an error such as `Lost` or `Invalid`. It wrote nothing, and the batch
    /// continues.
    Said(Error),
    /// The disk failed: the whole batch is undone.
    Disk(redb::Error),
    /// There is not enough room on the disk. Nothing was written: the whole batch is undone.
    Full,
    /// A row cannot be read: the whole batch is undone.
    Row(String),
}

impl Fault {
    pub fn row(what: impl Into<String>) -> Self {
        Fault::Row(what.into())
    }

    /// The error for the caller. `place` is the data folder.
    pub fn told(&self, place: &str) -> Error {
        match self {
            Fault::Said(error) => error.clone(),
            Fault::Disk(error) => disk_error(place, error),
            Fault::Full => disk_full(place),
            Fault::Row(what) => Error::Corrupt { store: place.to_owned(), what: what.clone() },
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Said(error)
    }
}

impl From<serde_json::Error> for Fault {
    fn from(error: serde_json::Error) -> Self {
        Fault::Row(format!("a row cannot be parsed: {error}"))
    }
}

macro_rules! from_redb {
    ($($kind:ty),*) => {$(
        impl From<$kind> for Fault {
            fn from(error: $kind) -> Self {
                Fault::Disk(error.into())
            }
        }
    )*};
}
from_redb!(
    redb::StorageError,
    redb::TableError,
    redb::TransactionError,
    redb::CommitError,
    redb::DatabaseError,
    redb::SetDurabilityError
);

/// The error for a caller whose job met a failing disk.
pub(crate) fn disk_error(place: &str, error: &redb::Error) -> Error {
    let store = place.to_owned();
    match error {
        redb::Error::Corrupted(what) => Error::Corrupt { store, what: what.clone() },
        redb::Error::Io(error) if error.kind() == std::io::ErrorKind::StorageFull => {
            disk_full(place)
        }
        other => Error::Unavailable { store, what: other.to_string() },
    }
}

pub(crate) fn disk_full(place: &str) -> Error {
    Error::Unavailable {
        store: place.to_owned(),
        what: "its disk is full, so nothing can be written; reads go on. Free some space: \
               writes go on by themselves"
            .to_owned(),
    }
}
