//! The table that a run prints: one row for each comparison, with whether its target was met.

use std::fmt;

use serde::Serialize;

/// The range in which a ratio is to be.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FigureTarget {
    AtLeast(f64),
    AtMost(f64),
    Within(f64, f64),
}

impl FigureTarget {
    fn met(self, ratio: f64) -> bool {
        match self {
            FigureTarget::AtLeast(low) => ratio >= low,
            FigureTarget::AtMost(high) => ratio <= high,
            FigureTarget::Within(low, high) => (low..=high).contains(&ratio),
        }
    }
}

impl fmt::Display for FigureTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FigureTarget::AtLeast(low) => write!(f, "≥ {low}"),
            FigureTarget::AtMost(high) => write!(f, "≤ {high}"),
            FigureTarget::Within(low, high) => write!(f, "{low}–{high}"),
        }
    }
}

/// A measured value in the unit in which it was measured. Printed, it moves to the unit that fits its
/// size (15.7 s, 34 MB); in JSON, value and unit stay as measured.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Figure {
    pub value: f64,
    pub unit: &'static str,
}

impl Figure {
    pub fn per_second(value: f64) -> Self {
        Figure { value, unit: "/s" }
    }

    pub fn ms(value: f64) -> Self {
        Figure { value, unit: "ms" }
    }

    pub fn us(value: f64) -> Self {
        Figure { value, unit: "µs" }
    }

    pub fn count(value: f64) -> Self {
        Figure { value, unit: "" }
    }

    pub fn seconds(value: f64) -> Self {
        Figure { value, unit: "s" }
    }

    pub fn bytes(value: f64) -> Self {
        Figure { value, unit: "B" }
    }
}

/// A larger unit: its name, and how many of the unit below make one.
type LargerUnit = (&'static str, f64);

impl Figure {
    /// The units above this figure's own, in the order in which people count on.
    fn larger_units(&self) -> &'static [LargerUnit] {
        match self.unit {
            "µs" => &[("ms", 1e3), ("s", 1e3)],
            "ms" => &[("s", 1e3)],
            "B" => &[("kB", 1e3), ("MB", 1e3), ("GB", 1e3)],
            _ => &[],
        }
    }

    /// The value in the largest unit in which it is at least 1.
    fn in_readable_unit(&self) -> (f64, &'static str) {
        let mut readable = (self.value, self.unit);
        for (unit, size) in self.larger_units() {
            // 999.96 ms would be printed as 1000 ms.
            if readable.0.abs() < size - 0.05 {
                break;
            }
            readable = (readable.0 / size, unit);
        }
        readable
    }
}

/// At most one decimal below 100, none from there on, and thousands separated by commas.
fn digits(value: f64) -> String {
    if value.abs() < 99.95 {
        let text = format!("{value:.1}");
        return text.strip_suffix(".0").map(str::to_owned).unwrap_or(text);
    }
    let whole = format!("{value:.0}");
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole.as_str()), |rest| ("-", rest));
    let mut grouped = String::from(sign);
    for (nth, digit) in whole.chars().enumerate() {
        if nth > 0 && (whole.len() - nth).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = self.in_readable_unit();
        let space = if unit.is_empty() || unit == "/s" { "" } else { " " };
        f.pad(&format!("{}{space}{unit}", digits(value)))
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
enum Row {
    Compared {
        benchmark: &'static str,
        what: String,
        ours: Figure,
        other: Figure,
        other_is: String,
        ratio: f64,
        target: Option<FigureTarget>,
        met: Option<bool>,
    },
    Measured {
        benchmark: &'static str,
        what: String,
        figure: Figure,
    },
    Skipped {
        benchmark: &'static str,
        why: String,
    },
    Failed {
        benchmark: &'static str,
        why: String,
    },
}

/// All rows of one run, in the order in which they were measured.
#[derive(Debug, Serialize)]
pub struct FigureTable {
    quick: bool,
    cores: usize,
    rows: Vec<Row>,
}

impl FigureTable {
    pub fn new(quick: bool) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        FigureTable { quick, cores, rows: Vec::new() }
    }

    /// Adds a row that compares our figure with another one; `other_is` says what was measured there.
    pub fn compare(
        &mut self,
        benchmark: &'static str,
        what: impl Into<String>,
        ours: Figure,
        (other_is, other): (&str, Figure),
        ratio: f64,
        target: Option<FigureTarget>,
    ) {
        let met = target.map(|target| target.met(ratio));
        let (what, other_is) = (what.into(), other_is.to_owned());
        self.push(Row::Compared { benchmark, what, ours, other, other_is, ratio, target, met });
    }

    /// Adds a row for a figure that is compared with nothing.
    pub fn measure(&mut self, benchmark: &'static str, what: impl Into<String>, figure: Figure) {
        self.push(Row::Measured { benchmark, what: what.into(), figure });
    }

    /// Adds a row that says why a benchmark could not be run.
    pub fn skip(&mut self, benchmark: &'static str, why: impl Into<String>) {
        self.push(Row::Skipped { benchmark, why: why.into() });
    }

    pub fn fail(&mut self, benchmark: &'static str, error: &anyhow::Error) {
        self.push(Row::Failed { benchmark, why: format!("{error:#}") });
    }

    pub fn failed(&self) -> usize {
        self.rows.iter().filter(|row| matches!(row, Row::Failed { .. })).count()
    }

    pub fn missed(&self) -> usize {
        self.rows.iter().filter(|row| row.met() == Some(false)).count()
    }

    fn push(&mut self, row: Row) {
        eprintln!("{row}");
        self.rows.push(row);
    }
}

