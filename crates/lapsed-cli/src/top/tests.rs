//! Tests of the screen at several sizes and of the keys, without a terminal or a daemon.

use lapsed_core::sweep::{Census, PassMode};
use lapsed_core::{Kind, SystemId};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};

use super::feed::{FeedRequest, HistoryView, TopUpdate};
use super::keys::{KeyAction, press};
use super::model::{TopModel, TopView};
use super::{draw, model};
use lapsed_server::node::BrakeOrder;

const NOW_MS: u64 = 1_794_811_625_000;

fn pass(dry_run: bool) -> Value {
    json!({
        "system": "devices", "kind": "registry", "dry_run": dry_run, "examined": 3, "suspects": 3,
        "reclaimed": 2, "skipped": { "alive": 1 }, "errors": 0, "stopped": "done", "took_ms": 7,
        "started_ms": NOW_MS - 2_000,
        "entries": [{ "key": "imei-1", "owner": "i-1", "incarnation": 1, "reason": "owner_dead",
            "deadline_ms": NOW_MS - 5_000, "late_ms": 1_300 }],
    })
}

fn status(kind: &str, name: &str) -> Value {
    json!({
        "system": name, "kind": kind, "threshold_ms": 90_000, "every_ms": 60_000,
        "mode": "idempotent", "leads": null, "store_name": "main", "store": null, "census": null,
        "brake": { "system": name, "kind": kind, "setting": "auto", "state": "held",
            "held_by": "mass_death", "words": "many died at once" },
        "last_pass": pass(false), "lag": { "p50_ms": 800, "p99_ms": 1_200, "samples": 9 },
    })
}

fn receipt(seq: u64, key: &str) -> TopUpdate {
    let receipt = json!({
        "id": format!("registry-devices-{seq}"), "key": key, "owner": "gateway-2", "incarnation": 1,
        "reason": "owner_dead", "removed": {}, "sweeper": "s", "batch": 1, "at_ms": NOW_MS,
        "evidence": { "clock": "store", "deadline_ms": NOW_MS - 700, "judged_ms": NOW_MS, "late_ms": 700 },
    });
    TopUpdate::Receipt(Box::new(serde_json::from_value(receipt).unwrap()))
}

fn some() -> TopModel {
    let mut model = TopModel::new("http://127.0.0.1:7227", true);
    let systems = json!([status("registry", "devices"), status("availability", "mitras")]);
    model.apply(TopUpdate::Status(serde_json::from_value(systems).unwrap()), NOW_MS);
    let history: HistoryView = serde_json::from_value(json!({
        "system": "devices", "kind": "registry", "slice_ms": 10_000, "now_ms": NOW_MS,
        "samples": [{ "at_ms": NOW_MS - 5_000, "reclaimed": 8 }, { "at_ms": NOW_MS - 15_000, "reclaimed": 1 }],
        "passes": [pass(false)],
    }))
    .unwrap();
    let store = json!([{ "name": "main", "place": "redis 127.0.0.1", "answers": true, "latency_us": 420,
        "clock_offset_ms": -3 }]);
    model.apply(TopUpdate::History(vec![history], serde_json::from_value(store).unwrap()), NOW_MS);
    model.apply(receipt(1, "imei-1"), NOW_MS);
    model.apply(receipt(2, "imei-2"), NOW_MS);
    model
}

fn drawn(model: &TopModel, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw::draw(frame, model)).unwrap();
    let buffer = terminal.backend().buffer();
    let rows = buffer.content.chunks(usize::from(width.max(1)));
    let text = rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
    text.map(|row| row.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

fn type_in(model: &mut TopModel, text: &str) -> KeyAction {
    let press_one =
        |model: &mut TopModel, code| press(model, KeyEvent::new(code, KeyModifiers::NONE));
    let mut last = KeyAction::Nothing;
    for letter in text.chars() {
        last = match letter {
            '\n' => press_one(model, KeyCode::Enter),
            '\u{1b}' => press_one(model, KeyCode::Esc),
            letter => press_one(model, KeyCode::Char(letter)),
        };
    }
    last
}

fn devices() -> SystemId {
    SystemId::new(Kind::Registry, "devices").unwrap()
}

#[test]
fn eighty_by_twenty_four_shows_systems_and_receipts() {
    let picture = drawn(&some(), 80, 24);
    let lines: Vec<_> = picture.lines().collect();
    assert!(lines[0].starts_with("lapsed top  http://127.0.0.1:7227  live"), "{picture}");
    assert!(lines[2].starts_with("SYSTEM") && lines[2].contains("LAST PASS"), "{picture}");
    let row = "registry/devices       -        -        held    800ms/1.2s   2.0s ago, done";
    assert_eq!(lines[3], row, "{picture}");
    assert!(picture.contains("receipts, newest first"), "{picture}");
    let newest = picture.find("imei-2").unwrap();
    assert!(newest < picture.find("imei-1").unwrap(), "{picture}");
    assert!(lines[23].starts_with("j/k select"), "{picture}");
}

#[test]
fn a_wide_terminal_shows_the_store_and_the_reclaims() {
    let picture = drawn(&some(), 140, 30);
    assert!(picture.contains("420us") && picture.contains("▁█"), "{picture}");
}

#[test]
fn every_size_is_drawn_in_every_view() {
    let mut views = vec![TopView::Main, TopView::Details];
    for text in ["?", "e", "h", "/"] {
        let mut model = some();
        type_in(&mut model, text);
        views.push(model.view);
    }
    for view in views {
        let mut model = some();
        model.view = view;
        for (width, height) in [(0, 0), (1, 1), (3, 2), (20, 5), (40, 10), (79, 23), (300, 100)] {
            drawn(&model, width, height);
        }
    }
}

#[test]
fn a_lost_connection_is_said_and_forgotten_once_it_is_back() {
    let mut model = some();
    model.apply(TopUpdate::Unreachable("no daemon answers".to_owned()), NOW_MS);
    let picture = drawn(&model, 80, 24);
    assert!(picture.contains("CONNECTION LOST") && picture.contains("imei-2"), "{picture}");
    model.apply(TopUpdate::Status(Vec::new()), NOW_MS);
    assert!(!drawn(&model, 80, 24).contains("CONNECTION LOST"));
}

#[test]
fn a_receipt_that_comes_twice_is_shown_once() {
    let mut model = some();
    model.apply(receipt(2, "imei-2"), NOW_MS);
    assert_eq!(model.receipts.len(), 2);
}

#[test]
fn without_colours_nothing_is_coloured() {
    let mut model = some();
    model.colours = false;
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| draw::draw(frame, &model)).unwrap();
    let cells = &terminal.backend().buffer().content;
    assert!(cells.iter().all(|cell| cell.fg == ratatui::style::Color::Reset));
}

