//! The alert rules: Prometheus understands them, each fires and stays quiet where it should, all
//! that they ask for is really shown, and what to do about each is written down.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::metrics_fixture::{MetricsFixture, query};
use clap::Parser;
use lapsed_cli::cli::Cli;

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
fn promtool_accepts_the_alert_rules() {
    promtool("check", &[RULES]);
}

#[test]
fn promtool_cases_fire_exactly_the_expected_alerts() {
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

#[test]
fn every_series_in_the_alert_rules_is_exported() {
    let watched = MetricsFixture::start();
    let shown = query::shown(&watched.metrics());
    for alert in alerts() {
        let wanted = query::wanted(alert.field("expr"));
        assert!(!wanted.metrics.is_empty(), "{} asks for nothing", alert.name);
        let wrong = wanted.missing(&shown, &template_labels(&alert));
        assert!(wrong.is_empty(), "{}: {}", alert.name, wrong.join("; "));
    }
}

/// A rule that asks for something by a wrong name is found.
#[test]
fn a_rule_that_names_an_unknown_series_is_reported() {
    let shown = query::shown(
        "a_total{system=\"s\",kind=\"registry\",stopped=\"done\"} 1\nb{store=\"m\"} 2\n",
    );
    let missing = |expr: &str| query::wanted(expr).missing(&shown, &BTreeSet::new());
    assert!(missing("sum by (job, system) (rate(a_total{stopped=\"done\"}[5m])) > 0").is_empty());
    assert!(missing("up == 0 and on (instance) b").is_empty());
    for wrong in [
        "a_totals > 0",
        "sum by (sistem) (a_total)",
        "sum by (system) (b)",
        "a_total{stopped=\"dome\"}",
        "a_total{stopped=~\"done|dome\"}",
        "b{system=\"s\"}",
    ] {
        assert!(!missing(wrong).is_empty(), "{wrong}");
    }
}

/// The labels that the words of an alert name.
fn template_labels(alert: &Alert) -> BTreeSet<String> {
    let words = format!("{} {}", alert.field("summary"), alert.field("description"));
    let label = |rest: &str| rest.split(' ').next().unwrap().to_owned();
    words.split("{{ $labels.").skip(1).map(label).collect()
}

#[test]
fn every_alert_has_severity_summary_and_command() {
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

/// The sections of the runbook, by anchor.
fn sections() -> BTreeMap<String, String> {
    let text = read(RUNBOOK);
    let sections = text.split("\n### ").skip(1);
    let anchor = |title: &str| title.trim().to_lowercase().replace(' ', "-");
    let body = |section: &str| section.split("\n## ").next().unwrap().to_owned();
    sections.map(|section| (anchor(section.lines().next().unwrap()), body(section))).collect()
}

#[test]
fn every_alert_has_a_runbook_section() {
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
