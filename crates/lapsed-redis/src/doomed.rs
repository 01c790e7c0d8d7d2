//! Who may be dead, and what they hold: nothing of the living is read.

use std::sync::{Arc, Mutex};

use lapsed::owner::{Ending, Incarnation};
use lapsed::receipt::Reason;
use lapsed::sweep::{Cursor, PageRequest, Suspect, SuspectPage};
use lapsed::{Error, Name, Result};

use crate::ground::{Args, Shard};
use crate::owners::{Lives, Packed};
use crate::script;

/// The place just after that suspect: `shard:deadline:incarnation:key`.
pub(crate) fn after(shard: usize, suspect: &Suspect) -> Cursor {
    let Suspect { deadline_ms, incarnation, key, .. } = suspect;
    Cursor(Some(format!("{shard}:{deadline_ms}:{incarnation}:{key}")))
}

/// Where to go on.
#[derive(Clone, Debug, Default)]
struct Place {
    shard: usize,
    deadline_ms: u64,
    inc: u64,
    key: Option<String>,
}

fn place(cursor: &Cursor) -> Result<Place> {
    let Some(text) = &cursor.0 else { return Ok(Place::default()) };
    let wrong = || Error::Invalid(format!("{text:?} is not a cursor of this store"));
    let mut parts = text.splitn(4, ':');
    let mut number = || parts.next()?.parse::<u64>().ok();
    let (shard, deadline_ms, inc) =
        (number().ok_or_else(wrong)?, number().ok_or_else(wrong)?, number().ok_or_else(wrong)?);
    let key = Some(parts.next().ok_or_else(wrong)?.to_owned());
    Ok(Place { shard: shard as usize, deadline_ms, inc, key })
}

const LOCK: &str = "no holder of this lock panics";

/// The shard and the life that a page broke off in.
type BrokeOff = Option<(usize, Arc<Doomed>)>;

/// Pages of what the doomed hold, and the life that the last one broke off in.
#[derive(Default)]
pub(crate) struct Pages {
    last: Mutex<BrokeOff>,
}

/// A life that is overdue or ended.
struct Doomed {
    inc: u64,
    deadline_ms: u64,
    packed: Packed,
}

impl Pages {
    /// One page, of one shard.
    pub async fn page(&self, lives: &Lives, request: &PageRequest) -> Result<SuspectPage> {
        let mut from = place(&request.after)?;
        loop {
            let Some(shard) = lives.ground.shards.get(from.shard) else {
                return Ok(SuspectPage { last: true, ..SuspectPage::default() });
            };
            let mut page = self.page_in(lives, shard, request, &from).await?;
            let more_shards = from.shard + 1 < lives.ground.shards.len();
            if !page.suspects.is_empty() || !more_shards {
                page.last &= !more_shards;
                return Ok(page);
            }
            from = Place { shard: from.shard + 1, ..Place::default() };
        }
    }

    async fn page_in(
        &self,
        lives: &Lives,
        shard: &Shard,
        request: &PageRequest,
        from: &Place,
    ) -> Result<SuspectPage> {
        if let Some(page) = self.same_life(lives, shard, request, from).await? {
            return Ok(page);
        }
        let doomed = lives.doomed(shard, request, from).await?;
        let full = doomed.len() == request.limit;
        let mut page = SuspectPage { last: true, ..SuspectPage::default() };
        for life in doomed {
            let left = request.limit - page.suspects.len();
            let resumes = (life.deadline_ms, life.inc) == (from.deadline_ms, from.inc);
            let after = from.key.as_deref().filter(|_| resumes);
            let inc = life.inc.to_string();
            let keys = lives.held_in(shard, &inc, after, left).await?;
            page.last = keys.len() < left;
            for key in keys {
                page.suspects.push(suspect(&life, key)?);
            }
            if !page.last {
                self.remember(shard, life);
                break;
            }
        }
        page.examined = page.suspects.len() as u64;
        page.last &= !full;
        Ok(page)
    }

    /// A life that left a lot takes many pages: the next one of the same life needs no look at who
    /// else is doomed. `None`: it is not that simple.
    async fn same_life(
        &self,
        lives: &Lives,
        shard: &Shard,
        request: &PageRequest,
        from: &Place,
    ) -> Result<Option<SuspectPage>> {
        let known = self.last.lock().expect(LOCK).clone();
        let is_it = |(at, life): &(usize, Arc<Doomed>)| {
            *at == shard.index && (life.deadline_ms, life.inc) == (from.deadline_ms, from.inc)
        };
        let Some((_, life)) = known.filter(is_it) else { return Ok(None) };
        if from.key.is_none() || request.undeclared_max.is_some() {
            return Ok(None);
        }
        let inc = life.inc.to_string();
        let keys = lives.held_in(shard, &inc, from.key.as_deref(), request.limit).await?;
        if keys.len() < request.limit {
            return Ok(None);
        }
        let suspects: Result<Vec<Suspect>> =
            keys.into_iter().map(|key| suspect(&life, key)).collect();
        let (suspects, examined) = (suspects?, request.limit as u64);
        Ok(Some(SuspectPage { suspects, examined, last: false }))
    }

    fn remember(&self, shard: &Shard, life: Doomed) {
        *self.last.lock().expect(LOCK) = Some((shard.index, Arc::new(life)));
    }
}

impl Lives {
    /// Lives that are overdue or ended, and hold something.
    async fn doomed(
        &self,
        shard: &Shard,
        request: &PageRequest,
        from: &Place,
    ) -> Result<Vec<Doomed>> {
        let most = request.undeclared_max.map_or(String::new(), |max| max.to_string());
        let args = Args::default().arg(from.deadline_ms).arg(from.inc).arg(request.limit).arg(most);
        let words: Vec<String> = self.ground.run(shard, &script::DOOMED, args).await?;
        let read = |row: &[String]| {
            let deadline_ms = row[1].parse().ok()?;
            let packed = Packed::read(&row[2], deadline_ms)?;
            Some(Doomed { inc: row[0].parse().ok()?, deadline_ms, packed })
        };
        let nonsense = || self.ground.nonsense(&script::DOOMED);
        words.chunks_exact(4).map(|row| read(row).ok_or_else(nonsense)).collect()
    }
}

fn suspect(life: &Doomed, key: Name) -> Result<Suspect> {
    let retired = life.packed.life.ended == Some(Ending::Retired);
    Ok(Suspect {
        key,
        owner: Name::new(&life.packed.name)?,
        incarnation: Incarnation(life.inc),
        deadline_ms: life.deadline_ms,
        reason: if retired { Reason::OwnerRetired } else { Reason::OwnerDead },
    })
}
