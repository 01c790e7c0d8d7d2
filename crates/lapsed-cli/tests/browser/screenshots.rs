//! Pictures for the documentation, taken of a show that is really going on: `make screenshots`. No test of
//! anything, so it runs only when asked for.

use std::path::{Path, PathBuf};

use lapsed_testbed::Program;

use crate::page::{Page, tell};
use crate::support::PATIENCE;

/// How large a picture in the documentation may be.
const BYTES_MAX: usize = 300_000;

#[test]
#[ignore = "takes pictures for the documentation: `make screenshots`"]
fn pictures_for_the_documentation() {
    let program = Path::new(env!("CARGO_BIN_EXE_lapsed"));
    let show = Program::start(program, |command| {
        command.args(["demo", "--serve", "--listen", "127.0.0.1:0"]);
    });
    let show = show.unwrap();
    let url = loop {
        let line = show.line(PATIENCE).unwrap();
        if let Some(url) = line.strip_prefix("listening on ") {
            break url.to_owned();
        }
    };
    tell(async |page| {
        page.resize(1360, 1180, false).await;
        page.goto(&url).await;
        page.until_live().await;
        let lived = "document.querySelectorAll('#receipts tr[data-receipt]').length >= 25 \
                     && document.querySelectorAll('.picture rect').length >= 24";
        page.until_slow("something to have happened", lived).await;
        keep(page, "dashboard.png").await;
        page.darken().await;
        keep(page, "dashboard-dark.png").await;
        page.lighten().await;
        page.resize(360, 1100, true).await;
        keep(page, "dashboard-phone.png").await;
    });
    show.stop().unwrap();
}

async fn keep(page: &Page, name: &str) {
    let png = page.picture().await;
    assert!(png.len() < BYTES_MAX, "{name} has {} bytes", png.len());
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/images");
    std::fs::create_dir_all(&path).unwrap();
    std::fs::write(path.join(name), png).unwrap();
}
