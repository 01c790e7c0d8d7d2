//! Every route that changes something, sent with an `Idempotency-Key`; then something that a second effect would
//! destroy; then the same request again. The second answer is the first one, and nothing has changed.
//!
//! The routes come from `/openapi.json`: a new one that changes something fails this test until it is sent here, and
//! one that does not keep its requests fails when it is.

mod requests;

use std::collections::BTreeSet;

use self::requests::{
    claim, repeat_brake, repeat_inflight, repeat_leases, repeat_operators,
    repeat_provider_sessions, repeat_providers, repeat_registry, repeat_sessions, repeat_webhooks,
};
use crate::availability_fixture::World;
use crate::support::receiver::{OK, Receiver};
use crate::support::{CALM, Daemon, Home, JSON, Reply, until};
use lapsed_testbed::{Engine, Proxy, RedisServer};
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    every_route_that_changes_something_keeps_its_requests,
    requests_are_kept_on_redis,
    requests_are_kept_on_postgres,
    changes_whose_answer_redis_lost_are_made_once,
}

/// What is read to see whether something has changed: a path, and a place in its answer.
type Probe<'a> = (&'a str, &'a str);

/// Sends requests twice, and notes which routes were sent.
pub struct Repeater<'a> {
    pub daemon: &'a Daemon,
    /// The daemon that gets the repetitions.
    then: &'a Daemon,
    routes: Vec<(String, String)>,
    seen: BTreeSet<(String, String)>,
}

impl<'a> Repeater<'a> {
    pub fn new(daemon: &'a Daemon, then: &'a Daemon) -> Repeater<'a> {
        Repeater { daemon, then, routes: changing_routes(daemon), seen: BTreeSet::new() }
    }

    fn read(&self, probe: Probe<'_>) -> (u16, Option<Value>) {
        let reply = self.daemon.get(&format!("/v1/{}", probe.0));
        (reply.status, reply.body.pointer(probe.1).cloned())
    }

    /// The request, `between`, and the request again. Returns the answer.
    #[track_caller]
    pub fn twice(
        &mut self,
        request: (&str, &str, Value),
        between: impl FnOnce(&Daemon),
        probe: Probe<'_>,
    ) -> Value {
        let (method, path, body) = request;
        let path = format!("/v1/{path}");
        let route = self.route(method, &path);
        let key = format!("key-{}", self.seen.len() + 1);
        let first = send(self.daemon, method, &path, &key, &body);
        assert!((200..300).contains(&first.status), "{method} {path}: {first:?}");
        between(self.daemon);
        let before = self.read(probe);
        let second = send(self.then, method, &path, &key, &body);
        let answers = [&first, &second].map(|reply| (reply.status, lasting(&route.1, &reply.body)));
        assert_eq!(answers[1], answers[0], "{method} {path}");
        assert_eq!(self.read(probe), before, "{method} {path}: a second effect");
        assert_eq!(second.header("content-type"), first.header("content-type"));
        let mut other = if body.is_null() { json!({}) } else { body };
        other["another"] = json!(1);
        let reused = send(self.then, method, &path, &key, &other);
        assert_eq!(reused.status, 422, "{method} {path}: {reused:?}");
        assert_eq!(self.read(probe), before, "{method} {path}: an effect with a reused key");
        self.seen.insert(route);
        first.body
    }

    #[track_caller]
    fn post(&mut self, path: &str, body: Value, probe: Probe<'_>) -> Value {
        self.twice(("POST", path, body), |_| {}, probe)
    }

    #[track_caller]
    fn route(&self, method: &str, path: &str) -> (String, String) {
        let fits = |template: &str| {
            let (template, path): (Vec<_>, Vec<_>) = (
                template.split('/').collect(),
                path.split('?').next().unwrap().split('/').collect(),
            );
            let same = |(a, b): (&&str, &&str)| a == b || a.starts_with('{');
            template.len() == path.len() && template.iter().zip(&path).all(same)
        };
        let fitting =
            self.routes.iter().filter(|(word, template)| word == method && fits(template));
        let route = fitting.min_by_key(|(_, template)| template.matches('{').count());
        route
            .unwrap_or_else(|| panic!("{method} {path} is no route that changes something"))
            .clone()
    }
}

fn send(daemon: &Daemon, method: &str, path: &str, key: &str, body: &Value) -> Reply {
    let text = if body.is_null() { String::new() } else { body.to_string() };
    daemon.call(method, path, Some(text), &[JSON, ("idempotency-key", key)])
}

/// What is the same in both answers. That of `acquire` is made anew from the lease's record, with the time of the
/// repetition.
fn lasting(route: &str, body: &Value) -> Value {
    let mut body = body.clone();
    if route.contains("/acquire") {
        let leases = if body["results"].is_array() { body["results"].as_array_mut() } else { None };
        match leases {
            Some(leases) => leases.iter_mut().for_each(|lease| drop(lease["now_ms"].take())),
            None => drop(body["now_ms"].take()),
        }
    }
    body
}

