//! Ruby beside a test: a Sidekiq client, a process that holds jobs, a Sidekiq worker.
#![allow(dead_code)]

use std::path::Path;
use std::time::Duration;

use lapsed_testbed::{Program, RedisServer, paths};

/// A busy machine may take long to start an interpreter.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The queue that all of them use.
pub const QUEUE: &str = "requests";

fn ruby(program: &str, server: &RedisServer, env: &[(&str, &str)]) -> Program {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/ruby").join(program);
    Program::start(&paths::ruby().unwrap(), |command| {
        command.arg(file).env("REDIS_URL", server.url()).env("QUEUE", QUEUE);
        command.envs(env.iter().copied());
    })
    .unwrap()
}

/// Enqueues this many jobs with Sidekiq's own client; returns their jids.
pub fn enqueue(server: &RedisServer, count: usize) -> Vec<String> {
    let client = ruby("enqueue.rb", server, &[("COUNT", &count.to_string())]);
    (0..count).map(|_| client.line(LIMIT).unwrap()).collect()
}

/// One job that a holder has in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The member of the index and the field of the hash.
    pub id: String,
    pub jid: String,
}

/// A process that took jobs, registered them, and beats.
pub struct Holder {
    pub program: Program,
    pub held: Vec<Held>,
}

impl Holder {
    /// Returns when it holds `count` jobs. `env` is described on top of `holder.rb`.
    pub fn start(server: &RedisServer, count: usize, env: &[(&str, &str)]) -> Holder {
        let count_text = count.to_string();
        let env = [env, &[("COUNT", count_text.as_str())]].concat();
        let program = ruby("holder.rb", server, &env);
        let held = (0..count).map(|_| held(&program.line(LIMIT).unwrap())).collect();
        assert_eq!(program.line(LIMIT).unwrap(), "holding");
        Holder { program, held }
    }

    /// Tells it to do something; what it answers.
    pub fn tell(&self, order: &str) -> String {
        self.program.say(order).unwrap();
        self.program.line(LIMIT).unwrap()
    }
}

fn held(line: &str) -> Held {
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!((words.len(), words[0]), (3, "held"), "{line}");
    Held { id: words[1].to_owned(), jid: words[2].to_owned() }
}

/// Sidekiq's own view of its dead jobs, and a program that retries them by `retry JID`.
pub fn dead_jobs(server: &RedisServer) -> (Program, Vec<serde_json::Value>) {
    let program = ruby("dead.rb", server, &[]);
    let mut jobs = Vec::new();
    loop {
        let line = program.line(LIMIT).unwrap();
        match line.strip_prefix("dead ") {
            Some(job) => jobs.push(serde_json::from_str(job).unwrap()),
            None => break assert_eq!(line, "listed"),
        }
    }
    (program, jobs)
}

/// A Sidekiq worker that is up and runs what is on the queue.
pub fn worker(server: &RedisServer) -> Program {
    let worker = ruby("worker.rb", server, &[]);
    assert_eq!(worker.line(LIMIT).unwrap(), "ready");
    worker
}

/// What Sidekiq workers ran, as `JID ARGUMENT`, in their order.
pub fn ran(server: &RedisServer) -> Vec<String> {
    lines(&server.command(&["LRANGE", "ran", "0", "-1"]).unwrap())
}

/// The lines of an answer; an empty list has none.
pub fn lines(answer: &str) -> Vec<String> {
    answer.lines().map(str::to_owned).collect()
}
