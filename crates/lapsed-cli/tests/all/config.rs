//! Bad configuration: each mistake gets exit code 2 and an error that names the key.

use crate::support::{Home, lapsed, run, run_with};

const STORE: &str = "[store.main]\nurl = \"embedded:DATA\"\n";

/// `lapsed check` on that text, with DATA standing for a folder that is not there.
fn check(text: &str, env: &[(&str, &str)]) -> crate::support::Answer {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data").display().to_string();
    let file = dir.path().join("lapsed.toml");
    std::fs::write(&file, text.replace("DATA", &data)).unwrap();
    run_with(&["check", "-c", &file.display().to_string()], env)
}

/// It is refused, and the error says all of these.
#[track_caller]
fn refused(text: &str, env: &[(&str, &str)], says: &[&str]) {
    let answer = check(text, env);
    assert_eq!(answer.code, 2, "{text}\n{answer:?}");
    assert_eq!(answer.out, "", "{text}");
    for word in says {
        assert!(answer.err.contains(word), "{word:?} is missing for\n{text}\n{}", answer.err);
    }
}

fn system(lines: &str) -> String {
    format!("{STORE}[[system]]\nkind = \"registry\"\nname = \"devices\"\n{lines}\n")
}

fn chat(lines: &str) -> String {
    format!("{STORE}[[system]]\nkind = \"sessions\"\nname = \"chat\"\n{lines}\n")
}

#[test]
fn every_sessions_key_is_validated() {
    for (line, says) in [
        ("grace = \"0s\"", "longer than 0"),
        ("orphan_max_age = \"soon\"", "not a duration"),
        ("session_key = \"session\"", "`{session}`"),
        ("ref_count_key = \"ref_count\"", "`{session}`"),
        ("broadcaster_key = \"b\"", "`{broadcaster}`"),
        ("disconnected_key = \"\"", "must not be empty"),
        ("shards = 0", "shards"),
        ("shards = 65", "shards"),
        ("gace = \"1m\"", "`grace`"),
        ("grace = \"1m\"\norphan_max_age = \"1m\"", "duplicate"),
    ] {
        refused(&chat(line), &[], &["lapsed.toml", "chat", says]);
    }
    let fine = check(&chat("orphan_max_age = \"45s\"\nshards = 64"), &[]);
    assert_eq!(fine.code, 0, "{fine:?}");
    for word in ["sessions/chat", "grace = 45s", "line 6", "1m15s", "a pass every 30s"] {
        assert!(fine.out.contains(word), "{word}: {}", fine.out);
    }
}

fn locks(lines: &str) -> String {
    format!("{STORE}[[system]]\nkind = \"leases\"\nname = \"locks\"\n{lines}\n")
}

#[test]
fn every_leases_key_is_validated() {
    for (line, says) in [
        ("ttl = \"999ms\"", "999ms must be 1s to 30d"),
        ("ttl = \"31d\"", "must be 1s to 30d"),
        ("tll = \"30s\"", "`ttl`"),
        ("decision_ttl = \"0s\"", "longer than 0"),
        ("bucket = \"1h\"", "has no buckets"),
        ("idle_grace = \"soon\"", "not a duration"),
        ("max_ops_per_run = 0", "`system[locks].max_ops_per_run`: must be above 0"),
        ("max_ops_per_rn = 5", "`max_ops_per_run`"),
        ("max_ops_per_run = 5\nsweep = { max_ops = 6 }", "given twice"),
        ("op_delay = \"1s\"\nsweep = { op_delay = \"1s\" }", "given twice"),
        ("sweep = { max_ops = 5, max_ops_per_run = 6 }", "duplicate"),
        ("mode = \"adopt\"", "unknown key `mode`"),
        ("heartbeat_ttl = \"1m\"", "unknown key `heartbeat_ttl`"),
    ] {
        refused(&locks(line), &[], &["lapsed.toml", "locks", says]);
    }
    let redis = "[store.r]\nurl = \"redis://127.0.0.1:1/0\"\n[[system]]\nkind = \"leases\"\n";
    refused(redis, &[], &["`system[0].store`", "embedded store or an object store"]);
    let usual = check(&locks(""), &[]);
    for word in [
        "a lease lasts 30s from each renewal unless a request sets another TTL",
        "a decision is kept for 1d",
        "once nobody has used the leases for 5m",
        "a pass does at most 1000 entries or 30s",
        "the brake holds when the operator says so",
    ] {
        assert!(usual.out.contains(word), "{word}: {usual:?}");
    }
    let other = "idle_grace = \"10s\"\nop_delay = \"20ms\"\nmax_runtime_per_run = \"5s\"\n\
                 sweep = { max_ops_per_run = 7 }";
    let other = check(&locks(other), &[]);
    for word in [
        "nobody has used the leases for 10s",
        "at most 7 entries or 5s, and rests 20ms for each",
        "idle_grace = 10s",
        "max_runtime_per_run = 5s",
        "sweep.max_ops_per_run = 7",
    ] {
        assert!(other.out.contains(word), "{word}: {other:?}");
    }
}

