//! Reads a foreign system's keys in bounded steps, and never writes.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use lapsed_core::clock::Clock;
use lapsed_core::{Error, Result};
use redis::{Cmd, FromRedisValue};

use crate::connection::RedisConnection;

/// How many elements one SCAN, SSCAN or range asks for.
const PAGE: usize = 500;

/// How many commands go in one pipeline.
const PIPELINE: usize = 200;

/// How many elements of one key are read at most. A look at a longer one does not see the rest.
const ELEMENTS_MAX: usize = 200_000;

/// Reads in bounded steps.
pub(crate) struct Reader<'a> {
    pub connection: &'a RedisConnection,
    pub clock: &'a dyn Clock,
}

/// How many pipelines are on their way at a time: the server works on one while another is written and read here.
const PIPELINES: usize = 3;

/// How long a page of SCAN may take before the pause after it is as long: somebody else is waiting, or the server is slow.
const PAGE_MAX: Duration = Duration::from_millis(2);

impl Reader<'_> {
    /// The server's clock, in milliseconds.
    pub async fn now_ms(&self) -> Result<u64> {
        let (seconds, micros): (u64, u64) =
            self.connection.query("TIME", &redis::cmd("TIME")).await?;
        Ok(seconds * 1_000 + micros / 1_000)
    }

    pub async fn one<T: FromRedisValue>(&self, verb: &str, args: &[&[u8]]) -> Result<T> {
        let mut cmd = redis::cmd(verb);
        cmd.arg(args);
        self.connection.query(verb, &cmd).await
    }

    /// The type of a key, `none` if it does not exist.
    pub async fn kind(&self, key: &[u8]) -> Result<String> {
        self.one("TYPE", &[key]).await
    }

    /// Many commands, some hundred in each round trip. `None` for one that the server refuses, because a key has another
    /// type.
    pub async fn each<T: FromRedisValue>(
        &self,
        verb: &str,
        commands: &[Vec<Vec<u8>>],
    ) -> Result<Vec<Option<T>>> {
        let some = async |some: &[Vec<Vec<u8>>]| {
            let mut pipeline = redis::pipe();
            for args in some {
                let mut cmd: Cmd = redis::cmd(verb);
                cmd.arg(args);
                pipeline.add_command(cmd);
            }
            self.connection.query_each(verb, &pipeline, some.len()).await
        };
        let answers = stream::iter(commands.chunks(PIPELINE).map(some)).buffered(PIPELINES);
        answers.try_concat().await
    }

    /// The elements of a set; at most so many that the memory is bounded.
    pub async fn set(&self, key: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (mut all, mut cursor) = (Vec::new(), b"0".to_vec());
        loop {
            let count = PAGE.to_string();
            let (next, page): (Vec<u8>, Vec<Vec<u8>>) =
                self.one("SSCAN", &[key, &cursor, b"COUNT", count.as_bytes()]).await?;
            all.extend(page);
            if next == b"0" || all.len() >= ELEMENTS_MAX {
                all.sort();
                all.dedup();
                return Ok(all);
            }
            cursor = next;
        }
    }

    /// The elements of a list, from its end on, in pages: what is added at the front meanwhile is not missed twice.
    pub async fn list_from_end(&self, key: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut all: Vec<Vec<u8>> = Vec::new();
        loop {
            let last = -1 - all.len() as i64;
            let (from, to) = ((last - PAGE as i64 + 1).to_string(), last.to_string());
            let mut page: Vec<Vec<u8>> =
                self.one("LRANGE", &[key, from.as_bytes(), to.as_bytes()]).await?;
            let is_last = page.len() < PAGE;
            page.reverse();
            all.extend(page);
            if is_last || all.len() >= ELEMENTS_MAX {
                return Ok(all);
            }
        }
    }

    /// Goes through a hash in pages. A field may come twice. False: there are more than [`ELEMENTS_MAX`], and the rest was not read.
    pub async fn hash(&self, key: &[u8], mut visit: impl FnMut(&[u8], &[u8])) -> Result<bool> {
        let (mut seen, mut cursor) = (0, b"0".to_vec());
        loop {
            let count = PAGE.to_string();
            let (next, page): (Vec<u8>, Vec<Vec<u8>>) =
                self.one("HSCAN", &[key, &cursor, b"COUNT", count.as_bytes()]).await?;
            page.chunks_exact(2).for_each(|pair| visit(&pair[0], &pair[1]));
            seen += page.len() / 2;
            if next == b"0" || seen >= ELEMENTS_MAX {
                return Ok(next == b"0");
            }
            cursor = next;
        }
    }

    /// Members of a sorted set with scores from `from` to `to`, in the server's notation, lowest first. They are read by their rank,
    /// because the server would count from the first one to the beginning of each page.
    pub async fn scores(&self, key: &[u8], from: &str, to: &str) -> Result<Vec<(Vec<u8>, f64)>> {
        let end: usize = self.one("ZCOUNT", &[key, b"-inf", to.as_bytes()]).await?;
        let inside: usize = self.one("ZCOUNT", &[key, from.as_bytes(), to.as_bytes()]).await?;
        let (mut all, mut first): (Vec<(Vec<u8>, f64)>, _) =
            (Vec::new(), end.saturating_sub(inside));
        while first < end && all.len() < ELEMENTS_MAX {
            let next = end.min(first + PAGE);
            let (start, stop) = (first.to_string(), (next - 1).to_string());
            let args: [&[u8]; 4] = [key, start.as_bytes(), stop.as_bytes(), b"WITHSCORES"];
            all.extend(self.one::<Vec<(Vec<u8>, f64)>>("ZRANGE", &args).await?);
            first = next;
        }
        Ok(all)
    }

    /// One page of SCAN, or with a key of HSCAN, SSCAN or ZSCAN: where the next one begins (`None` at the end), and its elements.
    /// Something may come twice.
    pub async fn page(
        &self,
        verb: &str,
        args: &[&[u8]],
        cursor: &str,
        limit: usize,
    ) -> Result<(Option<String>, Vec<Vec<u8>>)> {
        let mut cmd = redis::cmd(verb);
        let (key, pattern) = if verb == "SCAN" { (&args[..0], args) } else { (args, &args[..0]) };
        cmd.arg(key).arg(cursor);
        if let [pattern] = pattern {
            cmd.arg("MATCH").arg(pattern);
        }
        cmd.arg("COUNT").arg(limit.max(1));
        let (next, page): (String, Vec<Vec<u8>>) = self.connection.query(verb, &cmd).await?;
        Ok(((next != "0").then_some(next), page))
    }

    /// Goes through the names of all keys (of those that match `pattern`), in pages, one after the other. Returns how many were seen;
    /// an error if there are more than `keys_max`.
    pub async fn scan(
        &self,
        pattern: Option<&[u8]>,
        keys_max: u64,
        visit: impl FnMut(&[u8]),
    ) -> Result<u64> {
        let filter = pattern.map(|pattern| (b"MATCH".as_slice(), pattern));
        self.scan_by(filter, keys_max, visit).await
    }

    /// The same for the names of keys of one type.
    pub async fn scan_type(
        &self,
        kind: &str,
        keys_max: u64,
        visit: impl FnMut(&[u8]),
    ) -> Result<u64> {
        self.scan_by(Some((b"TYPE", kind.as_bytes())), keys_max, visit).await
    }

    async fn scan_by(
        &self,
        filter: Option<(&[u8], &[u8])>,
        keys_max: u64,
        mut visit: impl FnMut(&[u8]),
    ) -> Result<u64> {
        let (mut cursor, mut seen) = (b"0".to_vec(), 0);
        loop {
            let count = (2 * PAGE).to_string();
            let mut args: Vec<&[u8]> = vec![&cursor, b"COUNT", count.as_bytes()];
            args.extend(filter.iter().flat_map(|(what, value)| [*what, *value]));
            let sent = self.clock.mono();
            let (next, page): (Vec<u8>, Vec<Vec<u8>>) = self.one("SCAN", &args).await?;
            let took = self.clock.mono() - sent;
            page.iter().for_each(|key| visit(key));
            seen += 2 * PAGE as u64;
            if next == b"0" {
                return Ok(seen);
            }
            if seen >= keys_max {
                return Err(Error::Invalid(format!(
                    "there are more than {} keys; raise the limit to look at all of them",
                    keys_max
                )));
            }
            if took > PAGE_MAX {
                self.clock.sleep(took).await;
            }
            cursor = next;
        }
    }
}

/// A text that stands for itself in a pattern of SCAN.
pub(crate) fn escaped(text: &str) -> String {
    text.chars().flat_map(|c| if "*?[]\\^".contains(c) { vec!['\\', c] } else { vec![c] }).collect()
}
