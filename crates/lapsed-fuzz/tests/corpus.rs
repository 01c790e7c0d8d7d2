//! The corpus, and random changes of it: what the fuzzer does for hours, for some seconds and the same
//! every time. `make fuzz` looks further.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::{Duration, Instant};

use lapsed_fuzz::mutate::{FuzzRandom, mutate};
use lapsed_fuzz::{TARGETS, target};

/// How long one target is given at the most.
const LIMIT: Duration = Duration::from_secs(5);

/// How many changes of each input are tried, unless `LAPSED_CORPUS_CHANGES` says otherwise.
const CHANGES: usize = 400;

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let mut files: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

fn run(name: &str) {
    let (target, inputs) = (target(name), corpus(name));
    assert!(!inputs.is_empty(), "{name} has no corpus");
    inputs.iter().for_each(|input| (target.read)(input));
    let (began, mut chance) = (Instant::now(), FuzzRandom::new(7));
    let changes = std::env::var("LAPSED_CORPUS_CHANGES").ok().and_then(|n| n.parse().ok());
    for _ in 0..changes.unwrap_or(CHANGES) {
        for input in &inputs {
            if began.elapsed() > LIMIT {
                return;
            }
            (target.read)(&mutate(input, &mut chance));
        }
    }
}

#[test]
fn mutated_configurations_never_panic() {
    run("config");
}

#[test]
fn mutated_requests_never_fail_with_a_server_error() {
    run("http");
}

#[test]
fn mutated_records_never_panic() {
    run("record");
}

#[test]
fn mutated_receipts_never_panic() {
    run("receipt");
}

#[test]
fn mutated_jwts_never_panic_and_only_signed_ones_are_accepted() {
    run("jwt");
}

#[test]
fn mutated_calls_of_functions_are_refused_in_words_and_keep_the_balance() {
    run("functions");
}

#[test]
fn mutated_cursors_never_fail_with_a_server_error() {
    run("cursor");
}

#[test]
fn mutated_answers_to_webhooks_are_never_taken_for_delivered() {
    run("webhook");
}

#[test]
fn every_target_has_a_test_and_a_corpus() {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    let tested = ["config", "http", "record", "receipt", "jwt", "functions", "cursor", "webhook"];
    assert_eq!(names, tested);
    names.iter().for_each(|name| assert!(!corpus(name).is_empty(), "{name}"));
}

#[test]
fn every_target_is_built_and_run_by_make_fuzz() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let makefile = std::fs::read_to_string(root.join("Makefile")).unwrap();
    let list = makefile.lines().find_map(|line| line.split_once("$(or $(TARGET),")).unwrap().1;
    let listed: Vec<&str> = list.split(')').next().unwrap().split(' ').collect();
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(listed, names);
    let manifest = std::fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap();
    for name in names {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
        assert!(root.join(format!("fuzz/fuzz_targets/{name}.rs")).exists(), "{name}");
    }
}
