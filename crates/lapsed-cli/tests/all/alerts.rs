//! The alert rules: Prometheus understands them, each fires and stays quiet where it should, all
//! that they ask for is really shown, and what to do about each is written down.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Daemon, lapsed};
use clap::Parser;
use lapsed::clock::SystemClock;
use lapsed::{Kind, SystemId};
use lapsed_cli::cli::Cli;
use lapsed_cli::metrics::Metrics;

const RULES: &str = "deploy/prometheus/lapsed.rules.yml";
const CASES: &[&str] =
    &["deploy/prometheus/lapsed.rules.test.yml", "deploy/prometheus/lapsed.weekly.test.yml"];
const RUNBOOK: &str = "docs/operations.md";

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap()
}

/// One alert, as the file has it; a value over several lines is joined by spaces.
struct Alert {
    name: String,
    fields: BTreeMap<String, String>,
}

impl Alert {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).unwrap_or_else(|| panic!("{} has no {name}", self.name))
    }
}

/// Enough of YAML for a file of ours; that it is YAML, promtool checks.
fn alerts() -> Vec<Alert> {
    let mut alerts: Vec<Alert> = Vec::new();
    let mut open = String::new();
    for line in read(RULES).lines() {
        let text = line.trim();
        if let Some(name) = text.strip_prefix("- alert: ") {
            alerts.push(Alert { name: name.to_owned(), fields: BTreeMap::new() });
            continue;
        }
        let Some(alert) = alerts.last_mut() else { continue };
        let indent = line.len() - line.trim_start().len();
        match text.split_once(':') {
            _ if text.is_empty() || text.starts_with(['#', '-']) => {}
            Some((key, value)) if indent < 12 && !key.contains(' ') => {
                open = key.to_owned();
                let value = value.trim().trim_start_matches(">-").trim_matches('"');
                alert.fields.insert(open.clone(), value.to_owned());
            }
            _ => {
                let value = alert.fields.get_mut(&open).unwrap();
                *value = format!("{value} {text}").trim().to_owned();
            }
        }
    }
    assert!(alerts.len() >= 12, "only {} alerts were read", alerts.len());
    alerts
}

fn promtool(verb: &str, files: &[&str]) {
    let mut command = Command::new(lapsed_testbed::paths::promtool().unwrap());
    command.args([verb, "rules"]).args(files.iter().map(|file| path(file)));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = said + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {verb} rules: {said}");
}

#[test]
fn prometheus_understands_the_rules() {
    promtool("check", &[RULES]);
}

#[test]
fn alerts_fire_and_stay_quiet_where_they_should() {
    promtool("test", CASES);
    let (mut fires, mut quiet) = (BTreeSet::new(), BTreeSet::new());
    let mut name = String::new();
    for line in
        CASES.iter().flat_map(|file| read(file).lines().map(str::to_owned).collect::<Vec<_>>())
    {
        match line.trim().split_once(':') {
            Some(("- alertname", alert)) => name = alert.trim().to_owned(),
            Some(("exp_alerts", " []")) => drop(quiet.insert(name.clone())),
            Some(("exp_alerts", "")) => drop(fires.insert(name.clone())),
            _ => {}
        }
    }
    let all: BTreeSet<String> = alerts().into_iter().map(|alert| alert.name).collect();
    assert_eq!(fires, all, "every alert has a case that fires");
    assert_eq!(quiet, all, "every alert has a case that does not");
}

/// What of an expression names a series or a label.
#[derive(Default, Debug)]
struct Wanted {
    metrics: BTreeSet<String>,
    labels: BTreeSet<String>,
    /// Metric, label, and the values it is matched with.
    matched: Vec<(String, String, String)>,
}

/// Labels that Prometheus adds to whatever it reads.
const ADDED: &[&str] = &["job", "instance"];

/// Words stand for a label inside braces and after `by` and `on`; before a parenthesis for a
/// function; else for a metric.
fn wanted(expr: &str) -> Wanted {
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
            "and" | "or" | "unless" | "offset" | "Inf" => {}
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
type Shown = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

fn show(text: &str, shown: &mut Shown) {
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let labels = shown.entry(name.to_owned()).or_default();
        let Some((_, rest)) = line.split_once('{') else { continue };
        for pair in rest.split_once('}').unwrap().0.split(',') {
            let (label, value) = pair.split_once('=').unwrap();
            labels.entry(label.to_owned()).or_default().insert(value.trim_matches('"').to_owned());
        }
    }
}

