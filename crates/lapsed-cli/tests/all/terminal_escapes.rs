//! Names, payloads, errors and answers with terminal escapes and bidirectional controls, through every
//! command against a real daemon: nothing reaches the terminal that it would obey.

use std::io::{Read, Write};
use std::net::TcpListener;

use crate::support::{Answer, CALM, Daemon, Home, JSON, lapsed, run};
use clap::{Arg, Command, CommandFactory};
use lapsed_cli::cli::Cli;
use lapsed_testbed::{Engine, RedisServer};
use serde_json::json;

lapsed_testbed::steady_tests! {
    no_command_prints_a_control_character_or_a_bidirectional_control,
    every_command_escapes_its_arguments,
    what_detect_finds_forges_no_line,
    answers_of_a_hostile_server_are_escaped,
}

/// Clears the screen, sets the window's title, returns the carriage, forges a line, and has C1, DEL, NUL
/// and bidirectional controls.
const HOSTILE: &str = "boom\x1b[2J\x1b]0;owned\x07\rgone\nFORGED line\tx\x7f\0\u{9b}31m\u{85}\u{202e}txt\u{2066}a\u{2069}\u{200e}\u{200f}\u{61c}\u{2028}";

/// The same as an argument of a command, which cannot contain NUL.
const ARGUMENT: &str =
    "boom\x1b[2J\x1b]0;owned\x07\rgone\nFORGED line\tx\x7f\u{9b}31m\u{202e}txt\u{2066}a";

/// What a name may contain: no control characters, but bidirectional controls.
const NAME: &str = "n\u{202e}eman\u{2066}x\u{200f}";

fn is_obeyed(c: char) -> bool {
    let bidi = ['\u{61c}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}'].contains(&c)
        || ('\u{202a}'..='\u{202e}').contains(&c)
        || ('\u{2066}'..='\u{2069}').contains(&c);
    bidi || (c.is_control() && c != '\n')
}

#[track_caller]
fn is_clean(what: &str, text: &str) {
    let found: Vec<char> = text.chars().filter(|c| is_obeyed(*c)).collect();
    assert!(found.is_empty(), "{what}: {found:?} in {text:?}");
    assert!(!text.lines().any(|line| line.starts_with("FORGED")), "{what}: {text:?}");
}

#[track_caller]
fn clean(what: &[&str], answer: Answer) -> Answer {
    is_clean(&format!("stdout of {what:?}"), &answer.out);
    is_clean(&format!("stderr of {what:?}"), &answer.err);
    answer
}

/// One system of every kind on one embedded store; the registry and the jobs forget owners soon.
fn home() -> Home {
    let home = Home::new("300ms", CALM);
    let mut text = std::fs::read_to_string(home.config()).unwrap();
    for lines in [
        "kind = \"sessions\"\nname = \"chat\"\ngrace = \"300ms\"",
        "kind = \"inflight\"\nname = \"jobs\"\nheartbeat_ttl = \"300ms\"",
        "kind = \"leases\"\nname = \"locks\"\nttl = \"10m\"",
        "kind = \"availability\"\nname = \"mitras\"",
    ] {
        text.push_str(&format!("\n[[system]]\n{lines}\n{CALM}\n"));
    }
    std::fs::write(home.config(), text).unwrap();
    home
}

/// Puts hostile text wherever a client can.
fn fill(daemon: &Daemon) {
    daemon.start_long_lived(NAME);
    for id in ["job-1", NAME] {
        daemon.jobs("enqueue", json!({ "queue": NAME, "id": id, "payload": HOSTILE }));
        let taken = daemon.jobs("take", json!({ "owner": NAME, "queue": NAME }));
        let token = &taken["jobs"][0]["token"];
        daemon.jobs("fail", json!({ "id": id, "token": token, "error": HOSTILE }));
    }
    daemon.hold(NAME, &[NAME, "key"]);
    let made = daemon.chat("activate", json!({ "session": NAME, "value": HOSTILE }));
    assert_eq!(made.status, 201, "{made:?}");
    let lease = json!({ "namespace": "default", "key": "k", "owner": NAME, "ttl_ms": 600_000 });
    let token = daemon.leases("acquire", lease)["token"].clone();
    let state = json!({ "token": token, "state": { "json": { "text": HOSTILE } } }).to_string();
    let path = "/v1/leases/locks/state/default/k";
    assert_eq!(daemon.call("PUT", path, Some(state), &[JSON]).status, 200);
    let provider = json!({ "display_name": HOSTILE }).to_string();
    let path = "/v1/availability/mitras/providers/p";
    assert_eq!(daemon.call("PUT", path, Some(provider), &[JSON]).status, 200);
    daemon.until_overdue(1);
}

