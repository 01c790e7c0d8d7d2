//! The event feed: a listener that resumes with its last cursor misses nothing and sees nothing
//! twice; a listener that does not read is dropped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;

use crate::support::{CALM, Daemon, Home, PATIENCE, agent, until};
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    the_event_feed_resumes_without_gaps,
    the_feed_survives_a_restart_of_the_daemon,
    receipts_can_be_followed_from_the_terminal,
    a_listener_that_does_not_read_is_dropped_and_can_resume,
    listeners_above_the_limit_are_refused,
}

#[derive(Debug, Default)]
struct Event {
    name: String,
    id: String,
    data: Value,
}

/// A connection to `/v1/events`.
struct Feed {
    lines: Box<dyn Iterator<Item = std::io::Result<String>>>,
}

impl Feed {
    fn open(daemon: &Daemon, query: &str, last: Option<&str>) -> Feed {
        let mut request = agent().get(format!("{}/v1/events{query}", daemon.url));
        if let Some(id) = last {
            request = request.header("last-event-id", id);
        }
        let reply = request.call().unwrap();
        assert_eq!(reply.status(), 200);
        let kind = reply.headers()["content-type"].to_str().unwrap();
        assert!(kind.starts_with("text/event-stream"), "{kind}");
        Feed { lines: Box::new(BufReader::new(reply.into_body().into_reader()).lines()) }
    }

    fn next(&mut self) -> Event {
        let mut event = Event::default();
        loop {
            let line = self.lines.next().expect("the stream goes on").unwrap();
            match line.split_once(": ") {
                Some(("event", name)) => event.name = name.to_owned(),
                Some(("id", id)) => event.id = id.to_owned(),
                Some(("data", data)) => event.data = serde_json::from_str(data).unwrap(),
                _ if line.is_empty() && !event.name.is_empty() => return event,
                _ => {}
            }
        }
    }

    fn receipts(&mut self, count: usize) -> Vec<Event> {
        let events: Vec<Event> = (0..count).map(|_| self.next()).collect();
        assert!(events.iter().all(|e| e.name == "receipt"), "{events:?}");
        events
    }
}

/// Retires an owner with `count` keys, which writes `count` receipts.
fn reclaim(daemon: &Daemon, owner: &str, count: usize) {
    let keys: Vec<String> = (0..count).map(|n| format!("{owner}-{n}")).collect();
    daemon.registry("register_many", json!({ "owner": owner, "keys": keys }));
    let retired = daemon.registry("retire", json!({ "owner": owner })).body;
    assert_eq!(retired["reclaimed"], count, "{retired}");
}

fn seqs(events: &[Event]) -> Vec<u64> {
    let seq = |e: &Event| e.data["id"].as_str()?.rsplit('-').next()?.parse().ok();
    events.iter().map(|e| seq(e).unwrap()).collect()
}

fn the_event_feed_resumes_without_gaps() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    reclaim(&daemon, "before", 3);

    let mut feed = Feed::open(&daemon, "", None);
    let greeting = feed.next();
    assert_eq!((greeting.name.as_str(), greeting.id.as_str()), ("cursor", "registry/devices:3"));
    reclaim(&daemon, "first", 5);
    let events = feed.receipts(5);
    assert_eq!(seqs(&events), [4, 5, 6, 7, 8], "from the present on");
    assert_eq!(events[1].id, "registry/devices:5");
    drop(feed);

    reclaim(&daemon, "away", 250);
    let mut feed = Feed::open(&daemon, "?system=devices", Some(&events[1].id));
    assert_eq!(feed.next().id, "registry/devices:5");
    let rest = feed.receipts(253);
    assert_eq!(seqs(&rest), (6..=258).collect::<Vec<u64>>(), "no gap, nothing twice");
    reclaim(&daemon, "live", 2);
    assert_eq!(seqs(&feed.receipts(2)), [259, 260], "and goes on as they come");

    let mut all = Feed::open(&daemon, "?cursor=registry/devices:0", None);
    all.next();
    assert_eq!(seqs(&all.receipts(260)), (1..=260).collect::<Vec<u64>>());
    // Of another store, or of before it was restored: silence would be taken for nothing to tell.
    let ahead = daemon.get("/v1/events?cursor=registry/devices:261");
    ahead.is_problem(422, "invalid");
}

