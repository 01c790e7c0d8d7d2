//! One page in a browser of its own. Every wait is for a condition; there are no sleeps.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use lapsed_testbed::{Program, paths};
use serde_json::{Value, json};
use tempfile::TempDir;
use thirtyfour::common::command::FormatRequestData;
use thirtyfour::prelude::*;
use thirtyfour::{RequestData, SessionId};

/// Long enough for a busy machine; reached only when something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many browsers there are at a time.
const BROWSERS: usize = 2;

static FREE: Mutex<usize> = Mutex::new(BROWSERS);
static FREED: Condvar = Condvar::new();

/// A slot for one running browser; at most `BROWSERS` are taken at a time.
struct BrowserSlot;

impl BrowserSlot {
    fn take() -> BrowserSlot {
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = FREED.wait_while(free, |free| *free == 0).unwrap();
        *free -= 1;
        BrowserSlot
    }
}

impl Drop for BrowserSlot {
    fn drop(&mut self) {
        *FREE.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        FREED.notify_one();
    }
}

/// What chromedriver passes on to the browser's own tools.
#[derive(Debug)]
struct DevTools {
    command: String,
    parameters: Value,
}

impl FormatRequestData for DevTools {
    fn format_request(&self, session: &SessionId) -> RequestData {
        let body = json!({ "cmd": self.command, "params": self.parameters });
        let path = format!("/session/{session}/goog/cdp/execute");
        RequestData::new(axum::http::Method::POST, path).add_body(body)
    }
}

/// A page, looked at and used as a person would.
pub struct Page {
    driver: WebDriver,
}

/// Runs a test in a browser of its own, which is ended whether the test passes or fails.
pub fn tell(story: impl AsyncFnOnce(&Page)) {
    let _seat = BrowserSlot::take();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(&paths::chromedriver().unwrap(), |command| {
        command.arg("--port=0").env("HOME", folder.path());
    });
    let program = program.unwrap();
    let port = port(&program);
    let outcome = runtime.block_on(async {
        let page = Page::open(&format!("http://127.0.0.1:{port}"), &folder).await;
        let told = std::panic::AssertUnwindSafe(story(&page)).catch_unwind().await;
        if told.is_err() {
            page.print_failure_details().await;
        }
        page.driver.quit().await.unwrap();
        told
    });
    if let Err(failure) = outcome {
        std::panic::resume_unwind(failure);
    }
}

/// It chooses one by itself, and says which.
fn port(program: &Program) -> u16 {
    loop {
        let line = program.line(PATIENCE).unwrap();
        let said = line.split("on port ").nth(1).filter(|_| line.contains("successfully"));
        if let Some(port) = said.and_then(|rest| rest.trim_end_matches('.').parse().ok()) {
            return port;
        }
    }
}

impl Page {
    async fn open(url: &str, folder: &TempDir) -> Page {
        let mut capabilities = DesiredCapabilities::chrome();
        capabilities.set_binary(&paths::chromium().unwrap().display().to_string()).unwrap();
        let profile = format!("--user-data-dir={}", folder.path().join("profile").display());
        for argument in [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-proxy-server",
            "--window-size=1280,900",
            &profile,
        ] {
            capabilities.add_arg(argument).unwrap();
        }
        // Whoever came first has done it for all.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let driver = WebDriver::builder(url, capabilities).request_timeout(PATIENCE);
        Page { driver: driver.connect().await.unwrap() }
    }

    /// Prints the state of the page after a failure.
    async fn print_failure_details(&self) {
        let text = self.script("return document.body.innerText").await;
        eprintln!("the page said:\n{}", text.as_str().unwrap_or_default());
    }

    pub async fn goto(&self, url: &str) {
        self.driver.goto(url).await.unwrap();
    }

    /// Runs JavaScript in the page and returns its value.
    pub async fn script(&self, text: &str) -> Value {
        let done = self.driver.execute(text, Vec::<Value>::new()).await.unwrap();
        done.json().clone()
    }

