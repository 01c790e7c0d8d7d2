//! Servers with proxies in front of them, daemons, and workers: everything on its own ports and in its own folders.

use std::sync::{Arc, Mutex};

use lapsed_testbed::{
    BUCKET, ByteProxy, Engine, ObjectEngine, ObjectServer, POSTGRES_USER, Persistence, Port,
    PostgresServer, RedisServer, ServerOptions,
};

use super::ledger::Ledger;
use super::worker::Worker;
use crate::support::{Answer, Daemon, Home, lapsed, run_with};

const DAEMONS: usize = 2;
pub const WORKERS: usize = 3;

/// How long a provider may be silent, in seconds.
pub const STALE_SECONDS: u64 = 3;

/// A daemon's background tasks of availability, as often as can be.
const PACE: [(&str, &str); 3] = [
    ("MITRA_AUTO_OFFLINE_SWEEP_SECONDS", "1"),
    ("HEARTBEAT_MIRROR_INTERVAL_SECONDS", "1"),
    ("VALKEY_ONLINE_MIRROR_SWEEP_SECONDS", "2"),
];

/// The stores of a world, by the name that the configuration gives them.
#[derive(Default)]
pub struct Stores {
    /// Where jobs and the registry are; a proxy's address, or that of a cluster.
    pub redis: Option<String>,
    /// Where sessions are, and the mirror of providers.
    pub valkey: Option<u16>,
    /// Where providers are: the proxy's port and the database.
    pub postgres: Option<(u16, String)>,
    /// Where leases are: the port of its proxy.
    pub objects: Option<u16>,
}

impl Stores {
    fn config(&self) -> String {
        let mut text = String::from("[server]\nlisten = \"127.0.0.1:0\"\n");
        let sweep = "sweep = { every = \"500ms\" }\nbrake = { share = 1.0 }\n";
        if let Some(url) = &self.redis {
            text += &format!(
                "[store.main]\nurl = \"{url}\"\n[[system]]\nkind = \"inflight\"\nname = \"jobs\"\n\
                 store = \"main\"\nheartbeat_ttl = \"2s\"\n{sweep}[[system]]\nkind = \"registry\"\n\
                 name = \"devices\"\nstore = \"main\"\nheartbeat_ttl = \"10s\"\n{sweep}"
            );
        }
        if let Some(port) = self.valkey {
            text += &format!("[store.cache]\nurl = \"redis://127.0.0.1:{port}/0\"\n");
            text += &format!(
                "[[system]]\nkind = \"sessions\"\nname = \"chat\"\nstore = \"cache\"\n\
                 grace = \"2s\"\nheartbeat_ttl = \"10s\"\n{sweep}"
            );
        }
        if let Some((port, database)) = &self.postgres {
            text += &format!(
                "[store.truth]\nurl = \"postgres://{POSTGRES_USER}@127.0.0.1:{port}/{database}\"\n\
                 [[system]]\nkind = \"availability\"\nname = \"mitras\"\nstore = \"truth\"\n\
                 mirror = \"cache\"\nsnapshot_ttl = \"1s\"\n"
            );
        }
        if let Some(port) = self.objects {
            let (id, secret) = ObjectEngine::Seaweed.credentials();
            let endpoint = ObjectEngine::Seaweed.endpoint_by(port);
            text += &format!(
                "[store.bucket]\nurl = \"s3://{BUCKET}/kills\"\nendpoint = \"{endpoint}\"\n\
                 allow_http = true\nregion = \"us-east-1\"\naccess_key_id = \"{id}\"\n\
                 secret_access_key = \"{secret}\"\n[[system]]\nkind = \"leases\"\nname = \"locks\"\n\
                 store = \"bucket\"\nttl = \"3s\"\n"
            );
        }
        text
    }
}

/// The daemons and the workers on some stores, and the answers that the load got.
pub struct Fleet {
    // Workers and daemons end before the servers.
    workers: Vec<Worker>,
    daemons: Vec<Option<Daemon>>,
    ports: Vec<Port>,
    pub urls: Vec<String>,
    pub ledger: Arc<Mutex<Ledger>>,
    home: Home,
    started: usize,
}

impl Fleet {
    pub fn start(stores: &Stores, workers: usize) -> Fleet {
        let home = Home { dir: tempfile::tempdir().unwrap() };
        std::fs::write(home.config(), stores.config()).unwrap();
        let ports: Vec<Port> = (0..DAEMONS).map(|_| Port::free().unwrap()).collect();
        let urls = ports.iter().map(|port| format!("http://127.0.0.1:{}", port.number())).collect();
        let mut fleet = Fleet {
            workers: Vec::new(),
            daemons: (0..DAEMONS).map(|_| None).collect(),
            ports,
            urls,
            ledger: Arc::default(),
            home,
            started: 0,
        };
        if stores.postgres.is_some() {
            let made = fleet.run(&["schema", "apply"]);
            assert_eq!(made.code, 0, "{made:?}");
        }
        (0..DAEMONS).for_each(|nth| fleet.start_daemon(nth));
        (0..workers).for_each(|_| fleet.start_worker());
        fleet
    }

