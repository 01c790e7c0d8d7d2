//! The stores that need no server, and how a test waits.

use std::time::{Duration, Instant};

use lapsed::Lapsed;
use tempfile::TempDir;

/// An embedded store in a folder of its own, and one in memory.
pub async fn each() -> Vec<(Lapsed, Option<TempDir>)> {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("embedded:{}", folder.path().display());
    let embedded = lapsed::open(&url).await.unwrap();
    vec![(embedded, Some(folder)), (lapsed::open("memory:").await.unwrap(), None)]
}

/// Polls `check` until it is true; fails after 20 s.
pub async fn until<F: Future<Output = bool>>(what: &str, check: impl Fn() -> F) {
    let began = Instant::now();
    while !check().await {
        assert!(began.elapsed() < Duration::from_secs(20), "not within 20 s: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
