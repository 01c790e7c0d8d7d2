//! Traces: the daemon sends connected spans to a collector; an unreachable collector delays
//! nothing.

use std::collections::BTreeMap;

use prost::Message;
use serde_json::json;

use crate::support::receiver::Receiver;
use crate::support::{CALM, Daemon, Home, JSON, PATIENCE};

lapsed_testbed::steady_tests! {
    the_span_of_a_pass_is_a_child_of_its_request,
    an_unreachable_collector_delays_nothing,
}

/// As much of OTLP as is looked at.
#[derive(Clone, PartialEq, Message)]
struct Export {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<OfResource>,
}

#[derive(Clone, PartialEq, Message)]
struct OfResource {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<OfScope>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct OfScope {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(fixed64, tag = "7")]
    began_ns: u64,
    #[prost(fixed64, tag = "8")]
    ended_ns: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
    #[prost(bool, optional, tag = "2")]
    flag: Option<bool>,
    #[prost(int64, optional, tag = "3")]
    number: Option<i64>,
}

fn read(attributes: &[Attribute]) -> BTreeMap<&str, String> {
    let text = |value: &AnyValue| match value {
        AnyValue { text: Some(text), .. } => text.clone(),
        AnyValue { flag: Some(flag), .. } => flag.to_string(),
        AnyValue { number, .. } => number.unwrap_or_default().to_string(),
    };
    attributes
        .iter()
        .map(|a| (a.key.as_str(), a.value.as_ref().map(text).unwrap_or_default()))
        .collect()
}

fn home(url: &str) -> Home {
    let home = Home::new("1s", CALM);
    let text = std::fs::read_to_string(home.config()).unwrap();
    let telemetry = format!("[telemetry]\notlp = \"{url}\"\nservice = \"tests\"\n");
    std::fs::write(home.config(), format!("{text}\n{telemetry}")).unwrap();
    home
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Everything that was sent until the daemon left.
fn until_stopped(daemon: Daemon, collector: &Receiver) -> Vec<OfResource> {
    let stopping = std::thread::spawn(move || daemon.stop());
    let mut all = Vec::new();
    while !stopping.is_finished() || !all.is_empty() && collector.knocks.try_recv().is_ok() {
        let Ok(request) = collector.knocks.recv_timeout(PATIENCE / 100) else { continue };
        assert_eq!(request.path, "/v1/traces");
        assert_eq!(request.headers["content-type"], "application/x-protobuf");
        all.extend(Export::decode(&request.bytes[..]).unwrap().resources);
        request.answer.send("200 OK\r\n").unwrap();
    }
    assert_eq!(stopping.join().unwrap(), Some(0));
    all
}

fn the_span_of_a_pass_is_a_child_of_its_request() {
    let collector = Receiver::open();
    let home = home(&format!("http://127.0.0.1:{}", collector.port));
    let daemon = home.serve();
    daemon.hold("start_without_beats", &["a", "b"]);
    daemon.until_overdue(1);
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let headers = [JSON, ("traceparent", parent.as_str())];
    let path = "/v1/sweeps/registry/devices";
    let report = daemon.call("POST", path, Some(json!({}).to_string()), &headers).body;
    assert_eq!(report["reclaimed"], 2, "{report}");

    let told = until_stopped(daemon, &collector);
    let resource = told[0].resource.clone().unwrap();
    assert_eq!(read(&resource.attributes)["service.name"], "tests");
    let spans: Vec<&Span> = told.iter().flat_map(|r| &r.scopes).flat_map(|s| &s.spans).collect();
    let ours: Vec<&&Span> = spans.iter().filter(|span| hex(&span.trace_id) == TRACE).collect();
    let one = |name: &str| {
        let found = ours.iter().find(|span| span.name == name);
        **found.unwrap_or_else(|| panic!("no span {name:?}: {ours:?}"))
    };
    let (request, pass, batch) = (one("POST"), one("pass"), one("batch"));
    assert_eq!(hex(&request.parent_span_id), PARENT);
    assert_eq!(pass.parent_span_id, request.span_id);
    assert_eq!(batch.parent_span_id, pass.span_id);
    let facts = read(&request.attributes);
    assert_eq!((&*facts["url.path"], &*facts["http.response.status_code"]), (path, "200"));
    let facts = read(&pass.attributes);
    assert_eq!((&*facts["lapsed.system"], &*facts["lapsed.kind"]), ("devices", "registry"));
    assert_eq!((&*facts["lapsed.reclaimed"], &*facts["lapsed.stopped"]), ("2", "done"));
    assert!(
        pass.began_ns <= batch.began_ns + 1_000_000 && batch.ended_ns <= pass.ended_ns,
        "{pass:?} {batch:?}"
    );
}

fn an_unreachable_collector_delays_nothing() {
    // Nobody listens there any more.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let home = home(&format!("http://{gone}/s3cret"));
    let daemon = home.serve();
    for n in 0..5_000 {
        assert_eq!(daemon.get("/v1/brakes/registry/devices").status, 200, "request {n}");
    }
    let began = std::time::Instant::now();
    let log = home.dir.path().join("log");
    assert_eq!(daemon.stop(), Some(0));
    assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
    let log = std::fs::read_to_string(log).unwrap();
    assert_eq!(log.matches("traces cannot be sent").count(), 1, "said once: {log}");
    assert!(!log.contains("s3cret"), "{log}");
}
