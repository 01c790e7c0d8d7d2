//! One PostgreSQL, one Valkey, and daemons on both: everything on its own ports and in its own folders.

use std::sync::{Condvar, Mutex, MutexGuard, RwLock};

use lapsed_testbed::{Engine, Persistence, PostgresServer, RedisServer, ServerOptions};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Answer, Daemon, Home, lapsed, run_with};

/// How long a provider may be silent.
pub const STALE_SECONDS: u64 = 3;

/// How many sessions a provider can have.
pub const ROOM: u64 = 3;

pub const SYSTEM: &str = "mitras";

/// How many worlds may exist at a time: each runs six servers.
const WORLDS_MAX: usize = 2;

static WORLDS: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

/// One of the worlds that there may be.
struct WorldSlot;

impl WorldSlot {
    fn take() -> WorldSlot {
        let (count, left) = &WORLDS;
        let count = count.lock().unwrap_or_else(|e| e.into_inner());
        let mut count =
            left.wait_while(count, |count| *count >= WORLDS_MAX).unwrap_or_else(|e| e.into_inner());
        *count += 1;
        WorldSlot
    }
}

impl Drop for WorldSlot {
    fn drop(&mut self) {
        *WORLDS.0.lock().unwrap_or_else(|e| e.into_inner()) -= 1;
        WORLDS.1.notify_one();
    }
}

/// The intervals of the daemons' background tasks, as environment variables.
pub struct Pace {
    pub sweep_s: &'static str,
    pub beats_s: &'static str,
    pub reconcile_s: &'static str,
}

/// As often as can be.
pub const QUICK: Pace = Pace { sweep_s: "1", beats_s: "1", reconcile_s: "2" };

/// The daemons do nothing in the background.
pub const STILL: Pace = Pace { sweep_s: "86400", beats_s: "86400", reconcile_s: "86400" };

/// One daemon's place: where it is reached while it runs.
#[derive(Default)]
struct Slot {
    daemon: Mutex<Option<Daemon>>,
    url: RwLock<String>,
}

pub struct World {
    // Daemons end before their servers, and the place is free when all is gone.
    slots: Vec<Slot>,
    home: Home,
    pace: Pace,
    pub postgres: PostgresServer,
    pub valkey: RedisServer,
    pub database: String,
    _place: WorldSlot,
}

impl World {
    pub fn new(daemons: usize, persistence: Persistence, pace: Pace) -> World {
        let place = WorldSlot::take();
        let postgres = PostgresServer::start().unwrap();
        let valkey = ServerOptions::new(Engine::Valkey).persistence(persistence).start().unwrap();
        let database = postgres.database().unwrap();
        let home = Home { dir: tempfile::tempdir().unwrap() };
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n\n[store.truth]\nurl = \"{}\"\n\n\
             [store.cache]\nurl = \"{}\"\n\n[[system]]\nkind = \"availability\"\nname = \"{SYSTEM}\"\n\
             store = \"truth\"\nmirror = \"cache\"\nsnapshot_ttl = \"1s\"\n",
            postgres.url(&database),
            valkey.url()
        );
        std::fs::write(home.config(), text).unwrap();
        let made = home.run(&["schema", "apply"]);
        assert_eq!(made.code, 0, "{made:?}");
        let slots = (0..daemons).map(|_| Slot::default()).collect();
        let world = World { slots, home, pace, postgres, valkey, database, _place: place };
        world.sql(&format!(
            "INSERT INTO app_config (key, value) VALUES ('stale_after_seconds', '{STALE_SECONDS}'), \
             ('heartbeat_cadence_seconds', '1'), ('max_customers_per_mitra', '{ROOM}')"
        ));
        (0..daemons).for_each(|nth| world.start_daemon(nth));
        world
    }

    /// So many providers, made by the application itself.
    pub fn make_providers(&self, ids: &[String]) {
        let rows: Vec<String> = ids.iter().map(|id| format!("('{id}', true)")).collect();
        self.sql(&format!("INSERT INTO mitras (id, is_active) VALUES {}", rows.join(", ")));
    }

    /// What the truth answers; it must.
    pub fn sql(&self, sql: &str) -> String {
        self.postgres.sql(&self.database, sql).unwrap()
    }

    /// Where a daemon was last reached.
    pub fn url(&self, nth: usize) -> String {
        self.slots[nth % self.slots.len()].url.read().unwrap().clone()
    }

    pub fn start_daemon(&self, nth: usize) {
        let dir = self.home.dir.path().join(format!("daemon-{nth}"));
        std::fs::create_dir_all(&dir).unwrap();
        let mut command = lapsed();
        command.arg("serve").arg("-c").arg(self.home.config()).envs(self.env());
        let daemon = Daemon::spawn(command, &dir).unwrap_or_else(|told| panic!("{told}"));
        self.slots[nth].url.write().unwrap().clone_from(&daemon.url);
        *self.daemon(nth) = Some(daemon);
    }

    pub fn kill_daemon(&self, nth: usize) {
        if let Some(daemon) = self.daemon(nth).take() {
            daemon.kill();
        }
    }

    pub fn freeze_daemon(&self, nth: usize) {
        self.signal(nth, Signal::STOP);
    }

    pub fn thaw_daemon(&self, nth: usize) {
        self.signal(nth, Signal::CONT);
    }

    fn signal(&self, nth: usize, signal: Signal) {
        let daemon = self.daemon(nth);
        let pid = Pid::from_raw(daemon.as_ref().unwrap().pid() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn daemon(&self, nth: usize) -> MutexGuard<'_, Option<Daemon>> {
        self.slots[nth].daemon.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A command straight on the stores.
    pub fn run(&self, args: &[&str]) -> Answer {
        let config = self.home.config().display().to_string();
        run_with(&[args, &["-c", &config]].concat(), &self.env())
    }

    /// The last lines of all logs, printed with a failure.
    pub fn logs(&self) -> String {
        let of = |nth: usize| {
            let log = self.home.dir.path().join(format!("daemon-{nth}")).join("log");
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let from = lines.len().saturating_sub(40);
            format!("--- daemon {nth}\n{}\n", lines[from..].join("\n"))
        };
        (0..self.slots.len()).map(of).collect()
    }

    fn env(&self) -> [(&'static str, &'static str); 3] {
        [
            ("MITRA_AUTO_OFFLINE_SWEEP_SECONDS", self.pace.sweep_s),
            ("HEARTBEAT_MIRROR_INTERVAL_SECONDS", self.pace.beats_s),
            ("VALKEY_ONLINE_MIRROR_SWEEP_SECONDS", self.pace.reconcile_s),
        ]
    }
}