    /// Waits until an expression in the page is true.
    pub async fn until(&self, what: &str, expression: &str) {
        self.until_within(PATIENCE, what, expression).await;
    }

    /// The same for what takes its time.
    pub async fn until_slow(&self, what: &str, expression: &str) {
        self.until_within(PATIENCE * 15, what, expression).await;
    }

    async fn until_within(&self, patience: Duration, what: &str, expression: &str) {
        let text = format!("return Boolean({expression})");
        let deadline = Instant::now() + patience;
        while self.script(&text).await != json!(true) {
            assert!(Instant::now() < deadline, "waited in vain for {what}: {expression}");
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }

    /// Waits until an element says something.
    pub async fn until_said(&self, css: &str, text: &str) {
        let said = format!("[...document.querySelectorAll({})]", json!(css));
        let fits = format!("{said}.some((e) => e.textContent.includes({}))", json!(text));
        self.until(&format!("{css} to say {text:?}"), &fits).await;
    }

    /// Waits until `count` elements match.
    pub async fn until_count(&self, css: &str, count: usize) {
        let there = format!("document.querySelectorAll({}).length === {count}", json!(css));
        self.until(&format!("{count} of {css}"), &there).await;
    }

    /// Clicks where the element is, as soon as there is one that can be clicked. The page may draw it
    /// anew in between: then the new one is meant.
    pub async fn click(&self, css: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let clicked = match self.driver.find(By::Css(css)).await {
                Ok(element) => element.click().await,
                Err(error) => Err(error),
            };
            let Err(error) = clicked else { return };
            assert!(Instant::now() < deadline, "cannot click {css}: {error}");
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }

    /// Types into the focused element.
    pub async fn press(&self, keys: impl Into<TypingData>) {
        let keys: TypingData = keys.into();
        self.driver.action_chain().send_keys(keys).perform().await.unwrap();
    }

    /// Replaces the text of an input field.
    pub async fn write(&self, css: &str, text: &str) {
        self.click(css).await;
        let element = self.driver.find(By::Css(css)).await.unwrap();
        element.clear().await.unwrap();
        element.send_keys(text).await.unwrap();
    }

    /// Presses Tab until a matching element has the focus, as a keyboard user would.
    pub async fn tab_to(&self, css: &str) {
        let there = format!("return Boolean(document.activeElement?.matches({}))", json!(css));
        for _ in 0..200 {
            if self.script(&there).await == json!(true) {
                return;
            }
            self.press(Key::Tab).await;
        }
        panic!("200 times Tab, and {css} never had the focus");
    }

    /// As large as that; a phone if it is `mobile`.
    pub async fn resize(&self, width: u32, height: u32, mobile: bool) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile });
        self.devtools("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// As on a machine that is set to dark.
    pub async fn darken(&self) {
        self.prefer("dark").await;
    }

    /// As on a machine that is set to light.
    pub async fn lighten(&self) {
        self.prefer("light").await;
    }

    async fn prefer(&self, scheme: &str) {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", features).await;
    }

    async fn devtools(&self, command: &str, parameters: Value) {
        let told = DevTools { command: command.to_owned(), parameters };
        self.driver.handle().cmd(told).await.unwrap();
    }

    /// What is seen, as PNG.
    pub async fn picture(&self) -> Vec<u8> {
        self.driver.screenshot_as_png().await.unwrap()
    }

    /// The receipts on the page, top first.
    pub async fn receipts(&self) -> Vec<String> {
        let rows = "return [...document.querySelectorAll('#receipts tr[data-receipt]')].map((r) => r.dataset.receipt)";
        let rows = self.script(rows).await;
        rows.as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect()
    }

    /// Waits until the stream is there.
    pub async fn until_live(&self) {
        self.until("the stream", "document.getElementById('link').textContent === 'live'").await;
    }
}