impl Row {
    fn met(&self) -> Option<bool> {
        match self {
            Row::Compared { met, .. } => *met,
            _ => None,
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Row::Compared { benchmark, what, ours, other, other_is, ratio, target, met } => {
                let target = target.map_or(String::new(), |target| target.to_string());
                let verdict = match met {
                    Some(true) => "met",
                    Some(false) => "MISSED",
                    None => "",
                };
                write!(
                    f,
                    "{benchmark:<14} {what:<52} {ours:>11}  {other:>11} {other_is:<34} \
                     {ratio:>7.2}  {target:<9} {verdict}"
                )
            }
            Row::Measured { benchmark, what, figure } => {
                write!(f, "{benchmark:<14} {what:<52} {figure:>11}")
            }
            Row::Skipped { benchmark, why } => write!(f, "{benchmark:<14} skipped: {why}"),
            Row::Failed { benchmark, why } => write!(f, "{benchmark:<14} FAILED: {why}"),
        }
    }
}

impl fmt::Display for FigureTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<14} {:<52} {:>11}  {:>11} {:<34} {:>7}  {:<9}",
            "", "what", "ours", "other", "side", "ratio", "target"
        )?;
        for row in &self.rows {
            writeln!(f, "{row}")?;
        }
        let met = self.rows.iter().filter(|row| row.met() == Some(true)).count();
        let (missed, all) = (self.missed(), met + self.missed());
        write!(f, "\n{met} of {all} targets met, {missed} missed, on {} cores", self.cores)?;
        writeln!(f, "{}", if self.quick { "; quick sizes: not to be quoted" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_printed_in_the_unit_that_people_use() {
        assert_eq!(Figure::ms(15_700.0).to_string(), "15.7 s");
        assert_eq!(Figure::ms(2.3).to_string(), "2.3 ms");
        assert_eq!(Figure::ms(999.96).to_string(), "1 s");
        assert_eq!(Figure::us(850.0).to_string(), "850 µs");
        assert_eq!(Figure::us(2_000.0).to_string(), "2 ms");
        assert_eq!(Figure::us(3_200_000.0).to_string(), "3.2 s");
        assert_eq!(Figure::seconds(0.4).to_string(), "0.4 s");
    }

    #[test]
    fn sizes_are_printed_in_decimal_units() {
        assert_eq!(Figure::bytes(97.4).to_string(), "97.4 B");
        assert_eq!(Figure::bytes(1_000_000.0).to_string(), "1 MB");
        assert_eq!(Figure::bytes(34_000_000.0).to_string(), "34 MB");
        assert_eq!(Figure::bytes(1_250_000_000.0).to_string(), "1.2 GB");
    }

    #[test]
    fn counts_and_rates_have_separated_thousands_and_no_prefix() {
        assert_eq!(Figure::count(0.0).to_string(), "0");
        assert_eq!(Figure::count(1_234_567.0).to_string(), "1,234,567");
        assert_eq!(Figure::per_second(9_876_543.2).to_string(), "9,876,543/s");
        assert_eq!(Figure::per_second(12.34).to_string(), "12.3/s");
    }

    #[test]
    fn a_figure_fills_its_column() {
        assert_eq!(format!("{:>11}", Figure::ms(15_700.0)), "     15.7 s");
    }

    #[test]
    fn json_keeps_value_and_unit_as_measured() {
        let json = serde_json::to_value(Figure::ms(15_700.0)).expect("a figure is plain data");
        assert_eq!(json, serde_json::json!({ "value": 15_700.0, "unit": "ms" }));
    }
}