fn object(lines: &str) -> String {
    format!("[store.s]\n{lines}\n[[system]]\nkind = \"leases\"\nname = \"locks\"\n")
}

#[test]
fn every_object_store_key_is_validated() {
    for (lines, says) in [
        ("url = \"s3:bucket\"", "`s3://BUCKET/PREFIX`"),
        ("url = \"s3://\"", "the bucket (or container) comes first"),
        ("url = \"s3://key:s3cret@bucket\"", "credentials do not go here"),
        ("url = \"s3://b/.hidden\"", "no part of it beginning with `.`"),
        ("url = \"s3://b\"\nendpoint = \"127.0.0.1:9000\"", "begins with https://"),
        ("url = \"s3://b\"\nendpoint = \"http://127.0.0.1:9000\"", "allow_http = true"),
        ("url = \"s3://b\"\nendpoint = \"https://u:s3cret@h\"", "must not name a user"),
        ("url = \"s3://b\"\naccess_key_id = \"a\"", "`secret_access_key`"),
        ("url = \"s3://b\"\nsecret_access_key = \"s3cret\"", "`access_key_id`"),
        ("url = \"s3://b\"\naccount = \"a\"", "is for `az://` only"),
        ("url = \"az://b\"\nregion = \"r\"", "is for `s3://` only"),
        ("url = \"s3://b\"\nrequests_per_hour = 0", "must be above 0"),
        ("url = \"s3://b\"\nendpont = \"https://h\"", "`endpoint`"),
        ("url = \"embedded:DATA\"\nregion = \"r\"", "for object stores"),
        ("url = \"redis://127.0.0.1:1\"\nendpoint = \"https://h\"", "for object stores"),
    ] {
        refused(&object(lines), &[], &["lapsed.toml", "store.s", says]);
        assert!(!check(&object(lines), &[]).err.contains("s3cret"), "{lines}");
    }
    // Keys do not carry the name of their system there: two would write each other's records.
    let second = "[[system]]\nkind = \"leases\"\nname = \"other\"\n";
    let same = format!("{}store = \"s\"\n{second}store = \"s\"\n", object("url = \"s3://b/p\""));
    refused(&same, &[], &["`system[other].store`", "leases/locks", "a prefix of its own"]);
    let again = "[store.t]\nurl = \"s3://b/p/\"\n";
    let both =
        format!("{again}{}store = \"s\"\n{second}store = \"t\"\n", object("url = \"s3://b/p\""));
    refused(&both, &[], &["`system[other].store`", "a prefix of its own"]);
    let registry = "[store.s]\nurl = \"s3://b\"\n[[system]]\nkind = \"registry\"\n";
    refused(registry, &[], &["`system[0].store`", "an object store keeps leases only"]);
    for (line, says) in [
        ("bucket = \"30s\"", "30s must be 1m to 1d"),
        ("bucket = \"2d\"", "2d must be 1m to 1d"),
        ("buckt = \"1h\"", "`bucket`"),
    ] {
        let text = format!("{}{line}\n", object("url = \"s3://b\""));
        refused(&text, &[], &["locks", says]);
    }
}

