//! The Grafana dashboard: it has no ids of a particular Grafana, every query names series that a
//! daemon exports, and a real Prometheus answers each of them.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::metrics_fixture::{MetricsFixture, query};
use crate::support::{agent, until};
use lapsed_testbed::Prometheus;
use serde_json::Value;

lapsed_testbed::steady_tests! {
    every_dashboard_query_returns_data_from_a_real_prometheus,
}

fn dashboard() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/grafana/lapsed.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// One query of the dashboard.
#[derive(Debug)]
struct Query {
    panel: String,
    expr: String,
    legend: BTreeSet<String>,
}

impl Query {
    fn new(panel: &str, expr: &Value, legend: &Value) -> Query {
        let labels = legend.as_str().unwrap_or_default().split("{{").skip(1);
        let label = |rest: &str| rest.split("}}").next().unwrap().trim().to_owned();
        let expr = expr.as_str().unwrap_or_else(|| panic!("{panel}: no expression"));
        Query { panel: panel.to_owned(), expr: filled(expr), legend: labels.map(label).collect() }
    }
}

/// With every variable at `All`, over a window that a test can wait for.
fn filled(expr: &str) -> String {
    let variables =
        [("$job", ".*"), ("$kind", ".*"), ("$system", ".*"), ("$__rate_interval", "10s")];
    let filled =
        variables.iter().fold(expr.to_owned(), |text, (name, value)| text.replace(name, value));
    assert!(!filled.contains('$'), "an unknown variable: {filled}");
    filled
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Every query there is: of panels, of variables, of annotations.
fn queries(dashboard: &Value) -> Vec<Query> {
    let mut queries = Vec::new();
    for panel in array(&dashboard["panels"]) {
        let title = panel["title"].as_str().unwrap();
        let targets = array(&panel["targets"]).iter();
        queries.extend(targets.map(|t| Query::new(title, &t["expr"], &t["legendFormat"])));
    }
    for variable in array(&dashboard["templating"]["list"]) {
        let Some(asked) = variable["query"]["query"].as_str() else { continue };
        let inner = asked.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let (expr, label) = inner.and_then(|inner| inner.rsplit_once(", ")).expect(asked);
        let (expr, legend) = (Value::from(expr), Value::from(format!("{{{{{label}}}}}")));
        queries.push(Query::new(variable["name"].as_str().unwrap(), &expr, &legend));
    }
    for note in array(&dashboard["annotations"]["list"]).iter().filter(|n| n["expr"].is_string()) {
        queries.push(Query::new("an annotation", &note["expr"], &note["titleFormat"]));
    }
    assert!(queries.len() > 50, "only {} queries were read", queries.len());
    queries
}

#[test]
fn the_dashboard_has_no_ids_of_a_particular_grafana() {
    let dashboard = dashboard();
    assert!(dashboard["schemaVersion"].as_u64() >= Some(39), "too old to be imported as it is");
    assert_eq!(dashboard["uid"], "lapsed");
    assert!(dashboard["id"].is_null(), "an id is one Grafana's own");
    let names: Vec<&Value> =
        array(&dashboard["templating"]["list"]).iter().map(|v| &v["name"]).collect();
    assert_eq!(names, ["datasource", "job", "kind", "system"]);
    for source in sources(&dashboard) {
        let is_ours = source == "${datasource}" || source == "-- Grafana --";
        assert!(is_ours, "a data source of somebody's own: {source}");
    }
}

/// The uid of every data source that is named.
fn sources(value: &Value) -> Vec<String> {
    match value {
        Value::Object(map) => map
            .iter()
            .flat_map(|(key, value)| match key.as_str() {
                "datasource" => vec![value["uid"].as_str().unwrap_or("no uid").to_owned()],
                _ => sources(value),
            })
            .collect(),
        Value::Array(all) => all.iter().flat_map(sources).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn panels_have_unique_ids_descriptions_and_do_not_overlap() {
    let dashboard = dashboard();
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in array(&dashboard["panels"]) {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "twice: {}", panel["id"]);
        let at = |side: &str| panel["gridPos"][side].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{} is too wide", panel["title"]);
        for cell in (at("y")..at("y") + at("h"))
            .flat_map(|y| (at("x")..at("x") + at("w")).map(move |x| (x, y)))
        {
            assert!(cells.insert(cell), "{} lies over another", panel["title"]);
        }
        let is_row = panel["type"] == "row";
        assert!(is_row || panel["description"].as_str().is_some_and(|text| !text.is_empty()));
        assert_eq!(is_row, array(&panel["targets"]).is_empty(), "{}", panel["title"]);
    }
}

#[test]
fn every_alert_that_a_panel_names_exists() {
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/prometheus/lapsed.rules.yml");
    let rules = std::fs::read_to_string(rules).unwrap();
    let known: BTreeSet<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let dashboard = dashboard();
    let mut named = BTreeSet::new();
    for panel in array(&dashboard["panels"]) {
        let words = panel["description"].as_str().unwrap_or_default();
        let words = words.split(|c: char| !c.is_ascii_alphanumeric());
        let is_alert = |word: &&str| word.starts_with("Lapsed") || known.contains(*word);
        for word in words.filter(is_alert) {
            assert!(known.contains(word), "{}: there is no alert {word}", panel["title"]);
            named.insert(word.to_owned());
        }
    }
    assert!(named.len() > 20, "panels name only {named:?}");
}

/// What Prometheus answers: the labels of each series.
fn ask(prometheus: &Prometheus, expr: &str) -> Result<Vec<BTreeSet<String>>, String> {
    let url = format!("{}/api/v1/query", prometheus.url());
    let mut answer = agent().post(url).send_form([("query", expr)]).unwrap();
    let answer: Value = answer.body_mut().read_json().unwrap();
    if answer["status"] != "success" {
        return Err(answer["error"].to_string());
    }
    let labels = |series: &Value| {
        series["metric"].as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>()
    };
    Ok(array(&answer["data"]["result"]).iter().map(labels).collect())
}

/// In a loop until it has been read twice, which a rate needs; a query that is wrong fails at once.
fn every_dashboard_query_returns_data_from_a_real_prometheus() {
    let watched = MetricsFixture::start();
    let target = watched.daemon.url.strip_prefix("http://").unwrap();
    let prometheus = Prometheus::start(target, Duration::from_millis(500)).unwrap();
    let shown = query::shown(&watched.metrics());
    for query in queries(&dashboard()) {
        let missing = query::wanted(&query.expr).missing(&shown, &query.legend);
        assert!(missing.is_empty(), "{}: {}\n{}", query.panel, missing.join("; "), query.expr);
        // Nothing happens with an annotation while nobody restarts.
        if query.panel == "an annotation" {
            ask(&prometheus, &query.expr).unwrap();
            continue;
        }
        let all = until(&format!("an answer to {}", query.expr), || {
            let all = ask(&prometheus, &query.expr);
            let all = all.unwrap_or_else(|e| panic!("{}: {e}\n{}", query.panel, query.expr));
            (!all.is_empty()).then_some(all)
        });
        for labels in all {
            let lacking: Vec<_> = query.legend.difference(&labels).collect();
            assert!(
                lacking.is_empty(),
                "{}: the legend has {lacking:?}\n{}",
                query.panel,
                query.expr
            );
        }
    }
}
