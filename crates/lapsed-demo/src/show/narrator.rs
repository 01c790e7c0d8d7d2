//! Describes in sentences what lapsed did: reads new receipts, and puts those of one owner into one sentence.

use std::collections::BTreeMap;

use lapsed_core::Kind;
use lapsed_core::receipt::{Reason, Receipt};

use super::super::api::Api;
use crate::kinds::{DemoKind, Group, KINDS};
use lapsed_server::failure::Failure;
use lapsed_server::node::shapes::ReceiptPage;
use lapsed_server::systems;

/// The sequence number of the last receipt that was described, for each system.
#[derive(Default)]
pub struct Narrator {
    places: BTreeMap<&'static str, u64>,
}

impl Narrator {
    /// The sentences for the receipts that were written since the last call.
    pub fn look(&mut self, api: &Api) -> Result<Vec<String>, Failure> {
        let after = KINDS.iter().map(|kind| {
            let place = self.places.get(kind.system).copied().unwrap_or_default();
            format!("{}:{place}", kind.system)
        });
        let after = after.collect::<Vec<_>>().join(",");
        let page: ReceiptPage = api.get(&format!("/v1/receipts?limit=1000&after={after}"))?;
        for receipt in &page.receipts {
            let name = receipt.id.system.to_string();
            if let Some(kind) = KINDS.iter().find(|kind| kind.system == name) {
                let place = self.places.entry(kind.system).or_default();
                *place = receipt.id.seq.max(*place);
            }
        }
        Ok(told(&page.receipts))
    }
}

/// One sentence for each group of receipts with the same subject.
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

/// What the receipts of one sentence have in common. Kinds without `per_owner` ignore the owner.
fn subject(receipt: &Receipt) -> (Kind, &str, u64, Reason, Option<String>) {
    let kind = receipt.id.system.kind;
    let per_owner = shown(receipt).is_none_or(|kind| kind.per_owner);
    let owner = if per_owner { receipt.owner.as_str() } else { "" };
    let effect = systems::of(kind).effect(receipt);
    (kind, owner, receipt.incarnation.0, receipt.reason, effect)
}

fn shown(receipt: &Receipt) -> Option<&'static DemoKind> {
    let system = receipt.id.system.to_string();
    KINDS.iter().find(|kind| kind.system == system).copied()
}

fn sentence(group: &[&Receipt]) -> Option<String> {
    let first = *group.first()?;
    let late = group.iter().map(|receipt| receipt.evidence.late_ms).max().unwrap_or(0);
    let late = format!(", {:.1} s after its time was over", late as f64 / 1e3);
    let (gone, late) = match first.reason {
        Reason::OwnerRetired => ("has left", String::new()),
        _ => ("is declared dead", late),
    };
    let effect = systems::of(first.id.system.kind).effect(first);
    Some((shown(first)?.sentence)(&Group { group, first, gone, late, effect }))
}