/// All that a daemon with one system of every kind shows.
fn shown() -> Shown {
    let mut shown = Shown::new();
    let dir = tempfile::tempdir().unwrap();
    let mut command = lapsed();
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(dir.path().join("data"));
    let daemon = Daemon::spawn(command, dir.path()).unwrap();
    show(&daemon.get("/metrics").text, &mut shown);
    // What only a system with an index has, and what only an object store has; the embedded store has
    // neither. A daemon that serves one introduces it in this same way.
    let metrics = Metrics::new(SystemClock::shared());
    metrics.introduce_index(&SystemId::new(Kind::Registry, "default").unwrap());
    metrics.introduce_store("bucket");
    show(&metrics.encode(), &mut shown);
    shown
}

#[test]
fn all_that_the_rules_ask_for_is_shown() {
    let shown = shown();
    for alert in alerts() {
        let wanted = wanted(alert.field("expr"));
        assert!(!wanted.metrics.is_empty(), "{} asks for nothing", alert.name);
        let mut labels: BTreeSet<String> = ADDED.iter().map(|label| (*label).to_owned()).collect();
        for metric in &wanted.metrics {
            let found = shown.get(metric);
            let found = found.unwrap_or_else(|| panic!("{}: no series {metric}", alert.name));
            for label in
                wanted.labels.iter().filter(|label| ["system", "kind"].contains(&label.as_str()))
            {
                assert!(found.contains_key(label), "{}: {metric} has no {label}", alert.name);
            }
            labels.extend(found.keys().cloned());
        }
        for label in wanted.labels.iter().cloned().chain(template_labels(&alert)) {
            assert!(labels.contains(&label), "{}: no label {label} in {labels:?}", alert.name);
        }
        for (metric, label, values) in wanted.matched {
            for value in values.split('|') {
                let is_there =
                    shown[&metric].get(&label).is_some_and(|found| found.contains(value));
                assert!(is_there, "{}: no {metric}{{{label}=\"{value}\"}}", alert.name);
            }
        }
    }
}

/// The labels that the words of an alert name.
fn template_labels(alert: &Alert) -> BTreeSet<String> {
    let words = format!("{} {}", alert.field("summary"), alert.field("description"));
    let label = |rest: &str| rest.split(' ').next().unwrap().to_owned();
    words.split("{{ $labels.").skip(1).map(label).collect()
}

#[test]
fn what_an_expression_asks_for_is_found() {
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

#[test]
fn every_alert_says_how_bad_it_is_and_what_to_type() {
    for alert in alerts() {
        let severity = alert.field("severity");
        assert!(["info", "warning", "critical"].contains(&severity), "{}: {severity}", alert.name);
        assert!(!alert.field("summary").is_empty());
        let description = alert
            .field("description")
            .replace("{{ $labels.kind }}/{{ $labels.system }}", "registry/devices");
        let commands: Vec<&str> =
            description.split('`').filter(|part| part.starts_with("lapsed ")).collect();
        assert!(!commands.is_empty(), "{} names no command", alert.name);
        for command in commands {
            let parsed = Cli::try_parse_from(command.split(' '));
            assert!(parsed.is_ok(), "{}: `{command}`: {}", alert.name, parsed.unwrap_err());
        }
    }
}

/// Sections by their anchors.
fn sections() -> BTreeMap<String, String> {
    let text = read(RUNBOOK);
    let sections = text.split("\n### ").skip(1);
    let anchor = |title: &str| title.trim().to_lowercase().replace(' ', "-");
    let body = |section: &str| section.split("\n## ").next().unwrap().to_owned();
    sections.map(|section| (anchor(section.lines().next().unwrap()), body(section))).collect()
}

#[test]
fn what_to_do_about_every_alert_is_written_down() {
    let sections = sections();
    for alert in alerts() {
        let runbook = alert.field("runbook");
        let anchor = runbook.strip_prefix(RUNBOOK).and_then(|rest| rest.strip_prefix('#'));
        assert_eq!(anchor, Some(alert.name.to_lowercase().as_str()), "{}", alert.name);
        let section = sections.get(anchor.unwrap());
        let section = section.unwrap_or_else(|| panic!("{RUNBOOK} has no section {runbook}"));
        for part in ["**Means.**", "**Look at.**", "**Do.**", "**Do nothing**"] {
            assert!(section.contains(part), "the section on {} lacks {part}", alert.name);
        }
    }
}
