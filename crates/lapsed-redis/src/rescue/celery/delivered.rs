//! The messages in `unacked` that one look judges: all of them, or a page of the oldest ones where there are many.
//!
//! A look asks the workers about each message that it judges, so that its cost grows with the messages and not with the dead. Beyond
//! [`LOOK_MAX`] messages a look takes the oldest ones by `unacked_index`. What a worker claims is renewed and thereby becomes the newest, and what is
//! put back leaves the index; what is neither stays where it is, and the next look begins behind it. So the looks of the passes go round
//! through all messages, whoever makes them. Each message is judged by whole rounds of questions about itself: a look
//! that knows only a page of the messages knows all that is to be known of these.
//!
//! Which worker was seen with a message is noted for the messages of a page when a look reads that page. Notes of messages that are not there
//! any more are removed in pages, too.

use std::collections::BTreeMap;
use std::sync::Mutex;

use lapsed_core::Result;
use lapsed_core::sweep::PassMode;

use super::LOCK;
use super::history::HistoryKeys;
use super::look::Look;
use super::message::Message;
use crate::rescue::profile::Seen;

/// How many messages one look judges. More are judged by several looks.
const LOOK_MAX: usize = 10_000;

/// How much of their text one page reads.
const PAGE_BYTES: usize = 32 << 20;

/// How many messages, or notes, are read at a time.
const STEP: usize = 500;

/// A message in `unacked`.
pub(super) struct Delivered {
    pub tag: String,
    /// In seconds, by the worker's clock; `None`: it is not in `unacked_index`.
    pub score: Option<f64>,
    pub message: Message,
}

impl Delivered {
    pub fn at_ms(&self) -> u64 {
        self.score.map_or(0, |score| (score.max(0.0) * 1_000.0) as u64)
    }
}

/// What one look judges.
pub(super) struct DeliveredPage {
    pub messages: Vec<Delivered>,
    /// Whether these are all.
    pub is_all: bool,
}

/// Where the looks of the passes stand in the keys of one application.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// The last message of the page before: its score and tag.
    after: Option<(f64, String)>,
    /// When the looks began with the oldest message, by the server's clock, in seconds.
    round_s: f64,
    /// Where in the notes the removal of old ones goes on.
    notes: String,
}

pub(super) type Places = Mutex<BTreeMap<String, Place>>;

/// What of `unacked` was read.
#[derive(Default)]
struct Values {
    messages: BTreeMap<String, Message>,
    examined: u64,
    others: u64,
    bytes: usize,
}

impl Values {
    fn take(&mut self, tag: &[u8], value: &[u8]) {
        self.examined += 1;
        self.bytes += value.len();
        let tag = std::str::from_utf8(tag).ok().map(str::to_owned);
        match (tag, std::str::from_utf8(value).ok().and_then(Message::read)) {
            (Some(tag), Some(message)) => drop(self.messages.insert(tag, message)),
            _ => self.others += 1,
        }
    }

    fn note(&self, seen: &mut Seen) {
        seen.examined += self.examined;
        if self.others > 0 {
            seen.notes.push(format!("{} messages in `unacked` are not tasks of Celery (no `headers.task`) and are left alone", self.others));
        }
    }
}

