//! What the pages of documentation name exists: files, headings, tests, planted bugs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A file of the repository.
pub fn root(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

/// Every file under `folder` that ends so; what is built or fetched is left out.
pub fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy().into_owned();
        let skipped = name.starts_with('.') || name == "target" || name == "node_modules";
        match entry.file_type().unwrap().is_dir() {
            true if !skipped => found.extend(files(&path, ending)),
            false if name.ends_with(ending) => found.push(path),
            _ => {}
        }
    }
    found
}

/// A page without what stands in its blocks of code.
fn prose(text: &str) -> String {
    let mut inside = false;
    let mut kept = String::new();
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        if !inside && !fence {
            kept.push_str(line);
        }
        kept.push('\n');
    }
    kept
}

/// What stands in `[..](here)`, with the line.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text).lines().enumerate() {
        for part in line.split("](").skip(1) {
            if let Some((target, _)) = part.split_once(')') {
                found.push((number + 1, target.to_owned()));
            }
        }
    }
    found
}

/// The anchors of a page: its headings as GitHub writes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text);
    let headings = headings.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}

fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Why a link of that page leads nowhere, if it does.
fn dead(page: &Path, text: &str, target: &str) -> Option<String> {
    if ["http://", "https://", "mailto:"].iter().any(|outside| target.starts_with(outside)) {
        return None;
    }
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let path = page.parent().unwrap().join(file);
    if !file.is_empty() && !path.exists() {
        return Some(format!("there is no {file}"));
    }
    let other = match file {
        "" => text.to_owned(),
        _ if heading.is_empty() => return None,
        _ => std::fs::read_to_string(&path).unwrap(),
    };
    let known = heading.is_empty() || anchors(&other).contains(heading);
    (!known).then(|| format!("no heading is called {heading}"))
}

