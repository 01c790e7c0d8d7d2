//! The configuration file of a server: written once, so that `CONFIG REWRITE` survives a restart.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::{Persistence, ServerOptions};

pub(super) fn file(dir: &Path) -> PathBuf {
    dir.join("server.conf")
}

pub(super) fn text(options: &ServerOptions, port: u16, dir: &Path) -> String {
    let port = port.to_string();
    let dir = format!("\"{}\"", dir.display());
    let mut lines = vec![
        ("port", port.as_str()),
        ("dir", &dir),
        ("bind", "127.0.0.1"),
        ("protected-mode", "no"),
        ("daemonize", "no"),
        ("enable-debug-command", "yes"),
        // A replica is served at once, and a stop waits for none.
        ("repl-diskless-sync-delay", "0"),
        ("shutdown-timeout", "0"),
    ];
    lines.extend_from_slice(persistence(options.persistence));
    lines.extend(options.extra.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    lines.iter().fold(String::new(), |mut text, (key, value)| {
        let _ = writeln!(text, "{key} {value}");
        text
    })
}

fn persistence(persistence: Persistence) -> &'static [(&'static str, &'static str)] {
    match persistence {
        Persistence::None => &[("save", "\"\""), ("appendonly", "no")],
        Persistence::Aof => &[("save", "\"\""), ("appendonly", "yes"), ("appendfsync", "always")],
        // Some rule must be there, or a stop does not save.
        Persistence::Rdb => &[("save", "3600 1"), ("appendonly", "no")],
    }
}
