//! The verdict of `lapsed demo`: compares the guarantees with the receipts, the metrics and the census.

use std::collections::BTreeSet;

use super::api::Api;
use super::{ENTRIES, OWNERS, Pace, Story};
use lapsed_server::failure::Failure;
use lapsed_server::print::{self, Table};

pub struct DemoVerdict {
    seconds: f64,
    lines: Vec<(bool, String, String)>,
}

/// Reads receipts, census and metrics from the daemon, and checks each guarantee against them.
pub fn judge(api: &Api, story: &Story, pace: Pace) -> Result<DemoVerdict, Failure> {
    let receipts = api.receipts()?;
    let census = api.census()?;
    let metrics = api.text("/metrics")?;
    let mut verdict =
        DemoVerdict { seconds: story.began.elapsed().as_secs_f64(), lines: Vec::new() };

    let ended = [&story.killed, &story.frozen, &story.left];
    let strangers = receipts.iter().filter(|r| !ended.iter().any(|e| r.owner.as_str() == *e));
    let strangers = strangers.count();
    verdict.line(
        strangers == 0,
        "the living are never reclaimed",
        &format!("{strangers} receipts for the {} owners that lived", OWNERS - 3),
    );

    let late = receipts.iter().map(|r| r.evidence.late_ms).max().unwrap_or(0);
    // One sweep interval with its jitter, and one second for the pass itself.
    let bound = pace.every().as_millis() as u64 * 11 / 10 + 1_000;
    verdict.line(
        late <= bound,
        "dead owners are reclaimed within one interval",
        &format!(
            "the latest {:.1} s after the deadline; the bound is {:.1} s",
            late as f64 / 1e3,
            bound as f64 / 1e3
        ),
    );

    let distinct: BTreeSet<_> = receipts.iter().map(|r| (&r.key, r.incarnation)).collect();
    let expected = 3 * ENTRIES;
    let once = distinct.len() == receipts.len() && receipts.len() == expected;
    verdict.line(
        once,
        "every entry is reclaimed exactly once",
        &format!(
            "{} receipts for {expected} entries left behind, {} of them distinct",
            receipts.len(),
            distinct.len()
        ),
    );

    let counted = counted(&metrics);
    verdict.line(
        counted == receipts.len() as u64,
        "the metrics agree with the receipts",
        &format!("lapsed_reclaimed_total says {counted}"),
    );

    let zombie = story.lost_told == ENTRIES as u64;
    verdict.line(zombie, "zombies learn that they were declared dead", &format!(
        "the frozen owner heard Lost with all {} entries, re-asserted {} and took none of the {} \
         that had moved on", story.lost_told, story.reasserted, story.moved
    ));

    // The live owners hold their entries; those of the zombie are held by itself or by the owner that took them.
    let left = ((OWNERS - 3) * ENTRIES + ENTRIES) as u64;
    verdict.line(
        census.population == left && census.suspects == 0,
        "no other entry is lost",
        &format!(
            "{} entries are held, {left} should be; {} suspects are left",
            census.population, census.suspects
        ),
    );
    Ok(verdict)
}

/// The sum of `lapsed_reclaimed_total`.
fn counted(metrics: &str) -> u64 {
    let lines = metrics.lines().filter(|line| line.starts_with("lapsed_reclaimed_total{"));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64
}

impl DemoVerdict {
    fn line(&mut self, kept: bool, promised: &str, happened: &str) {
        self.lines.push((kept, promised.to_owned(), happened.to_owned()));
    }

    /// Prints the verdict. Fails if a guarantee was violated.
    pub fn print(&self) -> Result<(), Failure> {
        let mut table = Table::new(&["", "promised", "what happened"]);
        for (kept, promised, happened) in &self.lines {
            let mark = if *kept { "kept" } else { "BROKEN" };
            table.row(vec![mark.to_owned(), promised.clone(), happened.clone()]);
        }
        print::lines(&format!("\nafter {:.0} s:\n\n{}", self.seconds, table.text()))?;
        if self.lines.iter().all(|(kept, ..)| *kept) {
            return print::lines("\nNext: `lapsed serve`, and the README's first section.");
        }
        Err(Failure::failed("a promise was not kept; please report this with the lines above"))
    }
}
