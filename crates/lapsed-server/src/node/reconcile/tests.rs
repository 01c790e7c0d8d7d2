//! Tests of the reconciler with an index of numbers from which every tenth row is missing.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use lapsed_core::Kind;
use lapsed_core::clock::{ManualClock, SystemClock};
use lapsed_core::reconcile::Healed;

use crate::metrics::Metrics;

const ROWS: u64 = 1_200;

/// A truth of the numbers `0..ROWS`, and `indexed` as its index.
#[derive(Default)]
struct Numbers {
    indexed: Mutex<BTreeSet<u64>>,
    fail_from: Option<u64>,
    silent: bool,
    /// Belongs to somebody else, so that scheduled runs only report.
    is_foreign: bool,
}

impl Numbers {
    fn drifted() -> Numbers {
        let indexed = (0..ROWS).filter(|row| row % 10 != 0).collect();
        Numbers { indexed: Mutex::new(indexed), ..Numbers::default() }
    }
}

#[async_trait]
impl Reconcile for Numbers {
    async fn reconcile(&self, after: Cursor, limit: usize, act: PassMode) -> Result<Reconciled> {
        if self.silent {
            std::future::pending::<()>().await;
        }
        let from: u64 = after.0.map_or(0, |text| text.parse().unwrap());
        if self.fail_from.is_some_and(|fail| from >= fail) {
            return Err(Error::Unavailable { store: "fake".into(), what: "gone".into() });
        }
        let to = (from + limit as u64).min(ROWS);
        let mut indexed = self.indexed.lock().unwrap();
        let missing: Vec<u64> = (from..to).filter(|row| !indexed.contains(row)).collect();
        if act == PassMode::Reclaim {
            indexed.extend(&missing);
        }
        let change = |row: &u64| IndexChange {
            key: row.to_string(),
            what: Healed::Added,
            why: "missing".into(),
        };
        let left = (to - from) - missing.len() as u64;
        Ok(Reconciled {
            examined: to - from,
            changes: missing.iter().map(change).collect(),
            left: BTreeMap::from([("indexed".to_owned(), left)]),
            next: (to < ROWS).then(|| Cursor(Some(to.to_string()))),
        })
    }

    async fn extent(&self) -> Result<u64> {
        Ok(ROWS)
    }

    fn heals_on_schedule(&self) -> bool {
        !self.is_foreign
    }
}

struct Bed {
    reconciler: Arc<Reconciler>,
    metrics: Arc<Metrics>,
    index: Arc<Numbers>,
}

fn bed(index: Numbers, clock: Arc<dyn Clock>) -> Bed {
    let index = Arc::new(index);
    let metrics = Arc::new(Metrics::new(clock.clone(), Vec::new()));
    let id = SystemId::new(Kind::Sessions, "chat").unwrap();
    metrics.introduce_index(&id);
    let reconciler = Arc::new(Reconciler::new(
        ReconcilerParts::new(id, index.clone(), clock)
            .observer(metrics.clone())
            .every(Some(Duration::from_secs(7 * 24 * 3600))),
    ));
    Bed { reconciler, metrics, index }
}

fn order(act: PassMode) -> ReconcileOrder {
    ReconcileOrder { act, after: Cursor::default(), list: 50 }
}

fn has(metrics: &Metrics, line: &str) -> bool {
    let text = metrics.encode();
    text.lines().any(|l| l == line)
}

const ADDED: &str = "lapsed_reconciled_total{system=\"chat\",change=\"added\",kind=\"sessions\"}";
const DRIFT: &str = "lapsed_drift{system=\"chat\",kind=\"sessions\"}";

#[tokio::test]
async fn a_dry_run_finds_what_the_real_one_heals_and_then_they_agree() {
    let Bed { reconciler, metrics, index } = bed(Numbers::drifted(), SystemClock::shared());
    let (_stopper, stop) = StopSignal::channel();
    let mut pages = Vec::new();
    let dry = reconciler.run(order(PassMode::DryRun), &stop, &mut |rows| pages.push(rows)).await;
    let dry = dry.unwrap();
    assert_eq!(pages, [500, 500, 200]);
    assert_eq!((dry.report.examined, dry.report.added), (ROWS, 120));
    assert!(dry.report.finished && !dry.report.agree && dry.report.dry_run);
    assert_eq!((dry.changes.len(), dry.changes_cut), (50, true));
    assert_eq!(index.indexed.lock().unwrap().len(), 1_080, "nothing changed");
    assert!(has(&metrics, &format!("{DRIFT} 120")) && has(&metrics, &format!("{ADDED} 0")));

    let real = reconciler.run(order(PassMode::Reclaim), &stop, &mut |_| {}).await.unwrap();
    assert_eq!((real.report.added, real.report.left["indexed"]), (120, 1_080));
    assert!(has(&metrics, &format!("{DRIFT} 120")) && has(&metrics, &format!("{ADDED} 120")));

    let again = reconciler.run(order(PassMode::DryRun), &stop, &mut |_| {}).await.unwrap();
    assert!(again.report.agree && again.report.finished && again.changes.is_empty());
    assert!(has(&metrics, &format!("{DRIFT} 0")) && has(&metrics, &format!("{ADDED} 120")));
}

