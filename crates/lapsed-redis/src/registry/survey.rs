//! One scan of all entries of an adopted registry, which has no index of owners.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::owner::Incarnation;
use lapsed_core::sweep::{
    AdoptObservation, Census, Cursor, PageRequest, PassMode, Suspect, SuspectPage,
};
use lapsed_core::{Error, Name, Result};
use tokio::task::{JoinError, JoinHandle};

use super::adopt::{AdoptedRegistry, REASON};
use super::observe::ObservedOwners;

/// How many entries one HSCAN asks for: some tenths of a millisecond of the server's time.
const PAGE: usize = 500;

/// The most entries of dead owners that one scan keeps; the next scan finds the others.
const SUSPECTS_MAX: usize = 1_000_000;

/// The result of one scan.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// The server's clock when it began; 0: there was none yet.
    at_ms: u64,
    /// This process's monotonic clock when it began.
    began: Duration,
    examined: u64,
    /// How many entries each owner holds.
    pub held: BTreeMap<Name, u64>,
    /// When the last known heartbeat of each owner expires.
    deadlines: BTreeMap<Name, u64>,
    /// The dead owners and the entries that each holds, in order.
    dead: BTreeMap<Name, Vec<Name>>,
    /// The dead owners by deadline, the most overdue first.
    order: Vec<(u64, Name)>,
    /// Entries that cannot be read.
    unreadable: u64,
    /// Whether some entries of the dead were left out, because there are too many.
    cut: bool,
    /// Owners that have a heartbeat, and owners that were ever seen alive.
    alive: u64,
    seen_alive: u64,
}

/// `deadline owner key`: names have no control characters, so this one separates them.
pub(super) fn after(suspect: &Suspect) -> Cursor {
    Cursor(Some(format!("{}\u{1}{}\u{1}{}", suspect.deadline_ms, suspect.owner, suspect.key)))
}

/// Reads a cursor; a cursor that cannot be read means the beginning.
fn parse_cursor(cursor: &Cursor) -> Option<((u64, &str), &str)> {
    let mut parts = cursor.0.as_deref()?.splitn(3, '\u{1}');
    let deadline_ms = parts.next()?.parse().ok()?;
    Some(((deadline_ms, parts.next()?), parts.next()?))
}

impl Survey {
    /// The server's clock when the scan began.
    pub fn at_ms(&self) -> u64 {
        self.at_ms
    }

    /// Whether `key` is the last by name of all that a dead owner held.
    pub fn is_last_of(&self, owner: &Name, key: &Name) -> bool {
        !self.cut && self.dead.get(owner).and_then(|keys| keys.last()) == Some(key)
    }

    /// When the last known heartbeat of the owner expires.
    fn deadline(&self, owner: &Name) -> Option<u64> {
        self.deadlines.get(owner).copied()
    }

    /// One page of suspects, ordered by deadline, owner and key. The brake's limit counts owners.
    pub fn page(&self, request: &PageRequest) -> SuspectPage {
        // All entries were read before the first page.
        let examined = if request.after.0.is_none() { self.examined } else { 0 };
        let mut page = SuspectPage { last: true, examined, ..SuspectPage::default() };
        let from = parse_cursor(&request.after);
        let owners = self.order.iter().take(request.undeclared_max.unwrap_or(usize::MAX));
        for (deadline_ms, owner) in owners {
            let keys = &self.dead[owner];
            let skip = match from {
                Some((at, _)) if (*deadline_ms, owner.as_str()) < at => keys.len(),
                Some((at, key)) if (*deadline_ms, owner.as_str()) == at => {
                    keys.partition_point(|one| one.as_str() <= key)
                }
                _ => 0,
            };
            for key in &keys[skip..] {
                if page.suspects.len() == request.limit {
                    page.last = false;
                    return page;
                }
                page.suspects.push(Suspect {
                    key: key.clone(),
                    owner: owner.clone(),
                    incarnation: Incarnation(0),
                    deadline_ms: *deadline_ms,
                    reason: REASON,
                });
            }
        }
        page
    }
}

impl AdoptedRegistry {
    /// The result of the last scan. Scans if there was none.
    pub(super) async fn survey_or_last(&self) -> Result<Arc<Survey>> {
        let last = self.survey_seen();
        if last.at_ms > 0 { Ok(last) } else { self.survey_all(PassMode::DryRun).await }
    }

