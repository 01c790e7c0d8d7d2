//! Planted bugs for availability: the simulation must find each of them. None is in production
//! code; they change what the simulated connections to the stores do.

use crate::promise::Promise;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AvailabilityBug {
    /// The mirror accepts an update whatever its version is (C2, C8).
    AnyVersionTaken,
    /// The truth sets a provider offline even if the decision was about an earlier epoch.
    EpochIgnored,
    /// The truth ignores the beats that reached it when it sets a provider offline.
    TruthBeatsIgnored,
    /// Seeding the mirror gives every beat the current time (C1).
    SeedingRevives,
    /// A mirror that lost its data answers at once.
    UnseededAnswers,
    /// The check for silence and the change are two separate steps (C5).
    CheckedThenActed,
    /// After an absence of the mirror there is no grace (P7).
    NoGrace,
    /// A provider that is pending offline is answered `Offline` before the truth has decided (P5).
    PendingToldOffline,
}

impl AvailabilityBug {
    pub const ALL: &[AvailabilityBug] = &[
        AvailabilityBug::AnyVersionTaken,
        AvailabilityBug::EpochIgnored,
        AvailabilityBug::TruthBeatsIgnored,
        AvailabilityBug::SeedingRevives,
        AvailabilityBug::UnseededAnswers,
        AvailabilityBug::CheckedThenActed,
        AvailabilityBug::NoGrace,
        AvailabilityBug::PendingToldOffline,
    ];

    /// The promises that the bug breaks; the simulation must report one of them.
    pub fn breaks(self) -> &'static [Promise] {
        match self {
            AvailabilityBug::AnyVersionTaken => {
                &[Promise::P1, Promise::P2, Promise::P5, Promise::P8]
            }
            AvailabilityBug::EpochIgnored | AvailabilityBug::TruthBeatsIgnored => &[Promise::P1],
            AvailabilityBug::SeedingRevives => &[Promise::P2],
            AvailabilityBug::UnseededAnswers => &[Promise::Lookup, Promise::P1],
            AvailabilityBug::CheckedThenActed | AvailabilityBug::NoGrace => &[Promise::P1],
            AvailabilityBug::PendingToldOffline => &[Promise::P5],
        }
    }
}
