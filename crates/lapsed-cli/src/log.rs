//! The log on stderr, as text or as JSON lines.
//!
//! In the text, the message and the fields of an event are made visible before they are written: they
//! quote names and errors from outside, and a terminal would obey what these contain. The colours of
//! the line itself are kept.

use std::io::IsTerminal;

use tracing_subscriber::Layer;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::cli::{Cli, Command, LogFormat};
use lapsed_server::print::visible;

/// Starts the log. The daemon logs what it does; the other commands log only problems.
pub fn start(cli: &Cli) {
    let usual = match (&cli.command, cli.verbose) {
        (Command::Serve(_), 0) | (_, 1) => "info",
        (_, 0) => "warn",
        _ => "debug",
    };
    let chosen = std::env::var("RUST_LOG").ok().and_then(|levels| levels.parse().ok());
    let levels: Targets = chosen.unwrap_or_else(|| usual.parse().expect("a level"));
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match cli.log {
        LogFormat::Text => {
            let fields = debug_fn(|writer, field, value| {
                let text = format!("{value:?}");
                match field.name() {
                    "message" => write!(writer, "{}", visible(&text)),
                    name => write!(writer, "{name}={}", visible(&text)),
                }
            });
            let colours = std::io::stderr().is_terminal();
            log.with_target(false).with_ansi(colours).fmt_fields(fields.delimited(" ")).boxed()
        }
        LogFormat::Json => {
            std::panic::set_hook(Box::new(log_panic));
            log.json().boxed()
        }
    };
    // Tests may start the log twice; the second start changes nothing.
    let _ = tracing_subscriber::registry().with(lines.with_filter(levels)).try_init();
}

/// Logs a panic as a line of the log.
fn log_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let at = panic.location().map(ToString::to_string).unwrap_or_default();
    let payload = panic.payload();
    let said = payload.downcast_ref::<&str>().copied();
    let what = said.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let what = what.unwrap_or("a panic without words");
    let thread = std::thread::current();
    tracing::error!(at, thread = thread.name().unwrap_or_default(), "panicked: {what}");
}