fn jobs(lines: &str) -> String {
    format!("{STORE}[[system]]\nkind = \"inflight\"\nname = \"jobs\"\n{lines}\n")
}

#[test]
fn every_inflight_key_is_validated() {
    for (line, says) in [
        ("heartbeat_interval = \"5m\"", "5m must be below heartbeat_ttl (5m)"),
        ("orphan_threshold = \"30s\"\nheartbeat_interval = \"1m\"", "below orphan_threshold (30s)"),
        ("heartbeat_ttl = \"1m\"\norphan_threshold = \"1m\"", "duplicate"),
        ("on_death = \"frnt\"", "`front`"),
        ("on_death = \"as-rq\"", "goes with preset"),
        ("on_death = { queu = \"slow\" }", "`queue`"),
        ("on_death = { queue = \"\" }", "empty"),
        ("on_death = {}", "needs `queue` or `delay`"),
        ("on_death = { delay = \"30s\" }", "no place for jobs that wait"),
        ("on_death = { max = \"30s\" }", "`max` goes with `delay`"),
        ("on_death = { delay = \"30s\", max = \"1s\" }", "`max` is shorter than `delay`"),
        ("quarantine = [\"Job\"]", "goes with the preset of a job system"),
        ("on_death = { queue = \"slow\" }\nwebhook = \"http://h\"", "`webhook` takes every job"),
        ("sweep = { per_second = 0 }", "must be above 0"),
        ("crashes_max = -1", "crashes_max"),
        ("crash_window = \"0s\"", "longer than 0"),
        ("max_age = \"soon\"", "`0s` for no limit"),
        ("max_age = 7", "needs a unit"),
        ("queues = \"kafka\"", "lapsed, sidekiq, list, stream"),
        ("queues = \"sidekiq\"", "embedded"),
        ("queue_key = \"mine\"", "`{queue}`"),
        ("preset = \"sidekiq-async-http\"", "mode = \"adopt\""),
        ("index_key = \"i\"", "mode = \"adopt\""),
        ("mode = \"adopt\"", "embedded"),
        ("webhook = \"ftp://host/\"", "http:// or https://"),
        ("webhook = \"https://user:s3cret@host/\"", "must not name a user"),
        ("delivery = { attempts = 3 }", "there is none"),
        ("webhook = \"http://h\"\ndelivery = { attempts = 0 }", "must be above 0"),
        ("webhook = \"http://h\"\ndelivery = { at_once = 65 }", "must be 1 to 64"),
        ("webhook = \"http://h\"\ndelivery = { atempts = 1 }", "`attempts`"),
        ("grace = \"1m\"", "unknown key `grace`"),
    ] {
        refused(&jobs(line), &[], &["lapsed.toml", "jobs", says]);
    }
    let secret = check(&jobs("webhook = \"https://user:s3cret@host/\""), &[]);
    assert!(!secret.err.contains("s3cret"), "{secret:?}");
}

/// A system that rescues jobs of a foreign job system, on a server that is not there.
fn foreign(preset: &str, lines: &str) -> String {
    let store = "[store.main]\nurl = \"redis://127.0.0.1:1/0\"\n";
    let mode = format!("mode = \"adopt\"\npreset = \"{preset}\"");
    format!("{store}[[system]]\nkind = \"inflight\"\nname = \"jobs\"\n{mode}\n{lines}\n")
}

#[test]
fn what_a_foreign_job_system_does_not_have_is_refused_with_what_to_use() {
    let delay = "on_death = { delay = \"30s\" }";
    for (preset, line, says) in [
        ("celery", delay, ["no set of delayed tasks", "Use on_death"]),
        ("resque", delay, ["no delayed jobs", "Use on_death"]),
        ("streams", delay, ["no place for entries that wait", "Use on_death"]),
        ("sidekiq-async-http", delay, ["no place for jobs that wait", "such as \"rq\""]),
        ("streams", "quarantine = [\"a\"]", ["have no class", "Use crashes_max"]),
        ("rq", "quarantine = [\"\"]", ["empty name", "quarantine"]),
        ("rabbit", "", ["there is no preset `rabbit`", "streams, sidekiq-async-http"]),
    ] {
        refused(&foreign(preset, line), &[], &says);
    }
}

