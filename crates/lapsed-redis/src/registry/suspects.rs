//! Who may be dead, and what they hold: nothing of the living is read.

use std::sync::Arc;

use lapsed::owner::{Ending, Incarnation};
use lapsed::receipt::Reason;
use lapsed::sweep::{Cursor, PageRequest, Suspect, SuspectPage};
use lapsed::{Error, Name, Result};

use super::native::NativeRegistry;
use crate::ground::{Args, Shard};
use crate::owners::Packed;
use crate::script;

/// How many overdue owners are looked through for such that beat without lapsed, and how many of
/// those one step looks at.
const EXTERNAL_MAX: usize = 2_000;
const EXTERNAL_STEP: usize = 200;

/// The place just after that suspect: `shard:deadline:incarnation:key`.
pub(super) fn after(shard: usize, suspect: &Suspect) -> Cursor {
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
pub(super) type BrokeOff = Option<(usize, Arc<Doomed>)>;

/// A life that is overdue or ended.
pub(super) struct Doomed {
    inc: u64,
    deadline_ms: u64,
    packed: Packed,
}

impl NativeRegistry {
    /// One page, of one shard.
    pub(super) async fn page(&self, request: &PageRequest) -> Result<SuspectPage> {
        let mut from = place(&request.after)?;
        loop {
            let Some(shard) = self.ground().shards.get(from.shard) else {
                return Ok(SuspectPage { last: true, ..SuspectPage::default() });
            };
            let mut page = self.page_in(shard, request, &from).await?;
            let more_shards = from.shard + 1 < self.ground().shards.len();
            if !page.suspects.is_empty() || !more_shards {
                page.last &= !more_shards;
                return Ok(page);
            }
            from = Place { shard: from.shard + 1, ..Place::default() };
        }
    }

    async fn page_in(
        &self,
        shard: &Shard,
        request: &PageRequest,
        from: &Place,
    ) -> Result<SuspectPage> {
        if let Some(page) = self.same_life(shard, request, from).await? {
            return Ok(page);
        }
        let doomed = self.doomed(shard, request, from).await?;
        let full = doomed.len() == request.limit;
        let mut page = SuspectPage { last: true, ..SuspectPage::default() };
        for life in doomed {
            let left = request.limit - page.suspects.len();
            let resumes = (life.deadline_ms, life.inc) == (from.deadline_ms, from.inc);
            let after = from.key.as_deref().filter(|_| resumes);
            let inc = life.inc.to_string();
            let keys = self.lives.held_in(shard, &inc, after, left).await?;
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
        shard: &Shard,
        request: &PageRequest,
        from: &Place,
    ) -> Result<Option<SuspectPage>> {
        let known = self.last_doomed.lock().expect(LOCK).clone();
        let is_it = |(at, life): &(usize, Arc<Doomed>)| {
            *at == shard.index && (life.deadline_ms, life.inc) == (from.deadline_ms, from.inc)
        };
        let Some((_, life)) = known.filter(is_it) else { return Ok(None) };
        if from.key.is_none() || request.undeclared_max.is_some() {
            return Ok(None);
        }
        let inc = life.inc.to_string();
        let keys = self.lives.held_in(shard, &inc, from.key.as_deref(), request.limit).await?;
        if keys.len() < request.limit {
            return Ok(None);
        }
        let suspects: Result<Vec<Suspect>> =
            keys.into_iter().map(|key| suspect(&life, key)).collect();
        let (suspects, examined) = (suspects?, request.limit as u64);
        Ok(Some(SuspectPage { suspects, examined, last: false }))
    }

    fn remember(&self, shard: &Shard, life: Doomed) {
        *self.last_doomed.lock().expect(LOCK) = Some((shard.index, Arc::new(life)));
    }

    async fn doomed(
        &self,
        shard: &Shard,
        request: &PageRequest,
        from: &Place,
    ) -> Result<Vec<Doomed>> {
        let most = request.undeclared_max.map_or(String::new(), |max| max.to_string());
        let args = Args::default().arg(from.deadline_ms).arg(from.inc).arg(request.limit).arg(most);
        let words: Vec<String> = self.ground().run(shard, &script::DOOMED, args).await?;
        let read = |row: &[String]| {
            let deadline_ms = row[1].parse().ok()?;
            let packed = Packed::read(&row[2], deadline_ms)?;
            Some(Doomed { inc: row[0].parse().ok()?, deadline_ms, packed })
        };
        let nonsense = || self.ground().nonsense(&script::DOOMED);
        words.chunks_exact(4).map(|row| read(row).ok_or_else(nonsense)).collect()
    }

    /// Owners that beat without lapsed and whose heartbeat is there go on.
    pub(super) async fn refile_external(&self, shard: &Shard) -> Result<()> {
        let args = Args::default().arg("list").arg(EXTERNAL_MAX);
        let words: Vec<String> = self.ground().run(shard, &script::EXTERNAL, args).await?;
        for lives in words.chunks(2 * EXTERNAL_STEP) {
            let mut args = Args::default().arg("refile");
            for life in lives.chunks_exact(2) {
                if let Some(heartbeat) = self.lives.heartbeat_read(shard, &life[1]) {
                    args = args.key(heartbeat).arg(&life[0]);
                }
            }
            let _: u64 = self.ground().run(shard, &script::EXTERNAL, args).await?;
        }
        Ok(())
    }

    /// How many entries there are.
    pub(super) async fn population(&self) -> Result<u64> {
        let mut sum = 0;
        for shard in &self.ground().shards {
            let mut cmd = redis::cmd("HLEN");
            cmd.arg(&shard.anchor);
            sum += self.ground().link.query::<u64>("HLEN", &cmd).await?;
        }
        Ok(sum)
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
