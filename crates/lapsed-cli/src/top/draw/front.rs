//! Draws the views that cover the receipts: one system in detail, a text, an input line or a question.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Wrap};

use super::super::model::{TopModel, TopView, Typing};
use super::table::{latency, reclaims};
use super::{BOLD, Theme};
use lapsed_server::node::shapes::SystemStatus;
use lapsed_server::print::{count, moment, span, visible};

const KEYS: &str =
    "j/k select  Enter details  e explain  d dry run  h/o/a brake  / filter  ? help  q quit";

pub fn text(frame: &mut Frame<'_>, area: Rect, title: &str, lines: &[String], top: usize) {
    let title = visible(title);
    let title =
        format!(" {title}: {} ", if lines.len() > 1 { "j/k scroll, Esc back" } else { "Esc back" });
    let block = Block::new().borders(Borders::TOP).title(title);
    let lines: Vec<Line<'_>> =
        lines.iter().skip(top).map(|line| Line::raw(visible(line))).collect();
    frame.render_widget(Paragraph::new(lines).block(block).wrap(Wrap { trim: false }), area);
}

pub fn details(frame: &mut Frame<'_>, area: Rect, model: &TopModel, theme: Theme) {
    let Some(status) = model.system() else { return };
    let title = format!(" {}/{}: Esc back ", status.kind, status.system);
    let block = Block::new().borders(Borders::TOP).title(title);
    let mut lines = about(model, status);
    if let Some(error) = &status.error {
        lines.push(Line::styled(visible(error).into_owned(), theme.bad()));
    }
    lines.extend(passes(model, status));
    frame.render_widget(Paragraph::new(lines).block(block).wrap(Wrap { trim: false }), area);
}

fn about(model: &TopModel, status: &SystemStatus) -> Vec<Line<'static>> {
    let row = |word: &str, text: String| {
        Line::from(vec![
            Span::styled(format!("{word:<9}"), BOLD),
            Span::raw(visible(&text).into_owned()),
        ])
    };
    let mut lines = Vec::new();
    if let Some(brake) = &status.brake {
        lines.push(row("brake", format!("{} ({}): {}", brake.state, brake.setting, brake.words)));
    }
    let store = match model.store(status) {
        Some(store) => {
            let clock =
                store.clock_offset_ms.map_or(String::new(), |ms| format!(", clock {ms:+} ms"));
            let state = match &store.error {
                Some(error) => format!("away: {error}"),
                None => format!("answers in {}{clock}", latency(store.latency_us)),
            };
            let engine = store.engine.as_deref().unwrap_or("");
            format!("{} {} {engine}: {state}", store.name, store.place)
        }
        None => status.store_name.clone(),
    };
    lines.push(row("store", store));
    let every = span(status.every_ms);
    let leader = match (status.leads, &status.leader) {
        (None, _) => String::new(),
        (Some(_), Some(leader)) => format!(", leader: {leader}"),
        (Some(_), None) => ", nobody leads".to_owned(),
    };
    let dead = span(status.threshold_ms);
    lines.push(row("passes", format!("every {every}, {}{leader}; dead after {dead}", status.mode)));
    lines.push(row("lately", reclaims(model.history(status), 60)));
    lines
}

/// The last passes, newest first. An older daemon reports only the last one.
fn passes(model: &TopModel, status: &SystemStatus) -> Vec<Line<'static>> {
    let known = model.history(status).map(|history| history.passes.as_slice()).unwrap_or_default();
    let last = status.last_pass.as_slice();
    let passes = if known.is_empty() { last } else { known };
    let mut lines = vec![Line::styled("last passes", BOLD)];
    lines.extend(passes.iter().map(|pass| {
        let dry = if pass.dry_run { ", dry run" } else { "" };
        let detail =
            pass.detail.as_deref().map_or(String::new(), |detail| format!("; {}", visible(detail)));
        Line::raw(format!(
            "{}  {} of {} reclaimed in {}, stopped: {}{dry}{detail}",
            moment(pass.started_ms),
            count(pass.reclaimed),
            count(pass.suspects),
            span(pass.took_ms),
            pass.stopped
        ))
    }));
    lines
}

/// Draws the last line: the input, the question or the message; otherwise the list of keys.
pub fn foot(frame: &mut Frame<'_>, area: Rect, model: &TopModel, theme: Theme) {
    let line = match &model.view {
        TopView::Typing { what, text } => {
            let what = match what {
                Typing::Key => "key to explain",
                Typing::Reason => "why the brake is overridden for one pass",
                Typing::Filter => "receipts with",
            };
            Line::from(vec![
                Span::styled(format!("{what}: "), BOLD),
                Span::raw(visible(text)),
                Span::styled(" ", BOLD.add_modifier(Modifier::REVERSED)),
            ])
        }
        TopView::Confirm { question, .. } => Line::styled(
            format!("{} y does it, any other key leaves it", visible(question)),
            theme.bad(),
        ),
        _ => match &model.message {
            Some(message) => Line::styled(visible(message), BOLD),
            None => Line::styled(KEYS, theme.dim()),
        },
    };
    frame.render_widget(Paragraph::new(line), area);
}
