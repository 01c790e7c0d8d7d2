//! Login with a token, and what each scope allows.

use serde_json::json;
use thirtyfour::Key;

use crate::page::tell;
use crate::support::{CALM, Home, JSON};

lapsed_testbed::steady_tests! {
    a_wrong_token_is_refused_and_a_right_one_taken,
    with_a_read_token_actions_are_disabled,
}

const TOKENS: &str = "token = \"write-0123456789abcdef\"\nread_token = \"read-0123456789abcdef\"";

fn a_wrong_token_is_refused_and_a_right_one_taken() {
    let home = Home::with("1m", CALM, TOKENS);
    let daemon = home.serve();
    tell(async |page| {
        page.goto(&daemon.url).await;
        page.write("#token", "wrong-0123456789abcdef").await;
        page.press(Key::Enter).await;
        page.until_said("#login-said", "This token was refused").await;
        page.until_count("[data-system]", 0).await;
        page.write("#token", "write-0123456789abcdef").await;
        page.press(Key::Enter).await;
        page.until_count("[data-system]", 1).await;
        page.until_live().await;
        page.click("[data-action=hold]").await;
        page.until_count("[data-action=hold][aria-pressed=true]", 1).await;
        let kept =
            page.script("return JSON.stringify([localStorage.length, document.cookie])").await;
        assert_eq!(kept, json!("[0,\"\"]"), "the token is kept in the tab and nowhere else");
        page.click("#leave").await;
        page.until_count("#login", 1).await;
        page.until_count("[data-system]", 0).await;
    });
}

fn with_a_read_token_actions_are_disabled() {
    let home = Home::with("300ms", CALM, TOKENS);
    let daemon = home.serve();
    let body = json!({ "owner": "a", "key": "k" }).to_string();
    let bearer = ("authorization", "Bearer write-0123456789abcdef");
    let held = daemon.call("POST", "/v1/registry/devices/register", Some(body), &[JSON, bearer]);
    assert_eq!(held.status, 200, "{held:?}");
    tell(async |page| {
        page.goto(&daemon.url).await;
        page.write("#token", "read-0123456789abcdef").await;
        page.press(Key::Enter).await;
        page.until_count("[data-system] [data-action=hold]:disabled", 1).await;
        page.until_said("#banner", "this token may read, not act").await;
        let title = "return document.querySelector('[data-action=hold]').title";
        assert_eq!(page.script(title).await, json!("this token may read, not act"));
        page.until_live().await;
        page.until_said("[data-figure=overdue]", "1").await;
        page.until_said("[data-system] .chip", "well").await;
        page.click(".card h3 a").await;
        page.click("[data-action=dry]").await;
        page.until_said("#dry-report", "would reclaim 1 entry").await;
        page.until_count("[data-action=pass]:disabled", 1).await;
    });
}
