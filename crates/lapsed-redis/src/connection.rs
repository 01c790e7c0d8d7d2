//! The connection to one server or a cluster: always with time limits, reconnecting automatically.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::future::{BoxFuture, Either, select};
use lapsed_core::{Error, Result};
use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{Client, Cmd, ErrorKind, FromRedisValue, IntoConnectionInfo, RedisError, Value};
use tokio::sync::OnceCell;

use crate::error_mapping::{store_error, unexpected_answer};
use crate::script::Script;

/// The address of a server or cluster, and the time limits of its calls.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisAddress {
    /// `redis://`, `rediss://`, `redis+cluster://` or `rediss+cluster://`; of a cluster several
    /// nodes, joined by commas.
    pub url: String,
    /// The time limit for connecting.
    pub connect_timeout: Duration,
    /// The time limit of one answer.
    pub response_timeout: Duration,
}

/// Shows the address without its password.
impl std::fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Address").field(&self.place()).finish()
    }
}

impl RedisAddress {
    /// An address with the default time limits: 2 s to connect, 2 s for an answer.
    pub fn new(url: &str) -> RedisAddress {
        RedisAddress {
            url: url.to_owned(),
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_secs(2),
        }
    }

    /// Whether it is a cluster.
    pub fn is_cluster(&self) -> bool {
        self.url.split("://").next().is_some_and(|scheme| scheme.ends_with("+cluster"))
    }

    /// The address of each node, as the client library reads it.
    pub(crate) fn nodes(&self) -> Vec<String> {
        let url = self.url.replacen("+cluster", "", 1).replacen("valkey", "redis", 1);
        let Some((scheme, rest)) = url.split_once("://") else { return vec![url] };
        let (credentials, hosts) = match rest.rsplit_once('@') {
            Some((credentials, hosts)) => (format!("{credentials}@"), hosts),
            None => (String::new(), rest),
        };
        let (hosts, path) = match hosts.split_once('/') {
            Some((hosts, path)) => (hosts, format!("/{path}")),
            None => (hosts, String::new()),
        };
        let node = |host: &str| format!("{scheme}://{credentials}{host}{path}");
        hosts.split(',').map(node).collect()
    }

    /// The address without user and password, for errors and logs.
    pub fn place(&self) -> String {
        match self.url.rsplit_once('@') {
            Some((credentials, rest)) => {
                let scheme = credentials.split("://").next().unwrap_or("redis");
                format!("{scheme}://{rest}")
            }
            None => self.url.clone(),
        }
    }

    /// The server or cluster and the number of the database, the same for every address that leads there.
    pub fn database(&self) -> String {
        let node = |node: String| {
            let Ok(info) = node.into_connection_info() else { return self.place() };
            let server = info.addr().to_string().replacen("localhost:", "127.0.0.1:", 1);
            format!("{server}/{}", info.redis_settings().db())
        };
        let mut nodes: Vec<String> = self.nodes().into_iter().map(node).collect();
        nodes.sort();
        nodes.join(",")
    }

    /// Refuses what cannot be an address, without repeating it: it may hold a password.
    pub fn check(&self) -> std::result::Result<(), String> {
        for node in self.nodes() {
            node.into_connection_info().map_err(|error| match error.detail() {
                Some(detail) => detail.to_owned(),
                None => "it is not an address that Redis clients understand".to_owned(),
            })?;
        }
        Ok(())
    }
}

/// One server, or a cluster.
#[derive(Clone)]
enum Channel {
    Server { client: Box<Client>, manager: ConnectionManager },
    Cluster { client: Box<ClusterClient>, connection: Arc<OnceCell<ClusterConnection>> },
}

/// A connection to a server or a cluster. Clones share it.
#[derive(Clone)]
pub(crate) struct RedisConnection {
    channel: Channel,
    pub place: Arc<str>,
    /// The number of requests that were sent so far.
    pub requests: Arc<AtomicU64>,
}

impl RedisConnection {
    /// Prepares the client without connecting; the first call connects. Must be called inside a runtime.
    pub fn new(address: &RedisAddress) -> Result<RedisConnection> {
        // Fails if the process has chosen a provider already, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let place: Arc<str> = Arc::from(address.place());
        let wrong = |error: RedisError| store_error(&place, "connect", &error);
        let channel = match address.is_cluster() {
            true => Self::cluster(address).map_err(wrong)?,
            false => Self::server(address).map_err(wrong)?,
        };
        Ok(RedisConnection { channel, place, requests: Arc::default() })
    }

