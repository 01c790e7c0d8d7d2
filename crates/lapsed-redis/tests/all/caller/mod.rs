//! Somebody who knows nothing but FCALL.

#![allow(dead_code)]

use std::time::Duration;

use lapsed_redis::{Downgrade, Redis, RedisAddress};
use lapsed_testbed::RedisServer;
use lapsed_testbed::resp::{Reply, RespConnection};

pub struct Caller {
    connection: RespConnection,
}

impl Caller {
    /// On a server that has the functions.
    pub async fn on(server: &RedisServer) -> Caller {
        let redis = Redis::new(&RedisAddress::new(&server.url())).unwrap();
        redis.load_functions(Downgrade::Refuse).await.unwrap();
        Caller::bare(server)
    }

    /// On a server as it is.
    pub fn bare(server: &RedisServer) -> Caller {
        Caller { connection: server.connect(Duration::from_secs(5)).unwrap() }
    }

    /// Any command; the error is the server's words.
    pub fn call(&mut self, words: &[&str]) -> Result<Reply, String> {
        self.connection.call(words).map_err(|error| error.to_string())
    }

    /// The answer as text, one line a part.
    pub fn fcall(&mut self, name: &str, keys: &[&str], args: &[&str]) -> Result<String, String> {
        let count = keys.len().to_string();
        let words = [&["FCALL", name, &count], keys, args].concat();
        self.call(&words).map(|reply| reply.to_string())
    }

    /// The same for what must succeed.
    pub fn must(&mut self, name: &str, keys: &[&str], args: &[&str]) -> String {
        self.fcall(name, keys, args).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The same for what must be refused; the error's code.
    pub fn refused(&mut self, name: &str, keys: &[&str], args: &[&str]) -> String {
        let words = self.fcall(name, keys, args).unwrap_err();
        words.split(' ').next().unwrap().to_owned()
    }
}

/// The first line: the incarnation, of what `start` and `beat` answer.
pub fn first(answer: &str) -> String {
    answer.lines().next().unwrap().to_owned()
}