impl Look<'_> {
    /// The tasks in `unacked` that this look judges, with their scores.
    pub async fn delivered(&self, seen: &mut Seen) -> Result<DeliveredPage> {
        let unacked = self.key("unacked");
        let count: usize = self.reader.one("HLEN", &[unacked.as_bytes()]).await?;
        if count > LOOK_MAX {
            return self.page(count, seen).await;
        }
        self.places.lock().expect(LOCK).remove(self.prefix);
        let mut values = Values::default();
        self.reader.hash(unacked.as_bytes(), |tag, value| values.take(tag, value)).await?;
        values.note(seen);
        seen.in_flight += values.messages.len() as u64;
        let index = self.key("unacked_index").into_bytes();
        let tags = values.messages.keys();
        let asked: Vec<Vec<Vec<u8>>> =
            tags.map(|tag| vec![index.clone(), tag.clone().into_bytes()]).collect();
        let scores: Vec<Option<Option<f64>>> = self.reader.each("ZSCORE", &asked).await?;
        let with_score = values.messages.into_iter().zip(scores);
        let delivered = |((tag, message), score): ((String, Message), Option<Option<f64>>)| {
            Delivered { tag, score: score.flatten(), message }
        };
        Ok(DeliveredPage { messages: with_score.map(delivered).collect(), is_all: true })
    }

    /// The oldest messages after those of the look before.
    async fn page(&self, count: usize, seen: &mut Seen) -> Result<DeliveredPage> {
        let mut place =
            self.places.lock().expect(LOCK).get(self.prefix).cloned().unwrap_or_default();
        let mut from = self.rank_after(&place).await?;
        let now_s = self.reader.now_ms().await? as f64 / 1_000.0;
        let mut first = self.members(from, 1).await?;
        // What is newer was judged, renewed or delivered since the round began.
        if first.first().is_none_or(|(_, score)| *score >= place.round_s) {
            (from, place.round_s) = (0, now_s);
            first = self.members(0, 1).await?;
        }
        let (mut values, mut scores) = (Values::default(), BTreeMap::new());
        place.after = first.pop().map(|(tag, score)| (score, tag));
        while scores.len() < LOOK_MAX && values.bytes < PAGE_BYTES {
            let members = self.members(from, STEP).await?;
            self.read_values(&members, &mut values).await?;
            let is_last = members.len() < STEP;
            from += members.len();
            if let Some((tag, score)) = members.last() {
                place.after = Some((*score, tag.clone()));
            }
            scores.extend(members);
            if is_last {
                break;
            }
        }
        values.note(seen);
        seen.in_flight += count as u64;
        seen.notes.push(format!("`unacked` has many messages: each look judges up to {LOOK_MAX} of them, the oldest first, and the next one goes on behind them"));
        if self.request.act == PassMode::Reclaim {
            self.forget_notes(&mut place).await?;
            self.places.lock().expect(LOCK).insert(self.prefix.to_owned(), place);
        }
        let delivered = |(tag, message): (String, Message)| {
            let score = scores.get(&tag).copied();
            Delivered { tag, score, message }
        };
        Ok(DeliveredPage {
            messages: values.messages.into_iter().map(delivered).collect(),
            is_all: false,
        })
    }

    /// The rank in `unacked_index` of the first message that comes after the page before.
    async fn rank_after(&self, place: &Place) -> Result<usize> {
        let Some((score, tag)) = &place.after else { return Ok(0) };
        let index = self.key("unacked_index").into_bytes();
        let now: Option<f64> = self.reader.one("ZSCORE", &[&index, tag.as_bytes()]).await?;
        if now == Some(*score) {
            let rank: Option<usize> = self.reader.one("ZRANK", &[&index, tag.as_bytes()]).await?;
            return Ok(rank.map_or(0, |rank| rank + 1));
        }
        // It was renewed, put back or acknowledged.
        self.reader.one("ZCOUNT", &[&index, b"-inf", format!("({score}").as_bytes()]).await
    }

    async fn members(&self, from: usize, count: usize) -> Result<Vec<(String, f64)>> {
        let (index, first) = (self.key("unacked_index"), from.to_string());
        let last = (from + count - 1).to_string();
        let args: [&[u8]; 4] = [index.as_bytes(), first.as_bytes(), last.as_bytes(), b"WITHSCORES"];
        let members: Vec<(Vec<u8>, f64)> = self.reader.one("ZRANGE", &args).await?;
        let text = |(tag, score)| (String::from_utf8_lossy(tag).into_owned(), score);
        Ok(members.iter().map(|(tag, score)| text((tag.as_slice(), *score))).collect())
    }

    async fn read_values(&self, tags: &[(String, f64)], values: &mut Values) -> Result<()> {
        let unacked = self.key("unacked").into_bytes();
        let asked: Vec<Vec<Vec<u8>>> =
            tags.iter().map(|(tag, _)| vec![unacked.clone(), tag.clone().into_bytes()]).collect();
        let read: Vec<Option<Option<Vec<u8>>>> = self.reader.each("HGET", &asked).await?;
        for ((tag, _), value) in tags.iter().zip(read) {
            // One without a message is drift.
            if let Some(value) = value.flatten() {
                values.take(tag.as_bytes(), &value);
            }
        }
        Ok(())
    }

    /// Removes notes of messages that are not there any more, twice as many as a look may have noted.
    async fn forget_notes(&self, place: &mut Place) -> Result<()> {
        let Some(own) = self.request.own else { return Ok(()) };
        let (claims, unacked) =
            (HistoryKeys::new(own, self.prefix).claims, self.key("unacked").into_bytes());
        let mut read = 0;
        while read < 2 * LOOK_MAX {
            let cursor = if place.notes.is_empty() { "0" } else { &place.notes };
            let (next, page) =
                self.reader.page("HSCAN", &[claims.as_bytes()], cursor, STEP).await?;
            let tags: Vec<&Vec<u8>> = page.chunks_exact(2).map(|pair| &pair[0]).collect();
            let asked: Vec<Vec<Vec<u8>>> =
                tags.iter().map(|tag| vec![unacked.clone(), (*tag).clone()]).collect();
            let found: Vec<Option<u64>> = self.reader.each("HEXISTS", &asked).await?;
            let gone = tags.iter().zip(found).filter(|(_, found)| *found == Some(0));
            let gone: Vec<&[u8]> = gone.map(|(tag, _)| tag.as_slice()).collect();
            if !gone.is_empty() {
                let args: Vec<&[u8]> = std::iter::once(claims.as_bytes()).chain(gone).collect();
                let _: u64 = self.reader.one("HDEL", &args).await?;
            }
            read += tags.len().max(1);
            place.notes = next.unwrap_or_default();
            if place.notes.is_empty() {
                break;
            }
        }
        Ok(())
    }
}
