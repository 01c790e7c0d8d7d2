//! The harness that the conformance suites of all systems share: the fixtures' common part, and what turns
//! cases into tests.
//!
//! A suite's cases and the steps that only its system has stay with that system.

mod fixture;
pub mod leading;
pub mod unanswered;
mod watched_sweep;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::name::Name;
use crate::sweep::Suspect;

pub use fixture::{Advance, SystemFixture, TestOwners, TestStore, batch_id, policy, wait};
pub use watched_sweep::{SentBatch, SweepMoment, WatchedSweep};

/// Runs a case once, for a store whose clock is moved by hand.
pub async fn once(mut case: impl AsyncFnMut()) {
    case().await;
}

/// Converts a literal to a name; panics if it is not valid.
pub fn name(text: &str) -> Name {
    Name::new(text).expect("a valid name")
}

pub fn names(texts: &[&str]) -> Vec<Name> {
    texts.iter().map(|text| name(text)).collect()
}

/// A name that begins with `who` and is unique in this process.
pub fn unique(who: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{who}#{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Keys of the suspects, sorted.
pub fn keys_of(suspects: &[Suspect]) -> Vec<String> {
    let mut keys: Vec<String> = suspects.iter().map(|s| s.key.to_string()).collect();
    keys.sort();
    keys
}

/// Turns the cases of a suite into tests of one store: the body of every `…_conformance!` macro.
///
/// A suite's macro is called with the name of the store, which becomes a module, and an expression that makes
/// the fixture (it may `await`): `registry_conformance!(in_memory, fixture::in_memory())`. A store on the real
/// clock adds an `async fn(impl AsyncFnMut())` that runs a case: it can run it again, with a new fixture, if the
/// machine stood still during it. The fixture has an `async fn settled(self)`.
#[macro_export]
macro_rules! conformance_suite {
    (
        ($store:ident, $make:expr $(, $run:path)?) $suite:path as $fixture:ident,
        $($group:ident: [$($case:ident,)*],)*
    ) => {
        mod $store {
            #[allow(unused_imports)]
            use super::*;
            use $suite as suite;

            $crate::conformance_suite!(@run $($run)?);

            async fn make() -> suite::$fixture {
                $make
            }

            $(
                mod $group {
                    use super::suite::$group as cases;
                    $(
                        #[tokio::test]
                        async fn $case() {
                            super::run(async || {
                                let fixture = super::make().await.settled().await;
                                cases::$case(fixture).await;
                            })
                            .await;
                        }
                    )*
                }
            )*
        }
    };
    (@run) => {
        use $crate::conformance::once as run;
    };
    (@run $run:path) => {
        use $run as run;
    };
}
