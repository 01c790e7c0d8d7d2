//! G4: what is written again and again leaves its old row versions where the next write clears them away.
//!
//! PostgreSQL does that itself if no indexed column changes (a heap-only update). An index on a heartbeat or on the
//! end of a term would cost an entry for every beat, until the next vacuum.

use lapsed_availability::Truth;
use lapsed_core::store::Store;

use crate::fixture::{Bench, eventually, name, system};

const WRITES: u64 = 300;

#[tokio::test]
async fn trap_g4_heartbeats_and_terms_that_are_renewed_use_no_new_index_entries() {
    let b = Bench::new().await;
    b.there(&["a"]).await;
    for _ in 0..WRITES {
        b.truth.beat(&[name("a")]).await.unwrap();
        b.postgres.campaign(&system(), "one", 60_000).await.unwrap().unwrap();
    }
    for table in ["mitra_online_status", "lapsed_terms"] {
        let updates = |column: &str| -> u64 {
            let sql = format!("SELECT {column} FROM pg_stat_user_tables WHERE relname = '{table}'");
            b.sql(&sql).parse().unwrap()
        };
        // A server process tells its counts about once a second.
        eventually("the counts", async || updates("n_tup_upd") + 1 >= WRITES).await;
        let (all, without_index) = (updates("n_tup_upd"), updates("n_tup_hot_upd"));
        assert!(without_index * 100 >= all * 95, "{table}: {without_index} of {all} updates");
        let pages: u64 =
            b.sql(&format!("SELECT pg_relation_size('{table}') / 8192")).parse().unwrap();
        assert!(pages <= 2, "{table}: {pages} pages for one row");
    }
}
