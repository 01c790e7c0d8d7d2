//! Providers that are true in Postgres and mirrored in Valkey: the plan of the original, item by item, and
//! what happens when one of the two is away.

use crate::providers::{CALM, World, id};
use crate::support::until;
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    seed_002_1_seed_correctness,
    seed_002_2_heartbeat_refresh,
    seed_002_3_auto_offline,
    seed_002_4_capacity_lifecycle,
    seed_002_5_restart_resilience,
    seed_002_6_reconciliation,
    seed_002_7_fallback,
    from_the_schema_to_the_beacon,
    an_application_is_followed_through_triggers,
    two_daemons_agree_and_flip_once,
    a_postgres_that_is_away_is_said_and_survived,
    the_variables_of_the_original_win,
}

/// N online, M deactivated, sessions in the tables: the start of a daemon fills all four structures.
fn seed_002_1_seed_correctness() {
    let world = World::new(CALM);
    let online: Vec<String> = (0..5).map(|n| world.insert(n, true, true)).collect();
    let off = world.insert(5, false, true);
    let out: Vec<String> = (6..8).map(|n| world.insert(n, true, false)).collect();
    world.insert_sessions(0, 2, &online[0], "active");
    world.insert_sessions(2, 1, &online[0], "pending_payment");
    world.insert_sessions(3, 1, &online[1], "active");
    world.insert_sessions(4, 2, &online[2], "ended");
    let daemon = world.home.serve();
    let all_online: Vec<String> = online.iter().chain(&out).cloned().collect();
    assert_eq!(world.members("mitras:online"), all_online);
    assert_eq!(world.members("mitras:deactivated"), out);
    let counted = [0, 1, 2].map(|n| world.capacity(&online[n]));
    assert_eq!(counted, [3, 1, 0]);
    for id in &all_online {
        let beat = world.redis(&["GET", &format!("mitra:heartbeat:{id}")]);
        assert!(beat.contains('T') && beat.ends_with('Z'), "{beat}");
    }
    assert_eq!(world.redis(&["EXISTS", &format!("mitra:heartbeat:{off}")]), "0");
    // The first is full: three sessions of three.
    assert_eq!(daemon.available(), online[1..].to_vec());
    let beacon = daemon.mitras("beacon");
    assert_eq!(beacon.body, json!({ "available": true, "count": 4 }));
    assert_eq!(beacon.header("lapsed-source"), "mirror");
    assert_eq!(world.redis(&["GET", "availability:snapshot"]), r#"{"available":true,"count":4}"#);
}

fn seed_002_2_heartbeat_refresh() {
    let world = World::new(&CALM.replace("heartbeat_mirror_every = \"1d\"", ""));
    let lines = std::fs::read_to_string(world.home.config()).unwrap();
    std::fs::write(world.home.config(), lines + "heartbeat_mirror_every = \"1s\"\n").unwrap();
    let a = world.insert(1, true, true);
    let daemon = world.home.serve();
    let key = format!("mitra:heartbeat:{a}");
    let before = world.redis(&["GET", &key]);
    let noted = format!("SELECT last_heartbeat_at FROM mitra_online_status WHERE mitra_id = '{a}'");
    let written = world.sql(&noted);
    until("a newer beat in Valkey", || {
        daemon.do_mitras("POST", &format!("providers/{a}/heartbeat"), Value::Null);
        (world.redis(&["GET", &key]) > before).then_some(())
    });
    until("the beat in Postgres", || {
        daemon.do_mitras("POST", &format!("providers/{a}/heartbeat"), Value::Null);
        (world.sql(&noted) > written).then_some(())
    });
}

fn seed_002_3_auto_offline() {
    let world = World::new(CALM);
    let (a, b) = (world.insert(1, true, true), world.insert(2, true, true));
    let daemon = world.home.serve();
    daemon.tune(json!({ "heartbeat_cadence_seconds": 1, "stale_after_seconds": 2 }));
    world.redis(&["SET", &format!("mitra:heartbeat:{a}"), "2026-01-01T00:00:00.000Z"]);
    let far = "2100-01-01T00:00:00.000Z";
    until("the silent one to be set offline", || {
        // A date in the future counts as now.
        world.redis(&["SET", &format!("mitra:heartbeat:{b}"), far]);
        let swept = daemon.run(&["sweep", "mitras", "--json"]).json();
        (swept["reclaimed"] == 1).then_some(swept)
    });
    let online = format!("SELECT is_online FROM mitra_online_status WHERE mitra_id = '{a}'");
    assert_eq!(world.sql(&online), "f");
    assert_eq!(world.members("mitras:online"), [b.clone()]);
    assert_eq!(world.redis(&["EXISTS", &format!("mitra:heartbeat:{a}")]), "0");
    assert_eq!((world.logged(&a, "offline"), world.logged(&b, "offline")), (1, 0), "C6");
    let receipts = daemon.run(&["receipts", "mitras", "--json"]).lines();
    assert_eq!((receipts.len(), &receipts[0]["key"]), (1, &json!(a)), "{receipts:?}");
    assert_eq!(receipts[0]["evidence"]["clock"], "postgres");
    let beat = daemon.try_mitras("POST", &format!("providers/{a}/heartbeat"), Value::Null);
    beat.is_problem(409, "not_online");
    assert_eq!(world.redis(&["EXISTS", &format!("mitra:heartbeat:{a}")]), "0", "C10");
}

fn seed_002_4_capacity_lifecycle() {
    let world = World::new(CALM);
    let (a, b) = (world.insert(1, true, true), world.insert(2, true, true));
    let daemon = world.home.serve();
    let capacity = |id: &str| world.capacity(id);
    let session = |n: u32| id(800_000 + n);
    for n in 0..3 {
        daemon.accept(&session(n), &a);
    }
    daemon.accept(&session(3), &b);
    assert_eq!((capacity(&a), capacity(&b)), (3, 1));
    let step = |n: u32, what: &str, body: Value| {
        daemon.try_mitras("POST", &format!("sessions/{}/{what}", session(n)), body)
    };
    step(4, "accept", json!({ "provider": a })).is_problem(409, "full");
    assert_eq!(step(0, "extend", Value::Null).status, 200);
    assert_eq!(capacity(&a), 3, "an extension keeps its place");
    assert_eq!(step(1, "reroute", json!({ "to": b })).status, 200);
    assert_eq!((capacity(&a), capacity(&b)), (2, 2));
    for (n, what) in [(0, "end"), (0, "end"), (1, "expire"), (2, "cancel"), (3, "end")] {
        assert_eq!(step(n, what, Value::Null).status, 200);
    }
    assert_eq!((capacity(&a), capacity(&b)), (0, 0), "never below");
    let left = "SELECT count(*) FROM chat_sessions WHERE status IN ('active', 'pending_payment')";
    assert_eq!(world.sql(left), "0");
}

fn seed_002_5_restart_resilience() {
    let world = World::new(CALM);
    let online: Vec<String> = (0..3).map(|n| world.insert(n, true, true)).collect();
    let out = world.insert(3, true, false);
    world.insert_sessions(0, 2, &online[0], "active");
    let daemon = world.home.serve();
    let seeded = || world.redis(&["GET", &format!("mitra:capacity:{}", online[0])]) == "2";
    assert!(seeded());
    for way in ["FLUSHALL", "restart"] {
        match way {
            "restart" => world.valkey.restart().unwrap(),
            flush => drop(world.redis(&[flush])),
        }
        until("the mirror to be filled again", || {
            let there = world.valkey.command(&["SCARD", "mitras:online"]).ok()?;
            (there == "4" && seeded()).then_some(())
        });
        assert_eq!(world.members("mitras:deactivated"), [out.clone()], "{way}");
        for id in &online {
            assert_eq!(world.redis(&["EXISTS", &format!("mitra:heartbeat:{id}")]), "1", "{way}");
        }
        until("reads from the mirror", || {
            (daemon.mitras("available").header("lapsed-source") == "mirror").then_some(())
        });
        assert_eq!(daemon.available(), online, "{way}");
    }
    for id in &online {
        assert_eq!(world.logged(id, "offline"), 0, "nobody alive was set offline");
    }
}

fn seed_002_6_reconciliation() {
    let world = World::new(CALM);
    let (a, b) = (world.insert(1, true, true), world.insert(2, true, true));
    let (c, d) = (world.insert(3, true, false), world.insert(4, true, true));
    world.insert_sessions(0, 1, &a, "active");
    let daemon = world.home.serve();
    let agree = world.run(&["reconcile", "mitras", "--dry-run"]);
    assert!(agree.out.contains("index and truth agree"), "{agree:?}");
    let ghost = id(77);
    let capacity = |id: &str| format!("mitra:capacity:{id}");
    world.redis(&["SADD", "mitras:online", &ghost]);
    world.redis(&["SET", &capacity(&ghost), "2"]);
    world.redis(&["SET", &capacity(&a), "7"]);
    world.redis(&["SET", &capacity(&d), "3"]);
    world.redis(&["SREM", "mitras:online", &b]);
    world.redis(&["SREM", "mitras:deactivated", &c]);
    let dry = world.run(&["reconcile", "mitras", "--dry-run", "--verbose"]);
    for (key, why) in [
        (&ghost, "the truth knows nobody by that id"),
        (&a, "has 1 sessions, and 7 is noted"),
        (&d, "has 0 sessions, and 3 is noted"),
        (&b, "online, and not among those online"),
        (&c, "deactivated, and not among those deactivated"),
    ] {
        let named = dry.out.lines().any(|line| line.contains(key.as_str()) && line.contains(why));
        assert!(named, "{key} {why}: {dry:?}");
    }
    assert!(world.members("mitras:online").contains(&ghost), "nothing was changed");
    let healed = daemon.run(&["reconcile", "mitras"]);
    assert!(healed.code == 0 && healed.out.contains("agree now"), "{healed:?}");
    assert_eq!(world.members("mitras:online"), [a.clone(), b.clone(), c.clone(), d.clone()]);
    assert_eq!(world.members("mitras:deactivated"), [c]);
    assert_eq!(world.redis(&["GET", &capacity(&a)]), "1");
    assert_eq!(world.capacity(&d), 0, "C3");
    assert_eq!(world.redis(&["EXISTS", &capacity(&ghost)]), "0");
    let agree = world.run(&["reconcile", "mitras", "--compare"]);
    assert!(agree.code == 0, "{agree:?}");
}

fn seed_002_7_fallback() {
    let world = World::new(CALM);
    let (a, b) = (world.insert(1, true, true), world.insert(2, true, true));
    let out = world.insert(3, true, false);
    world.insert_sessions(0, 3, &b, "active");
    let daemon = world.home.serve();
    assert_eq!(daemon.mitras("available").header("lapsed-source"), "mirror");
    world.valkey.kill().unwrap();
    let found = daemon.mitras("available");
    assert_eq!((found.status, found.header("lapsed-source")), (200, "truth"), "{found:?}");
    assert_eq!(daemon.available(), [a.clone()]);
    let beacon = daemon.mitras("beacon");
    assert_eq!(beacon.body, json!({ "available": true, "count": 1 }));
    assert!(["truth", "cache"].contains(&beacon.header("lapsed-source")), "{beacon:?}");
    for path in ["count", "online/count"] {
        let reply = daemon.mitras(path);
        assert_eq!((reply.status, reply.header("lapsed-source")), (200, "truth"), "{path}");
    }
    let beat = daemon.do_mitras("POST", &format!("providers/{a}/heartbeat"), Value::Null);
    assert_eq!(beat.header("lapsed-source"), "truth");
    daemon
        .try_mitras("POST", &format!("providers/{out}/heartbeat"), Value::Null)
        .is_problem(403, "deactivated");
    let gone = daemon.do_mitras("POST", &format!("providers/{a}/offline"), Value::Null);
    assert_eq!(gone.header("lapsed-mirror"), "behind", "{gone:?}");
    assert_eq!(daemon.get("/readyz").status, 200, "slower, never wrong");
    let swept = daemon.run(&["sweep", "mitras", "--json"]);
    assert_eq!(swept.json()["stopped"], "error", "{swept:?}");
    assert_eq!(world.sql("SELECT count(*) FROM mitra_online_logs WHERE status = 'offline'"), "1");
    let status = daemon.run(&["status", "mitras"]);
    assert!(status.out.contains("does not answer"), "{status:?}");
    let metrics = daemon.get("/metrics").text;
    let down = "lapsed_availability_mirror_up{system=\"mitras\",kind=\"availability\"} 0";
    assert!(metrics.contains(down), "{metrics}");

    world.valkey.restart().unwrap();
    until("reads from the mirror", || {
        (daemon.mitras("available").header("lapsed-source") == "mirror").then_some(())
    });
    assert!(daemon.available().is_empty(), "what was written meanwhile is there");
    assert_eq!(world.members("mitras:deactivated"), [out]);
}

/// What the README shows.
fn from_the_schema_to_the_beacon() {
    let world = World::bare("");
    let check = world.run(&["check"]);
    assert_eq!(check.code, 1, "{check:?}");
    for column in ["mitras.is_active", "mitra_online_status.is_online", "schema apply"] {
        assert!(check.err.contains(column), "{column}: {check:?}");
    }
    let printed = world.run(&["schema", "print"]);
    assert!(printed.out.contains("chat_sessions") && !printed.out.contains("TRIGGER"));
    let applied = world.run(&["schema", "apply", "--json"]);
    assert_eq!(applied.code, 0, "{applied:?}");
    let made = applied.json();
    assert!(made["made"].as_array().unwrap().len() >= 10, "{made}");
    let again = world.run(&["schema", "apply"]);
    assert!(again.out.contains("0 tables made"), "{again:?}");
    let check = world.run(&["check"]);
    assert_eq!(check.code, 0, "{check:?}");
    for word in ["store cache", "store db", "mirrored in store cache", "no triggers", "every 30s"] {
        assert!(check.out.contains(word), "{word}: {check:?}");
    }
    let daemon = world.home.serve();
    let sari = "0190f0a0-1111-7222-8333-44445555aaaa";
    daemon.do_mitras("PUT", &format!("providers/{sari}"), json!({ "display_name": "Sari" }));
    daemon.do_mitras("POST", &format!("providers/{sari}/online"), Value::Null);
    daemon.do_mitras("POST", &format!("providers/{sari}/heartbeat"), Value::Null);
    assert_eq!(daemon.mitras("beacon").body, json!({ "available": true, "count": 1 }));
    let wrong = daemon.try_mitras("PUT", "providers/sari", json!({}));
    wrong.is_problem(422, "invalid");
    let explained = world.run(&["explain", "availability", sari]);
    assert!(explained.out.contains("available") && explained.out.contains("Sari"), "{explained:?}");
    let status = world.run(&["status", "availability"]);
    for word in ["answers, seeded", "closed", "1, says the mirror"] {
        assert!(status.out.contains(word), "{word}: {status:?}");
    }
    let secret = world.postgres.url(&world.database).replace("lapsed@", "lapsed:s3cret@");
    let config = std::fs::read_to_string(world.home.config()).unwrap();
    let config = config.replace(&world.postgres.url(&world.database), &secret);
    std::fs::write(world.home.config(), config).unwrap();
    for args in [&["check"][..], &["check", "--json"], &["schema", "apply"], &["status"]] {
        let answer = world.run(args);
        assert!(!format!("{answer:?}").contains("s3cret"), "{answer:?}");
    }
}

/// An application that knows nothing of lapsed writes its own tables.
fn an_application_is_followed_through_triggers() {
    let world = World::bare(CALM);
    let applied = world.run(&["schema", "apply", "--triggers"]);
    assert!(applied.out.contains("triggers tell"), "{applied:?}");
    let check = world.run(&["check"]);
    assert!(check.out.contains("triggers tell what an application changes"), "{check:?}");
    let daemon = world.home.serve();
    let a = world.insert(1, true, true);
    until("somebody new to be available", || (daemon.available() == [a.clone()]).then_some(()));
    world.insert_sessions(0, 3, &a, "active");
    let capacity = format!("mitra:capacity:{a}");
    until("its capacity", || (world.redis(&["GET", &capacity]) == "3").then_some(()));
    assert!(daemon.available().is_empty());
    world.sql("UPDATE chat_sessions SET status = 'ended'");
    until("its room", || (daemon.available() == [a.clone()]).then_some(()));
    world.sql("UPDATE mitras SET is_active = false");
    until("it to be deactivated", || daemon.available().is_empty().then_some(()));
    let beat = daemon.try_mitras("POST", &format!("providers/{a}/heartbeat"), Value::Null);
    beat.is_problem(403, "deactivated");
    world.sql("UPDATE mitras SET is_active = true");
    until("it to be active again", || (daemon.available() == [a.clone()]).then_some(()));
    let setting = "INSERT INTO app_config (key, value) VALUES ('max_customers_per_mitra', '0') \
                   ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value";
    world.sql(setting);
    until("the setting", || daemon.available().is_empty().then_some(()));
}

fn two_daemons_agree_and_flip_once() {
    let world = World::new(CALM);
    let (one, two) = (world.home.serve(), world.home.serve());
    let ids: Vec<String> = (0..20).map(id).collect();
    ids.iter().for_each(|id| one.online(id));
    assert_eq!(two.available(), ids);
    assert_eq!(two.mitras("beacon").body["count"], 20);
    // Told through config:invalidate; without it the other would believe its settings for a minute.
    one.tune(json!({ "max_customers_per_mitra": 0 }));
    until("the other daemon to hear it", || {
        (two.mitras("beacon").body["count"] == 0).then_some(())
    });
    two.tune(json!({ "max_customers_per_mitra": 1 }));
    until("the first to hear it", || (one.mitras("beacon").body["count"] == 20).then_some(()));
    for n in 0..20 {
        let daemon = if n % 2 == 0 { &one } else { &two };
        daemon.accept(&id(700_000 + n), &ids[n as usize]);
    }
    assert!(one.available().is_empty() && two.available().is_empty());

    one.tune(json!({ "heartbeat_cadence_seconds": 1, "stale_after_seconds": 2 }));
    let release = one.run(&["brake", "mitras", "release"]);
    assert_eq!(release.code, 0, "{release:?}");
    let left = "SELECT count(*) FROM mitra_online_status WHERE is_online";
    until("all of them to be set offline", || {
        std::thread::scope(|scope| {
            let sweeps = [&one, &two]
                .map(|daemon| scope.spawn(|| daemon.run(&["sweep", "mitras", "--json"])));
            sweeps.into_iter().for_each(|sweep| drop(sweep.join().unwrap()));
        });
        (world.sql(left) == "0").then_some(())
    });
    for id in &ids {
        assert_eq!((world.logged(id, "online"), world.logged(id, "offline")), (1, 1), "{id}");
    }
    let receipts = one.run(&["receipts", "mitras", "-n", "100", "--json"]).lines();
    assert_eq!(receipts.len(), 20);
    let counted = |daemon: &crate::support::Daemon| -> u64 {
        let series = "lapsed_reclaimed_total{system=\"mitras\",reason=\"heartbeat_stale\",\
                      kind=\"availability\"} ";
        let text = daemon.get("/metrics").text;
        text.lines().find_map(|line| line.strip_prefix(series)).unwrap().parse().unwrap()
    };
    assert_eq!(counted(&one) + counted(&two), 20, "between them");
}

fn a_postgres_that_is_away_is_said_and_survived() {
    let world = World::new(CALM);
    let a = world.insert(1, true, true);
    let postgres = lapsed_testbed::PostgresServer::start().unwrap();
    let config = std::fs::read_to_string(world.home.config()).unwrap();
    let away = config.replace(&world.postgres.url(&world.database), &postgres.url("postgres"));
    std::fs::write(world.home.config(), &away).unwrap();
    assert_eq!(world.run(&["schema", "apply"]).code, 0);
    postgres
        .sql(
            "postgres",
            &format!(
                "INSERT INTO mitras (id, display_name, is_active) VALUES ('{a}', 'a', true); \
         INSERT INTO mitra_online_status (mitra_id, is_online, last_online_at, last_heartbeat_at) \
         VALUES ('{a}', true, now(), now())"
            ),
        )
        .unwrap();
    let daemon = world.home.serve();
    assert_eq!(daemon.available(), [a.clone()]);
    postgres.kill().unwrap();
    // What the mirror knows goes on being answered; what has to be true is not pretended.
    let beat = daemon.do_mitras("POST", &format!("providers/{a}/heartbeat"), Value::Null);
    assert_eq!(beat.header("lapsed-source"), "mirror");
    assert_eq!(daemon.available(), [a.clone()]);
    assert_eq!(daemon.mitras("beacon").body["count"], 1);
    daemon
        .try_mitras("POST", &format!("providers/{a}/offline"), Value::Null)
        .is_problem(503, "unavailable");
    daemon.get("/readyz").is_problem(503, "not_ready");
    // And a daemon starts without it, too.
    let other = world.home.serve();
    other.get("/readyz").is_problem(503, "not_ready");
    assert_eq!(other.get("/healthz").status, 200);
    postgres.restart().unwrap();
    for daemon in [&daemon, &other] {
        until("it to be ready", || (daemon.get("/readyz").status == 200).then_some(()));
    }
    daemon.do_mitras("POST", &format!("providers/{a}/offline"), Value::Null);
    until("the other to see it", || other.available().is_empty().then_some(()));
}

fn the_variables_of_the_original_win() {
    let world = World::new(CALM);
    let config = world.home.config().display().to_string();
    let env = [
        ("MITRA_AUTO_OFFLINE_SWEEP_SECONDS", "7"),
        ("HEARTBEAT_MIRROR_INTERVAL_SECONDS", "8"),
        ("VALKEY_ONLINE_MIRROR_SWEEP_SECONDS", "9"),
    ];
    let check = crate::support::run_with(&["check", "-c", &config], &env);
    assert_eq!(check.code, 0, "{check:?}");
    for word in [
        "sweep.every = 7s",
        "environment MITRA_AUTO_OFFLINE_SWEEP_SECONDS",
        "heartbeat_mirror_every = 8s",
        "environment HEARTBEAT_MIRROR_INTERVAL_SECONDS",
        "reconcile.every = 9s",
        "environment VALKEY_ONLINE_MIRROR_SWEEP_SECONDS",
    ] {
        assert!(check.out.contains(word), "{word}: {check:?}");
    }
}
