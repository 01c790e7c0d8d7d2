//! The function library: what is written by FCALL is lapsed's, and the other way round.

use std::sync::Arc;

use lapsed_core::conformance::TestStore;
use lapsed_core::owner::Claim;
use lapsed_core::registry::TakePolicy;
use lapsed_core::registry::conformance::RegistryFixture;
use lapsed_core::request::REQUESTS_MAX;
use lapsed_core::sessions::SessionsStore;
use lapsed_core::sessions::conformance::SessionsFixture;
use lapsed_core::{Error, Kind, Name};
use lapsed_testbed::RedisServer;

use crate::caller::{Caller, first};
use crate::fixture::{REDIS, TTL, VALKEY, connect, id, layout, sessions_layout};

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A registry with two users: lapsed itself, and a caller of the functions.
struct Shared {
    native: RegistryFixture,
    caller: Caller,
    hash: String,
    system: String,
}

impl Shared {
    async fn on(server: &RedisServer) -> Shared {
        let caller = Caller::on(server).await;
        let (redis, id, layout) = (connect(&server.url()), id(Kind::Registry), layout(1));
        let (hash, system) = (layout.registry_key.clone(), id.name.to_string());
        let registry = Arc::new(redis.registry(id, layout).unwrap());
        let native = RegistryFixture::new(registry, TTL, TestStore::waiting(redis));
        Shared { native, caller, hash, system }
    }

    fn heartbeat(&self, owner: &str) -> String {
        self.hash.replace(":registry", &format!(":heartbeat:{owner}"))
    }

    fn start(&mut self, owner: &str) -> String {
        let (hash, heartbeat, ttl) =
            (self.hash.clone(), self.heartbeat(owner), TTL.as_millis().to_string());
        let keys = [hash.as_str(), &heartbeat];
        let answer = self.caller.must("lapsed_registry_start", &keys, &[&self.system, owner, &ttl]);
        first(&answer)
    }

    fn arguments<'a>(&'a self, args: &[&'a str]) -> Vec<String> {
        [&[self.system.as_str()], args].concat().iter().map(ToString::to_string).collect()
    }

    fn must(&mut self, what: &str, args: &[&str]) -> String {
        let args = self.arguments(args);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.caller.must(&format!("lapsed_registry_{what}"), &[&self.hash], &args)
    }

    fn refused(&mut self, what: &str, args: &[&str]) -> String {
        let args = self.arguments(args);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.caller.refused(&format!("lapsed_registry_{what}"), &[&self.hash], &args)
    }
}

async fn registered_by_fcall_swept_natively(server: &RedisServer) {
    let mut shared = Shared::on(server).await;
    let life = shared.start("i-1");
    assert_eq!(shared.caller.call(&["GET", &shared.heartbeat("i-1")]).unwrap().to_string(), life);
    assert_eq!(shared.must("register", &["i-1", &life, "a", "b", "é"]), "new\nnew\nnew");
    assert_eq!(shared.must("register", &["i-1", "", "a", "c"]), "kept\nnew");
    assert_eq!(shared.must("unregister", &["i-1", &life, "c", "x"]), "1\n0");

    let found = shared.native.registry.find(&[name("a"), name("c")]).await.unwrap();
    let holder = &found[0].as_ref().unwrap().holder;
    assert_eq!((holder.owner.as_str(), holder.incarnation.to_string()), ("i-1", life.clone()));
    assert!(found[1].is_none());

    (shared.native.advance)(TTL).await;
    assert_eq!(shared.must("lookup", &["a", "b"]), "(nil)\n(nil)", "past its due time");
    let report = shared.native.sweep().await;
    assert_eq!((report.reclaimed, report.errors), (3, 0));
    assert_eq!(shared.native.receipts().await.len(), 3);
    assert_eq!(shared.caller.call(&["EXISTS", &shared.hash]).unwrap().to_string(), "0");
    // The zombie is told, whatever it tries, and changes nothing.
    assert_eq!(shared.refused("beat", &["i-1", &life]), "LOST");
    assert_eq!(shared.refused("register", &["i-1", &life, "a"]), "LOST");
    assert_eq!(shared.refused("claim", &["i-1", "", "a"]), "LOST");
    assert_eq!(shared.refused("unregister", &["i-1", &life, "a"]), "LOST");
    assert_eq!(shared.refused("retire", &["i-1", &life]), "LOST");
    assert_eq!(shared.caller.call(&["EXISTS", &shared.hash]).unwrap().to_string(), "0");
    let again = shared.start("i-1");
    assert!(again.parse::<u64>().unwrap() > life.parse().unwrap());
    assert_eq!(shared.must("register", &["i-1", &again, "a"]), "new");
}

