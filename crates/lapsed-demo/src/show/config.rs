//! The configuration of the daemon of `lapsed demo --serve`: one system of every kind, with times so short that
//! dead owners are reclaimed within seconds.

use super::super::processes::Folder;
use crate::kinds::KINDS;

/// An owner is dead after this time without a heartbeat, in milliseconds.
pub const TTL_MS: u64 = 4_000;

/// The text of the configuration file. Leases are swept only when their keys have been idle for a moment; the
/// runners leave such moments.
pub fn text(folder: &Folder, listen: &str) -> String {
    let data = folder.data();
    let data = data.display();
    let head =
        format!("[server]\nlisten = {listen:?}\n\n[store.show]\nurl = \"embedded:{data}\"\n");
    let ttl = format!("{TTL_MS}ms");
    let sections = KINDS.iter().map(|kind| kind.section.replace("@TTL@", &ttl));
    std::iter::once(head).chain(sections).collect::<Vec<_>>().join("\n")
}
