//! `lapsed reconcile` on a registry whose index drifted. The index is a fake, so that the path from
//! the command to the index is tested independent of any store.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Answer, run};
use async_trait::async_trait;
use lapsed_cli::backend::{Backend, LocalBackend};
use lapsed_core::clock::SystemClock;
use lapsed_core::reconcile::{Healed, IndexChange, Reconcile, Reconciled};
use lapsed_core::registry::{Registry, RegistryParts};
use lapsed_core::schedule::StopSignal;
use lapsed_core::sweep::{Cursor, PassMode};
use lapsed_embedded::Embedded;
use lapsed_server::api;
use lapsed_server::config::Overrides;
use lapsed_server::config::common::SystemSettings;
use lapsed_server::connections::{self, WriteTimeoutListener};
use lapsed_server::http::{App, OutboundServices};
use lapsed_server::metrics::Metrics;
use lapsed_server::node::{
    BuildContext, BuiltSystem, Config, OpenSystems, ReconcileOrder, SystemPlan,
};
use serde_json::json;

lapsed_testbed::steady_tests! {
    reconcile_lists_repairs_and_counts_index_drift,
    an_interrupted_reconcile_resumes_after_its_page,
}

/// The truth is `0..rows`; of the index three rows are missing.
#[derive(Debug)]
struct Drifted {
    rows: u64,
    missing: Mutex<BTreeSet<u64>>,
    page_takes: Duration,
}

impl Drifted {
    fn new(rows: u64, page_takes: Duration) -> Drifted {
        Drifted { rows, missing: Mutex::new(BTreeSet::from([3, 600, 601])), page_takes }
    }
}

#[async_trait]
impl Reconcile for Drifted {
    async fn reconcile(
        &self,
        after: Cursor,
        limit: usize,
        act: PassMode,
    ) -> lapsed_core::Result<Reconciled> {
        tokio::time::sleep(self.page_takes).await;
        let from: u64 = after.0.map_or(0, |text| text.parse().unwrap());
        let to = (from + limit as u64).min(self.rows);
        let mut missing = self.missing.lock().unwrap();
        let found: Vec<u64> = missing.range(from..to).copied().collect();
        if act == PassMode::Reclaim {
            missing.retain(|row| !found.contains(row));
        }
        let change = |row: &u64| IndexChange {
            key: format!("row-{row}"),
            what: Healed::Added,
            why: "not in the index".to_owned(),
        };
        Ok(Reconciled {
            examined: to - from,
            changes: found.iter().map(change).collect(),
            left: BTreeMap::from([("indexed".to_owned(), to - from - found.len() as u64)]),
            next: (to < self.rows).then(|| Cursor(Some(to.to_string()))),
        })
    }

    async fn extent(&self) -> lapsed_core::Result<u64> {
        Ok(self.rows)
    }
}

/// A registry like any other, with that index.
#[derive(Debug)]
struct WithIndex {
    common: SystemSettings,
    index: Arc<Drifted>,
}

impl SystemPlan for WithIndex {
    fn common(&self) -> &SystemSettings {
        &self.common
    }

    fn describe(&self) -> Vec<String> {
        Vec::new()
    }

    fn build(&self, context: BuildContext<'_>) -> lapsed_core::Result<BuiltSystem> {
        let common = &self.common;
        let store = context.store.get::<Embedded>().expect("an embedded store");
        let registry = store.registry(common.id.clone(), common.threshold)?;
        let assembly = context.assembly;
        let registry = Arc::new(Registry::new(
            RegistryParts::new(registry, context.store.store(), common.threshold)
                .index(Some(self.index.clone()))
                .brake(assembly.brake.clone())
                .clock(assembly.clock.clone())
                .activity(assembly.activity.clone())
                .observer(assembly.observer.clone())
                .sweeper(assembly.process.clone()),
        ));
        Ok(BuiltSystem { system: registry.clone(), operations: registry, store: None })
    }
}

fn configured(data: PathBuf, index: Drifted) -> Config {
    let overrides = Overrides { data: Some(data), ..Overrides::default() };
    let mut config = Config::load(None, &overrides, &|_| None).unwrap();
    let common = config.systems[0].common().clone();
    config.systems = vec![Box::new(WithIndex { common, index: Arc::new(index) })];
    config
}

