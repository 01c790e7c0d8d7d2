//! The types in the calls of an [`Observer`](crate::Observer), beside those that the crate exports itself.
//!
//! An observer is called after the store has answered, by the task that did the work: it should count or log, and
//! return at once. Every method has an empty default, so an observer implements only those that it needs.

pub use lapsed_core::receipt::{Evidence, Reason, ReceiptId};
pub use lapsed_core::reconcile::{Healed, IndexChange, ReconcileEnd, ReconcileReport, Reconciled};
pub use lapsed_core::sweep::{ListedSuspect, PassMode, Stopped};
pub use lapsed_core::{Kind, SystemId};
