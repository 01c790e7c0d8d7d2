//! The checks at the end of a run of leases.

use std::collections::{BTreeMap, BTreeSet};

use lapsed_core::leases::conformance::history;
use lapsed_core::leases::conformance::history::What;
use lapsed_core::leases::{LeaseInfo, LeaseState};
use lapsed_core::receipt::{Reason, Receipt, ReceiptQuery};
use lapsed_core::schedule::StopSignal;

use crate::executor::START_MS;
use crate::leases::actors::{Actor, LeaseRunRecord, keys};
use crate::promise::{Broken, Checked, Promise, holds};

/// The number of sweeps after which nothing may be left.
const PASSES: usize = 12;

/// The state at the end of a run.
pub struct LeaseEnd {
    described: Vec<LeaseInfo>,
    receipts: Vec<Receipt>,
}

/// Sweeps until nothing can be left, and reads all receipts and keys.
pub async fn ended(actor: &Actor) -> Result<LeaseEnd, Broken> {
    let sweeper = actor.sweeper();
    let (_stopper, stop) = StopSignal::channel();
    for _ in 0..PASSES {
        actor.pass(&sweeper, &stop).await;
        actor.clock.sleep(std::time::Duration::from_secs(120)).await;
    }
    let failed =
        |error: lapsed_core::Error| Broken::new(Promise::P4, format!("in the end: {error}"));
    let query = ReceiptQuery { after: Some(0), limit: 100_000, ..ReceiptQuery::default() };
    let receipts = actor.store.receipts(actor.leases.system(), query).await.map_err(failed)?;
    let mut described = Vec::new();
    for key in keys() {
        described.extend(actor.leases.peek(&key).await.map_err(failed)?);
    }
    Ok(LeaseEnd { described, receipts })
}

/// Checks the log and the final state against the promises.
pub fn check(record: &LeaseRunRecord, ended: &LeaseEnd) -> Checked {
    check_history(record, ended)?;
    check_decisions(record)?;
    check_all_cleared(ended)?;
    check_receipts(record, ended)
}

fn check_history(record: &LeaseRunRecord, ended: &LeaseEnd) -> Checked {
    let number = |state: &Option<LeaseState>| match state {
        Some(LeaseState::Json(value)) => value.as_u64().unwrap_or(0),
        Some(LeaseState::Bytes(_)) | None => 0,
    };
    let name = |one: &LeaseInfo| format!("{}/{}", one.namespace, one.key);
    let last = ended.described.iter().map(|one| (name(one), number(&one.state))).collect();
    match history::check(&record.events, &last) {
        Ok(_) => Ok(()),
        Err(what) if what.contains("had been left") => Err(Broken::new(Promise::P4, what)),
        Err(what) => Err(Broken::new(Promise::P5, what)),
    }
}

fn check_decisions(record: &LeaseRunRecord) -> Checked {
    for (txn, answers) in &record.decisions {
        let agreed = answers.windows(2).all(|two| two[0] == two[1]);
        holds(agreed, Promise::P4, || format!("{txn} was decided twice: {answers:?}"))?;
    }
    Ok(())
}

fn check_all_cleared(ended: &LeaseEnd) -> Checked {
    for one in &ended.described {
        holds(one.lease.is_none(), Promise::P2, || format!("nobody cleared {one:?}"))?;
    }
    Ok(())
}

/// Of every token that was ever granted: one receipt if it ran out, none if it was released; and none
/// from before its holder had ceased to believe in it.
fn check_receipts(record: &LeaseRunRecord, ended: &LeaseEnd) -> Checked {
    let mut receipts: BTreeMap<(String, u64), &Receipt> = BTreeMap::new();
    for receipt in ended.receipts.iter().filter(|r| r.reason == Reason::LeaseExpired) {
        let what = (receipt.key.to_string(), receipt.incarnation.0);
        let twice = receipts.insert(what, receipt);
        holds(twice.is_none(), Promise::P3, || format!("two receipts: {receipt:?} {twice:?}"))?;
    }
    for (key, tokens) in granted(record, ended) {
        for token in tokens {
            let what = (key.clone(), token);
            let receipt = receipts.get(&what);
            let right = match record.releases.get(&what) {
                Some(true) => receipt.is_none(),
                Some(false) => true,
                None => receipt.is_some(),
            };
            let released = record.releases.get(&what);
            holds(right, Promise::P3, || {
                format!("{key} by token {token}: released {released:?}, receipt {receipt:?}")
            })?;
        }
    }
    check_counted(record)?;
    check_belief(record, &receipts)
}

/// The tokens of each key: all from the first one under which the key got a state. Before that it may
/// have been forgotten, and its tokens have gaps: of those, the ones that somebody was told.
fn granted(record: &LeaseRunRecord, ended: &LeaseEnd) -> BTreeMap<String, BTreeSet<u64>> {
    let mut granted: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for event in &record.events {
        granted.entry(event.key.clone()).or_default().insert(event.token);
    }
    let counted = record.events.iter().filter(|event| matches!(event.what, What::Counted { .. }));
    let mut with_state: BTreeMap<String, u64> = BTreeMap::new();
    for event in counted {
        let first = with_state.entry(event.key.clone()).or_insert(event.token);
        *first = (*first).min(event.token);
    }
    for one in &ended.described {
        let key = format!("{}/{}", one.namespace, one.key);
        if let Some(first) = with_state.get(&key) {
            granted.entry(key).or_default().extend(*first..=one.token.0);
        }
    }
    granted
}

/// Nobody counted what somebody else had counted.
fn check_counted(record: &LeaseRunRecord) -> Checked {
    let mut counted = record.counted.clone();
    counted.sort();
    let twice = counted.windows(2).find(|two| two[0] == two[1] && two[0].1 > 0);
    holds(twice.is_none(), Promise::P3, || format!("counted twice: {twice:?}"))
}

fn check_belief(record: &LeaseRunRecord, receipts: &BTreeMap<(String, u64), &Receipt>) -> Checked {
    let mut until: BTreeMap<(String, u64), u64> = BTreeMap::new();
    for event in &record.events {
        if let What::Granted { until_ns, .. } | What::Renewed { until_ns } = event.what {
            until.insert((event.key.clone(), event.token), until_ns);
        }
    }
    for (what, until_ns) in until {
        let Some(receipt) = receipts.get(&what) else { continue };
        let believed_ms = START_MS + until_ns / 1_000_000;
        holds(receipt.at_ms >= believed_ms, Promise::P1, || {
            format!("{what:?} was taken at {} from one alive until {believed_ms}", receipt.at_ms)
        })?;
    }
    Ok(())
}
