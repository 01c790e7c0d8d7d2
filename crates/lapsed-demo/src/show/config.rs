//! The show's configuration: one of every system, each with times so short that something is seen
//! within seconds.

use super::super::cast::Folder;
use crate::kinds::KINDS;

/// How long the silence of an owner lasts before it means death.
pub const TTL_MS: u64 = 4_000;

/// The file of the daemon. Leases are swept when nobody has used them for a moment: the runners leave
/// such moments.
pub fn text(folder: &Folder, listen: &str) -> String {
    let data = folder.data();
    let data = data.display();
    let head =
        format!("[server]\nlisten = {listen:?}\n\n[store.show]\nurl = \"embedded:{data}\"\n");
    let ttl = format!("{TTL_MS}ms");
    let sections = KINDS.iter().map(|kind| kind.section.replace("@TTL@", &ttl));
    std::iter::once(head).chain(sections).collect::<Vec<_>>().join("\n")
}
