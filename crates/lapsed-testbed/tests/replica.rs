//! A replica has what its primary has, and takes over.
#![allow(clippy::unwrap_used)]

use lapsed_testbed::{Engine, RedisServer};

#[test]
fn a_replica_is_promoted() {
    for engine in Engine::ALL {
        let primary = RedisServer::start(engine).unwrap();
        primary.command(&["SET", "before", "1"]).unwrap();
        let replica = RedisServer::replica_of(&primary).unwrap();
        primary.command(&["SET", "after", "2"]).unwrap();
        replica.wait_synced().unwrap();
        assert_eq!(replica.command(&["MGET", "before", "after"]).unwrap(), "1\n2");
        assert!(replica.command(&["SET", "k", "v"]).is_err(), "a replica is read-only");

        primary.kill().unwrap();
        replica.promote().unwrap();
        assert_eq!(replica.command(&["SET", "k", "v"]).unwrap(), "OK");
        assert_eq!(replica.info("role").unwrap(), "master");

        replica.restart().unwrap();
        assert_eq!(replica.info("role").unwrap(), "master", "{engine:?}: still, after a restart");
    }
}
