//! The harness that the conformance suites of all systems share: it turns their cases into tests.
//!
//! A suite's cases and its fixture stay with their system, because they differ in what they hold. What
//! is the same is here: how a case is run, and the types that every fixture needs.

pub mod unanswered;
mod watched_sweep;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;

use crate::name::Name;

pub use watched_sweep::{SentBatch, SweepMoment, WatchedSweep};

/// Advances a store's clock by a duration, and resolves when it has.
pub type Advance = Box<dyn Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync>;

/// Runs a case once, for a store whose clock is moved by hand.
pub async fn once(mut case: impl AsyncFnMut()) {
    case().await;
}

/// Converts a literal to a name; panics if it is not valid.
pub fn name(text: &str) -> Name {
    Name::new(text).expect("a valid name")
}

/// A name that begins with `who` and is unique in this process.
pub fn unique(who: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{who}#{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Generates one test per case of the group `$group` of a suite.
///
/// `$make` makes a fixture that has an `async fn settled(self)`; `$run` runs a case (see [`once`]);
/// `[$suite]` is the path of the module that contains the group.
#[macro_export]
macro_rules! conformance_cases {
    ($make:ident, $run:path, [$($suite:tt)*], $group:ident: [$($case:ident,)*]) => {
        mod $group {
            use $($suite)*::$group as cases;
            $(
                #[tokio::test]
                async fn $case() {
                    $run(async || {
                        let fixture = super::$make().await.settled().await;
                        cases::$case(fixture).await;
                    })
                    .await;
                }
            )*
        }
    };
}
