//! Jobs that lapsed has given up, where the foreign system keeps such jobs.
//!
//! The decisive step that gives a job up notes it in a hash of lapsed's own, with the keys of the job. Whether the job is still there is asked each
//! time, by `rescue_letters.lua`: the system's own commands retry and delete dead jobs, too, and its dead sets forget old ones. What is not
//! there any more is not listed, and passes remove it from the hash.
//!
//! Putting one back is one script, which looks for the job again before it moves it. Where the system's own command for it is no single step that
//! a script could stand for, the answer says which command it is.

use lapsed_core::inflight::rules::{DeadLetterReason, QueueEnd};
use lapsed_core::inflight::{Job, JobPlace};
use lapsed_core::{Error, Name, Result};

use super::reader::Reader;
use super::{LOCK, RescuedInflight};
use crate::inflight::recovered;
use crate::script::Script;
use crate::system_context::Args;

/// How many letters one call of the script looks at.
const STEP: usize = 20;

/// How much of each job a list shows.
const LISTED_BYTES: usize = 64 << 10;

/// How much of one job is shown.
const SHOWN_BYTES: usize = 512 << 20;

/// What a profile knows of jobs that will not be run again.
pub(crate) struct LetterFacts {
    pub script: &'static Script,
    /// Where the system keeps them, in words.
    pub kept_in: &'static str,
    /// What retries one, if lapsed does not; `None`: lapsed does.
    pub retried_by: Option<&'static str>,
    /// What deletes one, if lapsed does not; `None`: lapsed does.
    pub deleted_by: Option<&'static str>,
}

/// The script of a profile that reads its dead letters and puts them back.
macro_rules! letters_script {
    ($name:literal, $($file:literal),+) => {
        $crate::script::profile_script!(letters_text, $name, $($file),+)
    };
}
pub(super) use letters_script;

