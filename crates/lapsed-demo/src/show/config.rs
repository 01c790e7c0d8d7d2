//! The show's configuration: one of every system, each with times so short that something is seen
//! within seconds.

use super::super::cast::Folder;

/// How long the silence of an owner lasts before it means death.
pub const TTL_MS: u64 = 4_000;

/// The same of a provider.
pub const STALE_SECONDS: u64 = 4;

/// Where each system is reached.
pub const REGISTRY: &str = "/v1/registry/devices";
pub const SESSIONS: &str = "/v1/sessions/chat";
pub const INFLIGHT: &str = "/v1/inflight/jobs";
pub const LEASES: &str = "/v1/leases/locks";
pub const AVAILABILITY: &str = "/v1/availability/mitras";

/// The file of the daemon. Leases are swept when nobody has used them for a moment: the runners leave
/// such moments.
pub fn text(folder: &Folder, listen: &str) -> String {
    let data = folder.data();
    let data = data.display();
    let kept = "receipts = { keep = \"1h\", keep_count = 50_000 }";
    format!(
        "[server]
listen = {listen:?}

[store.show]
url = \"embedded:{data}\"

[[system]]
kind = \"registry\"
name = \"devices\"
heartbeat_ttl = \"{TTL_MS}ms\"
sweep = {{ every = \"1s\" }}
{kept}

[[system]]
kind = \"sessions\"
name = \"chat\"
grace = \"5s\"
heartbeat_ttl = \"{TTL_MS}ms\"
sweep = {{ every = \"1s\" }}
{kept}

[[system]]
kind = \"inflight\"
name = \"jobs\"
heartbeat_ttl = \"{TTL_MS}ms\"
heartbeat_interval = \"1s\"
crashes_max = 2
sweep = {{ every = \"1s\" }}
{kept}

[[system]]
kind = \"leases\"
name = \"locks\"
ttl = \"{TTL_MS}ms\"
sweep = {{ every = \"1s\", idle_grace = \"100ms\" }}
{kept}

[[system]]
kind = \"availability\"
name = \"mitras\"
sweep = {{ every = \"1s\" }}
{kept}
"
    )
}
