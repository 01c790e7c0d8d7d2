//! `lapsed-mutants TREE [--without 3,17] FILE…` changes Rust sources below the folder `TREE`, a copy of the
//! repository: every place that can be broken asks at run time whether it is the one to break. One build
//! then serves all mutants; `LAPSED_RUST_MUTANT=17` breaks place 17. `scripts/rust_mutants.py` calls it.
//!
//! One line of JSON for each mutant goes to the standard output. `--without` leaves out what did not compile;
//! the numbers of the others stay the same.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod places;
mod rewrite;
mod values;

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Asks which place is to be broken, and notes for `scripts/rust_mutants.py` which places a test reaches.
const SWITCH: &str = include_str!("switch.rs.txt");

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let tree = PathBuf::from(arguments.next().context("the folder of the copy is missing")?);
    let mut without = HashSet::new();
    let mut files = BTreeSet::new();
    while let Some(argument) = arguments.next() {
        if argument == "--without" {
            let numbers = arguments.next().context("--without needs numbers")?;
            without = numbers
                .split(',')
                .filter(|number| !number.is_empty())
                .map(str::parse)
                .collect::<Result<_, _>>()?;
        } else {
            files.insert(argument);
        }
    }
    if files.is_empty() {
        bail!("no file is named");
    }
    let mut first = 1;
    let mut crates = BTreeSet::new();
    for file in &files {
        let path = tree.join(file);
        let text = std::fs::read_to_string(&path).with_context(|| file.clone())?;
        let found = places::of(&text, first).with_context(|| file.clone())?;
        for place in &found {
            for change in &place.changes {
                let (line, column) = position(&text, place.start);
                let said = serde_json::json!({
                    "number": change.number, "file": file, "line": line, "column": column, "what": change.what,
                });
                println!("{said}");
                first = first.max(change.number + 1);
            }
        }
        std::fs::write(&path, rewrite::with(&text, found, &without))?;
        crates.insert(root_of(file)?);
    }
    for root in crates {
        let path = tree.join(root);
        let text = std::fs::read_to_string(&path)?;
        std::fs::write(&path, format!("{text}\n{SWITCH}"))?;
    }
    Ok(())
}

/// The root module of the crate that `file` belongs to.
fn root_of(file: &str) -> Result<PathBuf> {
    let source = Path::new(file).ancestors().find(|folder| folder.ends_with("src"));
    Ok(source.with_context(|| format!("{file} is in no crate"))?.join("lib.rs"))
}

/// Line and column of a byte, both counted from one.
fn position(text: &str, byte: usize) -> (usize, usize) {
    let before = &text[..byte];
    let line = before.matches('\n').count() + 1;
    (line, before.chars().rev().take_while(|&one| one != '\n').count() + 1)
}
