//! A server that follows another one, until it is promoted.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::port::Port;
use crate::postgres::folder::{self, Folder};
use crate::postgres::{POSTGRES_USER, PostgresServer};
use crate::process::Process;
use crate::{TestbedError, TestbedResult, paths, until};

/// How long a standby may take to follow what its primary writes.
const FOLLOW_LIMIT: Duration = Duration::from_secs(60);

impl PostgresServer {
    /// Copies `primary` while it serves, starts a server on the copy that follows it, and waits until it does.
    pub fn standby_of(primary: &PostgresServer) -> TestbedResult<PostgresServer> {
        let options = primary.options().clone();
        let (port, folder) = (Port::free()?, Folder::empty_for(options.durability)?);
        let mut command = folder::as_its_user(&paths::pg_basebackup()?)?;
        command.args(["-h", "127.0.0.1", "-U", POSTGRES_USER, "-c", "fast", "-X", "stream", "-R"]);
        command.args(["-p", &primary.port().to_string()]).arg("-D").arg(folder.path());
        let output = command.current_dir(folder.path()).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(TestbedError::new(said).during("pg_basebackup"));
        }
        folder.append("postgresql.auto.conf", &format!("port = '{}'\n", port.number()))?;
        let databases = AtomicU64::new(0);
        let standby = Self { process: Process::default(), port, options, folder, databases };
        standby.launch()?;
        until("a standby that follows", FOLLOW_LIMIT, || {
            let sql = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
            Ok((primary.sql("postgres", sql)? != "0").then_some(()))
        })?;
        Ok(standby)
    }

    /// From now on a commit is answered when a standby has it on disk as well.
    pub fn require_standby(&self) -> TestbedResult<()> {
        self.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'")?;
        self.sql("postgres", "SELECT pg_reload_conf()")?;
        until("a synchronous standby", FOLLOW_LIMIT, || {
            let sql = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
            Ok((self.sql("postgres", sql)? != "0").then_some(()))
        })
    }

    /// Makes a standby a primary, and waits until it takes writes.
    pub fn promote(&self) -> TestbedResult<()> {
        let promoted = self.sql("postgres", "SELECT pg_promote(true, 60)")?;
        match promoted.as_str() {
            "t" => Ok(()),
            other => Err(TestbedError::new(format!("pg_promote answered {other}\n{}", self.log()))),
        }
    }
}
