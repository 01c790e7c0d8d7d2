//! Pages of the entries that overdue and ended owners hold. Nothing that a live owner holds is read.

use std::sync::{Arc, Mutex};

use lapsed_core::owner::{Ending, Incarnation};
use lapsed_core::receipt::Reason;
use lapsed_core::sweep::{Cursor, PageRequest, Suspect, SuspectPage};
use lapsed_core::{Error, Name, Result};

use crate::held_entries::held_entries_cmd;
use crate::owners::{OwnerRecord, OwnerService};
use crate::script;
use crate::suspect_prefetch::SuspectPrefetch;
use crate::system_context::{Args, Shard};

/// The cursor just after a suspect: `shard:deadline_ms:incarnation:key`.
pub(crate) fn after(shard: usize, suspect: &Suspect) -> Cursor {
    let Suspect { deadline_ms, incarnation, key, .. } = suspect;
    Cursor(Some(format!("{shard}:{deadline_ms}:{incarnation}:{key}")))
}

/// The position at which reading resumes: a shard, a deadline and incarnation, and a key after which to
/// continue.
#[derive(Clone, Debug, Default)]
pub(crate) struct OverdueCursor {
    pub shard: usize,
    pub deadline_ms: u64,
    pub inc: u64,
    pub key: Option<String>,
}

fn parse_cursor(cursor: &Cursor) -> Result<OverdueCursor> {
    let Some(text) = &cursor.0 else { return Ok(OverdueCursor::default()) };
    let wrong = || Error::Invalid(format!("{text:?} is not a cursor of this store"));
    let mut parts = text.splitn(4, ':');
    let mut number = || parts.next()?.parse::<u64>().ok();
    let (shard, deadline_ms, inc) =
        (number().ok_or_else(wrong)?, number().ok_or_else(wrong)?, number().ok_or_else(wrong)?);
    let key = Some(parts.next().ok_or_else(wrong)?.to_owned());
    Ok(OverdueCursor { shard: shard as usize, deadline_ms, inc, key })
}

const LOCK: &str = "no holder of this lock panics";

/// How many suspects one read asks for after the first page of a pass. A batch takes a few hundred, and
/// listing a suspect costs the server far less than reclaiming it.
const PREFETCH_MAX: usize = 2_000;

/// How many incarnations one step reads; each costs the server as much as dozens of keys.
const OWNERS_A_CALL: usize = 200;

/// The shard and the owner whose entries did not all fit into the last page.
type LastOwner = Option<(usize, Arc<OverdueOwner>)>;

/// Pages of what overdue and ended owners hold, with the prefetched page and the incarnation at which it
/// ends.
#[derive(Default)]
pub(crate) struct OverduePages {
    prefetch: SuspectPrefetch,
    last: Mutex<LastOwner>,
}

/// An incarnation that is overdue or ended, and how much it holds.
pub(crate) struct OverdueOwner {
    inc: u64,
    deadline_ms: u64,
    record: OwnerRecord,
    held: u64,
}

impl OverduePages {
    pub async fn page(&self, owners: &OwnerService, request: &PageRequest) -> Result<SuspectPage> {
        let context = &owners.context;
        let after = |suspect: &Suspect| after(context.shard(suspect.key.as_str()).index, suspect);
        let read = async |request: PageRequest| self.read(owners, &request).await;
        self.prefetch.page(&*context.clock, request, PREFETCH_MAX, read, after).await
    }

    /// Up to `request.limit` suspects, all of one shard.
    async fn read(&self, owners: &OwnerService, request: &PageRequest) -> Result<SuspectPage> {
        let mut from = parse_cursor(&request.after)?;
        loop {
            let Some(shard) = owners.context.shards.get(from.shard) else {
                return Ok(SuspectPage { last: true, ..SuspectPage::default() });
            };
            let mut page = self.page_in(owners, shard, request, &from).await?;
            let more_shards = from.shard + 1 < owners.context.shards.len();
            if !page.suspects.is_empty() || !more_shards {
                page.last &= !more_shards;
                return Ok(page);
            }
            from = OverdueCursor { shard: from.shard + 1, ..OverdueCursor::default() };
        }
    }

    async fn page_in(
        &self,
        owners: &OwnerService,
        shard: &Shard,
        request: &PageRequest,
        from: &OverdueCursor,
    ) -> Result<SuspectPage> {
        if let Some(page) = self.next_of_last_owner(owners, shard, request, from).await? {
            return Ok(page);
        }
        let (page, last_owner) = owners.held_by_overdue(shard, request, from).await?;
        if let Some(owner) = last_owner {
            *self.last.lock().expect(LOCK) = Some((shard.index, Arc::new(owner)));
        }
        Ok(page)
    }

    /// The next page of the owner that the last page ended in, without listing the overdue owners again.
    /// `None`: the request resumes elsewhere, has a brake limit, or this owner holds less than a page.
    async fn next_of_last_owner(
        &self,
        owners: &OwnerService,
        shard: &Shard,
        request: &PageRequest,
        from: &OverdueCursor,
    ) -> Result<Option<SuspectPage>> {
        let known = self.last.lock().expect(LOCK).clone();
        let is_it = |(at, owner): &(usize, Arc<OverdueOwner>)| {
            *at == shard.index && (owner.deadline_ms, owner.inc) == (from.deadline_ms, from.inc)
        };
        let Some((_, owner)) = known.filter(is_it) else { return Ok(None) };
        if from.key.is_none() || request.undeclared_max.is_some() {
            return Ok(None);
        }
        let inc = owner.inc.to_string();
        let keys = owners.held_in(shard, &inc, from.key.as_deref(), request.limit).await?;
        if keys.len() < request.limit {
            return Ok(None);
        }
        let suspects: Result<Vec<Suspect>> =
            keys.into_iter().map(|key| suspect(&owner, key)).collect();
        let (suspects, examined) = (suspects?, request.limit as u64);
        Ok(Some(SuspectPage { suspects, examined, last: false }))
    }
}

