//! What is printed: one row a comparison, and whether its target was met.

use std::fmt;

use serde::Serialize;

/// What a ratio should be.
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

/// A figure and what it counts.
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

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scaled, prefix) = match self.value {
            v if v >= 1e6 => (v / 1e6, "M"),
            v if v >= 1e4 => (v / 1e3, "k"),
            v => (v, ""),
        };
        let digits = if scaled >= 100.0 { 0 } else { 1 };
        let text = format!("{scaled:.digits$} {prefix}{}", self.unit);
        f.pad(&text.replace(" /s", "/s"))
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

/// All rows of one run.
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

    /// Ours against the other side.
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

    /// A figure without another side.
    pub fn measure(&mut self, benchmark: &'static str, what: impl Into<String>, figure: Figure) {
        self.push(Row::Measured { benchmark, what: what.into(), figure });
    }

    /// What could not be measured.
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
