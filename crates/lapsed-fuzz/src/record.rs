//! What an object store holds of a lease and of a decision.

/// Reads the input as a lease record and as a decision record.
pub fn read(input: &[u8]) {
    lapsed_object::fuzzing::record(input);
    lapsed_object::fuzzing::marker(input);
}
