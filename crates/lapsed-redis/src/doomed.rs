//! Who may be dead, and what they hold: nothing of the living is read.

use std::sync::{Arc, Mutex};

use lapsed_core::owner::{Ending, Incarnation};
use lapsed_core::receipt::Reason;
use lapsed_core::sweep::{Cursor, PageRequest, Suspect, SuspectPage};
use lapsed_core::{Error, Name, Result};

use crate::ahead::SuspectPrefetch;
use crate::ground::{Args, Shard};
use crate::holdings::holding;
use crate::owners::{OwnerService, Packed};
use crate::script;

/// The place just after that suspect: `shard:deadline:incarnation:key`.
pub(crate) fn after(shard: usize, suspect: &Suspect) -> Cursor {
    let Suspect { deadline_ms, incarnation, key, .. } = suspect;
    Cursor(Some(format!("{shard}:{deadline_ms}:{incarnation}:{key}")))
}

/// Where to go on: in that shard, from that life on, after that key of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    pub shard: usize,
    pub deadline_ms: u64,
    pub inc: u64,
    pub key: Option<String>,
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

/// How many suspects are read at a time once a pass is under way: a batch takes a few hundred, and
/// naming one costs the server far less than reclaiming it.
const AHEAD: usize = 2_000;

/// How many lives are looked at in one step: each costs the server as much as dozens of names.
const LIVES_A_CALL: usize = 200;

/// The shard and the life that a page broke off in.
type BrokeOff = Option<(usize, Arc<OverdueOwner>)>;

/// Pages of what the doomed hold, what was read ahead of them, and the life that this broke off in.
#[derive(Default)]
pub(crate) struct Pages {
    ahead: SuspectPrefetch,
    last: Mutex<BrokeOff>,
}

/// A life that is overdue or ended, and how much it holds.
pub(crate) struct OverdueOwner {
    inc: u64,
    deadline_ms: u64,
    packed: Packed,
    held: u64,
}

impl Pages {
    pub async fn page(&self, lives: &OwnerService, request: &PageRequest) -> Result<SuspectPage> {
        let ground = &lives.ground;
        let after = |suspect: &Suspect| after(ground.shard(suspect.key.as_str()).index, suspect);
        let read = async |request: PageRequest| self.read(lives, &request).await;
        self.ahead.page(&*ground.clock, request, AHEAD, read, after).await
    }

    /// As many as are asked for, of one shard.
    async fn read(&self, lives: &OwnerService, request: &PageRequest) -> Result<SuspectPage> {
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
        lives: &OwnerService,
        shard: &Shard,
        request: &PageRequest,
        from: &Place,
    ) -> Result<SuspectPage> {
        if let Some(page) = self.same_life(lives, shard, request, from).await? {
            return Ok(page);
        }
        let (page, broke_off) = lives.left_in(shard, request, from).await?;
        if let Some(life) = broke_off {
            *self.last.lock().expect(LOCK) = Some((shard.index, Arc::new(life)));
        }
        Ok(page)
    }

