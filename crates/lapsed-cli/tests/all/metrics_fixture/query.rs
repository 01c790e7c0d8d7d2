//! What an expression of Prometheus asks for, and whether a text of metrics shows it.
//!
//! Enough of the language for expressions of ours; that they are right, Prometheus' own parser checks.

use std::collections::{BTreeMap, BTreeSet};

/// What of an expression names a series or a label.
#[derive(Default, Debug)]
pub struct Wanted {
    pub metrics: BTreeSet<String>,
    pub labels: BTreeSet<String>,
    /// Metric, label, and the values it is matched with.
    pub matched: Vec<(String, String, String)>,
}

/// Labels that Prometheus adds to every series.
const ADDED: &[&str] = &["job", "instance"];

/// Series that Prometheus itself adds for every target.
const OF_PROMETHEUS: &[&str] = &["up"];

impl Wanted {
    /// What of it is not shown, in words; `besides` are further labels that must be there.
    pub fn missing(&self, shown: &Shown, besides: &BTreeSet<String>) -> Vec<String> {
        let mut missing = Vec::new();
        let mut labels: BTreeSet<&str> = ADDED.iter().copied().collect();
        for metric in self.metrics.iter().filter(|m| !OF_PROMETHEUS.contains(&m.as_str())) {
            let Some(found) = shown.get(metric) else {
                missing.push(format!("no series {metric}"));
                continue;
            };
            let told_apart = self.labels.iter().filter(|label| OF_EVERY.contains(&label.as_str()));
            missing.extend(
                told_apart
                    .filter(|label| !found.contains_key(*label))
                    .map(|label| format!("{metric} has no {label}")),
            );
            labels.extend(found.keys().map(String::as_str));
        }
        let unknown = self.labels.union(besides).filter(|label| !labels.contains(label.as_str()));
        missing.extend(unknown.map(|label| format!("no label {label} in {labels:?}")));
        missing.extend(self.matched.iter().flat_map(|matched| unmatched(matched, shown)));
        missing
    }
}

/// Labels that all metrics of one expression have, if one of them is asked for it.
const OF_EVERY: &[&str] = &["system", "kind"];

/// Values that a label of a series never has.
fn unmatched(
    (metric, label, values): &(String, String, String),
    shown: &Shown,
) -> impl Iterator<Item = String> {
    let found = shown.get(metric).and_then(|labels| labels.get(label));
    let is_added = ADDED.contains(&label.as_str());
    let absent = values.split('|').filter(move |value| {
        *value != ".*" && !is_added && found.is_none_or(|found| !found.contains(*value))
    });
    absent
        .map(|value| format!("no {metric}{{{label}=\"{value}\"}}"))
        .collect::<Vec<_>>()
        .into_iter()
}

/// Words stand for a label inside braces and after `by` and `on`; before a parenthesis for a
/// function; else for a metric.
pub fn wanted(expr: &str) -> Wanted {
    let mut wanted = Wanted::default();
    let (mut rest, mut metric, mut in_labels) = (expr, String::new(), false);
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    while let Some(first) = rest.chars().next() {
        let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        if length == 0 {
            in_labels = match first {
                '{' => true,
                '}' | ')' => false,
                _ => in_labels,
            };
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let (word, after) = rest.split_at(length);
        rest = after;
        let next = after.trim_start();
        match word {
            _ if first.is_ascii_digit() => {}
            "by" | "on" | "without" | "ignoring" => in_labels = true,
            "and" | "or" | "unless" | "offset" | "Inf" | "bool" => {}
            _ if in_labels => {
                wanted.labels.insert(word.to_owned());
                if let Some((operator, value)) = next.split_once('"')
                    && operator.starts_with(['=', '!'])
                {
                    let (value, after) = value.split_once('"').unwrap();
                    wanted.matched.push((metric.clone(), word.to_owned(), value.to_owned()));
                    rest = after;
                }
            }
            _ if next.starts_with('(') || next.starts_with("by ") => {}
            _ => {
                metric = word.to_owned();
                wanted.metrics.insert(metric.clone());
            }
        }
    }
    wanted
}

/// Series by name, with their labels and the values of these.
pub type Shown = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// All that a text of metrics shows.
pub fn shown(text: &str) -> Shown {
    let mut shown = Shown::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let labels = shown.entry(name.to_owned()).or_default();
        let Some((_, rest)) = line.split_once('{') else { continue };
        for pair in rest.split_once('}').unwrap().0.split(',') {
            let (label, value) = pair.split_once('=').unwrap();
            labels.entry(label.to_owned()).or_default().insert(value.trim_matches('"').to_owned());
        }
    }
    shown
}

#[test]
fn series_and_labels_of_an_expression_are_found() {
    let found = wanted(
        "sum by (job, le) (rate(a_total{x=\"error\", y=~\"b|c\"}[15m])) / b > 0.5 \
         unless on (kind) max_over_time(c[30m]) == 1 and d offset 9d",
    );
    let set = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(found.metrics, set(&["a_total", "b", "c", "d"]));
    assert_eq!(found.labels, set(&["job", "le", "x", "y", "kind"]));
    let of = |label: &str, value: &str| ("a_total".to_owned(), label.to_owned(), value.to_owned());
    assert_eq!(found.matched, [of("x", "error"), of("y", "b|c")]);
}
