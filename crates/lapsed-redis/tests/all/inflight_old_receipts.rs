//! Receipts of jobs that an earlier version wrote, fields for each job instead of one packed value, lie in
//! front of the new ones: they are listed with them, put back from, and pruned in their turn.

use lapsed_core::inflight::{InflightStore, JobPlace, RecoveredJob, RecoveryAction};
use lapsed_core::receipt::{Receipt, Retention};
use lapsed_core::sweep::{Sweep, TidyLimits};
use lapsed_core::system::Restored;
use lapsed_testbed::{Engine, ServerOptions};

use crate::jobs::{World, id, patient};
use crate::story::{name, on_both_engines, reclaim, suspects};

on_both_engines! {
    receipts_of_jobs_of_before_are_read_restored_and_pruned,
}

/// Two jobs, as they were written before: one was put back, the other dropped. Their numbers are 11 and 12.
fn write_old_jobs(world: &World) {
    let (stream, meta) = (jobs_key("receipts"), jobs_key("meta"));
    let (app, at) = (world.app(), "1700000002000");
    let mut item = vec!["XADD", &stream, "12-0", "o", "w-1", "i", "5", "d", "1700000001000"];
    item.extend(["r", "d", "t", at, "s", "before", "b", "7", "p", "1"]);
    item.extend(["k", "job-1", "j", "p:71:2:q:1", "k", "job-2", "j", "x:72:1:q"]);
    item.extend(["y", "1700000000000:::1700000002000:q\nline 1\nline 2"]);
    app.call(&item);
    app.call(&["HSET", &meta, "receipts", "2"]);
}

fn jobs_key(what: &str) -> String {
    format!("lapsed:{{lapsed:inflight}}:{}:{what}", id())
}

async fn receipts_of_jobs_of_before_are_read_restored_and_pruned(engine: Engine) {
    let world = World::new(ServerOptions::new(engine), patient());
    write_old_jobs(&world);
    world.enqueue("j", 1).await;
    world.dying_worker("w-2", 1).await;
    world.suspect(1).await;
    reclaim(&world.jobs, 1, suspects(&world.jobs).await).await;
    let receipts = world.receipts().await;
    let keys = |of: &[Receipt]| -> Vec<String> {
        of.iter().map(|receipt| receipt.key.to_string()).collect()
    };
    assert_eq!(keys(&receipts), ["job-1", "job-2", "j00000"]);
    let said: Vec<RecoveredJob> =
        receipts.iter().map(|r| serde_json::from_value(r.removed.clone()).unwrap()).collect();
    assert_eq!(said[0].did, RecoveryAction::PutBack);
    assert_eq!((said[0].token.0, said[0].crashes, said[0].queue.as_str()), (71, 2, "q:1"));
    assert_eq!(
        (said[1].did, said[1].payload.as_deref()),
        (RecoveryAction::Dropped, Some("line 1\nline 2"))
    );
    assert_eq!(
        (said[2].did, said[2].crashes, said[2].queue.as_str()),
        (RecoveryAction::PutBack, 1, "q")
    );
    assert_eq!((receipts[1].id.seq, receipts[1].owner.as_str()), (12, "w-1"));
    assert_eq!(receipts[1].evidence.late_ms, 1_000);
    assert_eq!(world.app().number(&["XLEN", &jobs_key("receipts")]), 2);

    let back = world.jobs.restore(12).await.unwrap();
    assert!(matches!(back, Restored::Restored { .. }), "{back:?}");
    let job = world.jobs.job(&name("job-2")).await.unwrap().unwrap();
    assert_eq!((job.place, job.payload.as_str()), (JobPlace::Queued, "line 1\nline 2"));

    for (keep, left) in [(2, vec!["job-2", "j00000"]), (1, vec!["j00000"]), (0, Vec::new())] {
        let retention = Retention { count: keep, age_ms: u64::MAX, ..Retention::default() };
        let limits = TidyLimits { rows: 100, undeclared_max: None, retention, term: None };
        assert_eq!(world.jobs.tidy(limits).await.unwrap().receipts_pruned, 1);
        assert_eq!(keys(&world.receipts().await), left);
    }
    assert_eq!(world.app().number(&["XLEN", &jobs_key("receipts")]), 0);
}
