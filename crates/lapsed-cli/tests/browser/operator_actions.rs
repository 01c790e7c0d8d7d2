//! Actions of an operator: hold and override the brake, dry run, pass, restore.

use serde_json::{Value, json};
use thirtyfour::Key;

use crate::page::{Page, tell};
use crate::support::{CALM, Daemon, Home, until};

lapsed_testbed::steady_tests! {
    a_brake_is_held_and_overridden,
    a_brake_is_held_and_overridden_without_a_mouse,
    a_dry_run_is_shown_before_a_real_pass,
    a_reclaimed_entry_is_restored,
    dead_letters_are_put_back_or_deleted,
}

const CARD: &str = "[data-system='registry/devices']";

fn setting(daemon: &Daemon) -> Value {
    daemon.get("/v1/brakes/registry/devices").body["setting"].clone()
}

async fn until_pressed(page: &Page, action: &str) {
    let css = format!("{CARD} [data-action={action}][aria-pressed=true]");
    page.until_count(&css, 1).await;
}

fn a_brake_is_held_and_overridden() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    tell(async |page| {
        page.goto(&daemon.url).await;
        until_pressed(page, "auto").await;
        page.click(&format!("{CARD} [data-action=hold]")).await;
        until_pressed(page, "hold").await;
        assert_eq!(setting(&daemon), "hold");
        page.until_said(&format!("{CARD} .chip"), "held").await;
        page.until_said("#headline", "1 brake holds").await;

        page.click(&format!("{CARD} [data-action=override]")).await;
        page.click("dialog [data-answer=no]").await;
        page.until_count("dialog", 0).await;
        assert_eq!(setting(&daemon), "hold", "whoever says no has changed nothing");
        page.click(&format!("{CARD} [data-action=override]")).await;
        page.until_said("dialog", "The next pass reclaims whatever is dead").await;
        page.click("dialog [data-answer=text]").await;
        page.press("they are gone").await;
        page.click("dialog [data-answer=yes]").await;
        until_pressed(page, "override").await;
        assert_eq!(setting(&daemon), "override");
        page.click(&format!("{CARD} [data-action=auto]")).await;
        until_pressed(page, "auto").await;
        assert_eq!(setting(&daemon), "auto");
        page.until_said("#headline", "All is well").await;
    });
}

fn a_brake_is_held_and_overridden_without_a_mouse() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    tell(async |page| {
        page.goto(&daemon.url).await;
        until_pressed(page, "auto").await;
        page.press(Key::Tab).await;
        page.until("the skip link", "document.activeElement.className === 'skip'").await;
        page.press(Key::Enter).await;
        page.until("the content to have the focus", "document.activeElement.id === 'main'").await;
        page.tab_to(&format!("{CARD} [data-action=hold]")).await;
        page.press(Key::Enter).await;
        until_pressed(page, "hold").await;
        assert_eq!(setting(&daemon), "hold");

        page.tab_to(&format!("{CARD} [data-action=override]")).await;
        page.press(" ").await;
        page.until("the safe answer", "document.activeElement.dataset.answer === 'no'").await;
        for _ in 0..4 {
            page.press(Key::Tab).await;
            let outside = "!document.activeElement.closest('dialog') && document.activeElement !== document.body";
            let out = page.script(&format!("return {outside}")).await;
            assert_eq!(out, json!(false), "the focus stays in the dialog");
        }
        page.tab_to("dialog [data-answer=text]").await;
        page.press("they are gone").await;
        page.tab_to("dialog [data-answer=yes]").await;
        page.press(Key::Enter).await;
        until_pressed(page, "override").await;
        assert_eq!(setting(&daemon), "override");
        let back = format!("document.activeElement.matches(\"{CARD} [data-action=override]\")");
        page.until("the focus to be back where it was", &back).await;
    });
}

fn a_dry_run_is_shown_before_a_real_pass() {
    let home = Home::new("300ms", CALM);
    let daemon = home.serve();
    daemon.hold("a", &["k1", "k2", "k3"]);
    daemon.until_overdue(1);
    tell(async |page| {
        page.goto(&format!("{}/#/system/registry/devices", daemon.url)).await;
        page.until_count("[data-action=dry]", 1).await;
        page.until_count("[data-action=pass]", 0).await;
        page.click("[data-action=dry]").await;
        page.until_said("#dry-report", "would reclaim 3 entries").await;
        page.until_count("#dry-list tbody tr", 3).await;
        assert_eq!(daemon.receipts().len(), 0, "a dry run changes nothing");
        page.click("[data-action=pass]").await;
        page.until_said("#pass-report", "3 of 3 suspects reclaimed").await;
        assert_eq!(daemon.receipts().len(), 3);
        page.until_count("[data-action=pass]", 0).await;
        page.until_said("#passes", "3 of 3 suspects reclaimed").await;
        page.until_count("#receipts tr[data-receipt]", 3).await;
        page.write("#explain-key", "k1").await;
        page.press(Key::Enter).await;
        page.until_said("#explained .chip", "reclaimed").await;
    });
}

fn a_reclaimed_entry_is_restored() {
    let home = Home::new("300ms", CALM);
    let daemon = home.serve();
    daemon.hold("a", &["k"]);
    daemon.until_overdue(1);
    daemon.post("/v1/sweeps/registry/devices", json!({}));
    daemon.registry("start", json!({ "owner": "a", "ttl_ms": 600_000 }));
    tell(async |page| {
        page.goto(&daemon.url).await;
        page.click("#receipts tr[data-receipt=registry-devices-1] button").await;
        page.click("dialog.details [data-action=restore]").await;
        page.until_said("dialog.question", "“k” goes back into registry/devices, held by a again")
            .await;
        assert_eq!(
            daemon.get("/v1/registry/devices/lookup/k").status,
            404,
            "not before it is asked"
        );
        page.click("dialog.question [data-answer=yes]").await;
        page.until_said("#said", "k is back, held by a").await;
        assert_eq!(daemon.get("/v1/registry/devices/lookup/k").body["owner"], "a");
        page.until_said("#receipts", "restored").await;
        page.click("#receipts tr[data-receipt=registry-devices-1] button").await;
        page.until_count("dialog.details [data-action=restore]:disabled", 1).await;
    });
}

fn dead_letters_are_put_back_or_deleted() {
    let home = Home::inflight("10m", CALM);
    let daemon = home.serve();
    for id in ["keep", "drop"] {
        daemon.jobs("enqueue", json!({ "queue": "q", "id": id, "payload": format!("of {id}") }));
        let taken = daemon.jobs("take", json!({ "owner": "w", "queue": "q" }));
        let token = &taken["jobs"][0]["token"];
        daemon.jobs("fail", json!({ "id": id, "token": token, "error": "<b>no</b>" }));
    }
    tell(async |page| {
        page.goto(&daemon.url).await;
        page.click("#to-letters").await;
        page.until_count("#letters tr[data-letter]", 2).await;
        page.until_said("#letters", "<b>no</b>").await;
        page.click("[data-letter=keep] [data-action=put-back]").await;
        page.until_count("#letters tr[data-letter]", 1).await;
        page.click("[data-letter=drop] [data-action=delete]").await;
        page.until_said("dialog", "This cannot be undone").await;
        page.click("dialog [data-answer=yes]").await;
        page.until_count("#letters tr[data-letter]", 0).await;
        let counts = until("the account", || Some(daemon.counts()));
        assert_eq!((&counts["queued"], &counts["dead"]), (&json!(1), &json!(0)), "{counts}");
    });
}
