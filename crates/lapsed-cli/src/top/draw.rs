//! Draws the model at any size of the terminal. Columns that do not fit are left out from the right, and on a very
//! low terminal rows from the bottom.

mod front;
mod table;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph};

use super::model::{TopModel, TopView};
use lapsed_server::print::{moment, span, visible};

/// The styles, with colours or for NO_COLOR without them.
#[derive(Clone, Copy)]
struct Theme {
    colours: bool,
}

impl Theme {
    fn of(model: &TopModel) -> Theme {
        Theme { colours: model.colours }
    }

    fn good(self) -> Style {
        self.colour(Color::Green)
    }

    fn bad(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    fn dim(self) -> Style {
        if self.colours { Style::new().fg(Color::DarkGray) } else { Style::new() }
    }

    fn colour(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);

pub fn draw(frame: &mut Frame<'_>, model: &TopModel) {
    let theme = Theme::of(model);
    let rows = model.systems.len() as u16 + 3;
    let area = frame.area();
    let table_height = rows.min(area.height.saturating_sub(2));
    let [head, systems, lower, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(table_height),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(header(model, theme), head);
    table::draw(frame, systems, model, theme);
    match &model.view {
        TopView::Details => front::details(frame, lower, model, theme),
        TopView::Text { title, lines, top } => front::text(frame, lower, title, lines, *top),
        _ => receipts(frame, lower, model, theme),
    }
    front::foot(frame, foot, model, theme);
}

fn header<'m>(model: &'m TopModel, theme: Theme) -> Paragraph<'m> {
    let state = match &model.away {
        Some(why) => {
            Span::styled(format!("CONNECTION LOST, trying again: {}", visible(why)), theme.bad())
        }
        None => Span::styled("live", theme.good()),
    };
    let url = Span::styled(format!("{}  ", model.url), theme.dim());
    Paragraph::new(Line::from(vec![Span::styled("lapsed top  ", BOLD), url, state]))
}

fn receipts(frame: &mut Frame<'_>, area: Rect, model: &TopModel, theme: Theme) {
    let title = match model.filter.as_str() {
        "" => " receipts, newest first ".to_owned(),
        filter => format!(" receipts with \"{}\" ", visible(filter)),
    };
    let block = Block::new().borders(Borders::TOP).title(title);
    let height = area.height.saturating_sub(1) as usize;
    let lines: Vec<Line<'_>> =
        model.shown().take(height).map(|receipt| receipt_line(receipt, theme)).collect();
    let lines = match lines.is_empty() {
        true => vec![Line::styled("none yet", theme.dim())],
        false => lines,
    };
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn receipt_line(receipt: &lapsed_core::receipt::Receipt, theme: Theme) -> Line<'static> {
    let when = moment(receipt.at_ms);
    // Only the time of day: the date would take the room of the key.
    let when = when.get(11..19).unwrap_or(&when).to_owned();
    Line::from(vec![
        Span::styled(format!("{when}  "), theme.dim()),
        Span::raw(format!("{:<22}  ", receipt.id.system.to_string())),
        Span::styled(format!("{}  ", visible(receipt.key.as_str())), BOLD),
        Span::raw(format!("{}  {}  ", visible(receipt.owner.as_str()), receipt.reason)),
        Span::styled(format!("{} late", span(receipt.evidence.late_ms)), theme.dim()),
    ])
}
