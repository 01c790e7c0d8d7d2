//! One of two stores is away: the page shows the receipts of the other systems, and names what is
//! missing.

use lapsed_testbed::{Engine, RedisServer};
use serde_json::json;

use crate::page::tell;
use crate::support::{CALM, Daemon, Home};

lapsed_testbed::steady_tests! {
    the_page_names_the_systems_whose_store_is_away,
}

/// A registry `here` in a folder, and a registry `there` on Redis.
fn home(redis_url: &str) -> Home {
    let home = Home::new("1m", CALM);
    let text = std::fs::read_to_string(home.config()).unwrap();
    let more = format!(
        "\n[store.far]\nurl = \"{redis_url}\"\n\n[[system]]\nkind = \"registry\"\nname = \"there\"\n\
         store = \"far\"\n{CALM}\n"
    );
    let text = text.replace("name = \"devices\"", "name = \"devices\"\nstore = \"main\"");
    let text = format!("{text}{more}");
    std::fs::write(home.config(), text).unwrap();
    home
}

fn retire(daemon: &Daemon, owner: &str) {
    daemon.hold(owner, &["key-of-the-other-system"]);
    assert_eq!(daemon.registry("retire", json!({ "owner": owner })).status, 200);
}

fn the_page_names_the_systems_whose_store_is_away() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let home = home(&server.url());
    let daemon = home.serve();
    tell(async |page| {
        page.goto(&daemon.url).await;
        page.until_live().await;
        server.kill().unwrap();
        page.until_said("[data-notice=missing]", "registry/there").await;
        page.until_said("[data-system='registry/there'] .chart", "not known").await;
        retire(&daemon, "a");
        page.until_count("#receipts tr[data-receipt]", 1).await;
        page.until_said("#receipts", "key-of-the-other-system").await;
        // A page that is opened during the outage says the same.
        page.goto(&format!("{}/#/receipts", daemon.url)).await;
        page.until_said("[data-notice=missing]", "registry/there").await;
        page.until_count("#receipts tr[data-receipt]", 1).await;
        server.restart().unwrap();
        page.until_count("[data-notice=missing][hidden]", 1).await;
    });
}
