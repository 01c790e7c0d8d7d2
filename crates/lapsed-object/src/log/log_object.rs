//! The stored form of one log object.

use bytes::Bytes;
use lapsed_core::receipt::Receipt;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LogObject {
    pub(super) epoch: u64,
    pub(super) nonce: String,
    pub(super) number: u64,
    /// The oldest log object that existed when this one was made.
    pub(super) oldest: u64,
    /// The number of all receipts before this log object.
    pub(super) before: u64,
    /// When it was made, in milliseconds of the store's clock.
    pub(super) made_ms: u64,
    /// Until when its process may work on it, in milliseconds of the store's clock; `None`: it is final.
    pub(super) open_until_ms: Option<u64>,
    pub(super) sweeper: String,
    pub(super) batch: u64,
    pub(super) entries: Vec<Entry>,
}

/// One change and its receipts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    /// The changed key, as receipts name it.
    pub(super) subject: String,
    /// The epoch that the change replaces.
    pub(super) epoch: u64,
    pub(super) receipts: Vec<Receipt>,
}

impl LogObject {
    pub(super) fn receipts(&self) -> impl DoubleEndedIterator<Item = &Receipt> {
        self.entries.iter().flat_map(|entry| &entry.receipts)
    }

    pub(super) fn count(&self) -> u64 {
        self.receipts().count() as u64
    }

    pub(super) fn encode(&mut self, nonce: u64) -> Bytes {
        self.epoch += 1;
        self.nonce = format!("{nonce:016x}");
        serde_json::to_vec(self).expect("a log object is JSON").into()
    }
}

/// The newest final log object that this process knows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LogHead {
    pub(super) number: u64,
    pub(super) oldest: u64,
    pub(super) total: u64,
}

impl LogHead {
    pub(super) fn of(page: &LogObject) -> LogHead {
        LogHead { number: page.number, oldest: page.oldest, total: page.before + page.count() }
    }
}
