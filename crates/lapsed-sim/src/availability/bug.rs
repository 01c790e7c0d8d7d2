//! Deliberate bugs under availability: the simulation must find each of them. None is in production
//! code: a store does what it must not, or somebody acts in front of it.

use crate::promise::Promise;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AvailabilityBug {
    /// The mirror takes over whatever arrives last (C2, C8).
    AnyVersionTaken,
    /// The truth sets offline whoever is online, whichever epoch was decided about.
    EpochIgnored,
    /// The truth does not look at the beats that reached it.
    TruthBeatsIgnored,
    /// Seeding dates every beat now (C1).
    SeedingRevives,
    /// A mirror that lost its data answers at once.
    UnseededAnswers,
    /// Looks who is silent, and acts on it a moment later (C5).
    CheckedThenActed,
    /// After an absence of the mirror nobody is spared (P7).
    NoGrace,
    /// Whoever was declared silent is told that it is offline, before the truth was asked (P5).
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

    /// The promise that it breaks: any of these.
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
