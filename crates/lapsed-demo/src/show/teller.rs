//! What lapsed did, in plain words: receipts as they come, those of one owner in one sentence.

use std::collections::BTreeMap;

use lapsed_core::Kind;
use lapsed_core::receipt::{Reason, Receipt};

use super::super::api::Api;
use lapsed_server::failure::Failure;
use lapsed_server::node::shapes::ReceiptPage;
use lapsed_server::print::plural;
use lapsed_server::systems;

const SYSTEMS: &[&str] =
    &["registry/devices", "sessions/chat", "inflight/jobs", "leases/locks", "availability/mitras"];

/// Where it is in the receipts of each system.
#[derive(Default)]
pub struct Narrator {
    places: BTreeMap<&'static str, u64>,
}

impl Narrator {
    /// What happened since the last look.
    pub fn look(&mut self, api: &Api) -> Result<Vec<String>, Failure> {
        let after = SYSTEMS.iter().map(|system| {
            format!("{system}:{}", self.places.get(system).copied().unwrap_or_default())
        });
        let after = after.collect::<Vec<_>>().join(",");
        let page: ReceiptPage = api.get(&format!("/v1/receipts?limit=1000&after={after}"))?;
        for receipt in &page.receipts {
            let name = receipt.id.system.to_string();
            if let Some(system) = SYSTEMS.iter().find(|system| **system == name) {
                let place = self.places.entry(system).or_default();
                *place = receipt.id.seq.max(*place);
            }
        }
        Ok(told(&page.receipts))
    }
}

/// One sentence for each owner and what was done.
fn told(receipts: &[Receipt]) -> Vec<String> {
    let mut groups: Vec<Vec<&Receipt>> = Vec::new();
    for receipt in receipts {
        let alike = |group: &&mut Vec<&Receipt>| {
            group.first().is_some_and(|first| subject(first) == subject(receipt))
        };
        match groups.iter_mut().find(alike) {
            Some(group) => group.push(receipt),
            None => groups.push(vec![receipt]),
        }
    }
    groups.iter().filter_map(|group| sentence(group)).collect()
}

/// What receipts of one sentence have in common. Of a session it does not matter whose it was.
fn subject(receipt: &Receipt) -> (Kind, &str, u64, Reason, Option<String>) {
    let kind = receipt.id.system.kind;
    let owner = if kind == Kind::Sessions { "" } else { receipt.owner.as_str() };
    (kind, owner, receipt.incarnation.0, receipt.reason, systems::of(kind).effect(receipt))
}

fn sentence(group: &[&Receipt]) -> Option<String> {
    let first = *group.first()?;
    let (owner, key) = (&first.owner, &first.key);
    let late = group.iter().map(|receipt| receipt.evidence.late_ms).max().unwrap_or(0);
    let late = format!(", {:.1} s after its time was over", late as f64 / 1e3);
    let (gone, late) = match first.reason {
        Reason::OwnerRetired => ("has left", String::new()),
        _ => ("is declared dead", late),
    };
    let number = group.len() as u64;
    Some(match first.id.system.kind {
        Kind::Registry => format!(
            "{owner} {gone}: {} taken back{late}",
            plural(number, "connection", "connections")
        ),
        Kind::Sessions => match number {
            1 => format!("session {key} is deleted: nobody came back to it{late}"),
            _ => format!("{} are deleted: nobody came back", plural(number, "session", "sessions")),
        },
        Kind::Inflight => {
            let became = match systems::of(first.id.system.kind).effect(first).as_deref() {
                Some("dead letter") => "is a dead letter now: it has killed too many",
                Some("dropped") => "is dropped",
                _ => "is back on its queue",
            };
            format!("{owner} {gone}: its job {key} {became}")
        }
        Kind::Leases => {
            let keys: Vec<_> = group.iter().map(|receipt| receipt.key.as_str()).collect();
            format!("the lease on {} of {owner} is cleared{late}", keys.join(" and "))
        }
        Kind::Availability => format!("{key} was silent: it is set offline{late}"),
    })
}
