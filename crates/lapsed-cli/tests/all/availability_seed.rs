//! The plan of the original for its integration tests, item by item, with a real Postgres and a real Valkey.

use crate::availability_fixture::{CALM, World, id};
use crate::support::until;
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    seed_002_1_seed_correctness,
    seed_002_2_heartbeat_refresh,
    seed_002_3_auto_offline,
    seed_002_4_capacity_lifecycle,
    seed_002_5_restart_resilience,
    seed_002_6_reconciliation_makes_the_mirror_agree_with_the_truth,
    seed_002_7_reads_fall_back_to_the_truth,
    trap_c1_an_application_that_reseeds_is_reported_everywhere,
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
    assert_eq!(world.members("mitras:online"), [b.as_str()]);
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
        assert_eq!(world.members("mitras:deactivated"), [out.as_str()], "{way}");
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

fn seed_002_6_reconciliation_makes_the_mirror_agree_with_the_truth() {
    let world = World::new(CALM);
    let (a, b) = (world.insert(1, true, true), world.insert(2, true, true));
    let (c, d) = (world.insert(3, true, false), world.insert(4, true, true));
    // A set that is gone altogether would be taken for data that was lost, and be filled at once.
    let e = world.insert(5, false, false);
    world.insert_sessions(0, 1, &a, "active");
    let daemon = world.home.serve();
    // A daemon that starts to listen may have missed changes, so it reconciles once.
    until("the comparison at the start", || {
        let ended =
            "lapsed_reconcile_total{system=\"mitras\",ended=\"agree\",kind=\"availability\"} 1";
        daemon.get("/metrics").text.contains(ended).then_some(())
    });
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
        (&ghost, "the truth has no provider with that id"),
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
    assert_eq!(world.members("mitras:deactivated"), [c, e]);
    assert_eq!(world.redis(&["GET", &capacity(&a)]), "1");
    assert_eq!(world.capacity(&d), 0, "C3");
    assert_eq!(world.redis(&["EXISTS", &capacity(&ghost)]), "0");
    let agree = world.run(&["reconcile", "mitras", "--compare"]);
    assert!(agree.code == 0, "{agree:?}");
}

fn seed_002_7_reads_fall_back_to_the_truth() {
    let world = World::new(CALM);
    let (a, b) = (world.insert(1, true, true), world.insert(2, true, true));
    let out = world.insert(3, true, false);
    world.insert_sessions(0, 3, &b, "active");
    let daemon = world.home.serve();
    assert_eq!(daemon.mitras("available").header("lapsed-source"), "mirror");
    world.valkey.kill().unwrap();
    let found = daemon.mitras("available");
    assert_eq!((found.status, found.header("lapsed-source")), (200, "truth"), "{found:?}");
    assert_eq!(daemon.available(), [a.as_str()]);
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

/// `seedFromPostgres` of the original, which dates every heartbeat now: the silent stay online. lapsed says so in
/// the log, in `check`, `status` and `explain`, and by a metric.
fn trap_c1_an_application_that_reseeds_is_reported_everywhere() {
    let world = World::new(CALM);
    let all: Vec<String> = (0..6).map(|n| world.insert(n, true, true)).collect();
    let daemon = world.home.serve();
    let counted = |times: u64| {
        let line = format!(
            "lapsed_availability_mass_heartbeats_total{{system=\"mitras\",kind=\"availability\"}} {times}\n"
        );
        let metrics = daemon.get("/metrics").text;
        assert!(metrics.contains(&line), "{line}{metrics}");
    };
    // What lapsed writes together is no sign of it, and neither is a mirror that it filled.
    daemon.do_mitras("POST", "heartbeats", json!({ "providers": all }));
    daemon.run(&["sweep", "mitras"]);
    let calm = daemon.run(&["status", "mitras"]).out;
    assert!(!calm.contains("written at once"), "{calm}");
    counted(0);

    let reseed = "redis.call('DEL', KEYS[1]) \
        for i = 1, #ARGV, 2 do redis.call('SADD', KEYS[1], ARGV[i]) \
        redis.call('SET', 'mitra:heartbeat:' .. ARGV[i], ARGV[i + 1]) end";
    let now =
        world.sql("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')");
    let mut words = vec!["EVAL", reseed, "1", "mitras:online"];
    words.extend(all.iter().flat_map(|id| [id.as_str(), now.as_str()]));
    world.redis(&words);
    daemon.run(&["sweep", "mitras"]);
    counted(1);
    let told = "6 of 6 heartbeats were written at once, by no ping";
    for command in [&["status", "mitras"][..], &["check"]] {
        let said = world.run(command);
        assert!(said.out.contains(told), "{command:?}: {said:?}");
    }
    assert_eq!(
        daemon.get("/v1/sweeps/availability/mitras").body["availability"]["mass_heartbeats"]["of"],
        6
    );
    let why = daemon.explained(&all[0]).to_string();
    assert!(why.contains("that heartbeat is no ping: 6 of 6"), "{why}");
    daemon.do_mitras("POST", &format!("providers/{}/heartbeat", all[0]), Value::Null);
    let why = daemon.explained(&all[0]).to_string();
    assert!(!why.contains("no ping"), "{why}");
    let log = daemon.log();
    assert!(log.contains("heartbeats were written at once, by no ping"), "{log}");
}
