//! Receipt search, and the layout on a phone.

use serde_json::json;
use thirtyfour::Key;

use crate::page::tell;
use crate::support::{CALM, Daemon, Home};

lapsed_testbed::steady_tests! {
    receipts_are_searched_by_the_server,
    a_phone_never_scrolls_sideways,
}

fn retire(daemon: &Daemon, owner: &str, count: usize) {
    let keys: Vec<String> = (0..count).map(|n| format!("{owner}-{n}")).collect();
    daemon.registry("register_many", json!({ "owner": owner, "keys": keys }));
    daemon.registry("retire", json!({ "owner": owner }));
}

/// What is looked for was never on the page before.
fn receipts_are_searched_by_the_server() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    retire(&daemon, "needle", 2);
    retire(&daemon, "hay", 400);
    tell(async |page| {
        page.goto(&format!("{}/#/receipts", daemon.url)).await;
        page.until_said("#found", "50 receipts").await;
        page.write("#search", "NEEDLE").await;
        page.press(Key::Enter).await;
        page.until_said("#found", "2 receipts").await;
        assert_eq!(page.receipts().await, ["registry-devices-2", "registry-devices-1"]);
        page.until_said("#found", "402 looked at").await;
        page.until_live().await;
        retire(&daemon, "more-hay", 3);
        retire(&daemon, "needle-again", 1);
        page.until_count("#receipts tr[data-receipt]", 3).await;
        page.until_said("#receipts tr:first-child", "needle-again").await;
        page.goto(&format!("{}/#/receipts?reason=owner_dead", daemon.url)).await;
        page.until_said("#found", "0 receipts").await;
    });
}

fn a_phone_never_scrolls_sideways() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    retire(&daemon, &format!("a-very-long-name-{}", "x".repeat(200)), 30);
    tell(async |page| {
        page.resize(360, 740, true).await;
        for (view, there) in [
            ("#/", "#receipts tr[data-receipt]"),
            ("#/receipts", "#receipts tr[data-receipt]"),
            ("#/system/registry/devices", "#explain"),
        ] {
            page.goto(&format!("{}/{view}", daemon.url)).await;
            page.until("something to see", &format!("document.querySelector('{there}')")).await;
            let wide = "document.documentElement.scrollWidth <= 360 && innerWidth === 360";
            page.until(&format!("{view} to fit"), wide).await;
        }
        page.click("#receipts tr[data-receipt] button").await;
        page.until_count("dialog[open]", 1).await;
        page.until(
            "the dialog to fit",
            "document.querySelector('dialog').getBoundingClientRect().right <= 360",
        )
        .await;
    });
}