    fn server(address: &RedisAddress) -> redis::RedisResult<Channel> {
        let node = address.nodes().into_iter().next().unwrap_or_default();
        // One attempt at a call: how long to wait for the next is the caller's business, and a
        // call must not take longer than it says.
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(address.connect_timeout))
            .set_response_timeout(Some(address.response_timeout))
            .set_number_of_retries(1)
            .set_min_delay(Duration::from_millis(50))
            .set_max_delay(Duration::from_millis(500));
        let client = Client::open(node)?;
        let manager = ConnectionManager::new_lazy_with_config(client.clone(), config)?;
        Ok(Channel::Server { client: Box::new(client), manager })
    }

    fn cluster(address: &RedisAddress) -> redis::RedisResult<Channel> {
        let client = ClusterClient::builder(address.nodes())
            .connection_timeout(address.connect_timeout)
            .response_timeout(address.response_timeout)
            .retries(8)
            .min_retry_wait(10)
            .max_retry_wait(300)
            .build()?;
        Ok(Channel::Cluster { client: Box::new(client), connection: Arc::default() })
    }

    pub fn is_cluster(&self) -> bool {
        matches!(self.channel, Channel::Cluster { .. })
    }

    async fn send(&self, cmd: &Cmd) -> redis::RedisResult<Value> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        match &self.channel {
            Channel::Server { manager, .. } => manager.clone().req_packed_command(cmd).await,
            Channel::Cluster { client, connection } => {
                let connected =
                    connection.get_or_try_init(|| client.get_async_connection()).await?;
                connected.clone().req_packed_command(cmd).await
            }
        }
    }

    pub async fn query<T: FromRedisValue>(&self, call: &str, cmd: &Cmd) -> Result<T> {
        let value = self.send(cmd).await.and_then(Value::extract_error);
        let value = value.map_err(|error| store_error(&self.place, call, &error))?;
        T::from_redis_value(value).map_err(|_| unexpected_answer(&self.place, call))
    }

    /// Sends several commands of one slot at once. The answer to a command that the server refuses is `None`.
    pub async fn query_each<T: FromRedisValue>(
        &self,
        call: &str,
        pipeline: &redis::Pipeline,
        count: usize,
    ) -> Result<Vec<Option<T>>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let values = self.send_all(pipeline, 0, count).await;
        let values = values.map_err(|error| store_error(&self.place, call, &error))?;
        // A command that the server refuses (a wrong type) does not affect the others.
        let read = |value: Value| value.extract_error().ok().map(T::from_redis_value);
        let read = |value: Value| {
            read(value).transpose().map_err(|_| unexpected_answer(&self.place, call))
        };
        values.into_iter().map(read).collect()
    }

    /// A transaction of one slot, MULTI and EXEC included: the answers of its commands, some of which may be
    /// errors. `answer_at`: where the answer to EXEC is. `None`: the server does not carry it out.
    pub async fn transact(
        &self,
        call: &str,
        pipeline: &redis::Pipeline,
        answer_at: usize,
    ) -> Result<Option<Vec<Value>>> {
        match self.send_all(pipeline, answer_at, 1).await.map(|mut values| values.pop()) {
            Ok(Some(Value::Array(answers))) => Ok(Some(answers)),
            Ok(_) => Ok(None),
            Err(error) if matches!(error.kind(), ErrorKind::Server(_)) => Ok(None),
            Err(error) => Err(store_error(&self.place, call, &error)),
        }
    }

    /// Sends several commands of one slot at once, and returns `count` answers from the index `from` on.
    async fn send_all(
        &self,
        pipeline: &redis::Pipeline,
        from: usize,
        count: usize,
    ) -> redis::RedisResult<Vec<Value>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        match &self.channel {
            Channel::Server { manager, .. } => {
                manager.clone().req_packed_commands(pipeline, from, count).await
            }
            Channel::Cluster { client, connection } => {
                let connected =
                    connection.get_or_try_init(|| client.get_async_connection()).await?;
                connected.clone().req_packed_commands(pipeline, from, count).await
            }
        }
    }

    /// Hears what is published on channels that match `pattern` until `end` resolves, over a connection of its own. False: it was
    /// not heard until then, because this user may not, or the connection was lost.
    pub async fn hear(
        &self,
        pattern: &str,
        mut end: BoxFuture<'static, ()>,
        mut visit: impl FnMut(&str, &[u8]),
    ) -> bool {
        let Channel::Server { client, .. } = &self.channel else { return false };
        let subscribe = async {
            let mut pubsub = client.get_async_pubsub().await.ok()?;
            pubsub.psubscribe(pattern).await.ok().map(|()| pubsub)
        };
        let mut messages = match select(pin!(subscribe), &mut end).await {
            Either::Left((Some(pubsub), _)) => pubsub.into_on_message(),
            _ => return false,
        };
        loop {
            match select(messages.next(), &mut end).await {
                Either::Left((Some(message), _)) => {
                    visit(message.get_channel_name(), message.get_payload_bytes());
                }
                Either::Left((None, _)) => return false,
                Either::Right(_) => return true,
            }
        }
    }

    /// One command on one node of a cluster, by its place in their order; a server has one node.
    /// `None`: there is no such node.
    pub async fn on_node<T: FromRedisValue>(
        &self,
        node: usize,
        call: &str,
        cmd: &Cmd,
    ) -> Result<Option<T>> {
        let Channel::Cluster { client, connection } = &self.channel else {
            return if node == 0 { self.query(call, cmd).await.map(Some) } else { Ok(None) };
        };
        let nodes = self.masters().await?;
        let Some((host, port)) = nodes.get(node).cloned() else { return Ok(None) };
        let connected = connection.get_or_try_init(|| client.get_async_connection()).await;
        let mut connected =
            connected.map_err(|error| store_error(&self.place, call, &error))?.clone();
        let routing = RoutingInfo::SingleNode(SingleNodeRoutingInfo::ByAddress { host, port });
        let value = connected.route_command(cmd.clone(), routing).await;
        let value = value.and_then(Value::extract_error);
        let value = value.map_err(|error| store_error(&self.place, call, &error))?;
        T::from_redis_value(value).map(Some).map_err(|_| unexpected_answer(&self.place, call))
    }

    /// Sends one command to every node. The answers are in the order of the nodes.
    pub async fn on_every_node<T: FromRedisValue>(&self, call: &str, cmd: &Cmd) -> Result<Vec<T>> {
        let mut answers = Vec::new();
        while let Some(answer) = self.on_node(answers.len(), call, cmd).await? {
            answers.push(answer);
        }
        Ok(answers)
    }

    /// The masters of a cluster, in the order of their first slots.
    async fn masters(&self) -> Result<Vec<(String, u16)>> {
        let mut cmd = redis::cmd("CLUSTER");
        cmd.arg("SLOTS");
        let Channel::Cluster { client, connection } = &self.channel else { return Ok(Vec::new()) };
        let connected = connection.get_or_try_init(|| client.get_async_connection()).await;
        let mut connected =
            connected.map_err(|error| store_error(&self.place, "CLUSTER SLOTS", &error))?.clone();
        let routing = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
        let value = connected.route_command(cmd, routing).await;
        let value = value.map_err(|error| store_error(&self.place, "CLUSTER SLOTS", &error))?;
        let rows = Vec::<Vec<Value>>::from_redis_value(value)
            .map_err(|_| unexpected_answer(&self.place, "CLUSTER SLOTS"))?;
        let mut masters: Vec<(u64, String, u16)> = Vec::new();
        for row in rows {
            let read = || -> Option<(u64, String, u16)> {
                let first = u64::from_redis_value(row.first()?.clone()).ok()?;
                let node = Vec::<Value>::from_redis_value(row.get(2)?.clone()).ok()?;
                let host = String::from_redis_value(node.first()?.clone()).ok()?;
                Some((first, host, u16::from_redis_value(node.get(1)?.clone()).ok()?))
            };
            masters.push(read().ok_or_else(|| unexpected_answer(&self.place, "CLUSTER SLOTS"))?);
        }
        masters.sort();
        let mut nodes: Vec<(String, u16)> = Vec::new();
        for (_, host, port) in masters {
            if !nodes.contains(&(host.clone(), port)) {
                nodes.push((host, port));
            }
        }
        Ok(nodes)
    }

    /// Runs a script by its digest, or by its text if the server does not know it yet.
    pub async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[&str],
        args: &[&[u8]],
    ) -> Result<T> {
        let command = |verb: &str, what: &str| {
            let mut cmd = redis::cmd(verb);
            cmd.arg(what).arg(keys.len()).arg(keys).arg(args);
            cmd
        };
        let first = self.send(&command("EVALSHA", script.sha())).await;
        let value = match first.and_then(Value::extract_error) {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                let again = self.send(&command("EVAL", script.text())).await;
                again.and_then(Value::extract_error)
            }
            other => other,
        };
        let value = value.map_err(|error| store_error(&self.place, script.name, &error))?;
        T::from_redis_value(value).map_err(|_| unexpected_answer(&self.place, script.name))
    }

    /// The error for an answer that does not have the expected shape.
    pub fn unexpected_answer(&self, call: &str) -> Error {
        unexpected_answer(&self.place, call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_a_cluster_name_every_node_and_hide_the_password() {
        let address = RedisAddress::new("rediss+cluster://me:secret@a:1,b:2");
        assert!(address.is_cluster());
        assert_eq!(address.nodes(), ["rediss://me:secret@a:1", "rediss://me:secret@b:2"]);
        assert_eq!(address.place(), "rediss+cluster://a:1,b:2");
        assert!(address.check().is_ok());
        let plain = RedisAddress::new("redis://:pw@127.0.0.1:6379/3");
        assert!(!plain.is_cluster());
        assert_eq!(plain.nodes(), ["redis://:pw@127.0.0.1:6379/3"]);
        let bad = RedisAddress::new("redis://:secret@").check();
        assert!(!bad.unwrap_err().contains("secret"));
    }
}
