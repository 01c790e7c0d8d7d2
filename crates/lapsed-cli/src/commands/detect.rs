//! `lapsed detect`: which job systems a Redis carries, which of their workers are dead, and which jobs nobody will run.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
pub use lapsed_redis::FoundSystem;
use lapsed_redis::{DetectOptions, Detected, Redis, RedisAddress, profiles};
use tokio::runtime::Builder;

use crate::cli::detect::Detect;
use lapsed_server::config::store::{NoKeys, driver_at};
use lapsed_server::failure::Failure;
use lapsed_server::print::{self, Table};

/// How long `--watch` waits between two looks.
const WATCH_EVERY: Duration = Duration::from_secs(5);

/// Looks once, or again and again, and prints what was found.
pub fn run(args: Detect) -> Result<(), Failure> {
    loop {
        let detected = find(&args.url)?;
        match args.output.json {
            true => print::json(&detected)?,
            false => print::lines(&describe(&detected, &args.url))?,
        }
        if !args.watch {
            return Ok(());
        }
        std::thread::sleep(WATCH_EVERY);
    }
}

/// Whether jobs of this preset are put back as they lie in the system's own keys.
pub fn is_rescued(preset: &str) -> bool {
    profiles().iter().any(|profile| profile.is_rescued && profile.name == preset)
}

/// Looks once at the server, with a progress bar on a terminal.
pub fn find(url: &str) -> Result<Detected, Failure> {
    let place = driver_at(url).and_then(|driver| driver.read("url", url, &NoKeys));
    let place = place.map_err(|wrong| Failure::usage(wrong.what))?;
    let Some(address) = place.get::<RedisAddress>() else {
        return Err(Failure::usage(
            "job systems are looked for in Redis and Valkey; give redis://HOST:PORT/DB",
        ));
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { look(&Redis::new(address)?).await })
}

async fn look(redis: &Redis) -> Result<Detected, Failure> {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:30} {human_pos} of {human_len} keys");
    bar.set_style(style.expect("a valid template"));
    let mut progress = |seen: u64, total: u64| {
        bar.set_length(total.max(seen));
        bar.set_position(seen);
    };
    let detected = redis.detect(DetectOptions::default(), &mut progress).await;
    bar.finish_and_clear();
    Ok(detected?)
}

/// Names, versions and errors in the notes come from the server's keys, which anybody may have written.
fn describe(detected: &Detected, url: &str) -> String {
    let url = print::visible(url);
    if detected.found.is_empty() {
        return format!(
            "{}: no job system that lapsed knows ({})",
            print::visible(&detected.store),
            lapsed_redis::profile_names().join(", ")
        );
    }
    let mut table = Table::new(&[
        "system",
        "version",
        "queues",
        "in flight",
        "workers",
        "dead",
        "orphans",
        "oldest",
    ]);
    for found in &detected.found {
        let oldest = match found.orphans {
            0 => "-".to_owned(),
            _ => print::span(found.oldest_ms),
        };
        table.row(vec![
            match &found.prefix {
                Some(prefix) => format!("{} ({prefix})", found.preset),
                None => found.preset.clone(),
            },
            if found.version.is_empty() { "?".to_owned() } else { found.version.clone() },
            found.queues.len().to_string(),
            print::count(found.in_flight),
            print::count(found.workers_alive),
            print::count(found.workers_dead),
            print::count(found.orphans),
            oldest,
        ]);
    }
    let mut text = table.text();
    for found in &detected.found {
        for note in &found.notes {
            text.push_str(&format!("\n{}: {}", found.preset, print::visible(note)));
        }
    }
    let must_watch = |found: &FoundSystem| {
        profiles().iter().any(|one| one.must_watch && one.name == found.preset)
    };
    if detected.found.iter().any(|found| found.orphans > 0 || must_watch(found)) {
        text.push_str(&format!(
            "\n\nNext:\n  lapsed init --from {url}    write a configuration that puts them back"
        ));
    }
    text
}