    /// The result of the last scan, unless it is older than a threshold. Scans then, as a process must
    /// whose passes are made by another one: otherwise it would report a past outage for ever.
    pub(super) async fn recent_survey(&self) -> Result<Arc<Survey>> {
        let _one_at_a_time = self.looking.lock().await;
        let (last, now) = (self.survey_seen(), self.context().clock.mono());
        let is_recent = now.saturating_sub(last.began) < self.context().threshold;
        if last.at_ms > 0 && is_recent {
            return Ok(last);
        }
        self.survey_all(PassMode::DryRun).await
    }

    /// Scans all entries, page by page. The next page is requested while one page is read.
    pub(super) async fn survey_all(&self, act: PassMode) -> Result<Arc<Survey>> {
        let (before, began) = (self.survey_seen(), self.context().clock.mono());
        let now_ms = self.observe(&[], PassMode::DryRun).await?.now_ms;
        let mut progress = SurveyProgress {
            survey: Survey { at_ms: now_ms, began, ..Survey::default() },
            ..SurveyProgress::default()
        };
        let mut under_way = Some(self.scan("0"));
        while let Some(scan) = under_way.take() {
            let (next, page) = scan.await.map_err(|error| self.interrupted(&error))??;
            if next != "0" {
                under_way = Some(self.scan(&next));
            }
            let new = progress.take(&page);
            if !new.is_empty() || !progress.waiting.is_empty() {
                self.read_heartbeats(&mut progress, &before, new, act).await?;
            }
        }
        let survey = progress.finish();
        if act == PassMode::Reclaim {
            self.forget_others(&survey).await?;
        }
        let survey = Arc::new(survey);
        *self.last.lock().expect("no holder of this lock panics") = survey.clone();
        Ok(survey)
    }

    /// Requests one page at once.
    fn scan(&self, cursor: &str) -> JoinHandle<Result<(String, Vec<Vec<u8>>)>> {
        let mut cmd = redis::cmd("HSCAN");
        cmd.arg(self.hash()).arg(cursor).arg("COUNT").arg(PAGE);
        let connection = self.context().connection.clone();
        tokio::spawn(async move { connection.query("HSCAN", &cmd).await })
    }

    fn interrupted(&self, error: &JoinError) -> Error {
        Error::Unavailable {
            store: self.context().place(),
            what: format!("the look at its entries broke off: {error}"),
        }
    }

    /// Reads the heartbeats of owners that were not read yet, each once.
    async fn read_heartbeats(
        &self,
        progress: &mut SurveyProgress,
        before: &Survey,
        new: Vec<Name>,
        act: PassMode,
    ) -> Result<()> {
        let ObservedOwners { now_ms, owners, .. } = self.observe(&new, act).await?;
        let ttl_ms = self.context().threshold_ms();
        for (owner, observed) in new.into_iter().zip(owners) {
            let survey = &mut progress.survey;
            survey.alive += u64::from(observed.left_ms.is_some());
            survey.seen_alive += u64::from(observed.was_seen_alive());
            let deadline_ms = observed.deadline_ms(now_ms, ttl_ms);
            let is_dead = observed.is_dead(now_ms, ttl_ms);
            // A scan for a dry run has written nothing, so that the store does not know when it missed the heartbeat.
            let known_ms = before.deadline(&owner).filter(|_| is_dead).unwrap_or(deadline_ms);
            survey.deadlines.insert(owner.clone(), deadline_ms.min(known_ms));
            if is_dead {
                survey.dead.entry(owner).or_default();
            } else {
                progress.is_alive(&owner);
            }
        }
        progress.file_suspects();
        Ok(())
    }

    /// The brake judges by owners: those alive, and those without a heartbeat.
    pub(super) async fn count(&self, seen: &Survey) -> Result<Census> {
        // It is not known here which owners existed before: an owner without a heartbeat is spared.
        let (mut census, back_ms) = self.owners.count_since().await?;
        let mut cmd = redis::cmd("HLEN");
        cmd.arg(self.hash());
        census.population = self.context().connection.query("HLEN", &cmd).await?;
        census.owners_overdue = seen.dead.len() as u64;
        census.owners_live = seen.held.len() as u64 - census.owners_overdue;
        census.owners_died_recently = self.died_recently(census.now_ms, seen).await?;
        census.suspects = seen.dead.values().map(|keys| keys.len() as u64).sum();
        let oldest = seen.dead.keys().filter_map(|owner| seen.deadline(owner)).min();
        census.oldest_late_ms = oldest.map_or(0, |at| census.now_ms.saturating_sub(at));
        census.back_ms = back_ms;
        if census.back_ms > 0 {
            census.owners_spared = census.owners_overdue;
            census.owners_overdue = 0;
        }
        census.observation = Some(AdoptObservation {
            of: "owners".to_owned(),
            signs: format!("`{}`", self.heartbeat.of("{owner}")),
            sign: String::new(),
            total: seen.held.len() as u64,
            alive: seen.alive,
            seen_alive: seen.seen_alive,
            // The configuration may have been confirmed since the scan.
            confirmed_ms: self.observe(&[], PassMode::DryRun).await?.confirmed_ms,
        });
        Ok(census)
    }
}