fn the_feed_survives_a_restart_of_the_daemon() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    let mut feed = Feed::open(&daemon, "", None);
    let greeting = feed.next();
    reclaim(&daemon, "a", 4);
    let last = feed.receipts(4).pop().unwrap().id;
    assert_eq!(daemon.stop(), Some(0), "an open stream does not keep the daemon");
    let daemon = home.serve();
    reclaim(&daemon, "b", 2);
    let mut feed = Feed::open(&daemon, "", Some(&last));
    feed.next();
    assert_eq!(seqs(&feed.receipts(2)), [5, 6]);
    let mut feed = Feed::open(&daemon, "", Some(&greeting.id));
    feed.next();
    assert_eq!(seqs(&feed.receipts(6)), [1, 2, 3, 4, 5, 6], "even from a cursor without a receipt");
}

fn receipts_can_be_followed_from_the_terminal() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    reclaim(&daemon, "before", 2);
    let mut command = crate::support::lapsed();
    command.args(["receipts", "--follow", "--json", "--url", &daemon.url]);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(next()["id"], "registry-devices-1");
    assert_eq!(next()["id"], "registry-devices-2");
    reclaim(&daemon, "after", 1);
    assert_eq!(next()["id"], "registry-devices-3");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The value of a series without labels.
fn counted(daemon: &Daemon, series: &str) -> u64 {
    let text = daemon.get("/metrics").text;
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("{series} is missing: {text}")).parse().unwrap()
}

/// Asks for the events, and reads nothing of them.
fn connect(daemon: &Daemon) -> TcpStream {
    let mut stream = TcpStream::connect(daemon.url.trim_start_matches("http://")).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 8 << 10).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    stream
}

/// The ids of the whole events that were sent before the end.
fn ids_until_the_end(mut stream: TcpStream) -> Vec<String> {
    let mut sent = Vec::new();
    // Whether it is closed or reset, it ends.
    let _ = stream.read_to_end(&mut sent);
    let text = String::from_utf8_lossy(&sent);
    let (whole, _) = text.rsplit_once("\n\n").unwrap();
    let receipts = whole.split("\n\n").filter(|event| event.contains("event: receipt\n"));
    let id =
        |event: &str| event.lines().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned();
    receipts.map(id).collect()
}

fn a_listener_that_does_not_read_is_dropped_and_can_resume() {
    let home = Home::with("1m", CALM, "write_timeout = \"1s\"");
    let daemon = home.serve();
    let stuck = connect(&daemon);
    until("it to listen", || (counted(&daemon, "lapsed_events_listeners") == 1).then_some(()));
    // Another listener reads all the time and is not dropped.
    let (greeted, begin) = mpsc::channel();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut feed = Feed::open(&daemon, "", None);
            greeted.send(feed.next()).unwrap();
            seqs(&feed.receipts(8_000))
        });
        begin.recv().unwrap();
        for round in 0..8 {
            reclaim(&daemon, &format!("owner-{round}"), 1_000);
        }
        assert_eq!(reading.join().unwrap(), (1..=8_000).collect::<Vec<u64>>());
    });
    until("it to be dropped", || {
        (counted(&daemon, "lapsed_events_dropped_total") == 1).then_some(())
    });

    let ids = ids_until_the_end(stuck);
    let seen = ids.len() as u64;
    let wanted: Vec<String> = (1..=seen).map(|seq| format!("registry/devices:{seq}")).collect();
    assert_eq!(ids, wanted, "what it was sent is whole");
    assert!(0 < seen && seen < 8_000, "{seen}");
    let mut feed = Feed::open(&daemon, "", ids.last().map(String::as_str));
    feed.next();
    let rest = feed.receipts(8_000 - ids.len());
    assert_eq!(seqs(&rest), (seen + 1..=8_000).collect::<Vec<u64>>());
}

fn listeners_above_the_limit_are_refused() {
    let home = Home::with("1m", CALM, "listeners_max = 1");
    let daemon = home.serve();
    let first = Feed::open(&daemon, "", None);
    let refused = daemon.get("/v1/events");
    refused.is_problem(503, "too_many_listeners");
    assert_eq!(refused.header("retry-after"), "10");
    drop(first);
    // The daemon finds out that it has gone when it has something to send.
    reclaim(&daemon, "owner", 1);
    until("its seat to be free", || {
        reclaim(&daemon, "another", 1);
        (counted(&daemon, "lapsed_events_listeners") == 0).then_some(())
    });
    Feed::open(&daemon, "", None).next();
}
