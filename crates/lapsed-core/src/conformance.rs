//! What the conformance suites of the systems have in common.

/// Runs a case once, for a store whose clock is moved by hand.
pub async fn once(mut case: impl AsyncFnMut()) {
    case().await;
}