/// Method and path of every route that changes something.
fn changing_routes(daemon: &Daemon) -> Vec<(String, String)> {
    const ONLY_READ: [&str; 2] =
        ["/v1/registry/{name}/lookup_many", "/v1/sessions/{name}/get_many"];
    let document = daemon.get("/openapi.json").body;
    let mut routes = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if method == "get" || !path.starts_with("/v1/") || ONLY_READ.contains(&path.as_str()) {
                continue;
            }
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let header = parameters.iter().find(|one| one["name"] == "Idempotency-Key");
            assert!(header.is_some(), "{method} {path} does not describe its idempotency key");
            routes.push((method.to_uppercase(), path.clone()));
        }
    }
    routes
}

/// All kinds on the embedded store, a registry `old` on Redis that its application wrote, another one there that has
/// an index, and two webhooks: one that
/// is answered and one that is not.
fn home_of_everything(redis: &RedisServer, receiver: &Receiver) -> Home {
    let home = Home { dir: tempfile::tempdir().unwrap() };
    let mut text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n\n[store.main]\nurl = \"embedded:{0}\"\n\n[store.redis]\nurl = \"{1}\"\n\n\
         [store.other]\nurl = \"{1}/1\"\n\n",
        home.data().display(),
        redis.url().trim_end_matches("/0")
    );
    for (kind, name) in [
        ("registry", "devices"),
        ("sessions", "chat"),
        ("inflight", "jobs"),
        ("leases", "locks"),
        ("availability", "mitras"),
    ] {
        text += &format!(
            "[[system]]\nkind = \"{kind}\"\nname = \"{name}\"\nstore = \"main\"\n{CALM}\n\n"
        );
    }
    text += &format!(
        "[[system]]\nkind = \"registry\"\nname = \"old\"\nstore = \"redis\"\nmode = \"adopt\"\n{CALM}\n\n"
    );
    text +=
        &format!("[[system]]\nkind = \"registry\"\nname = \"new\"\nstore = \"other\"\n{CALM}\n\n");
    for (name, port) in [("works", receiver.port), ("down", 9)] {
        text += &format!(
            "[[webhook]]\nname = \"{name}\"\nurl = \"http://127.0.0.1:{port}/\"\nsecret = \"a-secret-of-the-tests\"\n\
             attempts = 1\nbackoff = \"10ms\"\n\n"
        );
    }
    std::fs::write(home.config(), text).unwrap();
    home
}

fn every_route_that_changes_something_keeps_its_requests() {
    let redis = RedisServer::start(Engine::Redis).unwrap();
    redis.command(&["SET", "instance:heartbeat:i-1", "1", "EX", "900"]).unwrap();
    redis.command(&["HSET", "connections:registry", "imei-1", "i-1"]).unwrap();
    let receiver = Receiver::open();
    let home = home_of_everything(&redis, &receiver);
    std::thread::spawn(move || {
        while let Ok(request) = receiver.knocks.recv() {
            let _ = request.answer.send(OK);
        }
    });
    let daemon = home.serve();
    let mut all = Repeater::new(&daemon, &daemon);
    until("the webhooks to have begun", || {
        let hooks = daemon.get("/v1/webhooks").body.to_string();
        (!hooks.contains("\"delivered\":null")).then_some(())
    });
    repeat_registry(&mut all);
    repeat_sessions(&mut all);
    repeat_inflight(&mut all);
    repeat_leases(&mut all);
    repeat_providers(&mut all);
    repeat_provider_sessions(&mut all);
    repeat_operators(&mut all);
    repeat_webhooks(&mut all);
    let missing: Vec<_> = all.routes.iter().filter(|route| !all.seen.contains(*route)).collect();
    assert!(missing.is_empty(), "send these here, too: {missing:#?}");
}

/// What is kept in the daemon is not enough: the repetition goes through another one.
fn requests_are_kept_on_redis() {
    for engine in Engine::ALL {
        let server = RedisServer::start(engine).unwrap();
        let home = home_on(&server.url());
        let (daemon, then) = (home.serve(), home.serve());
        let mut all = Repeater::new(&daemon, &then);
        repeat_registry(&mut all);
        repeat_sessions(&mut all);
        repeat_inflight(&mut all);
        repeat_brake(&mut all);
    }
}

/// Providers that are true in PostgreSQL; the repetition goes through another daemon.
fn requests_are_kept_on_postgres() {
    let world = World::bare(CALM);
    assert_eq!(world.run(&["schema", "apply"]).code, 0);
    let (daemon, then) = (world.home.serve(), world.home.serve());
    let mut all = Repeater::new(&daemon, &then);
    repeat_providers(&mut all);
    repeat_provider_sessions(&mut all);
    let (brake, hold) = ("brakes/availability/mitras", json!({ "setting": "hold" }));
    let order = json!({ "setting": "auto" }).to_string();
    let auto = |daemon: &Daemon| {
        let path = format!("/v1/{brake}");
        assert_eq!(daemon.call("PUT", &path, Some(order), &[JSON]).status, 200);
    };
    all.twice(("PUT", brake, hold), auto, (brake, "/setting"));
}

