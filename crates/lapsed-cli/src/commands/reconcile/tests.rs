//! Tests of the sentences that `lapsed reconcile` prints.

use super::*;
use lapsed_core::Kind;
use lapsed_core::reconcile::IndexChange;

fn done(dry_run: bool, added: u64, next: Option<&str>) -> Reconciliation {
    let change =
        IndexChange { key: "s1".into(), what: Healed::Added, why: "not in the index".into() };
    Reconciliation {
        report: ReconcileReport {
            system: "chat".into(),
            kind: Kind::Sessions,
            dry_run,
            examined: 1_000,
            added,
            removed: 0,
            corrected: 0,
            left: BTreeMap::from([("active".to_owned(), 1_000 - added)]),
            agree: added == 0,
            finished: next.is_none(),
            subject: None,
            next: next.map(|text| Cursor(Some(text.to_owned()))),
            took_ms: 12,
        },
        changes: if added > 0 { vec![change] } else { Vec::new() },
        changes_cut: false,
        error: None,
    }
}

fn id() -> SystemId {
    SystemId::new(Kind::Sessions, "chat").unwrap()
}

#[test]
fn the_account_is_exact_and_says_what_to_do_next() {
    let healed = describe(&id(), &done(false, 3, None), false, " -c f.toml");
    assert!(healed.contains("1,000 rows examined in 12ms: 3 added, 0 removed"), "{healed}");
    assert!(healed.contains("997 (active)") && healed.contains("agree now"), "{healed}");
    assert!(healed.contains("s1") && healed.contains("... and 2 more"), "{healed}");
    let dry = describe(&id(), &done(true, 1, None), false, " -c f.toml");
    assert!(dry.contains("1 would be added") && dry.contains("lapsed reconcile"), "{dry}");
    let stopped = describe(&id(), &done(false, 1, Some("t:77")), false, " -c f.toml");
    assert!(
        stopped.contains("lapsed reconcile sessions/chat --from 't:77' -c f.toml"),
        "{stopped}"
    );
}

#[test]
fn a_comparison_says_in_words_whether_they_agree() {
    let agree = describe(&id(), &done(true, 0, None), true, " -c f.toml");
    assert!(agree.contains("the scan and the index agree: 1,000 rows"), "{agree}");
    let differ = describe(&id(), &done(true, 3, None), true, " -c f.toml");
    assert!(differ.contains("do not agree") && differ.contains("3 missing"), "{differ}");
}
