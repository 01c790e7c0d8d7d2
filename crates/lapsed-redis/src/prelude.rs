//! Selects the functions of the preludes that a script uses. Each call of a script creates every function in
//! its text again, and those of all systems together would cost more than a small script itself.

use std::collections::HashSet;

/// One function or constant of a prelude.
struct Item<'a> {
    name: &'a str,
    lines: Vec<&'a str>,
}

/// `body` with those items of `preludes` in front that it uses, directly or by one another.
#[cfg(not(feature = "mutants"))]
pub(crate) fn begin(preludes: &[&str], body: &str) -> String {
    assembled(preludes, body)
}

/// The same with the change that `scripts/lua_mutants.py` wants to be noticed.
#[cfg(feature = "mutants")]
pub(crate) fn begin(preludes: &[&str], body: &str) -> String {
    let preludes: Vec<String> = preludes.iter().map(|one| changed((*one).to_owned())).collect();
    let preludes: Vec<&str> = preludes.iter().map(String::as_str).collect();
    assembled(&preludes, &changed(body.to_owned()))
}

/// `text` as it is.
#[cfg(not(feature = "mutants"))]
pub(crate) fn changed(text: String) -> String {
    text
}

/// `text` with the change to one script that `scripts/lua_mutants.py` wants to be noticed: a file that
/// `LAPSED_LUA_MUTANT` names has the script's text and the changed text as a JSON array.
#[cfg(feature = "mutants")]
pub(crate) fn changed(text: String) -> String {
    let Some(file) = std::env::var_os("LAPSED_LUA_MUTANT") else { return text };
    let change = std::fs::read(file).expect("the mutant can be read");
    let [from, to]: [String; 2] = serde_json::from_slice(&change).expect("two texts");
    text.replace(&from, &to)
}

fn assembled(preludes: &[&str], body: &str) -> String {
    let items: Vec<Item<'_>> = preludes.iter().flat_map(|prelude| split(prelude)).collect();
    let mut needed: HashSet<&str> = body.lines().flat_map(words).collect();
    let mut kept = Vec::new();
    // An item uses only earlier items, so the loop goes from the last to the first.
    for item in items.iter().rev().collect::<Vec<_>>() {
        if needed.contains(item.name) {
            needed.extend(item.lines.iter().flat_map(|line| words(line)));
            kept.push(item.lines.join("\n"));
        }
    }
    kept.reverse();
    format!("{}\n{body}", kept.join("\n"))
}

/// Items begin with `local` at the beginning of a line, and go on until a line that stands alone.
fn split(prelude: &str) -> Vec<Item<'_>> {
    let mut items: Vec<Item<'_>> = Vec::new();
    for line in prelude.lines().filter(|line| !line.starts_with("--") && !line.is_empty()) {
        match line.strip_prefix("local ") {
            Some(rest) => {
                let rest = rest.strip_prefix("function ").unwrap_or(rest);
                let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
                items.push(Item { name: &rest[..end], lines: vec![line] });
            }
            None => {
                if let Some(item) = items.last_mut() {
                    item.lines.push(line);
                }
            }
        }
    }
    items
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The words of a line of code.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split("--").next().unwrap_or(line);
    code.split(|c: char| !is_word(c)).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRELUDE: &str = "-- About it.\nlocal MOST = 3\n\n-- One.\nlocal function one(n)\n  return n\nend\n\n\
                           local function two(n)\n  return one(n) + MOST\nend\n\nlocal function three()\nend\n";

    #[test]
    fn only_the_prelude_items_that_a_script_uses_are_put_before_it() {
        let text = begin(&[PRELUDE], "return two(1) -- not three\n");
        for needed in ["local MOST = 3", "local function one(n)", "local function two(n)"] {
            assert!(text.contains(needed), "{text}");
        }
        assert!(!text.contains("three()") && !text.contains("About"), "{text}");
        assert!(text.find("one(n)") < text.find("two(n)"));
        assert_eq!(begin(&[PRELUDE], "return 1"), "\nreturn 1");
    }
}
