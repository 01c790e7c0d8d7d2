//! What fuzzing needs of this crate: bytes that anybody may have put there, read as the store reads
//! them. What is understood is written again and means the same.

use crate::document::Document;

/// Decodes a lease's record; a record that is understood must survive being encoded again.
pub fn record(bytes: &[u8]) {
    check_round_trip(Document::decode_meta("ns", bytes, "it"), |bytes| {
        Document::decode_meta("ns", bytes, "it")
    });
}

/// Decodes a decision's marker; a marker that is understood must survive being encoded again.
pub fn marker(bytes: &[u8]) {
    check_round_trip(Document::decode_marker(bytes, "it"), |bytes| {
        Document::decode_marker(bytes, "it")
    });
}

fn check_round_trip(
    read: Result<Document, String>,
    decode: impl Fn(&[u8]) -> Result<Document, String>,
) {
    let Ok(mut doc) = read else { return };
    let (subject, deadline_ms, holder) = (doc.subject(), doc.deadline_ms(), doc.holder());
    let written = doc.encode(1);
    let doc = decode(&written).expect("what was written can be read");
    assert_eq!((doc.deadline_ms(), doc.holder()), (deadline_ms, holder));
    assert_eq!(doc.subject().name(), subject.name());
}