async fn registered_natively_seen_by_fcall(server: &RedisServer) {
    let mut shared = Shared::on(server).await;
    let registry = shared.native.registry.clone();
    let beat = registry.start(&name("i-1"), 60_000).await.unwrap();
    let claim = Claim::exact(name("i-1"), beat.incarnation);
    registry.register(&claim, &[name("a"), name("b")], TakePolicy::Always).await.unwrap();
    assert_eq!(shared.must("lookup", &["a", "nobody", "b"]), "i-1\n(nil)\ni-1");
    assert_eq!(first(&shared.must("beat", &["i-1", ""])), beat.incarnation.to_string());

    let other = shared.start("i-2");
    assert_eq!(shared.must("claim", &["i-2", &other, "a", "c"]), "taken\nnew");
    assert_eq!(shared.must("register", &["i-2", &other, "a"]), "moved");
    let held = registry.entries(&claim, None, 10).await.unwrap();
    assert_eq!(held, [name("b")]);

    // Another life of the same name: each holds its own, and an older one takes nothing back.
    let newer = shared.start("i-1");
    assert_eq!(shared.must("register", &["i-1", &newer, "b"]), "moved");
    let older = beat.incarnation.to_string();
    assert_eq!(shared.must("register", &["i-1", &older, "b"]), "taken");
    assert_eq!(shared.must("lookup", &["b"]), "i-1");

    assert_eq!(shared.must("retire", &["i-1", &newer]), newer);
    assert_eq!(shared.must("lookup", &["b"]), "(nil)", "retired: the sweep takes it");
    let report = shared.native.sweep().await;
    assert_eq!((report.reclaimed, report.errors), (1, 0));
    let gone = registry.beat(&Claim::newest(name("i-1"))).await;
    assert!(matches!(gone, Err(Error::Lost(_))), "{gone:?}");
}

async fn what_makes_no_sense_is_refused(server: &RedisServer) {
    let mut shared = Shared::on(server).await;
    let life = shared.start("i-1");
    assert_eq!(shared.refused("register", &["i-9", "", "a"]), "UNKNOWN");
    assert_eq!(shared.refused("beat", &["i-9", ""]), "UNKNOWN");
    assert_eq!(shared.refused("beat", &["i-2", &life]), "LOST", "somebody else's incarnation");
    assert_eq!(shared.must("beat", &["i-9", "", "60000"]).lines().count(), 2, "begun by its beat");
    let long = "x".repeat(513);
    for bad in ["", "a\nb", "a\u{9b}b", long.as_str()] {
        assert!(Name::new(bad).is_err());
        assert_eq!(shared.refused("register", &["i-1", &life, bad]), "INVALID", "{bad:?}");
        assert_eq!(shared.refused("lookup", &[bad]), "INVALID", "{bad:?}");
        assert_eq!(shared.refused("start", &[bad, "1000"]), "INVALID", "{bad:?}");
    }
    for good in ["é", "…", "\u{ffff}", "😀", "356307042441013"] {
        assert_eq!(shared.must("register", &["i-1", &life, good]), "new", "{good:?}");
        assert_eq!(shared.must("lookup", &[good]), "i-1");
    }
    for bad in ["0", "-1", "1.5", "1e9", "", "9999999999999"] {
        assert_eq!(shared.refused("start", &["i-3", bad]), "INVALID", "{bad:?}");
    }
    assert_eq!(shared.refused("beat", &["i-1", "seven"]), "INVALID");
    let many = vec!["k"; 101];
    assert_eq!(shared.refused("register", &[&["i-1", &life], &many[..]].concat()), "INVALID");
    assert_eq!(shared.refused("register", &["i-1", &life]), "INVALID");
    let keys = [shared.hash.clone(), shared.heartbeat("i-2")];
    let args = [shared.system.clone(), "i-1".to_owned(), life];
    let (keys, args) = (keys.each_ref().map(|k| &**k), args.each_ref().map(|a| &**a));
    assert_eq!(shared.caller.refused("lapsed_registry_beat", &keys, &args), "INVALID");
    assert_eq!(
        shared.caller.refused("lapsed_registry_lookup", &keys[..1], &["a b", "k"]),
        "INVALID"
    );
}

