//! Draws the table of systems: one row for each, the selected one marked, with as many columns as fit.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::widgets::{Block, Borders, Cell, Row, Table};

use super::super::feed::HistoryView;
use super::super::model::TopModel;
use super::{BOLD, Theme};
use lapsed_server::node::shapes::SystemStatus;
use lapsed_server::print::{count, span, visible};

/// A column: its heading, its width, its text and its style.
struct Column {
    heading: &'static str,
    width: u16,
    text: fn(&TopModel, &SystemStatus) -> String,
}

/// The columns, most important first: those that do not fit are left out from the end.
const COLUMNS: &[Column] = &[
    Column { heading: "SYSTEM", width: 22, text: |_, s| format!("{}/{}", s.kind, s.system) },
    Column { heading: "ENTRIES", width: 8, text: |_, s| census(s, |c| c.population) },
    Column { heading: "SUSPECTS", width: 8, text: |_, s| census(s, |c| c.suspects) },
    Column { heading: "BRAKE", width: 7, text: |_, s| brake(s) },
    Column { heading: "LAG p50/p99", width: 12, text: |_, s| lag(s) },
    Column { heading: "LAST PASS", width: 18, text: last_pass },
    Column { heading: "STORE", width: 9, text: store },
    Column { heading: "RECLAIMS", width: 16, text: |m, s| reclaims(m.history(s), 16) },
    Column { heading: "LEADS", width: 5, text: |_, s| leads(s).to_owned() },
    Column { heading: "ALIVE", width: 7, text: |_, s| census(s, |c| c.owners_live) },
];

pub fn draw(frame: &mut Frame<'_>, area: Rect, model: &TopModel, theme: Theme) {
    let columns = fitting(area.width);
    let headings = Row::new(columns.iter().map(|column| Cell::from(column.heading))).style(BOLD);
    let rows = model.systems.iter().enumerate().map(|(index, status)| {
        let cells = columns.iter().map(|column| {
            let text = (column.text)(model, status);
            let style = style(column.heading, &text, status, theme);
            Cell::from(visible(&text).into_owned()).style(style)
        });
        let selected = index == model.selected;
        let mark = if selected { Modifier::REVERSED } else { Modifier::empty() };
        Row::new(cells).style(Style::new().add_modifier(mark))
    });
    let widths = columns.iter().map(|column| Constraint::Length(column.width));
    let block = Block::new().borders(Borders::TOP).title(" systems ");
    frame.render_widget(Table::new(rows, widths).header(headings).block(block), area);
}

/// The columns that fit into `width` with a space between them, but at least the first.
fn fitting(width: u16) -> Vec<&'static Column> {
    let mut taken = 0;
    let fits = COLUMNS.iter().take_while(|column| {
        taken += column.width + 1;
        taken <= width + 1
    });
    let number = fits.count().max(1);
    COLUMNS.iter().take(number).collect()
}

fn style(heading: &str, text: &str, status: &SystemStatus, theme: Theme) -> Style {
    match heading {
        "BRAKE" if text == "held" => theme.bad(),
        "SUSPECTS" if text != "0" && text != "-" => theme.bad(),
        "STORE" if status.error.is_some() => theme.bad(),
        _ => Style::new(),
    }
}

fn census(status: &SystemStatus, pick: fn(&lapsed_core::sweep::Census) -> u64) -> String {
    status.census.as_ref().map_or("-".to_owned(), |census| count(pick(census)))
}

fn brake(status: &SystemStatus) -> String {
    status.brake.as_ref().map_or("-".to_owned(), |brake| brake.state.clone())
}

fn lag(status: &SystemStatus) -> String {
    let lag = status.lag.as_ref();
    lag.map_or("-".to_owned(), |lag| format!("{}/{}", span(lag.p50_ms), span(lag.p99_ms)))
}

/// The age of the last pass by this machine's clock, and why the pass stopped.
fn last_pass(model: &TopModel, status: &SystemStatus) -> String {
    let Some(pass) = &status.last_pass else { return "-".to_owned() };
    let ago = model.now_ms.saturating_sub(pass.started_ms);
    let ago = if ago < 1_000 { "0s".to_owned() } else { span(ago / 1_000 * 1_000) };
    format!("{ago} ago, {}", pass.stopped)
}

fn store(model: &TopModel, status: &SystemStatus) -> String {
    match model.store(status) {
        Some(store) if !store.answers => "AWAY".to_owned(),
        Some(store) => latency(store.latency_us),
        None if status.error.is_some() => "AWAY".to_owned(),
        None => "-".to_owned(),
    }
}

pub fn latency(us: u64) -> String {
    match us {
        0..1_000 => format!("{us}us"),
        _ => format!("{:.1}ms", us as f64 / 1e3),
    }
}

pub fn leads(status: &SystemStatus) -> &'static str {
    match status.leads {
        Some(true) => "yes",
        Some(false) => "no",
        None => "-",
    }
}

/// A bar for each slice of time, the newest at the right; empty without a history.
pub fn reclaims(history: Option<&HistoryView>, width: usize) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let Some(history) = history.filter(|history| history.slice_ms > 0) else {
        return String::new();
    };
    let mut slices = vec![0; width];
    for sample in &history.samples {
        let ago = history.now_ms.saturating_sub(sample.at_ms) / history.slice_ms;
        if let Some(place) = width.checked_sub(1 + ago as usize) {
            slices[place] += sample.reclaimed;
        }
    }
    let most = slices.iter().copied().max().unwrap_or(0).max(1);
    slices.iter().map(|number| BARS[(number * 8).div_ceil(most).min(8) as usize]).collect()
}
