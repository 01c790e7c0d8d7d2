//! Completes the commands that messages of the library advise, which do not know with which configuration the program
//! was called.

use crate::cli::Command;

/// The commands that work on a daemon or on the stores of a configuration.
const ON_STORES: &[&str] = &[
    "adopt",
    "audit",
    "brake",
    "dead",
    "explain",
    "lease",
    "receipts",
    "reconcile",
    "restore",
    "schema",
    "status",
    "sweep",
];

/// `text` with `again` appended to each command in backticks that works on stores and does not name any: the advice
/// then leads to the same daemon or store as the command that gave it.
pub fn completed(text: &str, again: &str) -> String {
    if again.is_empty() {
        return text.to_owned();
    }
    let mut parts = text.split('`');
    let mut out = parts.next().unwrap_or_default().to_owned();
    let mut is_inside = true;
    for part in parts {
        out.push('`');
        out.push_str(part);
        if is_inside && lacks_stores(part) {
            out.push_str(again);
        }
        is_inside = !is_inside;
    }
    out
}

fn lacks_stores(command: &str) -> bool {
    let mut words = command.split_whitespace();
    let is_ours = words.next() == Some("lapsed");
    is_ours
        && words.next().is_some_and(|verb| ON_STORES.contains(&verb))
        && !words.any(|word| ["-c", "--config", "--url", "--redis"].contains(&word))
}

impl Command {
    /// The options with which a further command reaches the same daemon or store; empty if there are none.
    pub fn again(&self) -> String {
        match self {
            Command::Serve(args) => file(&args.config),
            Command::Check(args) => file(&args.config),
            Command::Status(args) => args.target.again(),
            Command::Sweep(args) => args.target.again(),
            Command::Reconcile(args) => args.target.again(),
            Command::Explain(args) => args.target.again(),
            Command::Receipts(args) => args.target.again(),
            Command::Restore(args) => args.target.again(),
            Command::Adopt(args) => args.target.again(),
            Command::Brake(args) => args.target.again(),
            _ => String::new(),
        }
    }
}

/// The option that names this configuration.
pub fn file(config: &Option<std::path::PathBuf>) -> String {
    config.iter().map(|file| format!(" -c {}", file.display())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advised_commands_get_the_options_that_they_lack() {
        let again = " -c lapsed.toml";
        for (text, wanted) in [
            ("run `lapsed adopt SYSTEM`, then", "run `lapsed adopt SYSTEM -c lapsed.toml`, then"),
            ("`lapsed sweep a --dry-run`", "`lapsed sweep a --dry-run -c lapsed.toml`"),
            ("`lapsed sweep a -c other.toml`", "`lapsed sweep a -c other.toml`"),
            ("`lapsed token new` and `sweep`", "`lapsed token new` and `sweep`"),
            ("the key `k` of lapsed sweep", "the key `k` of lapsed sweep"),
        ] {
            assert_eq!(completed(text, again), wanted);
            assert_eq!(completed(text, ""), text);
        }
    }
}
