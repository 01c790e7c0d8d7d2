//! `lapsed check` on real servers: what would go wrong later is found now, and all of it at once.

use crate::availability_fixture::World;
use crate::support::{Answer, run};
use lapsed_testbed::{Engine, RedisServer};

lapsed_testbed::steady_tests! {
    eviction_is_examined_for_every_kind_on_redis,
    a_redis_user_that_may_not_write_is_found,
    a_postgres_user_that_may_not_write_is_found,
    two_systems_on_the_same_keys_are_refused,
    every_fault_is_reported,
}

/// The configuration in a folder of its own.
struct Written(tempfile::TempDir);

impl Written {
    fn new(text: &str) -> Written {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("lapsed.toml"), text).unwrap();
        Written(dir)
    }

    fn run(&self, command: &str) -> Answer {
        run(&[command, "-c", &self.0.path().join("lapsed.toml").display().to_string()])
    }
}

const SERVER: &str = "[server]\nlisten = \"127.0.0.1:0\"\n";

fn store(name: &str, url: &str) -> String {
    format!("[store.{name}]\nurl = \"{url}\"\n")
}

fn system(kind: &str, name: &str, lines: &str) -> String {
    format!("[[system]]\nkind = \"{kind}\"\nname = \"{name}\"\n{lines}\n")
}

fn eviction_is_examined_for_every_kind_on_redis() {
    let redis = RedisServer::start(Engine::Redis).unwrap();
    redis.command(&["CONFIG", "SET", "maxmemory", "1gb"]).unwrap();
    for kind in ["registry", "sessions", "inflight"] {
        let written = Written::new(&(store("main", &redis.url()) + &system(kind, "it", "")));
        redis.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]).unwrap();
        let answer = written.run("check");
        let warns = answer.out.contains("maxmemory-policy is volatile-lru");
        assert!(warns && answer.out.contains(&format!("{kind}/it")), "{kind}: {answer:?}");
        redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).unwrap();
        assert!(!written.run("check").out.contains("maxmemory-policy"), "{kind}");
    }
}

fn a_redis_user_that_may_not_write_is_found() {
    let redis = RedisServer::start(Engine::Redis).unwrap();
    let reads = ["ACL", "SETUSER", "reader", "on", ">pw", "~*", "&*", "+@all", "-@write"];
    redis.command(&reads).unwrap();
    let only = ["ACL", "SETUSER", "narrow", "on", ">pw", "~lapsed:*", "%R~*", "&*", "+@all"];
    redis.command(&only).unwrap();
    redis.command(&["HSET", "connections:registry", "lapsed-check", "kept"]).unwrap();
    let as_user = |user: &str, mode: &str| {
        let url = redis.url().replacen("://", &format!("://{user}:pw@"), 1);
        let lines = format!("mode = \"{mode}\"");
        Written::new(&(store("main", &url) + &system("registry", "devices", &lines))).run("check")
    };
    for (user, key) in
        [("reader", "lapsed:{connections:registry}"), ("narrow", "connections:registry")]
    {
        for mode in ["native", "adopt"] {
            let answer = as_user(user, mode);
            assert_eq!(answer.code, 1, "{user} {mode}: {answer:?}");
            for words in ["[store.main]", "registry/devices", "lacks a permission", key] {
                assert!(answer.err.contains(words), "{user} {mode}, {words}: {answer:?}");
            }
        }
    }
    redis.command(&["ACL", "SETUSER", "full", "on", ">pw", "~*", "&*", "+@all"]).unwrap();
    let answer = as_user("full", "native");
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!(redis.command(&["HGETALL", "connections:registry"]).unwrap(), "lapsed-check\nkept");
    let own = redis.command(&["KEYS", "*lapsed-check*"]).unwrap();
    assert_eq!(own, "", "what was tried is removed again");
}

