//! A server that follows another one, until it is promoted.

use std::ops::Deref;
use std::time::Duration;

use crate::resp::RespConnection;
use crate::server::field_of;
use crate::{RedisServer, ServerOptions, TestbedError, TestbedResult, until};

const SYNC_LIMIT: Duration = Duration::from_secs(20);
const CALL_LIMIT: Duration = Duration::from_secs(20);

/// A replica: a [`RedisServer`] like any other, and these two.
pub struct Replica {
    server: RedisServer,
    primary_port: u16,
    primary_password: Option<String>,
}

impl RedisServer {
    /// Starts a server of the same engine, persistence and extras that follows `primary`, and waits
    /// until it has what the primary has now.
    pub fn replica_of(primary: &RedisServer) -> TestbedResult<Replica> {
        let own = primary.options().clone();
        let mut options = ServerOptions { port: crate::PortChoice::Free, ..own }
            .extra("replicaof", &format!("127.0.0.1 {}", primary.port()));
        let primary_password = primary.options().password().map(str::to_owned);
        if let Some(password) = &primary_password {
            options = options.extra("masterauth", password);
        }
        let server = options.start()?;
        let replica = Replica { server, primary_port: primary.port(), primary_password };
        replica.wait_synced()?;
        Ok(replica)
    }
}

impl Replica {
    /// Makes it a primary of its own, also after a restart.
    pub fn promote(&self) -> TestbedResult<()> {
        self.command(&["REPLICAOF", "NO", "ONE"])?;
        self.command(&["CONFIG", "REWRITE"])?;
        Ok(())
    }

    /// The server that it is, once it was promoted.
    pub fn into_server(self) -> RedisServer {
        self.server
    }

    /// Waits until it has everything that the primary had when this was called.
    pub fn wait_synced(&self) -> TestbedResult<()> {
        let behind = |field: &str, info: &str| field_of(info, field).parse::<u64>().ok();
        let primary = behind("master_repl_offset", &self.ask_primary()?)
            .ok_or_else(|| TestbedError::new("the primary tells no replication offset"))?;
        until("the replica to be in sync", SYNC_LIMIT, || {
            let info = self.command(&["INFO", "replication"])?;
            let linked = field_of(&info, "master_link_status") == "up";
            let caught_up = behind("slave_repl_offset", &info).is_some_and(|own| own >= primary);
            Ok((linked && caught_up).then_some(()))
        })
    }

    fn ask_primary(&self) -> TestbedResult<String> {
        let mut connection = RespConnection::open(self.primary_port, CALL_LIMIT)?;
        if let Some(password) = &self.primary_password {
            connection.call(&["AUTH", password])?;
        }
        Ok(connection.call(&["INFO", "replication"])?.to_string())
    }
}

impl Deref for Replica {
    type Target = RedisServer;

    fn deref(&self) -> &RedisServer {
        &self.server
    }
}
