//! Settings of a server that lapsed only reads: eviction and keyspace events.

use lapsed_core::Result;

use crate::Redis;

impl Redis {
    /// Which keys the server removes when its memory is full (`maxmemory-policy`), on a cluster those of the first
    /// master that removes any. `None`: it removes none, its memory has no limit, or it does not say.
    pub async fn eviction(&self) -> Result<Option<String>> {
        let mut cmd = redis::cmd("INFO");
        cmd.arg("memory");
        let nodes: Vec<String> = self.connection().on_every_node("INFO memory", &cmd).await?;
        Ok(nodes.iter().filter_map(|info| policy_in(info)).find(|policy| policy != "noeviction"))
    }

    /// Which events of its keys the server tells (`notify-keyspace-events`); `None`: it does not say.
    pub async fn keyspace_events(&self) -> Option<String> {
        let mut cmd = redis::cmd("CONFIG");
        cmd.arg("GET").arg("notify-keyspace-events");
        // Many managed services forbid CONFIG GET.
        let setting: Option<Vec<String>> =
            self.connection().on_node(0, "CONFIG GET", &cmd).await.ok()?;
        setting?.into_iter().nth(1)
    }
}

/// The eviction policy in the answer to `INFO memory`, if the memory of the server has a limit.
fn policy_in(info: &str) -> Option<String> {
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    field("maxmemory").filter(|bytes| *bytes != "0")?;
    field("maxmemory_policy").map(str::to_owned)
}