/// Bytes that are not UTF-8 are refused, because a reader of all entries would fail on them.
async fn bytes_that_are_no_text_are_refused(server: &RedisServer) {
    let mut shared = Shared::on(server).await;
    let life = shared.start("i-1");
    let mut connection = server.connect(TTL).unwrap();
    for bad in [
        &b"\xff"[..],
        b"\xc3",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xc0\xaf",
        b"\xe2\x82\x82\x82",
    ] {
        assert!(Name::from_bytes(bad).is_err());
        let words: [&[u8]; 7] = [
            b"FCALL",
            b"lapsed_registry_register",
            b"1",
            shared.hash.as_bytes(),
            shared.system.as_bytes(),
            b"i-1",
            life.as_bytes(),
        ];
        let error = connection.call(&[&words[..], &[bad]].concat()).unwrap_err().to_string();
        assert!(error.starts_with("INVALID"), "{bad:?}: {error}");
    }
}

/// Each call is repeated as a client does that did not get the answer; `key=` stands in front of the system's name.
async fn a_repeated_call_with_its_key_counts_once(server: &RedisServer) {
    let mut shared = Shared::on(server).await;
    let ttl = TTL.as_millis().to_string();
    let (hash, heartbeat, system) =
        (shared.hash.clone(), shared.heartbeat("i-1"), shared.system.clone());
    let keys = [hash.as_str(), &heartbeat];
    let mut start = |key: &str, owner: &str| {
        let key = format!("key={key}");
        shared.caller.fcall("lapsed_registry_start", &keys, &[&key, &system, owner, &ttl])
    };
    let life = start("s-1", "i-1").unwrap();
    assert_eq!(start("s-1", "i-1").unwrap(), life, "the same incarnation");
    assert_ne!(start("s-2", "i-1").unwrap(), life, "another request begins another one");
    assert!(start("s-1", "other").unwrap_err().starts_with("REUSED "));

    let (redis, id, layout) = (connect(&server.url()), id(Kind::Sessions), sessions_layout(1));
    let (system, set) = (id.name.to_string(), layout.disconnected_key.clone());
    let (session, refs) = (layout.session_key.of("s"), layout.ref_count_key.of("s"));
    let prefix = layout.broadcaster_key.of("");
    let _sessions = redis.sessions(id, layout).unwrap();
    let keys = [set.as_str(), &session, &refs, &prefix];
    let caller = &mut shared.caller;
    caller.must("lapsed_sessions_activate", &keys, &[&system, "s", "value", "x"]);
    caller.must("lapsed_sessions_start", &[&set], &[&system, "w", &ttl]);
    let mut change = |key: &str, what: &str| {
        let key = format!("key={key}");
        caller.must(&format!("lapsed_sessions_{what}"), &keys, &[&key, &system, "s", "w", ""])
    };
    for (key, what, references) in
        [("c-1", "connect", "1"), ("c-2", "connect", "2"), ("d-1", "disconnect", "1")]
    {
        let first = change(key, what);
        assert_eq!(first.lines().next(), Some(references), "{key}: {first}");
        assert_eq!(change(key, what), first, "{key}: counted once");
    }
    assert_eq!(shared.caller.call(&["GET", &refs]).unwrap().to_string(), "1");
}