    /// A life that left a lot takes many pages: the next one of the same life needs no look at who
    /// else is doomed. `None`: it is not that simple.
    async fn same_life(
        &self,
        lives: &OwnerService,
        shard: &Shard,
        request: &PageRequest,
        from: &Place,
    ) -> Result<Option<SuspectPage>> {
        let known = self.last.lock().expect(LOCK).clone();
        let is_it = |(at, life): &(usize, Arc<OverdueOwner>)| {
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
}

impl OwnerService {
    /// What the doomed of one shard hold, from a place on; and the life that this broke off in.
    pub async fn left_in(
        &self,
        shard: &Shard,
        request: &PageRequest,
        from: &Place,
    ) -> Result<(SuspectPage, Option<OverdueOwner>)> {
        let (mut from, mut page) = (from.clone(), SuspectPage::default());
        loop {
            let doomed = self.doomed(shard, request, &from).await?;
            let next = doomed.last().map(|life| (life.deadline_ms, life.inc + 1));
            let no_more = doomed.len() < request.limit.min(LIVES_A_CALL);
            let broke_off = self.collect(shard, doomed, &from, request, &mut page.suspects).await?;
            page.last = no_more && broke_off.is_none();
            match next.filter(|_| !page.last && broke_off.is_none()) {
                Some((deadline_ms, inc)) => {
                    from = Place { shard: from.shard, deadline_ms, inc, key: None }
                }
                None => {
                    page.examined = page.suspects.len() as u64;
                    return Ok((page, broke_off));
                }
            }
        }
    }

    /// Adds what they hold, until there is as much as was asked for; answers the life in which that
    /// was so.
    async fn collect(
        &self,
        shard: &Shard,
        mut doomed: Vec<OverdueOwner>,
        from: &Place,
        request: &PageRequest,
        suspects: &mut Vec<Suspect>,
    ) -> Result<Option<OverdueOwner>> {
        while !doomed.is_empty() {
            let room = request.limit - suspects.len();
            let mut sum = 0;
            let fill = doomed.iter().take_while(|life| {
                let is_needed = sum < room as u64;
                sum += life.held;
                is_needed
            });
            let some: Vec<OverdueOwner> = doomed.drain(..fill.count()).collect();
            let held = self.held_by_each(shard, &some, from, room).await?;
            for (life, keys) in some.into_iter().zip(held) {
                let room = request.limit - suspects.len();
                let is_full = keys.len() >= room;
                for key in keys.into_iter().take(room) {
                    suspects.push(suspect(&life, key)?);
                }
                if is_full {
                    return Ok(Some(life));
                }
            }
        }
        Ok(None)
    }

    /// What each of them holds, `limit` at the most, in one round trip.
    async fn held_by_each(
        &self,
        shard: &Shard,
        lives: &[OverdueOwner],
        from: &Place,
        limit: usize,
    ) -> Result<Vec<Vec<Name>>> {
        let after = |life: &OverdueOwner| {
            let resumes = (life.deadline_ms, life.inc) == (from.deadline_ms, from.inc);
            from.key.as_deref().filter(|_| resumes)
        };
        let mut pipeline = redis::pipe();
        for life in lives {
            pipeline.add_command(holding(shard, &life.inc.to_string(), after(life), limit));
        }
        let answers: Vec<Option<Vec<String>>> =
            self.ground.link.query_each("ZRANGEBYLEX", &pipeline, lives.len()).await?;
        let mut held = Vec::with_capacity(lives.len());
        for (life, answer) in lives.iter().zip(answers) {
            held.push(match answer {
                Some(keys) => keys.iter().map(|key| Name::new(key)).collect::<Result<_>>()?,
                // Refused: asked by itself it says why.
                None => self.held_in(shard, &life.inc.to_string(), after(life), limit).await?,
            });
        }
        Ok(held)
    }

    /// OwnerService that are overdue or ended, and hold something.
    async fn doomed(
        &self,
        shard: &Shard,
        request: &PageRequest,
        from: &Place,
    ) -> Result<Vec<OverdueOwner>> {
        let most = request.undeclared_max.map_or(String::new(), |max| max.to_string());
        let limit = request.limit.min(LIVES_A_CALL);
        let args = Args::default().arg(from.deadline_ms).arg(from.inc).arg(limit).arg(most);
        let words: Vec<String> = self.ground.run(shard, &script::DOOMED, args).await?;
        let read = |row: &[String]| {
            let (deadline_ms, held) = (row[1].parse().ok()?, row[3].parse().ok()?);
            let packed = Packed::read(&row[2], deadline_ms)?;
            Some(OverdueOwner { inc: row[0].parse().ok()?, deadline_ms, packed, held })
        };
        let nonsense = || self.ground.nonsense(&script::DOOMED);
        words.chunks_exact(4).map(|row| read(row).ok_or_else(nonsense)).collect()
    }
}

fn suspect(life: &OverdueOwner, key: Name) -> Result<Suspect> {
    let retired = life.packed.life.ended == Some(Ending::Retired);
    Ok(Suspect {
        key,
        owner: Name::new(&life.packed.name)?,
        incarnation: Incarnation(life.inc),
        deadline_ms: life.deadline_ms,
        reason: if retired { Reason::OwnerRetired } else { Reason::OwnerDead },
    })
}
