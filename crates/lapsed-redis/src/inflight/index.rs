//! Reconciling jobs in flight. The records are the truth; beside them lie what incarnations hold, the dead letters,
//! the queues and the counters, and each of those is compared with the records.
//!
//! Not compared: whether a queued job is on its queue if that queue is longer than [`LONGEST`] (a list is
//! searched from one end, and the server stands still meanwhile); and what is on a queue without a record,
//! because the next take skips it.

use std::collections::BTreeSet;

use async_trait::async_trait;
use lapsed_core::reconcile::{Healed, IndexChange, Reconcile, Reconciled};
use lapsed_core::sweep::{Cursor, PassMode};
use lapsed_core::{Error, Name, Result};

use super::native::NativeInflight;
use super::records::{self, RecordHead};
use crate::held_entries::held_key;
use crate::script;
use crate::system_context::Args;

/// The most jobs that one step compares.
const STEP: usize = 50;

/// The longest queue that is searched for a job.
const QUEUE_SEARCH_MAX: usize = 1_000;

/// With more incarnations than these, their jobs are not counted again.
const INCARNATIONS_MAX: usize = 20_000;

/// Where a reconciliation stands: the records (`j:cursor`), what incarnations hold (`h:incarnation:id`), the
/// dead letters (`d:id`), and the account (`a`).
enum Position {
    Records { cursor: String },
    Held { inc: u64, after: Option<String> },
    Dead { after: Option<String> },
    Account,
}

fn parse_position(cursor: &Cursor) -> Result<Position> {
    let Some(text) = &cursor.0 else { return Ok(Position::Records { cursor: "0".to_owned() }) };
    let wrong = || Error::Invalid(format!("{text:?} is not a place in a reconciliation of jobs"));
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    match kind {
        "j" => Ok(Position::Records { cursor: rest.to_owned() }),
        "h" => {
            let (inc, after) = rest.split_once(':').unwrap_or((rest, ""));
            Ok(Position::Held { inc: inc.parse().map_err(|_| wrong())?, after: some(after) })
        }
        "d" => Ok(Position::Dead { after: some(rest) }),
        "a" => Ok(Position::Account),
        _ => Err(wrong()),
    }
}

fn at(text: String) -> Option<Cursor> {
    Some(Cursor(Some(text)))
}

#[async_trait]
impl Reconcile for NativeInflight {
    async fn reconcile(&self, after: Cursor, limit: usize, act: PassMode) -> Result<Reconciled> {
        match parse_position(&after)? {
            Position::Records { cursor } => self.index_records(&cursor, limit, act).await,
            Position::Held { inc, after } => {
                self.index_held(inc, after.as_deref(), limit, act).await
            }
            Position::Dead { after } => self.index_dead(after.as_deref(), limit, act).await,
            Position::Account => self.index_account(act).await,
        }
    }

    async fn extent(&self) -> Result<u64> {
        let counts = self.account().await?;
        Ok(counts.queued + 2 * (counts.in_flight + counts.dead))
    }
}

impl NativeInflight {
    /// Compares each record with the place that it names.
    async fn index_records(&self, cursor: &str, limit: usize, act: PassMode) -> Result<Reconciled> {
        let mut done = Reconciled::default();
        let mut cmd = redis::cmd("HSCAN");
        cmd.arg(self.key("jobs")).arg(cursor).arg("COUNT").arg(limit);
        let (next, flat): (String, Vec<Vec<u8>>) =
            self.context().connection.query("HSCAN", &cmd).await?;
        let rows: Vec<&[Vec<u8>]> = flat.chunks_exact(2).collect();
        for rows in rows.chunks(STEP) {
            let (mut incarnations, mut queues, mut ids) =
                (BTreeSet::new(), BTreeSet::new(), Vec::new());
            for row in rows {
                done.examined += 1;
                match (Name::from_bytes(&row[0]), records::read(&row[1])) {
                    (Ok(id), Some((head, tail))) => {
                        if let RecordHead::InFlight { inc, .. } = head {
                            incarnations.insert(inc.to_string());
                        }
                        queues.insert(tail.queue);
                        queues.extend(self.inner.recovery.outbox.clone());
                        ids.push(id);
                    }
                    _ => *done.left.entry("unreadable".to_owned()).or_default() += 1,
                }
            }
            let args = self.index_args(act, &incarnations, &queues);
            let args = args.arg("records").arg(self.searched()).arg(QUEUE_SEARCH_MAX).names(&ids);
            self.index(args, &ids, &mut done).await?;
        }
        done.next = match next.as_str() {
            "0" => at("h:0".to_owned()),
            next => at(format!("j:{next}")),
        };
        Ok(done)
    }