/// Beyond their number the oldest requests are forgotten first, a few with each new one.
async fn the_oldest_of_too_many_requests_are_forgotten(server: &RedisServer) {
    let mut shared = Shared::on(server).await;
    let (hash, heartbeat, system) =
        (shared.hash.clone(), shared.heartbeat("i-1"), shared.system.clone());
    let keys = [hash.as_str(), &heartbeat];
    let mut start = |key: &str| {
        let key = format!("key={key}");
        shared.caller.must("lapsed_registry_start", &keys, &[&key, &system, "i-1", "60000"])
    };
    let first = start("first");
    let second = start("second");
    assert_eq!((start("first"), start("second")), (first.clone(), second.clone()), "both are kept");
    let find = "local cursor, found = '0', nil
        repeat
          local page = redis.call('SCAN', cursor, 'MATCH', '*' .. ARGV[1] .. ':requests*', 'COUNT', 1000)
          cursor = page[1]
          for _, key in ipairs(page[2]) do
            if redis.call('TYPE', key)['ok'] == 'zset' then found = key end
          end
        until cursor == '0'
        return found";
    let requests = shared.caller.call(&["EVAL", find, "0", &shared.system]).unwrap().to_string();
    // In pieces, because others use the server, too.
    let fill = "local newest = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
        for n = ARGV[1], ARGV[2] do redis.call('ZADD', KEYS[1], newest, 'z' .. n) end
        return redis.call('ZCARD', KEYS[1])";
    let missing = REQUESTS_MAX - 2;
    let mut filled = String::new();
    for first in (1..=missing).step_by(2_000) {
        let (from, to) = (first.to_string(), missing.min(first + 1_999).to_string());
        filled =
            shared.caller.call(&["EVAL", fill, "1", &requests, &from, &to]).unwrap().to_string();
    }
    assert_eq!(filled, REQUESTS_MAX.to_string());
    let mut start = |key: &str| {
        let key = format!("key={key}");
        shared.caller.must("lapsed_registry_start", &keys, &[&key, &system, "i-1", "60000"])
    };
    start("one more than fit");
    assert_eq!(start("second"), second, "only what is too much is forgotten");
    assert_ne!(start("first"), first, "a forgotten key is a new request");
}

