//! Suspects: references of ended incarnations, and sessions whose grace is over.
//!
//! Both come from an index by time. Sessions with a connected client are not read.

use lapsed_core::owner::Incarnation;
use lapsed_core::receipt::Reason;
use lapsed_core::sweep::{Cursor, PageRequest, Suspect, SuspectPage};
use lapsed_core::{Error, Name, Result};

use super::RedisSessions;
use crate::overdue_owners;
use crate::script;
use crate::system_context::{Args, Shard};

/// Scores from here on are milliseconds; below, seconds.
pub(super) const MILLISECONDS_FROM: u64 = 100_000_000_000;

/// The fewest rows that are read of an index at a time; some of them may not be valid.
const ROWS_MIN: usize = 100;

/// How many suspects are read at a time once a pass is under way.
const PREFETCH_MAX: usize = 500;

/// The position at which a page continues: first references, then sessions, each shard after shard.
#[derive(Clone, Debug)]
enum SuspectCursor {
    Reference(overdue_owners::OverdueCursor),
    Session { shard: usize, since_ms: u64, id: Option<String> },
}

fn parse_cursor(cursor: &Cursor) -> Result<SuspectCursor> {
    let Some(text) = &cursor.0 else {
        return Ok(SuspectCursor::Reference(overdue_owners::OverdueCursor::default()));
    };
    let wrong = || Error::Invalid(format!("{text:?} is not a cursor of this store"));
    let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
    let number = |word: Option<&str>| word.and_then(|w| w.parse::<u64>().ok()).ok_or_else(wrong);
    match kind {
        "r" => {
            let mut parts = rest.splitn(4, ':');
            Ok(SuspectCursor::Reference(overdue_owners::OverdueCursor {
                shard: number(parts.next())? as usize,
                deadline_ms: number(parts.next())?,
                inc: number(parts.next())?,
                key: Some(parts.next().ok_or_else(wrong)?.to_owned()),
            }))
        }
        "s" => {
            let mut parts = rest.splitn(3, ':');
            Ok(SuspectCursor::Session {
                shard: number(parts.next())? as usize,
                since_ms: number(parts.next())?,
                id: Some(parts.next().ok_or_else(wrong)?.to_owned()),
            })
        }
        _ => Err(wrong()),
    }
}

/// A session of the index: since when it has no references, and its id.
type IdleSession = (u64, String);

/// A session's broadcaster and time of disconnection, as the application wrote them.
type DisconnectFacts = (Option<Vec<u8>>, Option<Vec<u8>>);

impl RedisSessions {
    pub(super) fn place_after(&self, suspect: &Suspect) -> Cursor {
        let shard = self.context().shard(suspect.key.as_str()).index;
        let Suspect { key, incarnation, deadline_ms, .. } = suspect;
        Cursor(Some(match incarnation.0 {
            0 => format!("s:{shard}:{}:{key}", deadline_ms.saturating_sub(self.grace_ms())),
            inc => format!("r:{shard}:{deadline_ms}:{inc}:{key}"),
        }))
    }

    /// Reads one page, from the prefetched suspects if it continues at their cursor.
    pub(super) async fn page(&self, request: &PageRequest) -> Result<SuspectPage> {
        let read = async |request: PageRequest| self.read_page(&request).await;
        let after = |suspect: &Suspect| self.place_after(suspect);
        self.inner.prefetch.page(&*self.context().clock, request, PREFETCH_MAX, read, after).await
    }

    /// Reads up to the limit: references first, then sessions, shard after shard.
    async fn read_page(&self, request: &PageRequest) -> Result<SuspectPage> {
        let mut from = Some(parse_cursor(&request.after)?);
        let mut page = SuspectPage { last: true, ..SuspectPage::default() };
        while let Some(at) = from {
            let room = request.limit - page.suspects.len();
            let (part, next) = self.part(&at, request, room).await?;
            page.suspects.extend(part.suspects);
            page.last = part.last && next.is_none();
            if !part.last || page.suspects.len() == request.limit {
                break;
            }
            from = next;
        }
        page.examined = page.suspects.len() as u64;
        Ok(page)
    }