/// Every command that shows something of a system, and errors that quote an argument.
const COMMANDS: &[&[&str]] = &[
    &["dead", "list"],
    &["dead", "show", "jobs", "job-1"],
    &["dead", "show", "jobs", NAME],
    &["dead", "show", "jobs", ARGUMENT],
    &["explain", "jobs", "job-1"],
    &["explain", "jobs", NAME],
    &["explain", "jobs", ARGUMENT],
    &["explain", "devices", NAME],
    &["explain", "chat", NAME],
    &["explain", "mitras", "p"],
    &["explain", ARGUMENT, "x"],
    &["sweep", "devices", "--dry-run"],
    &["sweep", "devices"],
    &["sweep", "chat"],
    &["receipts"],
    &["receipts", "--key", NAME],
    &["receipts", "--key", ARGUMENT],
    &["restore", "registry-devices-1"],
    &["restore", ARGUMENT],
    &["status"],
    &["status", "jobs"],
    &["status", ARGUMENT],
    &["brake", "devices", "hold"],
    &["brake", "devices"],
    &["brake", ARGUMENT],
    &["reconcile", "devices", "--dry-run"],
    &["reconcile", ARGUMENT],
    &["lease", "list"],
    &["lease", "describe", "k"],
    &["lease", "describe", NAME],
    &["lease", "describe", ARGUMENT],
    &["lease", "acquire", "k", "--owner", "other"],
    &["lease", "acquire", NAME, "--owner", NAME],
    &["lease", "renew", NAME, "1"],
    &["lease", "release", NAME, "99"],
    &["dead", "put-back", "jobs", NAME],
    &["dead", "delete", "jobs", "job-1"],
    &["dead", "delete", "jobs", ARGUMENT],
    &["audit"],
    &["audit", ARGUMENT],
    &["webhook", "list"],
    &["webhook", "dead", ARGUMENT],
    &["webhook", "test", NAME],
    &["receipts", "-n", ARGUMENT],
    &[ARGUMENT],
];

fn no_command_prints_a_control_character_or_a_bidirectional_control() {
    let home = home();
    let daemon = home.serve();
    fill(&daemon);
    for args in COMMANDS {
        let answer = clean(args, daemon.run(args));
        match args {
            ["dead", "list"] => {
                assert_eq!(answer.out.lines().count(), 4, "a row is a line: {answer:?}");
                assert!(answer.out.contains("boom\\x1b[2J\\x1b]0;owned\\x07\\rgone"), "{answer:?}");
            }
            ["dead", "show", "jobs", "job-1"] => {
                let escaped = "\\nFORGED line\\tx\\x7f\\x00\\u{9b}31m\\u{85}\\u{202e}txt";
                assert_eq!(answer.out.matches(escaped).count(), 2, "error and payload: {answer:?}");
                let exact = daemon.run(&["dead", "show", "jobs", "job-1", "--json"]).json();
                assert_eq!(
                    (&exact["error"], &exact["payload"]),
                    (&json!(HOSTILE), &json!(HOSTILE))
                );
            }
            ["receipts"] => {
                assert!(answer.out.contains("n\\u{202e}eman\\u{2066}x\\u{200f}"), "{answer:?}");
                let exact = daemon.run(&["receipts", "--json"]).lines();
                assert!(exact.iter().any(|receipt| receipt["key"] == NAME), "{exact:?}");
            }
            _ => {}
        }
    }
    let log = daemon.log();
    assert!(log.contains("\\u{202e}"), "the log quotes a hostile name: {log}");
    is_clean("the daemon's log", &log);
    assert_eq!(daemon.stop(), Some(0));
    for args in COMMANDS.iter().filter(|args| !matches!(args, ["webhook", ..])) {
        clean(args, home.run(args));
    }
}

/// Commands that go on until they are ended. What they print passes through the same functions.
const ENDLESS: &[&str] = &["serve", "demo", "top", "run"];

