//! The lines that the seed lists: INFO for each job that is back on its queue, ERROR for each that could
//! not be put back. From the store's answer: one a job, whatever was lost on the way.

use std::fmt::{self, Write};
use std::sync::{Arc, LazyLock, Mutex};

use crate::inflight_app::{App, AppFixture, layout, pass, payload, sweep_through, unique};
use lapsed_core::sweep::PassMode;
use lapsed_testbed::{Engine, Proxy, RedisServer};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps the lines at INFO and above about the jobs of this story. It is the listener of the whole
/// program: one for a single thread would not hear of a line that another thread has met before it.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<(Level, String)>>>);

impl Lines {
    fn of(&self, level: Level, job: &str) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        let fit = |(at, line): &&(Level, String)| *at == level && line.contains(job);
        lines.iter().filter(fit).map(|(_, line)| line.clone()).collect()
    }
}

struct Words<'a>(&'a mut String);

impl Visit for Words<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = String::new();
        event.record(&mut Words(&mut line));
        if line.contains("told-") {
            self.0.lock().unwrap().push((*event.metadata().level(), line));
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn each_job_has_its_line() {
    lapsed_testbed::steadily_async(tell).await;
}

fn lines() -> Lines {
    static LINES: LazyLock<Lines> = LazyLock::new(|| {
        let lines = Lines::default();
        tracing::subscriber::set_global_default(lines.clone()).unwrap();
        lines
    });
    LINES.clone()
}

async fn tell() {
    let lines = lines();
    let told = unique("told");
    let uuid = |n: usize| format!("{told}-{n}");
    let server = RedisServer::start(Engine::Redis).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let beside = AppFixture::at(App::connect(server.port(), 0), &proxy.url(), layout());
    let app = &beside.app;
    app.orphan(&uuid(1), payload(1, "mail"));
    app.orphan(&uuid(2), "no job");
    app.orphan(&uuid(3), payload(3, "bad"));
    app.call(&["SET", "queue:bad", "another program's"]);
    app.register_at(&uuid(4), payload(4, "mail"), "1");
    beside.dry_run().await;
    assert_eq!(lines.of(Level::INFO, &uuid(1)), [""; 0], "a dry run puts nothing back");
    beside.sweep().await;

    let info = lines.of(Level::INFO, &uuid(1));
    assert_eq!(info.len(), 1, "{info:?}");
    assert!(info[0].contains("back on its queue") && info[0].contains("queue=mail"), "{info:?}");
    let unreadable = lines.of(Level::ERROR, &uuid(2));
    assert!(unreadable.last().unwrap().contains("not a JSON object"), "{unreadable:?}");
    let refused = lines.of(Level::ERROR, &uuid(3));
    assert!(refused.last().unwrap().contains("is a string, not a list"), "{refused:?}");
    assert!(refused.last().unwrap().contains("it stays registered"), "{refused:?}");
    let letter = lines.of(Level::WARN, &uuid(4));
    assert!(letter.len() == 1 && letter[0].contains("why=\"too_old\""), "{letter:?}");

    // The answer is lost: the line comes when the receipts have told.
    app.orphan(&uuid(5), payload(5, "mail"));
    let sweeper = beside.sweeper("lossy");
    beside.settle().await;
    proxy.drop_answers_matching("lossy");
    let first = pass(&sweeper, PassMode::Reclaim).await;
    assert_eq!((first.reclaimed, proxy.dropped()), (0, 1), "{first:?}");
    assert_eq!(lines.of(Level::INFO, &uuid(5)), [""; 0]);
    sweep_through(&sweeper).await;
    let info = lines.of(Level::INFO, &uuid(5));
    assert_eq!((info.len(), app.queued("mail")), (1, 2), "{info:?}");
}