    /// Reads references or sessions of one shard, and the position after them.
    async fn part(
        &self,
        at: &SuspectCursor,
        request: &PageRequest,
        room: usize,
    ) -> Result<(SuspectPage, Option<SuspectCursor>)> {
        let shards = &self.context().shards;
        let sessions = || SuspectCursor::Session { shard: 0, since_ms: 0, id: None };
        let nothing = || SuspectPage { last: true, ..SuspectPage::default() };
        match at {
            SuspectCursor::Reference(from) => {
                let Some(here) = shards.get(from.shard).filter(|_| self.is_native()) else {
                    return Ok((nothing(), Some(sessions())));
                };
                let request = PageRequest { limit: room, ..request.clone() };
                let (page, _) = self.owners().held_by_overdue(here, &request, from).await?;
                let next = overdue_owners::OverdueCursor {
                    shard: from.shard + 1,
                    ..overdue_owners::OverdueCursor::default()
                };
                Ok((page, Some(SuspectCursor::Reference(next))))
            }
            // While the brake holds, nothing that is not declared dead is listed.
            SuspectCursor::Session { .. } if request.undeclared_max == Some(0) => {
                Ok((nothing(), None))
            }
            SuspectCursor::Session { shard, since_ms, id } => {
                let Some(here) = shards.get(*shard) else { return Ok((nothing(), None)) };
                let page = self.idle_sessions(here, room, (*since_ms, id.as_deref())).await?;
                let next = SuspectCursor::Session { shard: shard + 1, since_ms: 0, id: None };
                Ok((page, (shard + 1 < shards.len()).then_some(next)))
            }
        }
    }

    async fn idle_sessions(
        &self,
        shard: &Shard,
        limit: usize,
        (since_ms, after): (u64, Option<&str>),
    ) -> Result<SuspectPage> {
        let (found, last) = self.idle_in(shard, limit, since_ms, after).await?;
        let mut pipeline = redis::pipe();
        for (_, id) in &found {
            pipeline.cmd("HMGET").arg(self.session(shard, id));
            pipeline.arg("broadcaster_user_id").arg("last_disconnect");
        }
        let connection = &self.context().connection;
        let facts: Vec<Option<DisconnectFacts>> =
            connection.query_each("HMGET", &pipeline, found.len()).await?;
        let mut page = SuspectPage { last, ..SuspectPage::default() };
        for ((since_ms, id), facts) in found.into_iter().zip(facts) {
            let Ok(key) = Name::new(&id) else { continue };
            let (broadcaster, gone) = facts.unwrap_or_default();
            let broadcaster = broadcaster.and_then(|b| Name::from_bytes(&b).ok());
            let never = self.is_native() && gone.is_none_or(|gone| gone == b"0");
            page.suspects.push(Suspect {
                owner: broadcaster.unwrap_or_else(|| key.clone()),
                key,
                incarnation: Incarnation(0),
                deadline_ms: since_ms + self.grace_ms(),
                reason: if never { Reason::NeverConnected } else { Reason::Orphaned },
            });
        }
        Ok(page)
    }

    /// Sessions whose grace is over by the server's clock, the longest overdue first; and whether
    /// there are no more.
    pub(super) async fn idle_in(
        &self,
        shard: &Shard,
        limit: usize,
        since_ms: u64,
        after: Option<&str>,
    ) -> Result<(Vec<IdleSession>, bool)> {
        let now_ms: u64 = self.context().run(shard, &script::SERVER_TIME, Args::default()).await?;
        let until_ms = now_ms.saturating_sub(self.grace_ms());
        let is_due = |(at, id): &IdleSession| {
            *at <= until_ms && after.is_none_or(|after| (*at, id.as_str()) > (since_ms, after))
        };
        if self.is_native() {
            let key = shard.prefix.key("idle");
            let (from, to) = (since_ms.to_string(), until_ms.to_string());
            return self.range(&key, &from, &to, limit, |score| score as u64, is_due).await;
        }
        self.adopted_in(shard, limit, (since_ms, until_ms), is_due).await
    }