/// Every command that clap knows, hidden ones too, with hostile text for each argument that has no name.
fn hostile_calls() -> Vec<Vec<String>> {
    fn is_given(arg: &&Arg) -> bool {
        arg.is_positional() || arg.is_required_set()
    }
    fn below(command: &Command, path: &[String], all: &mut Vec<Vec<String>>) {
        for inner in command.get_subcommands() {
            let path = [path, &[inner.get_name().to_owned()]].concat();
            below(inner, &path, all);
        }
        if path.is_empty() || command.is_subcommand_required_set() {
            return;
        }
        let mut call = path.to_vec();
        for arg in command.get_arguments().filter(is_given) {
            call.extend(arg.get_long().map(|long| format!("--{long}")));
            call.push(ARGUMENT.to_owned());
        }
        all.push(call);
    }
    let mut all = Vec::new();
    below(&Cli::command(), &[], &mut all);
    all
}

/// A new command is in this test as soon as clap knows it.
fn every_command_escapes_its_arguments() {
    let (home, calls) = (home(), hostile_calls());
    assert!(calls.len() > 30, "{calls:?}");
    for endless in ENDLESS {
        assert!(calls.iter().any(|call| call.iter().any(|word| word == endless)), "{endless}");
    }
    let ends = |call: &&Vec<String>| {
        let words = call.iter().filter(|word| *word != ARGUMENT);
        !words.into_iter().any(|word| ENDLESS.contains(&word.as_str()))
    };
    for call in calls.iter().filter(ends) {
        let args: Vec<&str> = call.iter().map(String::as_str).collect();
        // In the folder of the test: some commands write a file of the name that they are given.
        let output = lapsed().args(&args).current_dir(home.dir.path()).output().unwrap();
        is_clean(&format!("stdout of {args:?}"), &String::from_utf8(output.stdout).unwrap());
        is_clean(&format!("stderr of {args:?}"), &String::from_utf8(output.stderr).unwrap());
    }
}

/// Anybody who can write to that Redis may write a version there, which a note of `detect` quotes.
fn what_detect_finds_forges_no_line() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let version = format!("bullmq:9.9.9{HOSTILE}");
    server.command(&["HSET", "bull:mails:meta", "version", &version]).unwrap();
    let found = clean(&["detect"], run(&["detect", &server.url()]));
    assert_eq!(found.code, 0, "{found:?}");
    assert!(found.out.contains("FORGED"), "something of it is shown: {found:?}");
    let exact = run(&["detect", &server.url(), "--json"]).json();
    assert!(exact["found"][0]["notes"].to_string().contains("\\nFORGED"), "{exact}");
}

/// A server that is not lapsed, or not to be trusted, answers everything with `status` and `body`.
fn hostile_server(status: &'static str, body: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let head = "content-type: application/json\r\nconnection: close";
            let length = body.len();
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}"
            );
        }
    });
    url
}

fn answers_of_a_hostile_server_are_escaped() {
    for status in ["400 Bad", "401 No", "403 No", "404 None", "409 Conflict", "500 Broken"] {
        let url = hostile_server(status, json!({ "detail": HOSTILE }).to_string());
        for args in [
            &["status"][..],
            &["receipts", "--follow"],
            &["restore", "registry-devices-1"],
            &["webhook", "list"],
            &["audit"],
        ] {
            let answer = clean(args, run(&[args, &["--url", &url]].concat()));
            assert_ne!(answer.code, 0, "{answer:?}");
        }
    }
    let webhooks = json!({ "webhooks": [{ "name": HOSTILE, "url": HOSTILE, "systems": [
        { "system": HOSTILE, "mark": HOSTILE, "newest": HOSTILE, "dead": 1 }] }],
        "dead": [{ "id": HOSTILE, "first": HOSTILE, "last": HOSTILE, "why": HOSTILE }],
        "delivery": HOSTILE });
    let url = hostile_server("200 OK", webhooks.to_string());
    for args in [&["webhook", "list"][..], &["webhook", "dead", "w"], &["webhook", "test", "w"]] {
        let answer = clean(args, run(&[args, &["--url", &url]].concat()));
        assert_eq!((answer.code, answer.err.as_str()), (0, ""), "{answer:?}");
        assert!(answer.out.contains("boom\\x1b[2J"), "{answer:?}");
    }
}