/// A home whose systems are on the Redis at `url`.
fn home_on(url: &str) -> Home {
    let home = Home { dir: tempfile::tempdir().unwrap() };
    let mut text =
        format!("[server]\nlisten = \"127.0.0.1:0\"\n\n[store.main]\nurl = \"{url}\"\n\n");
    for (kind, name) in [("inflight", "jobs"), ("sessions", "chat"), ("registry", "devices")] {
        text += &format!("[[system]]\nkind = \"{kind}\"\nname = \"{name}\"\n{CALM}\n\n");
    }
    std::fs::write(home.config(), text).unwrap();
    home
}

/// Redis carries it out and the daemon never learns of it. Something happens, and the request comes again, through
/// another daemon.
fn changes_whose_answer_redis_lost_are_made_once() {
    for engine in Engine::ALL {
        let server = RedisServer::start(engine).unwrap();
        let proxy = Proxy::start(server.port()).unwrap();
        let (near, far) = (home_on(&server.url()), home_on(&proxy.url()));
        let (near, far) = (near.serve(), far.serve());
        let send = |daemon: &Daemon, request: &(&str, &str, Value), key: &str| {
            let (method, path, body) = request;
            let key = format!("{key}-{}", path.replace('/', "-"));
            let headers = [JSON, ("idempotency-key", &*key)];
            daemon.call(method, &format!("/v1/{path}"), Some(body.to_string()), &headers)
        };
        let lost = |request: (&str, &str, Value), part: &str, between: &dyn Fn()| {
            let before = proxy.dropped();
            proxy.drop_answers_matching(part);
            send(&far, &request, "again").is_problem(503, "unavailable");
            assert_eq!(proxy.dropped(), before + 1, "{request:?}");
            between();
            let second = send(&near, &request, "again");
            assert_eq!(second.status, 200, "{request:?}: {second:?}");
            let third = send(&far, &request, "again");
            assert_eq!((third.status, &third.body), (200, &second.body), "{request:?}");
            second.body
        };
        // Redis must know the scripts: the first answer to each is that it does not.
        let first = |path: &str, body: Value| drop(send(&far, &("POST", path, body), "first"));
        // A request that names the incarnation is one call, whose answer is lost.
        let life = far.hold("own-er", &["first", "k-lost"])["incarnation"].clone();
        for id in ["first", "s-lost"] {
            assert_eq!(far.chat("activate", json!({ "session": id, "value": "v0" })).status, 201);
        }
        let mut ticket = claim(&far, "j-lost");
        ticket["incarnation"] = far.job("j-lost")["incarnation"].clone();
        first("registry/devices/unregister", json!({ "owner": "own-er", "key": "first" }));
        first("sessions/chat/update", json!({ "session": "first", "value": "v" }));
        first("sessions/chat/delete", json!({ "session": "first" }));
        first("inflight/jobs/complete", claim(&far, "first"));

        let key = json!({ "owner": "own-er", "incarnation": life, "key": "k-lost" });
        let register = || drop(near.hold("own-er", &["k-lost"]));
        let answer = lost(("POST", "registry/devices/unregister", key), "k-lost", &register);
        assert_eq!(answer["removed"], true);
        assert_eq!(near.get("/v1/registry/devices/lookup/k-lost").body["owner"], "own-er");

        let value = |value: &str| json!({ "session": "s-lost", "value": value });
        let update = || assert_eq!(near.chat("update", value("v2")).status, 200);
        let answer = lost(("POST", "sessions/chat/update", value("v1")), "s-lost", &update);
        assert_eq!(answer["value"], "v1");
        let session = || near.get("/v1/sessions/chat/get/s-lost");
        assert_eq!(session().body["value"], "v2");
        let activate = || assert_eq!(near.chat("activate", value("new")).status, 201);
        let delete = json!({ "session": "s-lost" });
        lost(("POST", "sessions/chat/delete", delete), "s-lost", &activate);
        assert_eq!((session().status, &session().body["value"]), (200, &json!("new")));

        let take_again = || drop(claim(&near, "j-lost"));
        let answer = lost(("POST", "inflight/jobs/complete", ticket), "j-lost", &take_again);
        assert_eq!(answer["outcome"], "done", "and not `lost`");
        assert_eq!(near.job("j-lost")["state"], "in_flight");

        let order = json!({ "setting": "override", "reason": "drill-lost" });
        let pass = || {
            assert_eq!(near.post("/v1/sweeps/registry/devices", json!({})).status, 200);
            assert_eq!(near.get("/v1/brakes/registry/devices").body["setting"], "auto");
        };
        send(&far, &("PUT", "brakes/registry/devices", json!({ "setting": "auto" })), "first");
        lost(("PUT", "brakes/registry/devices", order), "drill-lost", &pass);
        assert_eq!(near.get("/v1/brakes/registry/devices").body["setting"], "auto");
    }
}
