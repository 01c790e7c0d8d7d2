//! A request: a line with its method and its path, then its body. It is answered by the real routes on
//! an embedded store that outlives it, so that requests build on each other.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use lapsed_core::clock::SystemClock;
use lapsed_core::schedule::{StopHandle, StopSignal};
use lapsed_server::api::{self, RequestGate};
use lapsed_server::config::Overrides;
use lapsed_server::http::{App, OutboundServices};
use lapsed_server::metrics::Metrics;
use lapsed_server::node::{Config, OpenSystems};
use lapsed_server::systems;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The time limit of one request: some operations wait for as long as they are asked to.
const REQUEST_LIMIT: Duration = Duration::from_millis(50);

struct FuzzServer {
    runtime: Runtime,
    gate: RequestGate,
    _dir: TempDir,
    _stopper: StopHandle,
}

/// Sends the request; whatever it is, an answer with status 500 is a bug of lapsed.
pub fn read(input: &[u8]) {
    send(request(input));
}

/// The same for a request that was made elsewhere, if it could be made.
pub(crate) fn send(request: Option<Request>) {
    let Some(request) = request else { return };
    static SERVER: OnceLock<FuzzServer> = OnceLock::new();
    let server = SERVER.get_or_init(open);
    let answer = server
        .runtime
        .block_on(async { tokio::time::timeout(REQUEST_LIMIT, server.gate.answer(request)).await });
    if let Ok(Ok(answer)) = answer {
        assert_ne!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR, "a fault of lapsed's own");
    }
}

fn request(input: &[u8]) -> Option<Request> {
    let end = input.iter().position(|byte| *byte == b'\n')?;
    let (line, body) = (std::str::from_utf8(&input[..end]).ok()?, &input[end + 1..]);
    let (method, path) = line.split_once(' ')?;
    let request = Request::builder().method(method).uri(path);
    let request = request.header("host", "localhost").header("content-type", "application/json");
    request.body(Body::from(body.to_vec())).ok()
}

fn open() -> FuzzServer {
    let dir = tempfile::tempdir().expect("a folder for data");
    let runtime = Runtime::new().expect("threads");
    let overrides = Overrides {
        listen: Some("127.0.0.1:0".to_owned()),
        data: Some(dir.path().join("data")),
        token: None,
    };
    let config = Config::parse("", &overrides, &|_| None).expect("the defaults are right");
    let clock = SystemClock::shared();
    let metrics = Arc::new(Metrics::new(clock.clone(), systems::metrics(&clock)));
    let inside = runtime.enter();
    let node = OpenSystems::open(&config, clock, metrics.clone()).expect("a fresh store opens");
    let (stopper, stop) = StopSignal::channel();
    let (app, _idle) =
        App::new(Arc::new(node), metrics, OutboundServices::default(), &config.server, stop);
    let gate = api::service(app);
    drop(inside);
    FuzzServer { runtime, gate, _dir: dir, _stopper: stopper }
}
