//! Calls of the server-side functions (`FCALL`), as a client in any language sends them, on a real Redis
//! server. An input is a list of calls, a line each; a call is a name, the number of its keys, and keys and
//! arguments, with tabs between them. The argument `@` stands for the incarnation that was answered last,
//! `#0`, `#1`, … for the tokens. Every input begins with an empty database.
//!
//! A call may be refused, but in lapsed's own words: an error inside a script is a bug. After the calls
//! the jobs are in balance.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use lapsed_testbed::resp::{Reply, RespConnection};
use lapsed_testbed::{Engine, RedisServer};

/// How long one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// How many calls of one input are made.
const CALLS_MAX: usize = 16;

/// The first key and the system of the calls whose jobs are counted.
const JOBS: [&[u8]; 2] = [b"lapsed:inflight", b"mail"];

struct FunctionServer {
    _server: RedisServer,
    connection: Mutex<RespConnection>,
}

fn open() -> FunctionServer {
    let server = RedisServer::start(Engine::Redis).expect("a server starts");
    let mut connection = server.connect(CALL_LIMIT).expect("it is there");
    let library = lapsed_redis::Redis::functions();
    connection.call(&["FUNCTION", "LOAD", "REPLACE", &library]).expect("the library is loaded");
    FunctionServer { _server: server, connection: Mutex::new(connection) }
}

/// What earlier answers of an input have given out.
#[derive(Default)]
struct GivenOut {
    incarnation: Vec<u8>,
    tokens: Vec<Vec<u8>>,
}

/// Makes the calls of one input, one after the other.
pub fn read(input: &[u8]) {
    static SERVER: OnceLock<FunctionServer> = OnceLock::new();
    let server = SERVER.get_or_init(open);
    let mut connection = server.connection.lock().unwrap_or_else(PoisonError::into_inner);
    connection.call(&["FLUSHDB"]).expect("the database is emptied");
    let mut given = GivenOut::default();
    for line in input.split(|byte| *byte == b'\n').take(CALLS_MAX) {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b'\t').collect();
        make(&mut connection, &words, &mut given);
    }
    balance(&mut connection);
}

fn make(connection: &mut RespConnection, call: &[&[u8]], given: &mut GivenOut) {
    let function = [b"lapsed_", call[0]].concat();
    let mut words: Vec<Vec<u8>> = vec![b"FCALL".to_vec(), function];
    words.extend(call[1..].iter().map(|word| given.meant(word)));
    let refusal = match connection.call(&words) {
        Ok(reply) => return given.note(call[0], &reply),
        Err(refusal) => refusal.to_string(),
    };
    // The caller's own keys may be of any type.
    let is_foreign = refusal.starts_with("WRONGTYPE");
    // Said by `FCALL` itself, before any function runs.
    let usage = ["Function not found", "umber of keys", "wrong number of arguments"];
    let is_usage = refusal.starts_with("ERR") && usage.iter().any(|what| refusal.contains(what));
    let own = ["INVALID ", "LOST ", "UNKNOWN ", "MISSING ", "REUSED ", "ACTIVE "];
    let is_own = own.iter().any(|word| refusal.starts_with(word));
    assert!(is_foreign || is_usage || is_own, "an error inside a function: {refusal}");
}

impl GivenOut {
    fn meant(&self, word: &[u8]) -> Vec<u8> {
        let nth = word.strip_prefix(b"#").and_then(|n| std::str::from_utf8(n).ok()?.parse().ok());
        let token = nth.and_then(|nth: usize| self.tokens.get(nth));
        match (word, token) {
            (b"@", _) => self.incarnation.clone(),
            (_, Some(token)) => token.clone(),
            (_, None) => word.to_vec(),
        }
    }

    fn note(&mut self, function: &[u8], reply: &Reply) {
        let Reply::List(items) = reply else { return };
        let text = |reply: &Reply| reply.to_string().into_bytes();
        if function.ends_with(b"_start") || function.ends_with(b"_beat") {
            self.incarnation = items.first().map(text).unwrap_or_default();
        } else if function == b"inflight_take" || function == b"inflight_register" {
            let token = |item: &Reply| match item {
                Reply::List(job) => job.get(1).map(text).unwrap_or_default(),
                other => text(other),
            };
            self.tokens = items.iter().map(token).collect();
        }
    }
}

/// P4: every job that entered is completed, queued, in flight, dead or dropped.
fn balance(connection: &mut RespConnection) {
    let call: [&[u8]; 5] = [b"FCALL", b"lapsed_inflight_counts", b"1", JOBS[0], JOBS[1]];
    // A call may have made one of these keys something else.
    let Ok(Reply::List(fields)) = connection.call(&call) else { return };
    let number = |reply: &Reply| reply.to_string().parse::<i64>().expect("a count is a number");
    let counts: BTreeMap<String, i64> =
        fields.chunks(2).map(|pair| (pair[0].to_string(), number(&pair[1]))).collect();
    let entered = counts.get("entered").copied().unwrap_or(0);
    let sum: i64 = counts.iter().filter(|(name, _)| *name != "entered").map(|(_, n)| n).sum();
    assert!(counts.values().all(|count| *count >= 0) && entered == sum, "{counts:?}");
}
