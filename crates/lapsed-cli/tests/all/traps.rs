//! `docs/traps.md` lists the tests of every trap, with their files. `LAPSED_WRITE_TRAPS=1` writes the lists again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::pages::{files, root};

/// The lines of tests for each trap, by its number (`A1`).
type TestLists = BTreeMap<String, BTreeSet<String>>;

/// The numbers that a test's name cites: `trap_b10_trap_b11_…` cites two.
fn cited(test: &str) -> Vec<String> {
    let after = test.split("trap_").skip(1).filter_map(|rest| rest.split('_').next());
    after.map(str::to_uppercase).collect()
}

/// The name of the test that a line of Rust defines, if it is the test of a trap.
fn defined(line: &str) -> Option<&str> {
    let line = line.trim_start().trim_start_matches("pub ").trim_start_matches("async ");
    let name = line.strip_prefix("fn ")?;
    let end = name.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))?;
    name.starts_with("trap_").then_some(&name[..end])
}

fn in_the_sources(crates: &Path) -> TestLists {
    let mut lists = TestLists::new();
    for file in files(crates, ".rs") {
        let text = std::fs::read_to_string(&file).unwrap();
        let place = file.strip_prefix(crates).unwrap().display();
        for test in text.lines().filter_map(defined) {
            for number in cited(test) {
                let line = format!("- `{test}` in `crates/{place}`");
                lists.entry(number).or_default().insert(line);
            }
        }
    }
    lists
}

/// The page with `lists` in place of its own. The section of a trap is one paragraph and its list.
fn written(page: &str, lists: &TestLists) -> String {
    let mut sections = page.split("\n### ");
    let mut made = sections.next().unwrap().to_owned();
    for section in sections {
        let (own, chapter) = match section.split_once("\n\n## ") {
            Some((own, next)) => (own, format!("\n## {next}")),
            None => (section, String::new()),
        };
        let paragraph = own.split("\n\n").next().unwrap().trim_end();
        let list = lists.get(section.split(' ').next().unwrap());
        let list: String = list.into_iter().flatten().map(|line| format!("{line}\n")).collect();
        let gap = if list.is_empty() { "" } else { "\n" };
        made += &format!("\n### {paragraph}\n{gap}{list}{chapter}");
    }
    made
}

#[test]
fn the_page_of_traps_lists_every_test_of_a_trap() {
    let path = root("docs/traps.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let lists = in_the_sources(&root("crates"));
    let made = written(&page, &lists);
    if std::env::var_os("LAPSED_WRITE_TRAPS").is_some() {
        std::fs::write(path, made).unwrap();
        return;
    }
    let differs = page.lines().zip(made.lines()).find(|(kept, made)| kept != made);
    assert!(page == made, "run this with LAPSED_WRITE_TRAPS=1; first difference: {differs:#?}");
}

#[test]
fn every_trap_that_a_test_cites_is_on_the_page() {
    let page = std::fs::read_to_string(root("docs/traps.md")).unwrap();
    for number in in_the_sources(&root("crates")).keys() {
        assert!(page.contains(&format!("\n### {number} ")), "docs/traps.md has no trap {number}");
    }
}

#[test]
fn a_test_that_was_renamed_is_noticed() {
    let page = "# Traps\n\n### A1 One\n**Trap.** It.\n\n- `trap_a1_old` in `crates/a.rs`\n\n### F1 Two\nNo test.\n";
    let line = |text: &str| BTreeSet::from([text.to_owned()]);
    let kept = TestLists::from([("A1".to_owned(), line("- `trap_a1_old` in `crates/a.rs`"))]);
    assert_eq!(written(page, &kept), page);
    let renamed = TestLists::from([("A1".to_owned(), line("- `trap_a1_new` in `crates/a.rs`"))]);
    assert_eq!(written(page, &renamed), page.replace("old", "new"));
    assert_eq!(defined("    async fn trap_b2_x(chat: Chat) {"), Some("trap_b2_x"));
    assert_eq!(cited("trap_b10_trap_b11_what"), ["B10", "B11"]);
}
