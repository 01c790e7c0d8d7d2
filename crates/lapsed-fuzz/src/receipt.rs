//! Receipts: as JSON, by their id, and as Redis keeps them.

use lapsed_core::receipt::{Receipt, ReceiptId};

/// Reads it as each of them.
pub fn read(input: &[u8]) {
    lapsed_redis::fuzzing::receipts(input);
    if let Ok(receipt) = serde_json::from_slice::<Receipt>(input) {
        let text = serde_json::to_vec(&receipt).expect("a receipt is JSON");
        let again: Receipt = serde_json::from_slice(&text).expect("it was written by lapsed");
        assert_eq!(receipt, again);
    }
    if let Some(id) = std::str::from_utf8(input).ok().and_then(|t| t.parse::<ReceiptId>().ok()) {
        assert_eq!(id.to_string().parse::<ReceiptId>().ok(), Some(id));
    }
}