impl RescuedInflight {
    fn letter_facts(&self) -> Result<&'static LetterFacts> {
        self.profile.letters().ok_or_else(|| Error::Unsupported {
            operation: format!("dead letters of {}", self.profile.facts().title),
            store: self.context().place(),
        })
    }

    /// One page of them, by id.
    pub(super) async fn letters(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Job>> {
        let facts = self.letter_facts()?;
        let reader =
            Reader { connection: &self.context().connection, clock: &*self.context().clock };
        let mut ids: Vec<Name> = Vec::new();
        let is_wanted = |id: &Name| after.is_none_or(|after| id > after);
        let visit = |id: &[u8], _: &[u8]| {
            let id = std::str::from_utf8(id).ok().and_then(|id| Name::new(id).ok());
            ids.extend(id.filter(&is_wanted));
        };
        reader.hash(self.own("letters").as_bytes(), visit).await?;
        ids.sort();
        ids.dedup();
        let mut found = Vec::new();
        for some in ids.chunks(STEP) {
            found.extend(self.read_letters(facts, some, LISTED_BYTES).await?);
            if found.len() >= limit {
                found.truncate(limit);
                break;
            }
        }
        Ok(found)
    }

    pub(super) async fn letter(&self, id: &Name) -> Result<Option<Job>> {
        let Some(facts) = self.profile.letters() else { return Ok(None) };
        let found = self.read_letters(facts, std::slice::from_ref(id), SHOWN_BYTES).await?;
        Ok(found.into_iter().next())
    }

    pub(super) async fn count_letters(&self) -> Result<u64> {
        let mut cmd = redis::cmd("HLEN");
        cmd.arg(self.own("letters"));
        self.context().connection.query("HLEN", &cmd).await
    }

    /// Whether there was one.
    pub(super) async fn retry_letter(&self, id: &Name, end: QueueEnd) -> Result<bool> {
        let facts = self.letter_facts()?;
        if let Some(command) = facts.retried_by {
            return Err(self.left_to_the_system("retrying", command));
        }
        let end = if end == QueueEnd::Front { "front" } else { "back" };
        self.change_letter(facts, "retry", end, id).await
    }

    /// Whether there was one.
    pub(super) async fn remove_letter(&self, id: &Name) -> Result<bool> {
        let facts = self.letter_facts()?;
        if let Some(command) = facts.deleted_by {
            return Err(self.left_to_the_system("deleting", command));
        }
        self.change_letter(facts, "remove", "back", id).await
    }

    fn left_to_the_system(&self, what: &str, command: &str) -> Error {
        Error::Unsupported {
            operation: format!("{what} a job of {}: use {command}", self.profile.facts().title),
            store: self.context().place(),
        }
    }

    /// Forgets some of those that are not there any more; the next call goes on with others.
    pub(super) async fn forget_letters(&self) -> Result<()> {
        let Some(facts) = self.profile.letters() else { return Ok(()) };
        let reader =
            Reader { connection: &self.context().connection, clock: &*self.context().clock };
        let cursor = self.letters_at.lock().expect(LOCK).clone();
        let key = self.own("letters");
        let cursor = if cursor.is_empty() { "0" } else { &cursor };
        let (next, page) = reader.page("HSCAN", &[key.as_bytes()], cursor, STEP).await?;
        *self.letters_at.lock().expect(LOCK) = next.unwrap_or_default();
        let ids = page.chunks_exact(2).filter_map(|pair| std::str::from_utf8(&pair[0]).ok());
        let ids: Vec<Name> = ids.filter_map(|id| Name::new(id).ok()).collect();
        for some in ids.chunks(STEP) {
            self.ask_for_letters(facts, ["forget", "0", "back"], some).await?;
        }
        Ok(())
    }

    async fn change_letter(
        &self,
        facts: &'static LetterFacts,
        mode: &str,
        end: &str,
        id: &Name,
    ) -> Result<bool> {
        let words = self.ask_for_letters(facts, [mode, "0", end], std::slice::from_ref(id)).await?;
        match words.get(1).map(Vec::as_slice) {
            Some(b"R" | b"X") => Ok(true),
            Some(b"G") => Ok(false),
            Some(b"U") => Err(Error::Corrupt {
                store: self.context().place(),
                what: String::from_utf8_lossy(words.get(2).map_or(&[], Vec::as_slice)).into_owned(),
            }),
            _ => Err(self.context().unexpected_answer(facts.script)),
        }
    }

    async fn ask_for_letters(
        &self,
        facts: &'static LetterFacts,
        [mode, most, end]: [&str; 3],
        ids: &[Name],
    ) -> Result<Vec<Vec<u8>>> {
        let keys = ["letters", "crashes", "crashes_at"];
        let args = keys.iter().fold(Args::default(), |args, key| args.key(self.own(key)));
        let args = args.arg(mode).arg(most).arg(end);
        let args = ids.iter().fold(args, |args, id| args.arg(id));
        self.context().run_with_keys(facts.script, args).await
    }

    async fn read_letters(
        &self,
        facts: &'static LetterFacts,
        ids: &[Name],
        bytes: usize,
    ) -> Result<Vec<Job>> {
        let bytes = bytes.to_string();
        let words = self.ask_for_letters(facts, ["read", &bytes, "back"], ids).await?;
        let unexpected = || self.context().unexpected_answer(facts.script);
        let mut words = words.iter().map(|word| String::from_utf8_lossy(word).into_owned());
        let mut word = || words.next().ok_or_else(unexpected);
        let now_ms: u64 = word()?.parse().map_err(|_| unexpected())?;
        let mut found = Vec::new();
        for id in ids {
            match word()?.as_str() {
                "D" => {
                    let at_ms = word()?.parse().map_err(|_| unexpected())?;
                    let _owner = word()?;
                    let noted = recovered(&word()?, None).ok_or_else(unexpected)?;
                    let payload = word()?;
                    let why = noted.why.unwrap_or(DeadLetterReason::Crashes);
                    let kept_in = Some(facts.kept_in.to_owned());
                    found.push(Job {
                        id: id.clone(),
                        queue: noted.queue,
                        payload,
                        crashes: noted.crashes,
                        entered_ms: 0,
                        place: JobPlace::Dead { why, at_ms, error: None, kept_in },
                        now_ms,
                    });
                }
                "U" => tracing::warn!(job = %id, why = word()?, "a dead letter cannot be read"),
                "G" => {}
                _ => return Err(unexpected()),
            }
        }
        Ok(found)
    }
}
