//! Receipts appear without a reload; after a lost connection none is missing and none appears
//! twice.

use std::collections::BTreeSet;

use serde_json::json;

use crate::page::tell;
use crate::support::{CALM, Daemon, Home, until};

lapsed_testbed::steady_tests! {
    a_live_receipt_appears_without_reload,
    a_lost_connection_is_resumed_without_gaps,
    a_flood_of_receipts_is_counted_and_not_drawn,
}

/// Retires an owner with `count` keys, which writes `count` receipts.
fn retire(daemon: &Daemon, owner: &str, count: usize) {
    let keys: Vec<String> = (0..count).map(|n| format!("{owner}-{n}")).collect();
    daemon.registry("register_many", json!({ "owner": owner, "keys": keys }));
    let retired = daemon.registry("retire", json!({ "owner": owner })).body;
    assert_eq!(retired["reclaimed"], count, "{retired}");
}

fn a_live_receipt_appears_without_reload() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    retire(&daemon, "before", 3);
    tell(async |page| {
        page.goto(&daemon.url).await;
        page.until_count("#receipts tr[data-receipt]", 3).await;
        page.until_live().await;
        page.script("window.sameAsBefore = true").await;
        retire(&daemon, "now", 2);
        page.until_count("#receipts tr[data-receipt]", 5).await;
        let shown = page.receipts().await;
        assert_eq!(shown, [5, 4, 3, 2, 1].map(|seq| format!("registry-devices-{seq}")));
        page.until_said("#receipts", "now-1").await;
        assert_eq!(page.script("return window.sameAsBefore").await, json!(true), "no reload");
    });
}

/// The daemon is killed, comes back at the same address, and goes on with the same receipts.
fn a_lost_connection_is_resumed_without_gaps() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    let port = daemon.url.rsplit(':').next().unwrap().to_owned();
    tell(async |page| {
        page.goto(&daemon.url).await;
        page.until_live().await;
        retire(&daemon, "first", 10);
        page.until_count("#receipts tr[data-receipt]", 10).await;
        page.script("window.sameAsBefore = true").await;
        daemon.kill();
        page.until_said("#link", "connection lost, trying again").await;

        let listen = ["--listen", &format!("127.0.0.1:{port}")].map(str::to_owned);
        let daemon = until("the same port", || home.serve_at(&listen).ok());
        retire(&daemon, "away", 15);
        page.until_live().await;
        retire(&daemon, "after", 5);
        page.until_count("#receipts tr[data-receipt]", 30).await;
        let shown = page.receipts().await;
        let each: BTreeSet<String> =
            (1..=30).map(|seq| format!("registry-devices-{seq}")).collect();
        assert_eq!(shown.iter().cloned().collect::<BTreeSet<_>>(), each, "no gap");
        assert_eq!(shown.len(), 30, "nothing twice: {shown:?}");
        assert_eq!(page.script("return window.sameAsBefore").await, json!(true), "no reload");
    });
}

fn a_flood_of_receipts_is_counted_and_not_drawn() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    tell(async |page| {
        page.goto(&daemon.url).await;
        page.until_live().await;
        for wave in 0..10 {
            retire(&daemon, &format!("wave{wave}"), 1_000);
        }
        page.until_said("#receipts tr:first-child", "#10000").await;
        page.until_count("#receipts tr[data-receipt]", 100).await;
        page.until_said(".live", "came too fast to be shown here").await;
        page.click(".live .line a[href='#/receipts']").await;
        page.until_said("#found", "50 receipts").await;
        page.click(".pages button:last-child").await;
        page.until_said("#receipts tr:first-child", "#9950").await;
    });
}