#[test]
fn check_says_how_long_rescued_jobs_wait_and_which_are_in_quarantine() {
    let lines = "on_death = { queue = \"slow\", delay = \"30s\" }\nquarantine = [\"app.resize*\"]";
    let server = lapsed_testbed::RedisServer::start(lapsed_testbed::Engine::Redis).unwrap();
    let there = foreign("rq", lines).replace("redis://127.0.0.1:1/0", &server.url());
    let answer = check(&there, &[]);
    for word in [
        "is moved to the queue `slow`, after a delay of 30s (twice as long with each further crash, at most 1h)",
        "on_death = { queue = \"slow\", delay = \"30s\", max = \"1h\" }",
        "Jobs of these classes are not put back: app.resize*",
    ] {
        assert!(answer.out.contains(word), "{word}: {answer:?}");
    }
}

#[test]
fn check_prints_the_inflight_plan() {
    let usual = check(&jobs(""), &[]);
    for word in [
        "workers beat every 1m and are dead after 5m of silence",
        "is back at the front of its queue at the latest 6m after its last beat",
        "a dead letter when 3 workers died with it within 3d",
        "dead for more than 7d",
        "queues are lapsed's own",
    ] {
        assert!(usual.out.contains(word), "{word}: {usual:?}");
    }
    let other = "orphan_threshold = \"5s\"\non_death = \"back\"\ncrashes_max = 0\nmax_age = \"0s\"";
    let other = check(&jobs(other), &[]);
    for word in [
        "dead after 5s of silence",
        "at the end of its queue",
        "however many workers die",
        "however long its worker has been dead",
        "orphan_threshold = 5s",
        "max_age = 0s",
    ] {
        assert!(other.out.contains(word), "{word}: {other:?}");
    }
    let moved =
        check(&jobs("on_death = { queue = \"slow\" }\nsweep = { per_second = 100 }"), &[]).out;
    for word in [
        "is moved to the queue `slow`",
        "on_death = { queue = \"slow\" }",
        "sweep.per_second = 100",
    ] {
        assert!(moved.contains(word), "{word}: {moved}");
    }
    let dropped = check(&jobs("on_death = \"drop\""), &[]).out;
    assert!(dropped.contains("is dropped") && !dropped.contains("a dead letter"), "{dropped}");
}

#[test]
fn unknown_keys_name_the_key_its_line_and_the_nearest_valid_one() {
    refused("[sever]\nlisten = \"x\"\n", &[], &["`sever`", "`server`", "lapsed.toml:1"]);
    refused("[server]\nlisen = \"127.0.0.1:0\"\n", &[], &["`lisen`", "`listen`", ":2"]);
    refused("[store.main]\nurll = \"x\"\n", &[], &["`urll`", "`url`", "store.main"]);
    refused(&system("heartbeat_tl = \"9s\""), &[], &["`heartbeat_tl`", "`heartbeat_ttl`", ":6"]);
    refused(&system("sweep = { evry = \"9s\" }"), &[], &["`evry`", "`every`", "sweep.evry", ":6"]);
    refused(&system("brake = { shre = 0.5 }"), &[], &["`shre`", "`share`"]);
    refused(&system("receipts = { kep = \"1d\" }"), &[], &["`kep`", "`keep`"]);
    refused(&system("sweep = { mode = \"leder\" }"), &[], &["`leder`", "`leader`"]);
    refused(&system("mode = \"adpt\""), &[], &["`adpt`", "`adopt`"]);
    refused("[[system]]\nkind = \"registri\"\n", &[], &["`registri`", "`registry`"]);
    refused("[[system]]\nname = \"x\"\n", &[], &["kind", "registry"]);
}