#[tokio::test]
async fn stopped_it_says_where_to_go_on_and_goes_on_there() {
    let Bed { reconciler, metrics, .. } = bed(Numbers::drifted(), SystemClock::shared());
    let (stopper, stop) = StopSignal::channel();
    let mut rows = 0;
    let mut tell = |page: u64| {
        rows += page;
        if rows >= 500 {
            stopper.stop();
        }
    };
    // The page during which the stop was signalled is finished, and so is the one after it, which
    // had already begun.
    let first = reconciler.run(order(PassMode::Reclaim), &stop, &mut tell).await.unwrap();
    assert!(!first.report.finished && first.report.examined < ROWS, "{first:?}");
    assert!(has(&metrics, &format!("{DRIFT} 0")), "half a run says nothing of the drift");
    let after = first.report.next.unwrap();
    let (_stopper, stop) = StopSignal::channel();
    let rest = ReconcileOrder { after, ..order(PassMode::Reclaim) };
    let rest = reconciler.run(rest, &stop, &mut |_| {}).await.unwrap();
    assert!(rest.report.finished);
    assert!(has(&metrics, &format!("{DRIFT} 0")), "nor does the other half");
    assert_eq!(first.report.examined + rest.report.examined, ROWS);
    assert_eq!(first.report.added + rest.report.added, 120);
}

#[tokio::test]
async fn a_page_that_fails_does_not_lose_the_account() {
    let index = Numbers { fail_from: Some(1_000), ..Numbers::drifted() };
    let Bed { reconciler, metrics, .. } = bed(index, SystemClock::shared());
    let (_stopper, stop) = StopSignal::channel();
    let broken = reconciler.run(order(PassMode::Reclaim), &stop, &mut |_| {}).await.unwrap();
    assert_eq!((broken.report.examined, broken.report.added), (1_000, 100));
    assert!(!broken.report.finished);
    assert_eq!(broken.report.next, Some(Cursor(Some("1000".to_owned()))));
    assert!(broken.error.unwrap().contains("gone"));
    assert!(has(&metrics, &format!("{ADDED} 100")));
    let failed = "lapsed_reconcile_total{system=\"chat\",ended=\"error\",kind=\"sessions\"} 1";
    assert!(has(&metrics, failed), "{}", metrics.encode());
}

#[tokio::test]
async fn a_page_without_an_answer_ends_it_in_time() {
    let clock = ManualClock::at(1);
    let index = Numbers { silent: true, ..Numbers::default() };
    let Bed { reconciler, .. } = bed(index, Arc::new(clock.clone()));
    let running = tokio::spawn(async move {
        let (_stopper, stop) = StopSignal::channel();
        reconciler.run(order(PassMode::Reclaim), &stop, &mut |_| {}).await
    });
    while !running.is_finished() {
        clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    let done = running.await.unwrap().unwrap();
    assert!(done.error.unwrap().contains("within 5000 ms"));
}

#[tokio::test]
async fn by_itself_it_runs_first_after_one_interval_and_only_in_its_turn() {
    let clock = ManualClock::at(1);
    let Bed { reconciler, index, .. } = bed(Numbers::drifted(), Arc::new(clock.clone()));
    let (stopper, stop) = StopSignal::channel();
    let turn = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (kept, may) = (reconciler.clone(), turn.clone());
    let keeping = tokio::spawn(async move {
        kept.keep(stop, || may.load(std::sync::atomic::Ordering::Relaxed)).await;
    });
    let pass = async |hours: u64| {
        for _ in 0..hours {
            clock.advance(Duration::from_secs(3600));
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        }
    };
    let indexed = || index.indexed.lock().unwrap().len();
    pass(6 * 24).await;
    assert_eq!(indexed(), 1_080, "not at the start");
    pass(3 * 24).await;
    assert_eq!(indexed(), 1_080, "another process leads");
    turn.store(true, std::sync::atomic::Ordering::Relaxed);
    pass(8 * 24).await;
    assert_eq!(indexed(), ROWS as usize);
    stopper.stop();
    keeping.await.unwrap();
}

#[tokio::test]
async fn a_scheduled_run_only_reports_what_is_healed_on_request() {
    let clock = ManualClock::at(1);
    let numbers = Numbers { is_foreign: true, ..Numbers::drifted() };
    let Bed { reconciler, metrics, index } = bed(numbers, Arc::new(clock.clone()));
    let (stopper, stop) = StopSignal::channel();
    let keeping = tokio::spawn(async move { reconciler.keep(stop, || true).await });
    for _ in 0..9 * 24 {
        clock.advance(Duration::from_secs(3600));
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    }
    stopper.stop();
    keeping.await.unwrap();
    assert!(has(&metrics, &format!("{DRIFT} 120")) && has(&metrics, &format!("{ADDED} 0")));
    assert_eq!(index.indexed.lock().unwrap().len(), 1_080, "nothing changed");
}