    /// Where everything goes through an outbox, a queued job is on its own queue or in the outbox: it is
    /// not searched for.
    fn searched(&self) -> &'static str {
        if self.outbox().is_empty() { self.format().as_str() } else { "outbox" }
    }

    /// What an incarnation holds should be jobs whose records say so (trap E5).
    async fn index_held(
        &self,
        inc: u64,
        after: Option<&str>,
        limit: usize,
        act: PassMode,
    ) -> Result<Reconciled> {
        let mut done = Reconciled::default();
        let from = inc.saturating_sub(u64::from(after.is_some()));
        let Some(next) = self.owners().incarnations_after(self.shard(), from, 1).await?.pop()
        else {
            done.next = at("d:".to_owned());
            return Ok(done);
        };
        let found = &next.to_string();
        // The one that was being read may be forgotten by now: the next is read from its beginning.
        let after = after.filter(|_| *found == inc.to_string());
        let ids = self.owners().held_in(self.shard(), found, after, limit).await?;
        done.examined = ids.len() as u64;
        let incarnation = BTreeSet::from([found.clone()]);
        for ids in ids.chunks(STEP) {
            let args = self.index_args(act, &incarnation, &BTreeSet::new()).arg("held").names(ids);
            self.index(args, ids, &mut done).await?;
        }
        done.next = match ids.last().filter(|_| ids.len() == limit) {
            Some(last) => at(format!("h:{found}:{last}")),
            None => at(format!("h:{found}")),
        };
        Ok(done)
    }

    /// Compares the set of dead letters with the records.
    async fn index_dead(
        &self,
        after: Option<&str>,
        limit: usize,
        act: PassMode,
    ) -> Result<Reconciled> {
        let mut cmd = redis::cmd("ZRANGEBYLEX");
        cmd.arg(self.key("dead")).arg(after.map_or("-".to_owned(), |id| format!("({id}")));
        cmd.arg("+").arg("LIMIT").arg(0).arg(limit);
        let ids: Vec<String> = self.context().connection.query("ZRANGEBYLEX", &cmd).await?;
        let ids: Result<Vec<Name>> = ids.iter().map(|id| Name::new(id)).collect();
        let ids = ids?;
        let mut done = Reconciled { examined: ids.len() as u64, ..Reconciled::default() };
        for ids in ids.chunks(STEP) {
            let none = (BTreeSet::new(), BTreeSet::new());
            let args = self.index_args(act, &none.0, &none.1).arg("dead").names(ids);
            self.index(args, ids, &mut done).await?;
        }
        done.next = match ids.last().filter(|_| ids.len() == limit) {
            Some(last) => at(format!("d:{last}")),
            None => at("a".to_owned()),
        };
        Ok(done)
    }

    async fn index_account(&self, act: PassMode) -> Result<Reconciled> {
        let mut done = Reconciled::default();
        let args = self.index_args(act, &BTreeSet::new(), &BTreeSet::new());
        let args = args.arg("account").arg(self.format().as_str()).arg(INCARNATIONS_MAX);
        let counts: Vec<u64> =
            self.context().run(self.shard(), &script::INFLIGHT_INDEX, args).await?;
        let [flying, really_flying, entered, really_entered] = counts[..] else {
            return Err(self.context().unexpected_answer(&script::INFLIGHT_INDEX));
        };
        let pairs = [("in_flight", flying, really_flying), ("entered", entered, really_entered)];
        for (key, counted, really) in pairs.into_iter().filter(|(_, one, other)| one != other) {
            let why = format!("{counted} were counted, and there are {really}");
            done.changes.push(IndexChange { key: key.to_owned(), what: Healed::Corrected, why });
        }
        Ok(done)
    }

    fn index_args(
        &self,
        act: PassMode,
        incarnations: &BTreeSet<String>,
        queues: &BTreeSet<Name>,
    ) -> Args {
        let mut args = Args::default().key(self.key("jobs")).key(self.key("dead"));
        args =
            args.key(self.key("queues")).arg(if act == PassMode::Reclaim { "act" } else { "dry" });
        args = args.arg(incarnations.len()).arg(queues.len());
        args = incarnations
            .iter()
            .fold(args, |args, inc| args.key(held_key(self.shard(), inc)).arg(inc));
        let key = |args: Args, queue: &Name| args.key(self.queue_key(queue)).arg(queue);
        queues.iter().fold(args, key)
    }

    async fn index(&self, args: Args, ids: &[Name], done: &mut Reconciled) -> Result<()> {
        let script = &script::INFLIGHT_INDEX;
        let letters: String = self.context().run(self.shard(), script, args).await?;
        for (id, letter) in ids.iter().zip(letters.chars()) {
            record_change(id, letter, done);
        }
        Ok(())
    }
}

fn record_change(id: &Name, letter: char, done: &mut Reconciled) {
    let (what, why) = match letter {
        'a' => (
            Healed::Added,
            "the job is in flight, but was missing from the jobs of the incarnation that holds it",
        ),
        'l' => {
            (Healed::Added, "the job is in flight, but its incarnation was missing from the index")
        }
        'd' => (Healed::Added, "the job is a dead letter, but was missing from the dead letters"),
        'p' => (Healed::Added, "the job is queued, but was missing from its queue"),
        'r' => (Healed::Removed, "the job was listed, but its record does not say so"),
        other => {
            let why = match other {
                'i' => "indexed",
                'q' => "not_searched",
                'm' => "moved",
                _ => "gone",
            };
            *done.left.entry(why.to_owned()).or_default() += 1;
            return;
        }
    };
    done.changes.push(IndexChange { key: id.to_string(), what, why: why.to_owned() });
}
