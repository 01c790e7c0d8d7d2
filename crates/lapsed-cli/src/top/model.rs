//! The state of `lapsed top`: the data of the daemon and the view. It changes only by update and by keys.

use std::collections::{HashSet, VecDeque};

use lapsed_core::receipt::{Receipt, ReceiptId};
use lapsed_core::system::Explanation;
use lapsed_core::{Kind, SystemId};

use super::feed::{FeedRequest, Health, HistoryView, TopUpdate};
use crate::commands::would_reclaim;
use lapsed_server::node::shapes::SystemStatus;
use lapsed_server::print::{count, plural, span};

/// How many receipts are kept to scroll and filter through.
const KEPT: usize = 1_000;

/// The view that has the focus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopView {
    /// The table of systems and the receipts.
    Main,
    /// One system: its passes, its store, its brake.
    Details,
    /// A text, scrolled to that line: an explanation, the list of a pass, the help.
    Text { title: String, lines: Vec<String>, top: usize },
    /// An input line with the text typed so far.
    Typing { what: Typing, text: String },
    /// A question that must be confirmed before `order` is carried out.
    Confirm { question: String, order: FeedRequest },
}

/// What an input line is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Typing {
    /// The key that is to be explained.
    Key,
    /// The text that receipts must contain.
    Filter,
    /// Why the brake is overridden for one pass.
    Reason,
}

pub struct TopModel {
    pub url: String,
    pub colours: bool,
    pub now_ms: u64,
    pub systems: Vec<SystemStatus>,
    pub histories: Vec<HistoryView>,
    pub stores: Vec<Health>,
    pub receipts: VecDeque<Receipt>,
    known: HashSet<ReceiptId>,
    pub selected: usize,
    pub view: TopView,
    pub filter: String,
    /// Why the daemon does not answer; none if it does.
    pub away: Option<String>,
    /// The result of the last request.
    pub message: Option<String>,
}

impl TopModel {
    pub fn new(url: &str, colours: bool) -> TopModel {
        TopModel {
            url: url.to_owned(),
            colours,
            now_ms: 0,
            systems: Vec::new(),
            histories: Vec::new(),
            stores: Vec::new(),
            receipts: VecDeque::new(),
            known: HashSet::new(),
            selected: 0,
            view: TopView::Main,
            filter: String::new(),
            away: None,
            message: None,
        }
    }

    /// Updates the state from a message of the feed.
    pub fn apply(&mut self, update: TopUpdate, now_ms: u64) {
        self.now_ms = now_ms;
        match update {
            TopUpdate::Status(systems) => {
                self.away = None;
                self.systems = systems;
                self.selected = self.selected.min(self.systems.len().saturating_sub(1));
            }
            TopUpdate::History(histories, stores) => {
                (self.histories, self.stores) = (histories, stores)
            }
            TopUpdate::Unreachable(why) => self.away = Some(why),
            TopUpdate::EarlierReceipts(newest_first) => {
                newest_first.into_iter().rev().for_each(|r| self.add(r))
            }
            TopUpdate::Receipt(receipt) => self.add(*receipt),
            TopUpdate::Explained(what, Ok(told)) => {
                self.show(&format!("why: {what}"), explained(&told))
            }
            TopUpdate::Passed(system, Ok(report)) => {
                let title = if report.dry_run { "dry run" } else { "pass" };
                self.show(&format!("{title}: {system}"), passed(&report));
            }
            TopUpdate::Braked(Ok(brake)) => {
                self.message =
                    Some(format!("brake of {}/{}: {}", brake.kind, brake.system, brake.words));
            }
            TopUpdate::Explained(_, Err(why))
            | TopUpdate::Passed(_, Err(why))
            | TopUpdate::Braked(Err(why)) => {
                self.message = Some(why);
            }
        }
    }

    fn add(&mut self, receipt: Receipt) {
        if !self.known.insert(receipt.id.clone()) {
            return;
        }
        self.receipts.push_front(receipt);
        if let Some(oldest) =
            (self.receipts.len() > KEPT).then(|| self.receipts.pop_back()).flatten()
        {
            self.known.remove(&oldest.id);
        }
    }

    /// Shows a text over the receipts.
    pub fn show(&mut self, title: &str, lines: Vec<String>) {
        self.message = None;
        self.view = TopView::Text { title: title.to_owned(), lines, top: 0 };
    }

    /// The selected system; none if there are no systems.
    pub fn system(&self) -> Option<&SystemStatus> {
        self.systems.get(self.selected)
    }

    /// How much the next pass of the selected system would reclaim without a brake.
    pub fn would_reclaim(&self) -> String {
        self.system().map_or_else(String::new, would_reclaim)
    }

    pub fn id(&self) -> Option<SystemId> {
        let status = self.system()?;
        let kind = Kind::ALL.iter().find(|kind| kind.as_str() == status.kind)?;
        SystemId::new(*kind, &status.system).ok()
    }

    /// The recent history of a system, if the daemon reports it.
    pub fn history(&self, status: &SystemStatus) -> Option<&HistoryView> {
        self.histories.iter().find(|h| h.kind == status.kind && h.system == status.system)
    }

    /// The health of the store of a system, if the daemon reports it.
    pub fn store(&self, status: &SystemStatus) -> Option<&Health> {
        self.stores.iter().find(|store| store.name == status.store_name)
    }

    /// The receipts that match the filter.
    pub fn shown(&self) -> impl Iterator<Item = &Receipt> {
        let wanted = self.filter.to_lowercase();
        self.receipts.iter().filter(move |receipt| wanted.is_empty() || matches(receipt, &wanted))
    }
}

fn matches(receipt: &Receipt, wanted: &str) -> bool {
    let texts = [
        receipt.id.to_string(),
        receipt.key.to_string(),
        receipt.owner.to_string(),
        receipt.reason.to_string(),
    ];
    texts.iter().any(|text| text.to_lowercase().contains(wanted))
}

fn explained(told: &Explanation) -> Vec<String> {
    let because = told.because.iter().map(|sentence| format!("- {sentence}"));
    std::iter::once(format!("{}: {}", told.key, told.verdict)).chain(because).collect()
}

/// The report of a pass with its entries; after a dry run also the key for a real pass.
fn passed(report: &lapsed_core::sweep::PassReport) -> Vec<String> {
    let did = if report.dry_run { "would be reclaimed" } else { "reclaimed" };
    let mut lines = vec![format!(
        "{} of {} {did} in {}, stopped: {}",
        count(report.reclaimed),
        plural(report.suspects, "suspect", "suspects"),
        span(report.took_ms),
        report.stopped
    )];
    let skipped = report.skipped.iter();
    lines.extend(skipped.map(|(why, number)| format!("left alone: {} ({why})", count(*number))));
    lines.extend(report.detail.iter().cloned());
    lines.push(String::new());
    lines.extend(report.entries.iter().map(|entry| {
        format!("{}  {}  {}, {} late", entry.key, entry.owner, entry.reason, span(entry.late_ms))
    }));
    if report.dry_run {
        lines.push(String::new());
        lines.push("nothing was changed; `s` runs the pass for real".to_owned());
    }
    lines
}

/// Whether the view shows a dry run of `system`: only then may a real pass follow.
pub fn is_dry_run_of(view: &TopView, system: &SystemId) -> bool {
    matches!(view, TopView::Text { title, .. } if *title == format!("dry run: {system}"))
}