#[test]
fn durations_must_be_above_zero_and_have_a_unit() {
    for (value, says) in [
        ("\"0s\"", "longer than 0"),
        ("\"-5s\"", "negative"),
        ("\"soon\"", "not a duration"),
        ("\"90\"", "unit"),
        ("90", "unit"),
        ("\"\"", "not a duration"),
    ] {
        for key in ["heartbeat_ttl", "heartbeat_interval"] {
            refused(&system(&format!("{key} = {value}")), &[], &[key, says]);
        }
        for key in ["every", "hold", "op_delay", "max_runtime", "idle_grace", "timeout"] {
            let line = format!("sweep = {{ {key} = {value} }}");
            refused(&system(&line), &[], &[&format!("sweep.{key}"), says]);
        }
        refused(
            &system(&format!("receipts = {{ keep = {value} }}")),
            &[],
            &["receipts.keep", says],
        );
    }
    refused("[server]\nrequest_timeout = \"0s\"\n", &[], &["server.request_timeout"]);
    refused("[server]\nbody_limit = \"0\"\n", &[], &["server.body_limit"]);
}

#[test]
fn a_heartbeat_interval_must_be_below_its_ttl() {
    for interval in ["9s", "10s"] {
        let lines = format!("heartbeat_ttl = \"9s\"\nheartbeat_interval = \"{interval}\"");
        refused(&system(&lines), &[], &["heartbeat_interval", "below heartbeat_ttl", ":7"]);
    }
    let fine = check(&system("heartbeat_ttl = \"9s\"\nheartbeat_interval = \"8s\""), &[]);
    assert_eq!(fine.code, 0, "{fine:?}");
}

#[test]
fn impossible_policies_are_refused_with_their_key() {
    for (line, says) in [
        ("sweep = { batch = 0 }", "sweep.batch"),
        ("sweep = { batch = 10001 }", "sweep.batch"),
        ("sweep = { jitter = 1.5 }", "sweep.jitter"),
        ("sweep = { max_ops = 0 }", "sweep.max_ops"),
        ("brake = { share = 0.0 }", "brake.share"),
        ("brake = { step = 2.0 }", "brake.step"),
        ("receipts = { keep_count = 0 }", "receipts.keep_count"),
        ("heartbeat_key = \"no-owner\"", "heartbeat_key"),
    ] {
        refused(&system(line), &[], &[says]);
    }
}

#[test]
fn stores_must_exist_and_be_distinct_and_supported() {
    refused(&system("store = \"man\""), &[], &["`man`", "`main`", "store"]);
    for (scheme, says) in [
        ("s3", "credentials do not go here"),
        ("az", "credentials do not go here"),
        ("gs", "credentials do not go here"),
    ] {
        let text = format!("[store.main]\nurl = \"{scheme}://user:secret@host/0\"\n");
        let answer = check(&text, &[]);
        assert_eq!(answer.code, 2);
        assert!(answer.err.contains("store.main.url") && answer.err.contains(says), "{answer:?}");
        assert!(!answer.err.contains("secret@"), "a password in an error: {answer:?}");
    }
    refused("[store.main]\nurl = \"embedded:\"\n", &[], &["store.main.url", "folder"]);
    refused("[store.main]\nurl = \"embedded:x?cash=1MiB\"\n", &[], &["cash", "cache"]);
    refused("[store.main]\nurl = \"nonsense\"\n", &[], &["store.main.url", "embedded"]);
    let twins = format!("{STORE}[store.other]\nurl = \"embedded:DATA/../data\"\n");
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("data")).unwrap();
    let file = dir.path().join("lapsed.toml");
    let data = dir.path().join("data").display().to_string();
    std::fs::write(&file, twins.replace("DATA", &data)).unwrap();
    let answer = run(&["check", "-c", &file.display().to_string()]);
    assert_eq!(answer.code, 2, "{answer:?}");
    assert!(answer.err.contains("same folder"), "{answer:?}");
    refused(&system("mode = \"adopt\""), &[], &["adopt", "native", "mode"]);
    refused(&chat("mode = \"adopt\""), &[], &["adopt", "native", "mode"]);
}

#[test]
fn two_systems_of_one_name_are_refused() {
    let text = format!("{}[[system]]\nkind = \"registry\"\nname = \"devices\"\n", system(""));
    refused(&text, &[], &["registry/devices", "two systems"]);
    refused(&system("name = \"again\""), &[], &["duplicate key"]);
    refused(&format!("{STORE}[[system]]\nkind = \"registry\"\nname = \"a b\"\n"), &[], &["name"]);
}

