//! Planted bugs for leases on an object store: the simulation must find each of them. None is in
//! production code; they change the simulated bucket or its clients.

use crate::promise::Promise;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseBug {
    /// A write that must replace what was read replaces whatever is there.
    IfMatchIgnored,
    /// A write that must create replaces what is there (D4).
    CreateOnlyIgnored,
    /// Some machines behind the bucket's address say a time that is far ahead.
    DateAhead,
    /// Listings hide the index, so that sweeps find no expired lease.
    IndexHidden,
    /// A record is deleted whatever its ETag is by now, so that a key which is in use is forgotten.
    DeleteIfIgnored,
    /// The bucket confirms the token floor and does not keep it, so that forgotten tokens come back.
    TokenFloorDropped,
    /// A holder goes on believing for as long again as its lease lasts.
    HolderBelievesTwice,
    /// A holder writes what it has read before it held the lease.
    StateReadBefore,
}

impl LeaseBug {
    pub const ALL: &[LeaseBug] = &[
        LeaseBug::IfMatchIgnored,
        LeaseBug::CreateOnlyIgnored,
        LeaseBug::DateAhead,
        LeaseBug::IndexHidden,
        LeaseBug::DeleteIfIgnored,
        LeaseBug::TokenFloorDropped,
        LeaseBug::HolderBelievesTwice,
        LeaseBug::StateReadBefore,
    ];

    /// The promises that the bug breaks; the simulation must report one of them.
    pub fn breaks(self) -> &'static [Promise] {
        match self {
            LeaseBug::IfMatchIgnored | LeaseBug::CreateOnlyIgnored => {
                &[Promise::P1, Promise::P3, Promise::P4, Promise::P5]
            }
            LeaseBug::DateAhead => &[Promise::P1, Promise::P5],
            LeaseBug::IndexHidden => &[Promise::P2],
            LeaseBug::DeleteIfIgnored => &[Promise::P1, Promise::P3, Promise::P5],
            LeaseBug::TokenFloorDropped => &[Promise::P3, Promise::P5],
            LeaseBug::HolderBelievesTwice => &[Promise::P5],
            LeaseBug::StateReadBefore => &[Promise::P4, Promise::P5],
        }
    }
}