    /// The same from the application's own times: whole seconds, fractions of them, milliseconds. In
    /// its set milliseconds come after all seconds, and a whole second counts from its end: the
    /// parts are read apart, each bounded, and put in order here.
    async fn adopted_in(
        &self,
        shard: &Shard,
        limit: usize,
        (since_ms, until_ms): (u64, u64),
        is_due: impl Fn(&IdleSession) -> bool,
    ) -> Result<(Vec<IdleSession>, bool)> {
        let key = &shard.anchor;
        let from = (since_ms / 1_000).saturating_sub(2).to_string();
        let until = seconds(until_ms);
        let (mut found, mut last) =
            self.range(key, &from, &until, limit, from_score, &is_due).await?;
        if let Some((at_ms, _)) = found.last().filter(|_| !last) {
            // Fractions of the second that the page ends in may be due before its whole ones.
            let second = (at_ms - 1) / 1_000;
            let (from, to) = (format!("({second}"), format!("({}", second + 1));
            let (more, _) = self.range(key, &from, &to, limit, from_score, &is_due).await?;
            found.extend(more);
        }
        let (from, to) = (since_ms.max(MILLISECONDS_FROM).to_string(), until_ms.to_string());
        let (more, no_more) = self.range(key, &from, &to, limit, from_score, &is_due).await?;
        found.extend(more);
        found.sort();
        found.dedup();
        last &= no_more && found.len() <= limit;
        found.truncate(limit);
        Ok((found, last))
    }

    /// A bounded range of a set by score, without those that are not wanted.
    async fn range(
        &self,
        key: &str,
        from: &str,
        to: &str,
        limit: usize,
        read: impl Fn(f64) -> u64,
        is_wanted: impl Fn(&IdleSession) -> bool,
    ) -> Result<(Vec<IdleSession>, bool)> {
        let (mut found, mut offset, rows_max) = (Vec::new(), 0, limit.max(ROWS_MIN));
        loop {
            let mut cmd = redis::cmd("ZRANGEBYSCORE");
            cmd.arg(key).arg(from).arg(to).arg("WITHSCORES").arg("LIMIT").arg(offset).arg(rows_max);
            let rows: Vec<(Vec<u8>, f64)> =
                self.context().connection.query("ZRANGEBYSCORE", &cmd).await?;
            let count = rows.len();
            // A member that is not a valid name is skipped, and must not use up the page's limit.
            let named = |(id, score): (Vec<u8>, f64)| {
                Some((read(score), Name::from_bytes(&id).ok()?.to_string()))
            };
            found.extend(rows.into_iter().filter_map(named).filter(&is_wanted));
            if count < rows_max || found.len() > limit {
                let last = found.len() <= limit;
                found.truncate(limit);
                return Ok((found, last));
            }
            offset += count;
        }
    }

    pub(super) async fn overdue(&self, limit: usize) -> Result<Vec<Name>> {
        let mut all = Vec::new();
        for shard in &self.context().shards {
            all.extend(self.idle_in(shard, limit, 0, None).await?.0);
        }
        all.sort();
        all.truncate(limit);
        all.iter().map(|(_, id)| Name::new(id)).collect()
    }
}

/// A time as a score in seconds.
pub(super) fn seconds(at_ms: u64) -> String {
    format!("{}.{:03}", at_ms / 1_000, at_ms % 1_000)
}

/// As `to_ms` of the scripts: whole seconds may have been cut off, so the end of that second counts.
fn from_score(score: f64) -> u64 {
    match score {
        n if n >= MILLISECONDS_FROM as f64 => n as u64,
        n if n.fract() == 0.0 => (n as u64 + 1) * 1_000,
        n => (n * 1_000.0).ceil() as u64,
    }
}