#[test]
fn variables_are_expanded_and_an_unset_one_is_named() {
    let text = format!("[server]\ntoken = \"${{MY_TOKEN}}\"\n{}", system(""));
    refused(&text, &[], &["MY_TOKEN", "server.token", ":2"]);
    refused(&text, &[("MY_TOKEN", "")], &["server.token"]);
    let answer = check(&text, &[("MY_TOKEN", "hush")]);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(!answer.out.contains("hush"), "a token is never printed: {answer:?}");
    let text = format!("{STORE}[[system]]\nkind = \"registry\"\nname = \"${{NAME:-fallback}}\"\n");
    assert!(check(&text, &[]).out.contains("registry/fallback"));
    assert!(check(&text, &[("NAME", "chosen")]).out.contains("registry/chosen"));
}

#[test]
fn malformed_toml_is_refused_with_its_line() {
    refused("[server]\nlisten = \n", &[], &["lapsed.toml:2"]);
    refused("[server]\nlisten = \"nowhere\"\n", &[], &["server.listen"]);
    refused("system = 3\n", &[], &["[[system]]"]);
    let answer = run(&["check", "-c", "/nonexistent/lapsed.toml"]);
    assert_eq!(answer.code, 2);
    assert!(answer.err.contains("/nonexistent/lapsed.toml"), "{answer:?}");
}

#[test]
fn a_non_loopback_address_needs_a_token() {
    for listen in ["0.0.0.0:0", "[::]:0"] {
        refused(&format!("[server]\nlisten = \"{listen}\"\n"), &[], &["token", "server.listen"]);
        let answer = run(&["serve", "--listen", listen, "--data", "/nonexistent/x"]);
        assert_eq!(answer.code, 2, "{answer:?}");
        assert!(answer.err.contains("token"), "{answer:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = lapsed();
    command.args(["serve", "--listen", "0.0.0.0:0", "--token", "t0ken", "--data"]);
    command.arg(dir.path().join("data"));
    let daemon = crate::support::Daemon::spawn(command, dir.path()).unwrap();
    let url = daemon.url.replace("0.0.0.0", "127.0.0.1");
    assert_eq!(run(&["status", "--url", &url]).code, 1);
    assert_eq!(run(&["status", "--url", &url, "--token", "t0ken"]).code, 0);
}

#[test]
fn the_janitor_interval_variable_is_read() {
    let text = system("sweep = { every = \"30s\" }");
    let answer = check(&text, &[("JANITOR_INTERVAL_MS", "1500")]);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(answer.out.contains("JANITOR_INTERVAL_MS, over line 6"), "{answer:?}");
    for garbage in ["", "soon", "0", "-5", "60s"] {
        refused(&text, &[("JANITOR_INTERVAL_MS", garbage)], &["JANITOR_INTERVAL_MS"]);
    }
    let home = Home::new("300ms", crate::support::CALM);
    let daemon = home.serve_with(&[("JANITOR_INTERVAL_MS", "50")]);
    daemon.hold("a", &["k"]);
    crate::support::until("the janitor to evict", || (daemon.receipts().len() == 1).then_some(()));
    assert_eq!(daemon.status()["every_ms"], 50);
}

#[test]
fn check_prints_the_plan_and_creates_nothing() {
    let home = Home::new("90s", "sweep = { every = \"60s\", batch = 250 }");
    let answer = home.run(&["check"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    for word in ["registry/devices", "1m30s", "2m30s", "sweep.batch = 250", "line 12"] {
        assert!(answer.out.contains(word), "{word}: {}", answer.out);
    }
    assert!(!home.data().exists(), "looking makes no folder");
    let plan = home.run(&["check", "--json"]).json();
    assert_eq!(plan["ok"], true);
    assert_eq!(plan["systems"][0]["threshold_ms"], 90_000);
    assert_eq!(plan["systems"][0]["gone_after_ms"], 150_000);
    let daemon = home.serve();
    let answer = home.run(&["check"]);
    assert_eq!(answer.code, 0, "a running daemon is no mistake: {answer:?}");
    assert!(answer.out.contains(&daemon.pid().to_string()), "{answer:?}");
}