/// Serves it in this process for as long as the test runs.
fn serve(data: PathBuf) -> (String, tokio::runtime::Runtime) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let config = configured(data, Drifted::new(700, Duration::ZERO));
    let url = runtime.block_on(async move {
        let clock = SystemClock::shared();
        let metrics = Arc::new(Metrics::new(clock.clone(), Vec::new()));
        let node = OpenSystems::open(&config, clock, metrics.clone()).unwrap();
        let (stopper, stop) = StopSignal::channel();
        let outward = OutboundServices::default();
        let (app, idle) = App::new(Arc::new(node), metrics, outward, &config.server, stop.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let gate = api::service(app);
        let listener = WriteTimeoutListener::new(listener, config.server.write_timeout);
        let serving = connections::serve(listener, move |peer, cut| gate.facing(peer, cut), stop);
        tokio::spawn(async move {
            let kept = (stopper, idle);
            serving.await.unwrap().unwrap();
            drop(kept);
        });
        url
    });
    (url, runtime)
}

fn reconcile_lists_repairs_and_counts_index_drift() {
    let dir = tempfile::tempdir().unwrap();
    let (url, runtime) = serve(dir.path().join("data"));
    let ask = |args: &[&str]| -> Answer {
        run(&[&["reconcile", "registry"], args, &["--url", &url]].concat())
    };
    let differ = ask(&["--compare"]);
    assert_eq!(differ.code, 1, "{differ:?}");
    assert!(differ.out.contains("do not agree") && differ.out.contains("3 missing"), "{differ:?}");
    assert_eq!(ask(&["--compare", "--json"]).json()["agree"], false);

    let dry = ask(&["--dry-run", "--verbose"]);
    assert_eq!(dry.code, 0, "{dry:?}");
    for word in ["700 rows examined", "3 would be added", "697 (indexed)", "row-601", "not in the"]
    {
        assert!(dry.out.contains(word), "{word}: {dry:?}");
    }
    let part = ask(&["--dry-run", "--from", "601", "--json", "-v"]).json();
    assert_eq!((&part["examined"], &part["added"]), (&json!(99), &json!(1)), "{part}");
    assert_eq!(part["changes"][0]["key"], "row-601");

    let healed = ask(&["--json"]);
    assert_eq!(healed.code, 0, "{healed:?}");
    let healed = healed.json();
    for (key, value) in [
        ("examined", json!(700)),
        ("added", json!(3)),
        ("removed", json!(0)),
        ("corrected", json!(0)),
        ("dry_run", json!(false)),
        ("agree", json!(false)),
        ("finished", json!(true)),
        ("kind", json!("registry")),
    ] {
        assert_eq!(healed[key], value, "{key}: {healed}");
    }
    let agree = ask(&["--compare"]);
    assert_eq!(agree.code, 0, "{agree:?}");
    assert!(agree.out.contains("the scan and the index agree"), "{agree:?}");
    let text = crate::support::agent().get(format!("{url}/metrics")).call().unwrap();
    let text = text.into_body().read_to_string().unwrap();
    for line in [
        "lapsed_drift{system=\"default\",kind=\"registry\"} 0",
        "lapsed_reconciled_total{system=\"default\",change=\"added\",kind=\"registry\"} 3",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
    }
    runtime.shutdown_timeout(Duration::from_secs(1));
}

/// Straight on the store, Ctrl-C lets the page under way finish and says where to go on.
fn an_interrupted_reconcile_resumes_after_its_page() {
    const ROWS: u64 = 100_000;
    let dir = tempfile::tempdir().unwrap();
    let index = Drifted::new(ROWS, Duration::from_millis(20));
    let config = configured(dir.path().join("data"), index);
    let id = config.systems[0].common().id.clone();
    let local = LocalBackend::open(&config).unwrap();
    // From here on the signal is caught, in either order.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let caught = runtime.block_on(async {
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt()).unwrap()
    });
    let order = |after| ReconcileOrder { act: PassMode::Reclaim, after, list: 10 };
    let mut told = Vec::new();
    let mut tell = |progress: lapsed_cli::backend::Progress| {
        told.push(progress);
        if told.len() == 3 {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::INT)
                .unwrap();
        }
    };
    let first = local.reconcile(&id, order(Cursor::default()), &mut tell).unwrap();
    assert!(!first.report.finished && first.error.is_none(), "{first:?}");
    assert!((1_500..ROWS).contains(&first.report.examined), "{first:?}");
    assert_eq!(told.last().unwrap().examined, first.report.examined);
    assert_eq!(told[0].extent, Some(ROWS));
    let next = first.report.next.clone().unwrap();
    assert_eq!(next, Cursor(Some(first.report.examined.to_string())));
    let rest = Cursor(Some((ROWS - 500).to_string()));
    let rest = local.reconcile(&id, order(rest), &mut |_| {}).unwrap();
    assert!(rest.report.finished && rest.report.agree, "{rest:?}");
    drop(caught);
    Box::new(local).close().unwrap();
}
