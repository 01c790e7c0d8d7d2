//! What the conformance suite leaves open, because sharded stores cannot promise it, but this store
//! does: suspects are ordered by deadline and key, and receipts are numbered from 1 without gaps.

use lapsed_core::sweep::{Cursor, PageRequest};

#[tokio::test]
async fn suspects_come_in_order_and_receipts_without_a_gap() {
    let f = crate::fixture::in_memory().0.settled().await;
    let retired = f.holding("retired", &["a"]).await;
    f.registry.end(&retired).await.unwrap();
    f.holding("overdue-1", &["b", "c"]).await;
    f.holding("overdue-2", &["d"]).await;
    (f.advance)(f.ttl).await;
    for (undeclared_max, expected) in
        [(Some(0), vec!["a"]), (Some(1), vec!["a", "b", "c"]), (None, vec!["a", "b", "c", "d"])]
    {
        let request = PageRequest { after: Cursor::default(), limit: 10, undeclared_max };
        let page = f.registry.suspects(request).await.unwrap();
        let keys: Vec<&str> = page.suspects.iter().map(|s| s.key.as_str()).collect();
        assert_eq!(keys, expected, "one page, by deadline and key");
    }
    assert_eq!(f.sweep().await.reclaimed, 4);
    let seqs: Vec<u64> = f.receipts().await.iter().map(|r| r.id.seq).collect();
    assert_eq!(seqs, [1, 2, 3, 4]);
}
