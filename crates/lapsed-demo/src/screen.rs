//! The output of `lapsed demo`: a screen that is redrawn on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use lapsed_core::owner::{Ending, OwnerInfo};

use super::api::StatusView;
use lapsed_server::failure::Failure;
use lapsed_server::print::{self, Table, visible};

/// How many of the newest story lines the screen shows.
const LINES: usize = 9;

pub struct Screen {
    began: Instant,
    live: bool,
    story: Vec<String>,
    last: String,
    url: String,
}

impl Screen {
    pub fn new(url: &str) -> Screen {
        let live = std::io::stdout().is_terminal();
        let url = url.to_owned();
        Screen { began: Instant::now(), live, story: Vec::new(), last: String::new(), url }
    }

    /// Adds a line to the story, with the time since the start.
    pub fn say(&mut self, text: &str) {
        let line = format!("{:5.1} s  {text}", self.began.elapsed().as_secs_f64());
        if !self.live {
            let _ = print::line(&line);
        }
        self.story.push(line);
    }

    pub fn draw(&mut self, view: &StatusView) -> Result<(), Failure> {
        match self.live {
            true => self.paint(view),
            false => self.note(view),
        }
    }

    /// Prints a line whenever the counts change; used if stdout is not a terminal.
    fn note(&mut self, view: &StatusView) -> Result<(), Failure> {
        let counts = counts(view);
        if counts != self.last {
            print::line(&format!("{:5.1} s    {counts}", self.began.elapsed().as_secs_f64()))?;
            self.last = counts;
        }
        Ok(())
    }

    fn paint(&self, view: &StatusView) -> Result<(), Failure> {
        let mut picture = String::new();
        let elapsed = self.began.elapsed().as_secs_f64();
        picture += &format!("\x1b[1mlapsed demo\x1b[0m  {elapsed:5.1} s   {}\n\n", self.url);
        picture += &format!("{}\n\n", counts(view));
        picture += &owners(view).text();
        picture += "\n\n\x1b[1mreceipts\x1b[0m\n";
        picture += &receipts(view).text();
        picture += "\n\n\x1b[1mwhat happened\x1b[0m\n";
        let skip = self.story.len().saturating_sub(LINES);
        for line in &self.story[skip..] {
            picture += &visible(line);
            picture.push('\n');
        }
        let clean = picture.replace('\n', "\x1b[K\n");
        let mut out = std::io::stdout().lock();
        write!(out, "\x1b[?25l\x1b[H{clean}\x1b[J")?;
        out.flush()?;
        Ok(())
    }

    /// Shows the cursor of the terminal again.
    pub fn finish(&self) {
        if self.live {
            let _ = print::verbatim("\x1b[?25h");
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.finish();
    }
}

fn counts(view: &StatusView) -> String {
    let Some(census) = &view.status.census else { return "the store does not answer".to_owned() };
    let lag = view
        .status
        .lag
        .as_ref()
        .map_or("-".to_owned(), |lag| format!("{:.1} s", lag.p99_ms as f64 / 1e3));
    let brake = view.status.brake.as_ref().map_or("-", |brake| brake.state.as_str());
    format!(
        "entries {}   suspects {}   owners live {}, overdue {}   reclaim lag p99 {lag}   brake {brake}",
        census.population, census.suspects, census.owners_live, census.owners_overdue
    )
}

fn owners(view: &StatusView) -> Table {
    let mut table = Table::new(&["owner", "incarnation", "state", "holds", "beat good for"]);
    let now_ms = view.status.census.as_ref().map_or(0, |census| census.now_ms);
    for owner in &view.owners {
        let left = owner.due_ms.saturating_sub(now_ms) as f64 / 1e3;
        let left = if owner.ended.is_some() { "-".to_owned() } else { format!("{left:.1} s") };
        table.row(vec![
            owner.owner.to_string(),
            owner.incarnation.to_string(),
            state(owner, now_ms).to_owned(),
            owner.held.to_string(),
            left,
        ]);
    }
    table
}

fn state(owner: &OwnerInfo, now_ms: u64) -> &'static str {
    match owner.ended {
        Some((Ending::Retired, _)) => "retired",
        Some(_) => "dead",
        None if owner.due_ms <= now_ms => "overdue",
        None => "live",
    }
}

fn receipts(view: &StatusView) -> Table {
    let mut table = Table::bare();
    for receipt in &view.newest {
        table.row(vec![
            receipt.id.to_string(),
            receipt.key.to_string(),
            format!("from {}, incarnation {}", receipt.owner, receipt.incarnation),
            receipt.reason.to_string(),
            format!("{:.1} s late", receipt.evidence.late_ms as f64 / 1e3),
        ]);
    }
    table
}