#[test]
fn keys_select_filter_and_show_details() {
    let mut model = some();
    type_in(&mut model, "jjj");
    assert_eq!(model.selected, 1, "never past the last");
    type_in(&mut model, "kk\n");
    assert_eq!((model.selected, &model.view), (0, &TopView::Details));
    let picture = drawn(&model, 100, 30);
    assert!(picture.contains("many died at once") && picture.contains("clock -3 ms"), "{picture}");
    type_in(&mut model, "\u{1b}/IMEI-1\n");
    assert_eq!(model.shown().count(), 1);
    assert_eq!(type_in(&mut model, "q"), KeyAction::Quit);
}

#[test]
fn a_key_is_explained() {
    let mut model = some();
    let meant = type_in(&mut model, "eimei-q\n");
    assert_eq!(meant, KeyAction::Ask(FeedRequest::Explain(devices(), "imei-q".to_owned())));
}

#[test]
fn a_real_pass_needs_a_dry_run_and_a_yes() {
    let mut model = some();
    assert_eq!(type_in(&mut model, "sy"), KeyAction::Nothing, "without a dry run nothing happens");
    assert_eq!(
        type_in(&mut model, "d"),
        KeyAction::Ask(FeedRequest::Pass(devices(), PassMode::DryRun))
    );
    let report = serde_json::from_value(pass(true)).unwrap();
    model.apply(TopUpdate::Passed(devices(), Ok(report)), NOW_MS);
    assert!(model::is_dry_run_of(&model.view, &devices()));
    assert!(drawn(&model, 80, 24).contains("2 of 3 suspects would be reclaimed"));
    assert_eq!(type_in(&mut model, "s"), KeyAction::Nothing);
    assert_eq!(
        type_in(&mut model, "y"),
        KeyAction::Ask(FeedRequest::Pass(devices(), PassMode::Reclaim))
    );
}

#[test]
fn a_brake_is_only_touched_after_a_yes() {
    for (key, order) in [("h", BrakeOrder::Hold), ("a", BrakeOrder::Auto)] {
        let mut model = some();
        type_in(&mut model, key);
        assert!(drawn(&model, 80, 24).contains("the brake of registry/devices?"));
        assert_eq!(type_in(&mut model, "n"), KeyAction::Nothing);
        type_in(&mut model, key);
        assert_eq!(type_in(&mut model, "y"), KeyAction::Ask(FeedRequest::Brake(devices(), order)));
    }
}

#[test]
fn hostile_text_is_drawn_escaped() {
    let hostile = "a\u{202e}b\x1b[2J\r\nFORGED";
    let mut model = some();
    model.apply(receipt(2, "key\u{202e}\u{2066}"), NOW_MS);
    for view in [
        TopView::Main,
        TopView::Details,
        TopView::Text { title: hostile.to_owned(), lines: vec![hostile.to_owned()], top: 0 },
    ] {
        model.view = view;
        model.message = Some(hostile.to_owned());
        model.away = Some(hostile.to_owned());
        let mut terminal = Terminal::new(TestBackend::new(120, 30)).unwrap();
        terminal.draw(|frame| draw::draw(frame, &model)).unwrap();
        let text: String =
            terminal.backend().buffer().content().iter().map(|cell| cell.symbol()).collect();
        assert!(text.contains("a\\u{202e}b\\x1b[2J\\r\\nFORGED"), "{text}");
        assert!(!text.contains(['\u{202e}', '\u{2066}', '\x1b', '\r', '\n']), "{text:?}");
    }
}

#[test]
fn an_override_asks_for_a_reason_shows_the_count_and_wants_a_yes() {
    let census = Census { owners_overdue: 2, suspects: 7, population: 9, ..Census::default() };
    let mut devices_status = status("registry", "devices");
    devices_status["census"] = serde_json::to_value(census).unwrap();
    let mut model = some();
    let all = json!([devices_status, status("availability", "mitras")]);
    model.apply(TopUpdate::Status(serde_json::from_value(all).unwrap()), NOW_MS);
    type_in(&mut model, "o");
    assert!(drawn(&model, 80, 24).contains("why the brake is overridden"));
    type_in(&mut model, "\n");
    assert_eq!(model.view, TopView::Main, "without a reason nothing happens");
    type_in(&mut model, "o");
    type_in(&mut model, "gone\n");
    let TopView::Confirm { question, .. } = &model.view else { panic!("{:?}", model.view) };
    assert!(question.contains("The next pass would declare"), "{question}");
    let order = BrakeOrder::Override { reason: "gone".to_owned() };
    assert_eq!(type_in(&mut model, "y"), KeyAction::Ask(FeedRequest::Brake(devices(), order)));
}
