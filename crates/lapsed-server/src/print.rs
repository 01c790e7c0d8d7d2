//! Output for people: aligned tables, times and durations. Results go to stdout, and nothing else
//! does.
//!
//! Everything that a person reads is written by `line`, `lines`, `stderr_lines` or a `Table`, which
//! escape control characters and bidirectional controls: names, payloads and errors come from
//! outside, and a terminal would obey them. `json` and `verbatim` write their text
//! exactly.

mod visible;

use std::borrow::Cow;
use std::io::Write;

use jiff::{Timestamp, Unit};
use lapsed_core::Name;
use lapsed_core::owner::Incarnation;
use serde::Serialize;

pub use self::visible::{visible, visible_lines};
use crate::failure::Failure;

/// Prints one JSON value on a line of its own.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|e| Failure::failed(e.to_string()))?;
    write_line(&text)
}

/// Prints one line to stdout. A newline in `text` is escaped too, so that a name cannot forge a line.
pub fn line(text: &str) -> Result<(), Failure> {
    write_line(&visible(text))
}

/// Prints a text of several lines to stdout. What comes from outside must be a cell of a `Table`, or
/// have passed `visible`, before it becomes a part of `text`: newlines are kept here.
pub fn lines(text: &str) -> Result<(), Failure> {
    write_line(&visible_lines(text))
}

/// Prints a text of one or several lines to stderr. An error of stderr itself is ignored, because
/// there is nowhere left to report it.
pub fn stderr_lines(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", visible_lines(text));
}

/// Prints a text exactly as it is. Only for what lapsed itself contains and another program reads:
/// scripts, SQL, man pages.
pub fn verbatim(text: &str) -> Result<(), Failure> {
    write_line(text)
}

fn write_line(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

/// A table with aligned columns. Columns of numbers are aligned to the right.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(headings: &[&str]) -> Table {
        Table { rows: vec![headings.iter().map(|h| h.to_uppercase()).collect()] }
    }

    pub fn bare() -> Table {
        Table::default()
    }

    /// Adds a row. Each cell is made visible, so that it stays on its line.
    pub fn row(&mut self, cells: Vec<String>) {
        let cells = cells.into_iter().map(|cell| match visible(&cell) {
            Cow::Borrowed(_) => cell,
            Cow::Owned(escaped) => escaped,
        });
        self.rows.push(cells.collect());
    }

    /// The table as text, without a final newline.
    pub fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let right: Vec<bool> = (0..columns).map(|column| self.is_number(column)).collect();
        let rows = self.rows.iter().map(|row| {
            let cells = row.iter().enumerate().map(|(column, cell)| match right[column] {
                true => format!("{cell:>width$}", width = widths[column]),
                false => format!("{cell:<width$}", width = widths[column]),
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        });
        rows.collect::<Vec<_>>().join("\n")
    }

    fn is_number(&self, column: usize) -> bool {
        let number = |cell: &String| cell.chars().all(|c| c.is_ascii_digit() || c == ',');
        let cells: Vec<_> = self.rows.iter().skip(1).filter_map(|row| row.get(column)).collect();
        // A dash stands for a missing number.
        cells.iter().any(|cell| number(cell)) && cells.iter().all(|c| *c == "-" || number(c))
    }
}

pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A length of time in at most two units, such as `1m 30s`.
pub fn span(ms: u64) -> String {
    let two = |big: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{big}{unit}"),
        _ => format!("{big}{unit} {small}{small_unit}"),
    };
    let seconds = ms / 1_000;
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..60_000 => format!("{:.1}s", ms as f64 / 1e3),
        60_000..3_600_000 => two(seconds / 60, "m", seconds % 60, "s"),
        3_600_000..86_400_000 => two(seconds / 3600, "h", seconds % 3600 / 60, "m"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

/// A point in time in UTC, to the second.
pub fn moment(ms: u64) -> String {
    let moment = Timestamp::from_millisecond(ms as i64).unwrap_or(Timestamp::UNIX_EPOCH);
    let moment = moment.round(Unit::Second).unwrap_or(moment);
    moment.to_string().replace('T', " ")
}

/// How long ago a point in time was, by this machine's clock.
pub fn ago(ms: u64) -> String {
    let now = Timestamp::now().as_millisecond().max(0) as u64;
    format!("{} ago", span(now.saturating_sub(ms)))
}

/// The owner and the incarnation that held an entry, for display. A session has no incarnation (it
/// is 0), and a session without a broadcaster has itself as its owner; a dash stands for what is
/// absent.
pub fn holder(key: &Name, owner: &Name, incarnation: Incarnation) -> (String, String) {
    match incarnation.0 {
        _ if owner == key => ("-".to_owned(), "-".to_owned()),
        0 => (owner.to_string(), "-".to_owned()),
        life => (owner.to_string(), life.to_string()),
    }
}

/// A count with its noun, such as `1 entry` or `2 entries`.
pub fn plural(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["name", "n"]);
        table.row(vec!["é".into(), "7".into()]);
        table.row(vec!["long".into(), "1,000".into()]);
        assert_eq!(table.text(), "NAME      N\né         7\nlong  1,000");
    }

    #[test]
    fn numbers_and_times_are_readable() {
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(12), "12");
        assert_eq!(span(90_000), "1m 30s");
        assert_eq!(span(7_200_000), "2h");
        assert_eq!(moment(1_700_000_000_123), "2023-11-14 22:13:20Z");
    }
}