/// A scan in progress. Owners are numbered, so that nothing is allocated for the many live ones.
#[derive(Default)]
struct SurveyProgress {
    survey: Survey,
    owners: HashMap<Name, usize>,
    seen: Vec<SurveyedOwner>,
    /// Entries whose owner's heartbeat is being read.
    waiting: Vec<(usize, Name)>,
    suspects: usize,
}

/// One owner of a scan, numbered in the order of finding.
struct SurveyedOwner {
    name: Name,
    held: u64,
    alive: bool,
}

impl SurveyProgress {
    /// Adds one page; returns the owners whose heartbeats must be read.
    fn take(&mut self, page: &[Vec<u8>]) -> Vec<Name> {
        let mut new = Vec::new();
        for pair in page.chunks_exact(2) {
            self.survey.examined += 1;
            let Some(at) = self.place_of(&pair[1], &mut new) else {
                self.survey.unreadable += 1;
                continue;
            };
            self.seen[at].held += 1;
            if self.seen[at].alive {
                continue;
            }
            match Name::from_bytes(&pair[0]) {
                Ok(key) => self.waiting.push((at, key)),
                Err(_) => self.survey.unreadable += 1,
            }
        }
        new
    }

    /// The number of an owner; a new one if the scan has not met it yet.
    fn place_of(&mut self, owner: &[u8], new: &mut Vec<Name>) -> Option<usize> {
        let text = std::str::from_utf8(owner).ok()?;
        if let Some(at) = self.owners.get(text) {
            return Some(*at);
        }
        let (name, at) = (Name::new(text).ok()?, self.seen.len());
        self.owners.insert(name.clone(), at);
        self.seen.push(SurveyedOwner { name: name.clone(), held: 0, alive: false });
        new.push(name);
        Some(at)
    }

    fn is_alive(&mut self, owner: &Name) {
        if let Some(at) = self.owners.get(owner) {
            self.seen[*at].alive = true;
        }
    }

    /// Keeps the entries of dead owners, after all heartbeats were read.
    fn file_suspects(&mut self) {
        for (at, key) in self.waiting.drain(..) {
            let Some(keys) = self.survey.dead.get_mut(&self.seen[at].name) else { continue };
            if self.suspects == SUSPECTS_MAX {
                self.survey.cut = true;
                continue;
            }
            keys.push(key);
            self.suspects += 1;
        }
    }

    fn finish(mut self) -> Survey {
        self.survey.held = self.seen.into_iter().map(|one| (one.name, one.held)).collect();
        for keys in self.survey.dead.values_mut() {
            keys.sort();
            keys.dedup();
        }
        let overdue = |owner: &Name| (self.survey.deadlines[owner], owner.clone());
        self.survey.order = self.survey.dead.keys().map(overdue).collect();
        self.survey.order.sort();
        if self.survey.unreadable > 0 {
            tracing::warn!(
                entries = self.survey.unreadable,
                "entries that are not text were left alone"
            );
        }
        self.survey
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nine entries were looked at, three of them of the dead, and a page has room for two.
    #[test]
    fn examined_entries_are_reported_once_however_many_pages_there_are() {
        let name = |text: &str| Name::new(text).unwrap();
        let dead = BTreeMap::from([(name("i"), ["a", "b", "c"].map(name).to_vec())]);
        let order = vec![(5, name("i"))];
        let survey = Survey { examined: 9, dead, order, ..Survey::default() };
        let (mut after, mut told) = (Cursor::default(), Vec::new());
        loop {
            let request = PageRequest { after, limit: 2, undeclared_max: None };
            let page = survey.page(&request);
            told.push((page.suspects.len(), page.examined));
            after = super::after(page.suspects.last().unwrap());
            if page.last {
                break;
            }
        }
        assert_eq!(told, [(2, 9), (1, 0)]);
    }
}
