//! A provider from its first heartbeat to its end.

use lapsed::Manual;

use crate::stores::each;

#[tokio::test]
async fn a_provider_is_available_while_it_is_online() {
    for (lapsed, _folder) in each().await {
        let drivers = lapsed.availability("drivers").sweep(Manual).start().await.unwrap();
        assert!(!drivers.online("driver-1").await.unwrap(), "there is no such provider");
        drivers.add("driver-1").await.unwrap();
        assert!(!drivers.heartbeat("driver-1").await.unwrap(), "it is not online");
        assert!(drivers.online("driver-1").await.unwrap());
        assert!(drivers.heartbeat("driver-1").await.unwrap());
        assert_eq!(drivers.available().await.unwrap(), ["driver-1"]);
        assert_eq!(drivers.count().await.unwrap(), 1);
        assert_eq!(drivers.pass().await.reclaimed, 0);
        assert!(drivers.offline("driver-1").await.unwrap());
        assert_eq!(drivers.count().await.unwrap(), 0);
        drivers.stop().await;
    }
}
