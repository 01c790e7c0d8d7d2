//! Settings of a server that matter to a mirror: eviction and keyspace events.

use lapsed_core::Result;

use crate::Redis;

impl Redis {
    /// What the server does when its memory is full (`maxmemory-policy`); `None`: its memory has no limit,
    /// or it does not say.
    pub async fn eviction(&self) -> Result<Option<String>> {
        let mut cmd = redis::cmd("INFO");
        cmd.arg("memory");
        let info: Option<String> = self.connection().on_node(0, "INFO memory", &cmd).await?;
        let info = info.unwrap_or_default();
        let field = |name: &str| {
            info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        let limited = field("maxmemory").is_some_and(|bytes| bytes != "0");
        Ok(field("maxmemory_policy").filter(|_| limited).map(str::to_owned))
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
