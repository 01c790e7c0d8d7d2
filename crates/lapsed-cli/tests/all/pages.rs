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
    let text = "# A heading, or two\n[a](#a-heading-or-two) [b](#no) [c](none.md) [d](operations.md#alerts)\n\
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
