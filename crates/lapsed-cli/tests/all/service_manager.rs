//! The daemon under a service manager: notifications, the health probe, and a stop within the time
//! that the unit and the manifests allow.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::support::{CALM, Home, PATIENCE, run, until};
use serde_json::json;

lapsed_testbed::steady_tests! {
    the_service_manager_is_notified_of_start_and_stop,
    an_abstract_notify_socket_is_notified,
    a_health_probe_answers_with_its_exit_code,
    a_daemon_under_load_ends_within_the_grace_of_the_manifests,
}

/// The next message that is not a watchdog message, and the number of watchdog messages before it.
fn heard(socket: &UnixDatagram) -> (String, usize) {
    let mut signs = 0;
    loop {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).expect("the daemon says something");
        match std::str::from_utf8(&buffer[..length]).unwrap() {
            "WATCHDOG=1" => signs += 1,
            other => return (other.to_owned(), signs),
        }
    }
}

fn sign_of_life(socket: &UnixDatagram) {
    let mut buffer = [0; 256];
    let length = socket.recv(&mut buffer).expect("the daemon says something");
    assert_eq!(&buffer[..length], b"WATCHDOG=1");
}

fn the_service_manager_is_notified_of_start_and_stop() {
    let home = Home::new("1m", CALM);
    let path = home.dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let name = path.display().to_string();
    let daemon = home.serve_with(&[("NOTIFY_SOCKET", &name), ("WATCHDOG_USEC", "200000")]);
    assert_eq!(heard(&socket), ("READY=1".to_owned(), 0), "before any sign of life");
    assert_eq!(daemon.get("/readyz").status, 200, "it is ready when it says so");
    (0..3).for_each(|_| sign_of_life(&socket));
    assert_eq!(daemon.stop(), Some(0));
    assert_eq!(heard(&socket).0, "STOPPING=1");
}

/// An abstract socket, as systemd uses in containers. A watchdog setting for another pid is
/// ignored.
fn an_abstract_notify_socket_is_notified() {
    let home = Home::new("1m", CALM);
    let unique = home.dir.path().file_name().unwrap().to_string_lossy().into_owned();
    let address = SocketAddr::from_abstract_name(&unique).unwrap();
    let socket = UnixDatagram::bind_addr(&address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let name = format!("@{unique}");
    let others =
        [("NOTIFY_SOCKET", name.as_str()), ("WATCHDOG_USEC", "1000"), ("WATCHDOG_PID", "1")];
    let daemon = home.serve_with(&others);
    assert_eq!(heard(&socket).0, "READY=1");
    assert_eq!(daemon.stop(), Some(0));
    assert_eq!(heard(&socket), ("STOPPING=1".to_owned(), 0));
}

fn a_health_probe_answers_with_its_exit_code() {
    let home = Home::with("1m", CALM, "token = \"a-token-that-a-probe-has-not\"");
    let daemon = home.serve();
    for (args, word) in [(&["healthcheck"][..], "ready\n"), (&["healthcheck", "--live"], "alive\n")]
    {
        let answer = daemon.run(args);
        assert_eq!((answer.code, answer.out.as_str()), (0, word), "{answer:?}");
    }
    let url = daemon.url.clone();
    assert_eq!(daemon.stop(), Some(0));
    let answer = run(&["healthcheck", "--url", &url]);
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.err.contains("no daemon answers"), "{answer:?}");
    assert_eq!(run(&["healthcheck", "--within", "soon"]).code, 2);
}

/// The shortest time that anything in `deploy/` gives it to end.
fn grace_seconds() -> u64 {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let mut all = Vec::new();
    for (file, key) in [
        ("kubernetes/deployment.yaml", "terminationGracePeriodSeconds: "),
        ("kubernetes/statefulset.yaml", "terminationGracePeriodSeconds: "),
        ("compose/compose.yml", "stop_grace_period: "),
        ("systemd/lapsed.service", "TimeoutStopSec="),
    ] {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        let found = text.lines().find_map(|line| line.trim().strip_prefix(key));
        let found = found.unwrap_or_else(|| panic!("{file} says no {key}"));
        all.push(found.trim_end_matches('s').parse().unwrap());
    }
    all.into_iter().min().unwrap()
}

/// The load: writers, a client that waits for a job, a listener on the events, and a backlog of
/// dead owners.
fn a_daemon_under_load_ends_within_the_grace_of_the_manifests() {
    let home = Home::inflight("300ms", "sweep = { every = \"50ms\" }");
    let daemon = home.serve();
    let jobs: Vec<_> =
        (0..500).map(|n| json!({ "queue": "q", "id": format!("j{n}"), "payload": "x" })).collect();
    daemon.jobs("enqueue_many", json!({ "jobs": jobs }));
    let url = daemon.url.clone();
    let (stopped, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let (url, stopped, done) = (&url, &stopped, &done);
            scope.spawn(move || write_until(url, writer, stopped, done));
        }
        scope.spawn(|| until_cut(&url, "/v1/events"));
        until("the load to be there", || (done.load(Ordering::Relaxed) > 100).then_some(()));
        let asked = Instant::now();
        assert_eq!(daemon.stop(), Some(0));
        let took = asked.elapsed();
        stopped.store(true, Ordering::Relaxed);
        assert!(took.as_secs() < grace_seconds(), "it took {took:?} to end");
    });
    // Everything that was answered is there, and no cleanup is needed.
    let daemon = home.serve();
    assert!(daemon.counts()["entered"].as_u64() >= Some(500));
}

/// Starts owners without beats and takes a job with each, until the daemon no longer answers.
fn write_until(url: &str, writer: u64, stopped: &AtomicBool, done: &AtomicU64) {
    let agent = crate::support::agent();
    for n in 0.. {
        if stopped.load(Ordering::Relaxed) {
            return;
        }
        let owner = format!("w{writer}-{n}");
        let calls = [
            ("start", json!({ "owner": owner, "ttl_ms": 300 })),
            ("take", json!({ "owner": owner, "queue": "q", "wait_ms": 50 })),
        ];
        for (operation, body) in calls {
            let call = agent.post(format!("{url}/v1/inflight/jobs/{operation}")).send_json(body);
            if call.is_err() {
                return;
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Listens until the daemon ends the stream.
fn until_cut(url: &str, path: &str) {
    if let Ok(answer) = crate::support::agent().get(format!("{url}{path}")).call() {
        let _ = std::io::copy(&mut answer.into_body().into_reader(), &mut std::io::sink());
    }
}
