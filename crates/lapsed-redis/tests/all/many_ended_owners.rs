//! A system with very many owners that have ended: listing them does not delay other clients, because no
//! command and no script works on more than a page.

use std::sync::Arc;

use lapsed_core::owner::{Incarnation, OwnerStore};
use lapsed_testbed::{Engine, RedisServer};

use crate::fixture;

const ENDED: u64 = 100_000;

/// Writes ended owners as the scripts do, ten thousand at a time.
const FILL: &str = "
  local from, now = tonumber(ARGV[1]), ARGV[2]
  for inc = from, from + 9999 do
    redis.call('HSET', KEYS[1] .. 'lives', inc, '1000:1:d:' .. now .. ':1:0:0:gone-' .. inc)
    redis.call('HSET', KEYS[1] .. 'names', 'gone-' .. inc, inc)
    redis.call('ZADD', KEYS[1] .. 'past', now, inc)
  end
  return 1";

fn filled(server: &RedisServer) {
    let lives = server.command(&["KEYS", "*:lives"]).unwrap();
    let prefix = lives.trim().trim_matches('"').strip_suffix("lives").unwrap().to_owned();
    let now = server.command(&["TIME"]).unwrap();
    let now = now.split_whitespace().next().unwrap().trim_matches('"').to_owned() + "000";
    for from in (0..ENDED).step_by(10_000) {
        let from = (from + 1_000).to_string();
        server.command(&["EVAL", FILL, "1", &prefix, &from, &now]).unwrap();
    }
    for (setting, value) in [("slowlog-log-slower-than", "100000"), ("slowlog-max-len", "100")] {
        server.command(&["CONFIG", "SET", setting, value]).unwrap();
    }
    server.command(&["SLOWLOG", "RESET"]).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listing_a_hundred_thousand_ended_owners_blocks_the_server_for_no_longer_than_a_page() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (_redis, registry) = fixture::registry(&server.url(), 1);
    let registry = Arc::new(registry);
    let alive = lapsed_core::Name::new("alive").unwrap();
    // Numbers that the server gives are larger than those that are written here.
    let newest = registry.start(&alive, 600_000).await.unwrap().incarnation;
    filled(&server);

    // A command also looks slow if the machine stood still meanwhile, but not each time.
    let mut told = String::new();
    for _ in 0..5 {
        server.command(&["SLOWLOG", "RESET"]).unwrap();
        list(&registry, newest).await;
        told = server.command(&["SLOWLOG", "GET", "3"]).unwrap();
        if server.command(&["SLOWLOG", "LEN"]).unwrap().trim() == "0" {
            return;
        }
    }
    panic!("commands that took over 100 ms: {told}");
}

async fn list(registry: &lapsed_redis::NativeRegistry, newest: Incarnation) {
    let page = registry.owners(None, 1_000).await.unwrap();
    assert_eq!(page.len(), 1_000);
    let numbers: Vec<u64> = page.iter().map(|info| info.incarnation.0).collect();
    assert_eq!(numbers, (1_000..2_000).collect::<Vec<_>>());
    let last = registry.owners(Some(Incarnation(ENDED + 990)), 1_000).await.unwrap();
    let numbers: Vec<u64> = last.iter().map(|info| info.incarnation.0).collect();
    assert_eq!(numbers, (ENDED + 991..ENDED + 1_000).chain([newest.0]).collect::<Vec<_>>());
}
