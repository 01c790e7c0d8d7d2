//! What is broken, in turns of a few seconds until the time is over, and whole again at the end.

use std::thread;
use std::time::{Duration, Instant};

use super::history::now_us;
use super::until_done;
use super::world::World;

/// How long something stays broken, and how long it is whole before it is broken again. Longer than silence
/// may last, and shorter.
const SPELLS: [(u64, u64); 2] = [(4_000, 2_000), (1_500, 1_500)];

/// How long a fault lasts: `LAPSED_FAULT_SECONDS`.
pub fn duration() -> Duration {
    let seconds = std::env::var("LAPSED_FAULT_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(6))
}

/// Breaks and mends in turns; when it was mended each time.
pub fn in_turns(breaking: impl Fn(), mending: impl Fn()) -> Vec<u64> {
    let end = Instant::now() + duration();
    let mut heals = Vec::new();
    for (broken_ms, whole_ms) in SPELLS.into_iter().cycle() {
        breaking();
        hold(Instant::now() + Duration::from_millis(broken_ms));
        mending();
        heals.push(now_us());
        if Instant::now() >= end {
            break;
        }
        hold(Instant::now() + Duration::from_millis(whole_ms));
    }
    heals
}

/// Something short again and again.
pub fn again_and_again(every: Duration, strike: impl Fn()) -> Vec<u64> {
    let end = Instant::now() + duration();
    let mut heals = Vec::new();
    while Instant::now() < end {
        strike();
        heals.push(now_us());
        hold(Instant::now() + every);
    }
    heals
}

/// The state that a fault is in lasts for a while: that is the fault.
fn hold(until: Instant) {
    thread::sleep(until.saturating_duration_since(Instant::now()));
}

pub fn valkey_killed(world: &World) -> Vec<u64> {
    in_turns(|| world.valkey.kill().unwrap(), || world.valkey.restart().unwrap())
}

pub fn valkey_frozen(world: &World) -> Vec<u64> {
    in_turns(|| world.valkey.freeze().unwrap(), || world.valkey.thaw().unwrap())
}

pub fn valkey_flushed(world: &World) -> Vec<u64> {
    again_and_again(Duration::from_millis(1_500), || {
        world.valkey.command(&["FLUSHALL"]).unwrap();
    })
}

pub fn valkey_restarted(world: &World) -> Vec<u64> {
    again_and_again(Duration::from_millis(2_000), || world.valkey.restart().unwrap())
}

pub fn valkey_out_of_memory(world: &World) -> Vec<u64> {
    let set = |bytes: &str| {
        world.valkey.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).unwrap();
        world.valkey.command(&["CONFIG", "SET", "maxmemory", bytes]).unwrap();
    };
    in_turns(|| set("1"), || set("0"))
}

pub fn postgres_killed(world: &World) -> Vec<u64> {
    in_turns(|| world.postgres.kill().unwrap(), || world.postgres.restart().unwrap())
}

pub fn postgres_restarted(world: &World) -> Vec<u64> {
    again_and_again(Duration::from_millis(2_000), || {
        world.postgres.stop().unwrap();
        world.postgres.restart().unwrap();
    })
}

/// One of three commits fails, at the commit itself.
pub fn postgres_fails_commits(world: &World) -> Vec<u64> {
    let sql = "IF random() < 0.33 THEN RAISE 'the commit fails'; END IF;";
    let tables = ["mitra_online_status", "mitras", "chat_sessions", "lapsed_receipts"];
    let trigger = |table: &str| {
        format!(
            "CREATE CONSTRAINT TRIGGER fault AFTER INSERT OR UPDATE ON {table} DEFERRABLE INITIALLY \
             DEFERRED FOR EACH ROW EXECUTE FUNCTION fault()"
        )
    };
    switched(world, sql, &tables.map(trigger))
}

/// Terminates all connections, also in the middle of transactions.
pub fn postgres_loses_backends(world: &World) -> Vec<u64> {
    again_and_again(Duration::from_millis(150), || {
        world.sql(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE pid <> pg_backend_pid() AND datname = current_database()",
        );
    })
}

/// Every change takes its time.
pub fn postgres_slow(world: &World) -> Vec<u64> {
    let sql = "PERFORM pg_sleep(0.3 * random());";
    let tables = ["mitra_online_status", "chat_sessions", "lapsed_availability"];
    let trigger = |table: &str| {
        format!(
            "CREATE TRIGGER fault AFTER INSERT OR UPDATE ON {table} FOR EACH STATEMENT \
             EXECUTE FUNCTION fault()"
        )
    };
    switched(world, sql, &tables.map(trigger))
}

/// A function that does harm while a switch is on. The triggers stay: making and dropping them waits for
/// everybody who uses the tables.
fn switched(world: &World, harm: &str, triggers: &[String]) -> Vec<u64> {
    world.sql("CREATE TABLE fault_switch AS SELECT false AS is_on");
    world.sql(&format!(
        "CREATE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF (SELECT is_on FROM fault_switch) THEN {harm} END IF; RETURN NULL; END $$"
    ));
    for trigger in triggers {
        until_done("a trigger", || world.postgres.sql(&world.database, trigger).ok());
    }
    let turn = |on: bool| drop(world.sql(&format!("UPDATE fault_switch SET is_on = {on}")));
    in_turns(|| turn(true), || turn(false))
}

pub fn postgres_frozen(world: &World) -> Vec<u64> {
    in_turns(|| world.postgres.freeze().unwrap(), || world.postgres.thaw().unwrap())
}

pub fn both_killed(world: &World) -> Vec<u64> {
    in_turns(
        || {
            world.postgres.kill().unwrap();
            world.valkey.kill().unwrap();
        },
        || {
            world.valkey.restart().unwrap();
            world.postgres.restart().unwrap();
        },
    )
}

/// One is killed, another one frozen; two go on.
pub fn daemons(world: &World) -> Vec<u64> {
    in_turns(
        || {
            world.kill_daemon(0);
            world.freeze_daemon(1);
        },
        || {
            world.thaw_daemon(1);
            world.start_daemon(0);
        },
    )
}
