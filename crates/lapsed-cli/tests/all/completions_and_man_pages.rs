//! Completions that a shell can read, and a manual page for every command.

use std::io::Write;
use std::process::{Command, Stdio};

use clap::CommandFactory;
use lapsed_cli::cli::Cli;

use crate::support::run;

/// Every command that people see, as `lapsed-dead-list`.
fn pages() -> Vec<String> {
    fn below(command: &clap::Command, name: &str, all: &mut Vec<String>) {
        all.push(name.to_owned());
        for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            below(command, &format!("{name}-{}", command.get_name()), all);
        }
    }
    let mut all = Vec::new();
    below(&Cli::command(), "lapsed", &mut all);
    all
}

#[test]
fn completions_are_scripts_that_name_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]);
        assert_eq!(script.code, 0, "{script:?}");
        for word in ["serve", "receipts", "put-back", "--dry-run"] {
            let word = if shell == "fish" { word.trim_start_matches('-') } else { word };
            assert!(script.out.contains(word), "{shell}: {word} is missing");
        }
        assert!(!script.out.contains("demo-owner"), "{shell}: what is hidden is shown");
    }
}

#[test]
fn bash_reads_its_script() {
    let script = run(&["completions", "bash"]).out;
    let mut bash = Command::new("bash").args(["-n"]).stdin(Stdio::piped()).spawn().unwrap();
    bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(bash.wait().unwrap().success());
}

#[test]
fn every_command_has_a_man_page_that_groff_accepts() {
    let dir = tempfile::tempdir().unwrap();
    let told = run(&["man", dir.path().to_str().unwrap()]);
    assert_eq!(told.code, 0, "{told:?}");
    let pages = pages();
    for page in &pages {
        let file = dir.path().join(format!("{page}.1"));
        let text = std::fs::read_to_string(&file).unwrap_or_else(|_| panic!("no page {page}"));
        assert!(text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"), "{page}");
        no_warnings(&file);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), pages.len());
    let printed = run(&["man"]).out;
    assert_eq!(printed, std::fs::read_to_string(dir.path().join("lapsed.1")).unwrap());
}

/// As groff sees it, where there is one.
fn no_warnings(page: &std::path::Path) {
    let groff = Command::new("groff").args(["-man", "-Tutf8", "-ww", "-z"]).arg(page).output();
    let Ok(read) = groff else { return };
    let said = String::from_utf8_lossy(&read.stderr);
    assert!(read.status.success() && said.is_empty(), "{}: {said}", page.display());
}