impl OwnerService {
    /// Reads what the overdue owners of one shard hold, from a position on; also returns the incarnation at
    /// which it ends.
    pub async fn held_by_overdue(
        &self,
        shard: &Shard,
        request: &PageRequest,
        from: &OverdueCursor,
    ) -> Result<(SuspectPage, Option<OverdueOwner>)> {
        let (mut from, mut page) = (from.clone(), SuspectPage::default());
        loop {
            let overdue_owners = self.overdue_owners(shard, request, &from).await?;
            let next = overdue_owners.last().map(|owner| (owner.deadline_ms, owner.inc + 1));
            let no_more = overdue_owners.len() < request.limit.min(OWNERS_A_CALL);
            let last_owner =
                self.collect(shard, overdue_owners, &from, request, &mut page.suspects).await?;
            page.last = no_more && last_owner.is_none();
            match next.filter(|_| !page.last && last_owner.is_none()) {
                Some((deadline_ms, inc)) => {
                    from = OverdueCursor { shard: from.shard, deadline_ms, inc, key: None }
                }
                None => {
                    page.examined = page.suspects.len() as u64;
                    return Ok((page, last_owner));
                }
            }
        }
    }

    /// Adds what these owners hold to `suspects` until there are `request.limit` of them. Returns the owner
    /// whose entries filled the page, if one did.
    async fn collect(
        &self,
        shard: &Shard,
        mut overdue_owners: Vec<OverdueOwner>,
        from: &OverdueCursor,
        request: &PageRequest,
        suspects: &mut Vec<Suspect>,
    ) -> Result<Option<OverdueOwner>> {
        while !overdue_owners.is_empty() {
            let room = request.limit - suspects.len();
            let mut sum = 0;
            let fill = overdue_owners.iter().take_while(|owner| {
                let is_needed = sum < room as u64;
                sum += owner.held;
                is_needed
            });
            let some: Vec<OverdueOwner> = overdue_owners.drain(..fill.count()).collect();
            let held = self.held_by_each(shard, &some, from, room).await?;
            for (owner, keys) in some.into_iter().zip(held) {
                let room = request.limit - suspects.len();
                let is_full = keys.len() >= room;
                for key in keys.into_iter().take(room) {
                    suspects.push(suspect(&owner, key)?);
                }
                if is_full {
                    return Ok(Some(owner));
                }
            }
        }
        Ok(None)
    }

    /// Reads what each of these owners holds, at most `limit` keys each, in one round trip.
    async fn held_by_each(
        &self,
        shard: &Shard,
        owners: &[OverdueOwner],
        from: &OverdueCursor,
        limit: usize,
    ) -> Result<Vec<Vec<Name>>> {
        let after = |owner: &OverdueOwner| {
            let resumes = (owner.deadline_ms, owner.inc) == (from.deadline_ms, from.inc);
            from.key.as_deref().filter(|_| resumes)
        };
        let mut pipeline = redis::pipe();
        for owner in owners {
            pipeline.add_command(held_entries_cmd(
                shard,
                &owner.inc.to_string(),
                after(owner),
                limit,
            ));
        }
        let answers: Vec<Option<Vec<String>>> =
            self.context.connection.query_each("ZRANGEBYLEX", &pipeline, owners.len()).await?;
        let mut held = Vec::with_capacity(owners.len());
        for (owner, answer) in owners.iter().zip(answers) {
            held.push(match answer {
                Some(keys) => keys.iter().map(|key| Name::new(key)).collect::<Result<_>>()?,
                // The pipeline hides why this command failed; sent alone it returns the error.
                None => self.held_in(shard, &owner.inc.to_string(), after(owner), limit).await?,
            });
        }
        Ok(held)
    }

    /// Owners that are overdue or ended and hold at least one entry.
    async fn overdue_owners(
        &self,
        shard: &Shard,
        request: &PageRequest,
        from: &OverdueCursor,
    ) -> Result<Vec<OverdueOwner>> {
        let most = request.undeclared_max.map_or(String::new(), |max| max.to_string());
        let limit = request.limit.min(OWNERS_A_CALL);
        let args = Args::default().arg(from.deadline_ms).arg(from.inc).arg(limit).arg(most);
        let words: Vec<String> = self.context.run(shard, &script::OVERDUE_OWNERS, args).await?;
        let read = |row: &[String]| {
            let (deadline_ms, held) = (row[1].parse().ok()?, row[3].parse().ok()?);
            let record = OwnerRecord::read(&row[2], deadline_ms)?;
            Some(OverdueOwner { inc: row[0].parse().ok()?, deadline_ms, record, held })
        };
        let unexpected_answer = || self.context.unexpected_answer(&script::OVERDUE_OWNERS);
        words.chunks_exact(4).map(|row| read(row).ok_or_else(unexpected_answer)).collect()
    }
}

fn suspect(owner: &OverdueOwner, key: Name) -> Result<Suspect> {
    let retired = owner.record.state.ended == Some(Ending::Retired);
    Ok(Suspect {
        key,
        owner: Name::new(&owner.record.name)?,
        incarnation: Incarnation(owner.inc),
        deadline_ms: owner.deadline_ms,
        reason: if retired { Reason::OwnerRetired } else { Reason::OwnerDead },
    })
}