#[test]
fn every_link_in_the_docs_has_a_target() {
    let mut wrong = Vec::new();
    for page in files(&root(""), ".md") {
        let text = std::fs::read_to_string(&page).unwrap();
        for (line, target) in links(&text) {
            if let Some(why) = dead(&page, &text, &target) {
                wrong.push(format!("{}:{line}: {target}: {why}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_broken_link_is_reported() {
    let page = root("docs/guarantees.md");
    let text = "# A heading, or two\n[a](#a-heading-or-two) [b](#no) [c](none.md) [d](operations.md#how-do-i-see-its-state)\n\
                ```\n[e](code.md)\n```\n[f](operations.md#none)";
    let found = links(text);
    assert_eq!(found.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 2, 2, 2, 6]);
    let verdicts = found.iter().map(|(_, target)| dead(&page, text, target).is_some());
    assert_eq!(verdicts.collect::<Vec<_>>(), [false, true, true, false, true]);
}

/// What stands between backticks in a page.
fn words(text: &str) -> BTreeSet<String> {
    let text = prose(text);
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Names of tests are sentences: several words.
fn is_test(word: &str) -> bool {
    let plain = word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    plain && word.matches('_').count() >= 2 && !word.starts_with("lapsed_")
}

/// Every word of the sources after which a test can be called: `fn NAME`, or a line of a macro's list.
fn tests() -> BTreeSet<String> {
    let mut known = BTreeSet::new();
    for file in files(&root("crates"), ".rs") {
        for line in std::fs::read_to_string(file).unwrap().lines() {
            let line = line.trim_start();
            let name = line.split_once("fn ").map_or(line, |(_, name)| name);
            let end = name.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            known.insert(name[..end.unwrap_or(name.len())].to_owned());
        }
    }
    known
}

#[test]
fn every_test_that_the_guarantees_name_exists() {
    let page = std::fs::read_to_string(root("docs/guarantees.md")).unwrap();
    let (known, named) = (tests(), words(&page));
    let named: Vec<_> = named.into_iter().filter(|word| is_test(word)).collect();
    assert!(named.len() > 100, "only {} tests are named", named.len());
    let missing: Vec<_> = named.iter().filter(|name| !known.contains(*name)).collect();
    assert!(missing.is_empty(), "there are no such tests: {missing:#?}");
}

#[test]
fn every_test_in_the_table_of_what_is_safe_by_default_exists() {
    let page = std::fs::read_to_string(root("docs/promises-and-tests.md")).unwrap();
    let (known, named) = (tests(), words(&page));
    let named: Vec<_> = named.into_iter().filter(|word| is_test(word)).collect();
    assert!(named.len() > 60, "only {} tests are named", named.len());
    let missing: Vec<_> = named.iter().filter(|name| !known.contains(*name)).collect();
    assert!(missing.is_empty(), "there are no such tests: {missing:#?}");
    for row in page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| what ")) {
        let has_test = words(row).iter().any(|word| is_test(word));
        assert!(has_test || row.starts_with("| case"), "a row without a test: {row}");
    }
}

/// Each fault is tested for each system.
#[test]
fn every_fault_of_a_rescued_system_has_a_test() {
    const SYSTEMS: [&str; 8] =
        ["RQ", "Dramatiq", "BullMQ", "Celery", "Sidekiq", "asynq", "Resque", "streams"];
    let page = std::fs::read_to_string(root("docs/rescue-faults.md")).unwrap();
    let known = tests();
    let faults: Vec<&str> = page.split("\n## ").skip(1).collect();
    assert_eq!(faults.len(), 14, "the faults");
    for fault in faults {
        let title = fault.lines().next().unwrap();
        let mut covered = BTreeSet::new();
        for row in fault.lines().filter(|line| line.starts_with("| ") && !line.contains("| test |"))
        {
            let named: Vec<_> = words(row).into_iter().filter(|word| is_test(word)).collect();
            assert!(!named.is_empty(), "{title}: a row without a test: {row}");
            let missing: Vec<_> = named.iter().filter(|name| !known.contains(*name)).collect();
            assert!(missing.is_empty(), "{title}: there are no such tests: {missing:?}");
            covered.extend(row.split('|').nth(1).unwrap().split(',').map(str::trim));
        }
        assert_eq!(covered, SYSTEMS.into_iter().collect(), "{title}");
    }
}

/// A promise that is silent about adopt mode would be read as if it held there.
#[test]
fn every_promise_says_what_holds_in_adopt_mode() {
    let page = std::fs::read_to_string(root("docs/guarantees.md")).unwrap();
    let sections: Vec<&str> = page.split("\n## ").filter(|text| text.starts_with('P')).collect();
    assert_eq!(sections.len(), 8, "P1 to P8");
    for section in sections {
        let title = section.lines().next().unwrap();
        let is_told = |word: &str| section.to_lowercase().contains(word);
        assert!(is_told("adopt"), "{title} says nothing of adopt mode");
        assert!(is_told("rescued system"), "{title} says nothing of rescued systems");
    }
}

/// docs/guarantees.md names exactly the planted bugs of the simulation.
#[test]
fn the_guarantees_name_exactly_the_planted_bugs() {
    let page = std::fs::read_to_string(root("docs/guarantees.md")).unwrap();
    let told: BTreeSet<_> = words(&page).into_iter().filter(|word| is_bug(word)).collect();
    let mut planted = BTreeSet::new();
    for file in ["bug.rs", "jobs/bug.rs", "sessions/bug.rs", "leases/bug.rs", "availability/bug.rs"]
    {
        let text = std::fs::read_to_string(root("crates/lapsed-sim/src").join(file)).unwrap();
        let all = text.split("= &[").nth(1).unwrap().split(']').next().unwrap().to_owned();
        planted.extend(
            all.split(',').filter_map(|one| Some(one.trim().split_once("::")?.1.to_owned())),
        );
    }
    let left =
        |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect::<Vec<_>>();
    assert_eq!(left(&planted, &told), [""; 0], "planted and not told");
    assert_eq!(left(&told, &planted), [""; 0], "told and not planted");
}

fn is_bug(word: &str) -> bool {
    let capitals = word.chars().filter(char::is_ascii_uppercase).count();
    word.chars().all(|c| c.is_ascii_alphabetic())
        && capitals >= 2
        && capitals < word.len() / 2
        && word.starts_with(|c: char| c.is_ascii_uppercase())
}

/// Abbreviated hashes: hexadecimal, with a digit and a letter, so that it is neither a number nor a word.
fn is_commit(word: &str) -> bool {
    let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    (7..=40).contains(&word.len())
        && word.chars().all(is_hex)
        && word.contains(|c: char| c.is_ascii_digit())
        && word.contains(|c: char| c.is_ascii_lowercase())
}

fn git(args: &[&str]) -> Option<String> {
    let output = std::process::Command::new("git").arg("-C").arg(root("")).args(args).output();
    let output = output.ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Those of them that are no commits of this checkout's history; `None` if it has no whole history to look at.
fn unknown_commits(named: &BTreeSet<String>) -> Option<Vec<String>> {
    if git(&["rev-parse", "--is-shallow-repository"])? != "false" {
        return None;
    }
    let is_known =
        |hash: &&String| git(&["merge-base", "--is-ancestor", hash.as_str(), "HEAD"]).is_some();
    Some(named.iter().filter(|hash| !is_known(hash)).cloned().collect())
}

/// A figure is only worth something if one can find what it was measured with.
#[test]
fn every_commit_that_the_docs_name_is_in_the_history() {
    let mut named = BTreeSet::new();
    for page in files(&root("docs"), ".md") {
        let text = std::fs::read_to_string(page).unwrap();
        named.extend(words(&text).into_iter().filter(|word| is_commit(word)));
    }
    assert!(named.len() >= 3, "hardly any commit was found: {named:?}");
    match unknown_commits(&named) {
        None => eprintln!(
            "NOT CHECKED: this checkout has no whole history, so nobody knows whether {named:?} are in it \
             (git fetch --unshallow)"
        ),
        Some(unknown) => assert_eq!(unknown, [""; 0], "no commits of this history"),
    }
    let made_up = BTreeSet::from(["0123abc".to_owned()]);
    assert!(unknown_commits(&made_up).is_none_or(|unknown| unknown == ["0123abc"]));
}
