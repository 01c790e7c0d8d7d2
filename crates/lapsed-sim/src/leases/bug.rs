//! Deliberate bugs under leases on an object store: the simulation must find each of them. None is in
//! production code: the bucket lies, or somebody acts in front of the store.

use crate::promise::Promise;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseBug {
    /// A write that must replace what was read replaces whatever is there.
    IfMatchIgnored,
    /// A write that must create replaces what is there (D4).
    CreateOnlyIgnored,
    /// Some machines behind the bucket's address say a time that is far ahead.
    DateAhead,
    /// A listing does not show what is in the index: nobody finds what is over.
    IndexHidden,
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
        LeaseBug::HolderBelievesTwice,
        LeaseBug::StateReadBefore,
    ];

    /// The promise that it breaks: any of these.
    pub fn breaks(self) -> &'static [Promise] {
        match self {
            LeaseBug::IfMatchIgnored | LeaseBug::CreateOnlyIgnored => {
                &[Promise::P1, Promise::P3, Promise::P4, Promise::P5]
            }
            LeaseBug::DateAhead => &[Promise::P1, Promise::P5],
            LeaseBug::IndexHidden => &[Promise::P2],
            LeaseBug::HolderBelievesTwice => &[Promise::P5],
            LeaseBug::StateReadBefore => &[Promise::P4, Promise::P5],
        }
    }
}
