//! Puts the switches of all places into the text, without removing anything of it.

use std::collections::HashSet;

use crate::places::{Change, Form, Place};

/// `text` with a switch at every place of which a change is left.
pub(crate) fn with(text: &str, places: Vec<Place>, without: &HashSet<u32>) -> String {
    // Each insertion: where, what else is inserted there before it, and the text. At one byte, what ends
    // comes before what begins; of what ends, the inner comes first; of what begins, the outer.
    let mut insertions: Vec<(usize, (u8, i64), String)> = Vec::new();
    for (order, place) in places.into_iter().enumerate() {
        let order = order as i64;
        let changes: Vec<Change> =
            place.changes.into_iter().filter(|change| !without.contains(&change.number)).collect();
        if changes.is_empty() {
            continue;
        }
        let asked = |change: &Change| format!("crate::mutated::at({})", change.number);
        match place.form {
            Form::Expression => {
                let others: Vec<String> = changes
                    .iter()
                    .map(|change| format!("if {} {{ {} }} else ", asked(change), change.instead))
                    .collect();
                insertions.push((place.start, (1, order), format!("({}{{ ", others.concat())));
                insertions.push((place.end, (0, -order), " })".to_owned()));
            }
            Form::Body => {
                for change in &changes {
                    let early = format!(" if {} {{ return {}; }}", asked(change), change.instead);
                    insertions.push((place.start, (1, order), early));
                }
            }
            Form::Arm => {
                let never = format!(" if !{}", asked(&changes[0]));
                insertions.push((place.start, (0, -order), never));
            }
        }
    }
    insertions.sort_by_key(|&(at, order, _)| (at, order));
    let mut out = String::with_capacity(text.len() * 2);
    let mut from = 0;
    for (at, _, inserted) in insertions {
        out.push_str(&text[from..at]);
        out.push_str(&inserted);
        from = at;
    }
    out.push_str(&text[from..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places;

    fn rewritten(text: &str, without: &[u32]) -> String {
        let places = places::of(text, 1).unwrap();
        with(text, places, &without.iter().copied().collect())
    }

    #[test]
    fn a_comparison_and_its_function_can_be_broken() {
        let text = "fn dead(now: u64, due: u64) -> bool {\n    now >= due\n}\n";
        let whole = "fn dead(now: u64, due: u64) -> bool { if crate::mutated::at(1) { return true; } \
                     if crate::mutated::at(2) { return false; }\n    \
                     (if crate::mutated::at(3) { now > due } else if crate::mutated::at(4) { now < due } \
                     else { now >= due })\n}\n";
        assert_eq!(rewritten(text, &[]), whole);
        let one = "fn dead(now: u64, due: u64) -> bool {\n    \
                   (if crate::mutated::at(4) { now < due } else { now >= due })\n}\n";
        assert_eq!(rewritten(text, &[1, 2, 3]), one);
        assert_eq!(rewritten(text, &[1, 2, 3, 4]), text);
    }

    #[test]
    fn nested_places_keep_their_order() {
        let text = "fn f(a: bool, b: u8) { if a && !(b < 3) { g() } }";
        let out = rewritten(text, &[]);
        assert!(syn::parse_file(&out).is_ok(), "{out}");
        let condition = out.split_once(" if (if ").unwrap().1;
        let numbers: Vec<&str> =
            condition.split("at(").skip(1).map(|rest| rest.split(')').next().unwrap()).collect();
        assert_eq!(numbers, ["2", "3", "4", "5", "6"], "{out}");
    }

    #[test]
    fn an_arm_before_a_catch_all_can_be_left_out_and_guards_be_ignored() {
        let text = "fn f(a: u8) { match a { 1 => g(), 2 if h() => g(), _ => {} } }";
        let out = rewritten(text, &[1]);
        assert!(out.contains("1 if !crate::mutated::at(2) => g()"), "{out}");
        assert!(out.contains("2 if (if crate::mutated::at(3) { false } else if crate::mutated::at(4) { true } else { h() })"), "{out}");
    }

    #[test]
    fn tests_constants_and_conditions_that_bind_names_are_left_alone() {
        for text in [
            "#[cfg(test)]\nmod tests { fn f() -> bool { 1 < 2 } }",
            "const A: bool = 1 < 2;",
            "const fn f() -> bool { 1 < 2 }",
            "#[test]\nfn f() { g(1 < 2) }",
        ] {
            assert_eq!(rewritten(text, &[]), text);
        }
        let binding = "fn f(a: Option<u8>) -> &'static [u8] { if let Some(b) = a && g() { &[] } else { &[] } }";
        assert_eq!(rewritten(binding, &[]), binding);
    }
}