async fn sessions_are_made_referenced_and_reclaimed_by_functions(server: &RedisServer) {
    let mut caller = Caller::on(server).await;
    let (redis, id, layout) = (connect(&server.url()), id(Kind::Sessions), sessions_layout(1));
    let system = id.name.to_string();
    let set = layout.disconnected_key.clone();
    let (session, refs) = (layout.session_key.of("s-1"), layout.ref_count_key.of("s-1"));
    let prefix = layout.broadcaster_key.of("");
    let sessions = Arc::new(redis.sessions(id, layout).unwrap());
    let native = SessionsFixture::new(sessions.clone(), (TTL, TTL), TestStore::waiting(redis));
    let keys = [set.as_str(), &session, &refs, &prefix];
    let at = |more: &[&str]| -> Vec<String> {
        [&[system.as_str(), "s-1"], more].concat().iter().map(ToString::to_string).collect()
    };
    macro_rules! call {
        ($how:ident $what:literal $($arg:expr),*) => {{
            let args = at(&[$($arg),*]);
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            caller.$how(concat!("lapsed_sessions_", $what), &keys, &args)
        }};
    }
    let ttl = TTL.as_millis().to_string();
    assert_eq!(call!(refused "get"), "MISSING");
    assert_eq!(call!(refused "update" "value", "x"), "MISSING");
    assert_eq!(call!(refused "resume"), "MISSING");
    assert_eq!(call!(refused "delete"), "MISSING");
    assert_eq!(call!(must "activate" "value", "hello", "broadcaster_user_id", "b-1"), "1");
    assert_eq!(call!(must "activate" "broadcaster_user_id", "b-2"), "0");
    assert!(sessions.of_broadcaster(&name("b-1")).await.unwrap().is_none(), "its pointer is gone");
    assert_eq!(sessions.of_broadcaster(&name("b-2")).await.unwrap(), Some(name("s-1")));
    assert_eq!(call!(refused "update" "last_disconnect", "0"), "INVALID");
    assert_eq!(call!(must "update" "config_json", "{}"), "0");
    let seen = sessions.get(&name("s-1")).await.unwrap().unwrap();
    assert_eq!(seen.profile.value.as_deref(), Some("hello"));
    assert_eq!(seen.profile.config_json.as_deref(), Some("{}"));

    assert_eq!(call!(refused "connect" "w-1", ""), "UNKNOWN");
    let life = first(&caller.must("lapsed_sessions_start", &[&set], &[&system, "w-1", &ttl]));
    assert_eq!(call!(must "connect" "w-1", &life), format!("1\n1\n{life}"));
    assert_eq!(call!(must "connect" "w-1", ""), format!("2\n2\n{life}"));
    let claim = native.start("w-2").await;
    assert_eq!(native.connect(&claim, "s-1").await.references, 3);
    assert_eq!(call!(must "disconnect" "w-1", &life), format!("2\n1\n{life}"));
    assert_eq!(
        caller.fcall("lapsed_sessions_delete", &keys, &[&system, "s-1"]),
        Err("ACTIVE 2".to_owned())
    );
    assert!(
        call!(must "get").starts_with("references\n2\nvalue\nhello\nbroadcaster_user_id\nb-2\n")
    );
    native.disconnect(&claim, "s-1").await;

    // Its owner dies with a reference: the reference dies too, and the grace begins.
    (native.advance)(TTL).await;
    let report = native.sweep().await;
    assert_eq!((report.released, report.reclaimed, report.errors), (1, 0, 0));
    assert_eq!(native.references("s-1").await, 0);
    assert_eq!(call!(refused "connect" "w-1", &life), "LOST");
    assert!(call!(must "get").contains("disconnected_ms\n"));
    assert_eq!(call!(must "resume"), "0");
    assert!(!call!(must "get").contains("disconnected_ms\n"));
    (native.advance)(TTL).await;
    let report = native.sweep().await;
    assert_eq!((report.reclaimed, report.errors), (1, 0));
    assert_eq!(call!(refused "get"), "MISSING");
    assert_eq!(
        caller.call(&["EXISTS", &session, &refs, &format!("{prefix}b-2")]).unwrap().to_string(),
        "0"
    );

    assert_eq!(call!(must "activate" "broadcaster_user_id", "b-3"), "1");
    let args = [system.as_str(), "s-1"];
    assert_eq!(
        caller.refused("lapsed_sessions_delete", &keys[..3], &args),
        "INVALID",
        "whose pointer?"
    );
    assert_eq!(call!(must "delete"), "1");
    assert!(sessions.get(&name("s-1")).await.unwrap().is_none());
    assert!(sessions.of_broadcaster(&name("b-3")).await.unwrap().is_none());
}

macro_rules! on_both {
    ($($test:ident,)*) => {
        mod on_redis {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                lapsed_testbed::steadily_async(async || super::$test(&super::REDIS).await).await;
            })*
        }
        mod on_valkey {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                lapsed_testbed::steadily_async(async || super::$test(&super::VALKEY).await).await;
            })*
        }
    };
}

on_both! {
    registered_by_fcall_swept_natively,
    registered_natively_seen_by_fcall,
    what_makes_no_sense_is_refused,
    bytes_that_are_no_text_are_refused,
    a_repeated_call_with_its_key_counts_once,
    the_oldest_of_too_many_requests_are_forgotten,
    sessions_are_made_referenced_and_reclaimed_by_functions,
}
