//! The conformance suite of `leases`, on every server that holds what it promises.

use lapsed_core::leases_conformance;
use lapsed_testbed::{ObjectEngine, steadily_async};

use crate::fixture::Site;

leases_conformance!(
    seaweed,
    Site::new(ObjectEngine::Seaweed).sharp_fixture().await,
    steadily_async
);
leases_conformance!(moto, Site::new(ObjectEngine::Moto).sharp_fixture().await, steadily_async);
leases_conformance!(
    azurite,
    Site::new(ObjectEngine::Azurite).sharp_fixture().await,
    steadily_async
);

/// B12: the terms are records in the bucket.
#[tokio::test]
async fn trap_b12_failed_renewals_cost_no_term() {
    use std::time::Duration;

    use lapsed_core::conformance::leading::failed_renewals_cost_no_term;
    use lapsed_core::leases::conformance::key;

    lapsed_testbed::steadily_async(async || {
        let f = Site::new(ObjectEngine::Seaweed).sharp_fixture().await.settled().await;
        let keys: Vec<_> = (0..6).map(|n| key(&format!("k{n}"))).collect();
        f.acquire_all(&keys, "dead").await;
        f.expire_in_index().await;
        // The store tells its time in whole seconds, and a busy one takes its time to answer.
        let (led, _keep) = f.led(Duration::from_secs(6));
        failed_renewals_cost_no_term(led, 6).await;
    })
    .await;
}