fn a_postgres_user_that_may_not_write_is_found() {
    let world = World::new("");
    let user = format!("reader_{}", world.database);
    world.sql(&format!(
        "CREATE ROLE {user} LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}; \
         GRANT INSERT, UPDATE ON mitras, chat_sessions, app_config TO {user}"
    ));
    let config = std::fs::read_to_string(world.home.config()).unwrap();
    let url = world.postgres.url(&world.database);
    let other = config.replace(&url, &url.replace("lapsed@", &format!("{user}@")));
    std::fs::write(world.home.config(), other).unwrap();
    let answer = world.run(&["check"]);
    world.sql(&format!("DROP OWNED BY {user}; DROP ROLE {user}"));
    assert_eq!(answer.code, 1, "{answer:?}");
    for words in [
        "[store.db]",
        "lacks INSERT, UPDATE on \"mitra_online_status\"",
        "lacks INSERT on \"mitra_online_logs\"",
        "lacks INSERT, UPDATE, DELETE on \"lapsed_receipts\"",
        &user,
    ] {
        assert!(answer.err.contains(words), "{words}: {answer:?}");
    }
    assert!(!answer.err.contains("\"mitras\""), "{answer:?}");
    std::fs::write(world.home.config(), config).unwrap();
    assert_eq!(world.run(&["check"]).code, 0);
}

/// Each would take the entries of the other for its own; also if the stores have two names.
fn two_systems_on_the_same_keys_are_refused() {
    let redis = RedisServer::start(Engine::Valkey).unwrap();
    let two = |kind: &str, lines: &str| {
        let stores = store("main", &redis.url()) + &store("other", &redis.url());
        let first = system(kind, "a", &format!("store = \"main\"\n{lines}"));
        let second = system(kind, "b", &format!("store = \"other\"\n{lines}"));
        Written::new(&format!("{SERVER}{stores}{first}{second}"))
    };
    for (kind, lines, keys) in [
        ("registry", "", &["connections:registry", "registry_key"][..]),
        ("registry", "mode = \"adopt\"", &["connections:registry"]),
        ("sessions", "", &["disconnected_sessions", "session:{session}"]),
        ("inflight", "mode = \"adopt\"", &["sidekiq:async_http:inflight_index"]),
    ] {
        for command in ["check", "serve"] {
            let refused = two(kind, lines).run(command);
            assert_eq!(refused.code, 2, "{command} {kind}: {refused:?}");
            let (a, b) = (format!("`{kind}/a`"), format!("`{kind}/b`"));
            for words in [a.as_str(), &b, "both use", "[store.other]"].iter().chain(keys) {
                assert!(refused.err.contains(words), "{command} {kind}, {words}: {refused:?}");
            }
        }
    }
    // Queues may be shared, and lapsed's own keys contain the name of the system.
    assert_eq!(two("inflight", "").run("check").code, 0);
    let apart = store("main", &redis.url())
        + &system("registry", "a", "")
        + &system("registry", "b", "registry_key = \"b\"\nheartbeat_key = \"b:{owner}\"");
    let apart = Written::new(&apart).run("check");
    assert_eq!(apart.code, 0, "{apart:?}");
}

fn every_fault_is_reported() {
    let text = "[server]\nlissten = \"127.0.0.1:0\"\n[store.main]\nurl = \"redis://127.0.0.1:1/0\"\n\
         [store.odd]\nurl = \"nonsense\"\n[[system]]\nkind = \"registry\"\nstore = \"main\"\nshrads = 2\n\
         [[system]]\nkind = \"sessions\"\nstore = \"main\"\ngrace = \"soon\"\n";
    let answer = Written::new(text).run("check");
    assert_eq!(answer.code, 2, "{answer:?}");
    for words in ["`lissten`", "store.odd.url", "`shrads`", "grace"] {
        assert!(answer.err.contains(words), "{words}: {answer:?}");
    }
    assert_eq!(
        answer.err.lines().filter(|line| line.starts_with("error: ")).count(),
        4,
        "{answer:?}"
    );
    // Two servers that do not answer: each is named.
    let text = store("one", "redis://127.0.0.1:1/0")
        + &store("two", "redis://127.0.0.1:2/0")
        + &system("registry", "a", "store = \"one\"")
        + &system("registry", "b", "store = \"two\"");
    let answer = Written::new(&text).run("check");
    assert_eq!(answer.code, 1, "{answer:?}");
    for words in ["[store.one]", "[store.two]", "127.0.0.1:1", "127.0.0.1:2"] {
        assert!(answer.err.contains(words), "{words}: {answer:?}");
    }
    let swept =
        Written::new(&(store("one", "redis://127.0.0.1:1/0") + &system("registry", "a", "")));
    let told = format!("{:?}", swept.run("status"));
    assert!(!told.contains("store.NAME") && !answer.err.contains("store.NAME"), "{told}");
}
