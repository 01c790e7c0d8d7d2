//! The same registry on a real server.

use lapsed::Manual;

use crate::stores::{ms, until};

#[tokio::test]
async fn a_registry_on_redis_lives_as_on_an_embedded_store() {
    let server = lapsed_testbed::RedisServer::start(lapsed_testbed::Engine::Redis).unwrap();
    let lapsed = lapsed::open(&server.url()).await.unwrap();
    let devices = lapsed.registry("devices").ttl(ms(500)).sweep(Manual);
    let devices = devices.start().await.unwrap();
    let me = devices.join("gateway-1").await.unwrap();
    me.register("imei-1").await.unwrap();
    assert_eq!(devices.lookup("imei-1").await.unwrap().unwrap().owner(), "gateway-1");
    assert_eq!(me.leave().await.unwrap().reclaimed, 1);
    let dead = devices.join("gateway-2").await.unwrap();
    dead.register("imei-2").await.unwrap();
    drop(dead);
    until("a pass has taken back what the dead owner held", || async {
        devices.pass().await;
        devices.receipts(9).await.unwrap().len() == 2
    })
    .await;
}