    pub fn start_daemon(&mut self, nth: usize) {
        let dir = self.home.dir.path().join(format!("daemon-{nth}"));
        std::fs::create_dir_all(&dir).unwrap();
        let mut command = lapsed();
        command.arg("serve").arg("-c").arg(self.home.config()).envs(PACE);
        command.args(["--listen", &format!("127.0.0.1:{}", self.ports[nth].number())]);
        let daemon = Daemon::spawn(command, &dir).unwrap_or_else(|told| panic!("{told}"));
        self.daemons[nth] = Some(daemon);
    }

    pub fn kill_daemon(&mut self, nth: usize) {
        self.daemons[nth].take().unwrap().kill();
    }

    pub fn daemon_pid(&self, nth: usize) -> u32 {
        self.daemons[nth].as_ref().unwrap().pid()
    }

    pub fn daemons(&self) -> usize {
        self.daemons.len()
    }

    fn start_worker(&mut self) {
        self.started += 1;
        let name = format!("worker-{}", self.started);
        self.workers.push(Worker::start(&name, &self.urls, &self.ledger));
    }

    pub fn workers(&self) -> &[Worker] {
        &self.workers
    }

    /// Kills a worker and starts another one.
    pub fn replace_worker(&mut self, nth: usize) {
        self.workers.swap_remove(nth).kill();
        self.start_worker();
    }

    /// A command straight on the stores.
    pub fn run(&self, args: &[&str]) -> Answer {
        let config = self.home.config().display().to_string();
        run_with(&[args, &["-c", &config]].concat(), &PACE)
    }

    /// The last lines of the daemons' logs, printed with a failure.
    pub fn logs(&self) -> String {
        let of = |nth: usize| {
            let log = self.home.dir.path().join(format!("daemon-{nth}")).join("log");
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            format!("--- daemon {nth}\n{}\n", lines[lines.len().saturating_sub(30)..].join("\n"))
        };
        (0..self.daemons.len()).map(of).collect()
    }
}

/// All five systems: every kind of store, each behind a proxy.
pub struct World {
    pub fleet: Fleet,
    pub redis: RedisServer,
    pub valkey: RedisServer,
    pub postgres: PostgresServer,
    pub objects: ObjectServer,
    pub redis_proxy: ByteProxy,
    pub valkey_proxy: ByteProxy,
    pub postgres_proxy: ByteProxy,
    pub objects_proxy: ByteProxy,
}

impl World {
    pub fn start() -> World {
        let server = |engine| ServerOptions::new(engine).persistence(Persistence::Aof).start();
        let (redis, valkey) = (server(Engine::Redis).unwrap(), server(Engine::Valkey).unwrap());
        let postgres = PostgresServer::start().unwrap();
        let objects = ObjectServer::start(ObjectEngine::Seaweed).unwrap();
        let database = postgres.database().unwrap();
        let redis_proxy = ByteProxy::start(redis.port()).unwrap();
        let valkey_proxy = ByteProxy::start(valkey.port()).unwrap();
        let postgres_proxy = ByteProxy::start(postgres.port()).unwrap();
        let objects_proxy = ByteProxy::start(objects.port()).unwrap();
        let stores = Stores {
            redis: Some(format!("redis://127.0.0.1:{}/0", redis_proxy.port())),
            valkey: Some(valkey_proxy.port()),
            postgres: Some((postgres_proxy.port(), database.clone())),
            objects: Some(objects_proxy.port()),
        };
        let fleet = Fleet::start(&stores, WORKERS);
        let settings = format!(
            "INSERT INTO app_config (key, value) VALUES ('stale_after_seconds', '{STALE_SECONDS}'), \
             ('heartbeat_cadence_seconds', '1')"
        );
        postgres.sql(&database, &settings).unwrap();
        World {
            fleet,
            redis,
            valkey,
            postgres,
            objects,
            redis_proxy,
            valkey_proxy,
            postgres_proxy,
            objects_proxy,
        }
    }

    /// The proxies, by the names of what is behind them.
    pub fn proxies(&self) -> [(&'static str, &ByteProxy); 4] {
        [
            ("redis", &self.redis_proxy),
            ("valkey", &self.valkey_proxy),
            ("postgres", &self.postgres_proxy),
            ("seaweedfs", &self.objects_proxy),
        ]
    }
}
