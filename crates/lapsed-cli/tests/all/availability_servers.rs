//! Providers that are true in Postgres and mirrored in Valkey: from the schema to the beacon, several daemons,
//! and what happens when one of the two is away.

use crate::availability_fixture::{CALM, World, id};
use crate::support::until;
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    schema_apply_to_beacon_works_as_in_the_readme,
    writes_of_an_application_reach_the_mirror_through_triggers,
    two_daemons_set_a_silent_provider_offline_once,
    a_postgres_outage_is_reported_and_survived,
    environment_variables_of_the_original_override_the_file,
    calls_do_not_wait_for_a_frozen_mirror,
    custom_table_and_key_names_are_adopted,
    expiry_events_set_a_silent_provider_offline_at_once,
    only_one_of_two_daemons_leads,
    without_a_daemon_commands_fill_the_mirror_and_sweep,
}

/// The commands of the README, on real servers.
fn schema_apply_to_beacon_works_as_in_the_readme() {
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
fn writes_of_an_application_reach_the_mirror_through_triggers() {
    let world = World::bare(CALM);
    let applied = world.run(&["schema", "apply", "--triggers"]);
    assert!(applied.out.contains("triggers report"), "{applied:?}");
    let check = world.run(&["check"]);
    assert!(check.out.contains("triggers report the application's own changes"), "{check:?}");
    let daemon = world.home.serve();
    let a = world.insert(1, true, true);
    until("somebody new to be available", || (daemon.available() == [a.as_str()]).then_some(()));
    world.insert_sessions(0, 3, &a, "active");
    let capacity = format!("mitra:capacity:{a}");
    until("its capacity", || (world.redis(&["GET", &capacity]) == "3").then_some(()));
    assert!(daemon.available().is_empty());
    world.sql("UPDATE chat_sessions SET status = 'ended'");
    until("its room", || (daemon.available() == [a.as_str()]).then_some(()));
    world.sql("UPDATE mitras SET is_active = false");
    until("it to be deactivated", || daemon.available().is_empty().then_some(()));
    let beat = daemon.try_mitras("POST", &format!("providers/{a}/heartbeat"), Value::Null);
    beat.is_problem(403, "deactivated");
    world.sql("UPDATE mitras SET is_active = true");
    until("it to be active again", || (daemon.available() == [a.as_str()]).then_some(()));
    let setting = "INSERT INTO app_config (key, value) VALUES ('max_customers_per_mitra', '0') \
                   ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value";
    world.sql(setting);
    until("the setting", || daemon.available().is_empty().then_some(()));
}

fn two_daemons_set_a_silent_provider_offline_once() {
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
    let left = "SELECT count(*) FROM mitra_online_status WHERE is_online";
    until("all of them to be set offline", || {
        let reason = ["--reason", "all of them went home", "--yes"];
        let told = one.run(&[&["brake", "mitras", "override"][..], &reason].concat());
        assert_eq!(told.code, 0, "{told:?}");
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

fn a_postgres_outage_is_reported_and_survived() {
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
    assert_eq!(daemon.available(), [a.as_str()]);
    postgres.kill().unwrap();
    // Reads from the mirror are still answered; writes that need the truth fail.
    let beat = daemon.do_mitras("POST", &format!("providers/{a}/heartbeat"), Value::Null);
    assert_eq!(beat.header("lapsed-source"), "mirror");
    assert_eq!(daemon.available(), [a.as_str()]);
    assert_eq!(daemon.mitras("beacon").body["count"], 1);
    daemon
        .try_mitras("POST", &format!("providers/{a}/offline"), Value::Null)
        .is_problem(503, "unavailable");
    // What a probe found is good for a moment.
    until("it not to be ready", || (daemon.get("/readyz").status == 503).then_some(()));
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

fn environment_variables_of_the_original_override_the_file() {
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

fn calls_do_not_wait_for_a_frozen_mirror() {
    let world = World::new(CALM);
    let a = world.insert(1, true, true);
    let daemon = world.home.serve();
    assert_eq!(daemon.mitras("available").header("lapsed-source"), "mirror");
    world.valkey.freeze().unwrap();
    let found = daemon.mitras("available");
    assert_eq!((found.status, found.header("lapsed-source")), (200, "truth"), "{found:?}");
    assert_eq!(found.body["available"][0]["id"], a.as_str());
    daemon.do_mitras("POST", &format!("providers/{a}/heartbeat"), Value::Null);
    until("the breaker to open", || {
        daemon.mitras("count");
        let text = daemon.get("/metrics").text;
        let state = "lapsed_availability_breaker_state{system=\"mitras\",kind=\"availability\"} ";
        let state = text.lines().find_map(|line| line.strip_prefix(state)).unwrap();
        (state != "0").then_some(())
    });
    // A daemon that starts now serves, too.
    let other = world.home.serve();
    assert_eq!(other.available(), [a.as_str()]);
    world.valkey.thaw().unwrap();
    for daemon in [&daemon, &other] {
        until("reads from the mirror", || {
            (daemon.mitras("available").header("lapsed-source") == "mirror").then_some(())
        });
    }
    assert_eq!(world.logged(&a, "offline"), 0);
}

/// Tables in a schema, with a capital letter and a blank in their names; keys under a prefix.
fn custom_table_and_key_names_are_adopted() {
    let names = "prefix = \"app:\"\nheartbeat_key = \"beat:{provider}\"\n[system.tables]\n\
                 id_type = \"text\"\n[system.tables.providers]\ntable = \"crew.Our Pilots\"\n\
                 id = \"Call Sign\"\n[system.tables.logins]\ntable = \"\"\n\
                 [system.tables.sessions]\ntable = \"crew.flights\"\nprovider = \"pilot\"\n";
    let world = World::bare(&format!("{CALM}{names}"));
    world.sql("CREATE SCHEMA crew");
    world.sql(
        "CREATE TABLE crew.\"Our Pilots\" (\"Call Sign\" text PRIMARY KEY, is_active boolean \
         NOT NULL DEFAULT true, rank int)",
    );
    let applied = world.run(&["schema", "apply", "--json"]).json();
    let kept = applied["kept"].to_string();
    assert!(kept.contains("Our Pilots"), "{applied}");
    let check = world.run(&["check"]);
    assert_eq!(check.code, 0, "{check:?}");
    for word in ["tables.providers.table = crew.Our Pilots", "prefix = app:"] {
        assert!(check.out.contains(word), "{word}: {check:?}");
    }
    world.sql("INSERT INTO crew.\"Our Pilots\" VALUES ('maverick', true, 3)");
    let daemon = world.home.serve();
    daemon.do_mitras("POST", "providers/maverick/online", Value::Null);
    daemon.accept("flight-1", "maverick");
    assert_eq!(world.members("app:mitras:online"), ["maverick"]);
    assert_eq!(world.redis(&["GET", "app:mitra:capacity:maverick"]), "1");
    assert_eq!(world.redis(&["EXISTS", "app:beat:maverick"]), "1");
    assert_eq!(world.sql("SELECT pilot, status FROM crew.flights"), "maverick|active");
    let columns = "SELECT count(*) FROM information_schema.columns WHERE table_name = 'Our Pilots'";
    assert_eq!(world.sql(columns), "3", "nothing was added to it");
}

/// Passes come once a day, and the server tells.
fn expiry_events_set_a_silent_provider_offline_at_once() {
    let world = World::new(&format!("{CALM}instant = true\n"));
    let warned = world.run(&["check"]);
    assert!(warned.out.contains("notify-keyspace-events Ex"), "{warned:?}");
    world.redis(&["CONFIG", "SET", "notify-keyspace-events", "Ex"]);
    let fine = world.run(&["check"]);
    assert!(fine.out.contains("report expired heartbeats immediately"), "{fine:?}");
    let daemon = world.home.serve();
    daemon.tune(json!({ "heartbeat_cadence_seconds": 1, "stale_after_seconds": 2 }));
    let online = "SELECT count(*) FROM mitra_online_status WHERE is_online";
    let a = id(1);
    daemon.online(&a);
    until("it to be set offline without a pass of its time", || {
        // Spared while the server has only just come: then it beats once more, and is silent again.
        if world.redis(&["EXISTS", &format!("mitra:heartbeat:{a}")]) == "1" {
            std::thread::sleep(std::time::Duration::from_millis(2_500));
            if world.sql(online) == "1" {
                daemon.try_mitras("POST", &format!("providers/{a}/heartbeat"), Value::Null);
            }
        }
        (world.sql(online) == "0").then_some(())
    });
    assert_eq!(world.logged(&a, "offline"), 1);
}

fn only_one_of_two_daemons_leads() {
    let lines = CALM.replace("every = \"1d\" }", "every = \"200ms\", mode = \"leader\" }");
    let world = World::new(&lines);
    let (one, two) = (world.home.serve(), world.home.serve());
    one.tune(json!({ "heartbeat_cadence_seconds": 1, "stale_after_seconds": 1 }));
    let leads = |daemon: &crate::support::Daemon| {
        daemon.get("/v1/sweeps/availability/mitras").body["leads"] == true
    };
    until("one of them to lead", || (leads(&one) != leads(&two)).then_some(()));
    one.online(&id(1));
    until("the silent one to be set offline", || {
        (world.logged(&id(1), "offline") == 1).then_some(())
    });
}

/// A pass from a crontab is all there is.
fn without_a_daemon_commands_fill_the_mirror_and_sweep() {
    let world = World::new(CALM);
    let a = world.insert(1, true, true);
    world.sql("UPDATE mitra_online_status SET last_heartbeat_at = now() - interval '1 hour'");
    world.sql(
        "INSERT INTO app_config (key, value) \
         VALUES ('heartbeat_cadence_seconds', '1'), ('stale_after_seconds', '1') \
         ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value",
    );
    let status = world.run(&["status", "mitras"]);
    assert!(status.out.contains("not seeded"), "looking fills nothing: {status:?}");
    until("the silent one to be set offline", || {
        let swept = world.run(&["sweep", "mitras", "--json"]);
        assert!([0, 3].contains(&swept.code), "{swept:?}");
        (swept.json()["reclaimed"] == 1).then_some(())
    });
    assert_eq!(world.logged(&a, "offline"), 1, "filling the mirror revives nobody (C1)");
    let explained = world.run(&["explain", "mitras", &a]);
    assert!(explained.out.contains("offline"), "{explained:?}");
    let receipts = world.run(&["receipts", "mitras", "--json"]).lines();
    let restored = world.run(&["restore", receipts[0]["id"].as_str().unwrap()]);
    assert_eq!(restored.code, 0, "{restored:?}");
    assert_eq!(world.members("mitras:online"), [a.as_str()]);
}
