//! Deliberate bugs. The checker must find each of them.

/// One way to build the protocol wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolBug {
    /// The store carries out what the sweeper suspected, without checking again.
    NoGuardInTheStep,
    /// The store checks that the suspected incarnation is dead, but not that it still holds the entry.
    HolderNotCompared,
    /// After a restart of the store, deadlines that ran out meanwhile count at once.
    NoGraceAfterRestart,
    /// Settling a batch without receipts does not stop its request, which may still arrive.
    LateRequestCarriedOut,
    /// A sweeper counts an answer that arrives after it has settled the batch by its receipts.
    LateAnswerCounted,
    /// The entry is removed in one step and its receipt is written in another.
    ReceiptInASecondStep,
    /// An incarnation that has ended may register entries.
    EndedMayRegister,
    /// A heartbeat brings an incarnation back that has ended.
    BeatRevivesTheEnded,
}

impl ProtocolBug {
    /// All planted bugs, each with the promise that it breaks.
    pub const ALL: [(ProtocolBug, &'static str); 8] = [
        (ProtocolBug::NoGuardInTheStep, "P1"),
        (ProtocolBug::HolderNotCompared, "P1"),
        (ProtocolBug::NoGraceAfterRestart, "P1"),
        (ProtocolBug::LateRequestCarriedOut, "P3"),
        (ProtocolBug::LateAnswerCounted, "P3"),
        (ProtocolBug::ReceiptInASecondStep, "P3"),
        (ProtocolBug::EndedMayRegister, "P5"),
        (ProtocolBug::BeatRevivesTheEnded, "P5"),
    ];
}
