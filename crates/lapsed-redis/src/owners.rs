//! Owners: start, heartbeat, end, list. The same for every system that is written through lapsed.
//!
//! With several shards an incarnation is in each of them, under the number that the first one gave it: each
//! shard must be able to judge it by itself. An incarnation that one shard has declared dead is dead: whoever
//! sees it first ends it in the others.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::try_join_all;
use lapsed_core::owner::{Beat, Claim, Ending, Incarnation, Lost, OwnerInfo};
use lapsed_core::registry::rules::{IncarnationState, due_ms};
use lapsed_core::request::RequestId;
use lapsed_core::{Error, Name, Result};

use crate::names::{Template, slot};
use crate::script;
use crate::system_context::{Args, Shard, SystemContext};

/// The most keys named in a `Lost`.
const LOST_KEYS_MAX: usize = 1_000;

/// The owners of one system.
pub(crate) struct OwnerService {
    pub context: Arc<SystemContext>,
    /// The key that the application reads to see whether an owner is alive, if it has one.
    pub heartbeat: Option<Template>,
    /// How long a heartbeat lasts, by default.
    pub ttl_ms: u64,
}

/// The stored record of one incarnation, as the scripts pack it.
#[derive(Clone, Debug)]
pub(crate) struct OwnerRecord {
    pub name: String,
    pub state: IncarnationState,
    pub ended_ms: u64,
    pub end_deadline_ms: u64,
    pub held_at_end: u64,
    /// Whether its owner writes the heartbeat key without lapsed.
    external: bool,
}

impl OwnerRecord {
    /// `ttl:started:ending:ended:deadline:held:external:name`; `deadline` of one that lives comes
    /// from elsewhere.
    pub fn read(text: &str, deadline_ms: u64) -> Option<OwnerRecord> {
        let mut parts = text.splitn(8, ':');
        let mut number = || parts.next()?.parse::<u64>().ok();
        let (ttl_ms, started_ms) = (number()?, number()?);
        let ending = parts.next()?;
        let mut number = || parts.next()?.parse::<u64>().ok();
        let (ended_ms, end_deadline_ms, held_at_end) = (number()?, number()?, number()?);
        let external = parts.next()? == "1";
        let name = parts.next()?.to_owned();
        let ended = match ending {
            "d" => Some(Ending::Dead),
            "r" => Some(Ending::Retired),
            _ => None,
        };
        let deadline_ms = if ended.is_some() { end_deadline_ms } else { deadline_ms };
        let state = IncarnationState { started_ms, deadline_ms, ttl_ms, ended };
        Some(OwnerRecord { name, state, ended_ms, end_deadline_ms, held_at_end, external })
    }

    /// How long its beats are believed, if it beats without lapsed and the deadline that was last read
    /// off its heartbeat is over: what the heartbeat says now is not known here.
    pub fn unread_ttl(&self, due_ms: u64, now_ms: u64) -> Option<u64> {
        let is_unread = self.external && self.state.ended.is_none() && due_ms <= now_ms;
        is_unread.then_some(self.state.ttl_ms)
    }

    pub fn ended(&self) -> Option<(Ending, u64)> {
        self.state.ended.map(|ending| (ending, self.ended_ms))
    }
}

/// How a script resolved a claim (an owner's name, with or without an incarnation).
pub(crate) enum ResolvedClaim {
    /// The claimed incarnation has not ended; the answer of the script.
    Current(Vec<String>),
    /// The claim names no incarnation, and this owner has none.
    Unknown,
    /// The incarnation is not one of that owner, or is not remembered any more.
    UnknownIncarnation,
    /// The incarnation has ended.
    Ended(u64),
    /// The script did nothing: it must be called again with the keys of these incarnations.
    NeedsKeys(Vec<String>),
}

impl ResolvedClaim {
    pub fn read(
        context: &SystemContext,
        script: &crate::script::Script,
        words: Vec<String>,
    ) -> Result<ResolvedClaim> {
        match words.first().map(String::as_str) {
            Some("unknown") => Ok(ResolvedClaim::Unknown),
            Some("stranger") => Ok(ResolvedClaim::UnknownIncarnation),
            Some("ended") => {
                let inc = words.get(1).and_then(|inc| inc.parse().ok());
                inc.map(ResolvedClaim::Ended).ok_or_else(|| context.unexpected_answer(script))
            }
            Some("again") => Ok(ResolvedClaim::NeedsKeys(words[1..].to_vec())),
            Some(_) => Ok(ResolvedClaim::Current(words)),
            None => Err(context.unexpected_answer(script)),
        }
    }
}

/// The incarnation as an argument of a script; empty for the newest.
pub(crate) fn incarnation_arg(claim: &Claim) -> String {
    claim.incarnation.map_or(String::new(), |inc| inc.to_string())
}

/// The `Lost` error for an incarnation that is not known, or not known any more.
pub(crate) fn unknown_incarnation(claim: &Claim) -> Error {
    let (owner, incarnation) = (claim.owner.clone(), claim.incarnation);
    let lost =
        Lost { owner, incarnation, ending: None, ended_ms: None, held: Vec::new(), held_total: 0 };
    lost.into()
}

impl OwnerService {
    /// The heartbeat key of an owner, where this shard writes it: only the first does, and only if
    /// it lies in the same slot. Otherwise `none`, which the scripts take for none at all.
    pub fn heartbeat_key(&self, shard: &Shard, owner: &str, none: &str) -> String {
        let key = self.heartbeat_read(shard, owner).filter(|_| shard.index == 0);
        key.unwrap_or_else(|| none.to_owned())
    }

    /// The heartbeat key for a read only, which is possible in every shard if the key is in the same slot.
    pub fn heartbeat_read(&self, shard: &Shard, owner: &str) -> Option<String> {
        let key = self.heartbeat.as_ref()?.of(owner);
        (!self.context.connection.is_cluster() || slot(&key) == slot(&shard.anchor)).then_some(key)
    }

    /// Until when owners that beat without lapsed are good, by the heartbeats that are there now; those
    /// without one are left out. `owners`: how long a beat of each is believed.
    pub async fn heartbeat_deadlines(
        &self,
        shard: &Shard,
        owners: BTreeMap<String, u64>,
        now_ms: u64,
    ) -> Result<BTreeMap<String, u64>> {
        let ask = owners.into_iter().filter_map(|(owner, ttl_ms)| {
            Some((self.heartbeat_read(shard, &owner)?, owner, ttl_ms))
        });
        let ask = ask.map(|(key, owner, ttl_ms)| async move {
            let mut cmd = redis::cmd("PTTL");
            cmd.arg(key);
            let left = match self.context.connection.query::<i64>("PTTL", &cmd).await? {
                -1 => ttl_ms,
                left => ttl_ms.min(left.max(0) as u64),
            };
            Ok::<_, Error>((left > 0).then_some((owner, now_ms + left)))
        });
        Ok(try_join_all(ask).await?.into_iter().flatten().collect())
    }

    pub async fn start(&self, owner: &Name, ttl_ms: u64) -> Result<Beat> {
        self.begin(owner, ttl_ms, "new")
            .await?
            .ok_or_else(|| self.context.unexpected_answer(&script::OWNER_START))
    }

    pub async fn start_once(&self, request: &RequestId, owner: &Name, ttl_ms: u64) -> Result<Beat> {
        let shard = &self.context.shards[0];
        let args = self.context.with_base(shard, self.start_args(shard, owner, ttl_ms, "new", ""));
        let script = &script::OWNER_START_ONCE;
        let first: Vec<u64> = self.context.run_once(shard, script, request, args).await?;
        let begun = self.begin_in_others(owner, &first).await?;
        begun.ok_or_else(|| self.context.unexpected_answer(&script::OWNER_START))
    }

    /// Starts an incarnation in all shards. `None`: `when` is `unless_known`, and the owner has one already.
    pub async fn begin(&self, owner: &Name, ttl_ms: u64, when: &str) -> Result<Option<Beat>> {
        let first = self.begin_in(&self.context.shards[0], owner, ttl_ms, when, "").await?;
        self.begin_in_others(owner, &first).await
    }

    /// Starts the incarnation that the first shard has begun in the others, too. Repeating it is safe.
    async fn begin_in_others(&self, owner: &Name, first: &[u64]) -> Result<Option<Beat>> {
        let context = &self.context;
        let [inc, deadline_ms, now_ms, ttl_ms] = first[..] else { return Ok(None) };
        let number = inc.to_string();
        let others = context.shards[1..].iter();
        try_join_all(others.map(|shard| self.begin_in(shard, owner, ttl_ms, "new", &number)))
            .await?;
        let incarnation = Incarnation(inc);
        Ok(Some(Beat { incarnation, deadline_ms, now_ms, ttl_ms, started: true }))
    }

    async fn begin_in(
        &self,
        shard: &Shard,
        owner: &Name,
        ttl_ms: u64,
        when: &str,
        inc: &str,
    ) -> Result<Vec<u64>> {
        let args = self.start_args(shard, owner, ttl_ms, when, inc);
        self.context.run(shard, &script::OWNER_START, args).await
    }

    fn start_args(&self, shard: &Shard, owner: &Name, ttl_ms: u64, when: &str, inc: &str) -> Args {
        let heartbeat = self.heartbeat_key(shard, owner.as_str(), &shard.prefix.key("meta"));
        Args::default().key(heartbeat).arg(owner).arg(ttl_ms).arg(when).arg(inc)
    }

    pub async fn beat(&self, claim: &Claim) -> Result<Beat> {
        loop {
            let beats = self.context.shards.iter().map(|shard| self.beat_in(shard, claim));
            let mut answers = try_join_all(beats).await?;
            // Every shard answers; any answer but `Current` decides.
            let worst =
                answers.iter().position(|resolved| !matches!(resolved, ResolvedClaim::Current(_)));
            match answers.swap_remove(worst.unwrap_or(0)) {
                ResolvedClaim::Current(words) => return self.beaten(&words),
                ResolvedClaim::Unknown => {
                    if let Some(beat) =
                        self.begin(&claim.owner, self.ttl_ms, "unless_known").await?
                    {
                        return Ok(beat);
                    }
                }
                ResolvedClaim::Ended(inc) => return Err(self.lost(&claim.owner, inc).await?),
                ResolvedClaim::UnknownIncarnation | ResolvedClaim::NeedsKeys(_) => {
                    return Err(unknown_incarnation(claim));
                }
            }
        }
    }

    async fn beat_in(&self, shard: &Shard, claim: &Claim) -> Result<ResolvedClaim> {
        let records_key = shard.prefix.key("lives");
        let heartbeat = self.heartbeat_key(shard, claim.owner.as_str(), &records_key);
        let args = Args::default()
            .key(records_key)
            .key(shard.prefix.key("names"))
            .key(shard.prefix.key("due"))
            .key(heartbeat)
            .arg(&claim.owner)
            .arg(incarnation_arg(claim));
        let words = self.context.run_with_keys(&script::OWNER_BEAT, args).await?;
        ResolvedClaim::read(&self.context, &script::OWNER_BEAT, words)
    }

    fn beaten(&self, words: &[String]) -> Result<Beat> {
        let numbers: Option<Vec<u64>> = words.iter().map(|word| word.parse().ok()).collect();
        match numbers.as_deref() {
            Some([inc, deadline_ms, now_ms, ttl_ms]) => Ok(Beat {
                incarnation: Incarnation(*inc),
                deadline_ms: *deadline_ms,
                now_ms: *now_ms,
                ttl_ms: *ttl_ms,
                started: false,
            }),
            _ => Err(self.context.unexpected_answer(&script::OWNER_BEAT)),
        }
    }

    pub async fn end(&self, claim: &Claim) -> Result<OwnerInfo> {
        let first = self.end_in(&self.context.shards[0], claim, "r").await?;
        let [inc, before] = &first[..] else { return Err(unknown_incarnation(claim)) };
        let inc: u64 =
            inc.parse().map_err(|_| self.context.unexpected_answer(&script::OWNER_END))?;
        if before != "-" {
            return Err(self.lost(&claim.owner, inc).await?);
        }
        let exact = Claim::exact(claim.owner.clone(), Incarnation(inc));
        let others = self.context.shards[1..].iter();
        try_join_all(others.map(|shard| self.end_in(shard, &exact, "r"))).await?;
        self.owner(&exact).await?.ok_or_else(|| unknown_incarnation(claim))
    }

    async fn end_in(&self, shard: &Shard, claim: &Claim, how: &str) -> Result<Vec<String>> {
        let heartbeat = self.heartbeat_key(shard, claim.owner.as_str(), &shard.prefix.key("meta"));
        let args =
            Args::default().key(heartbeat).arg(&claim.owner).arg(incarnation_arg(claim)).arg(how);
        let (context, script) = (&self.context, &script::OWNER_END);
        match how {
            // A caller ends one incarnation, once in each shard; a pass ends many at the same time.
            "r" => context.change(shard, script, context.with_base(shard, args)).await,
            _ => context.run(shard, script, args).await,
        }
    }

    /// Ends an incarnation in every shard, because one shard has declared it dead.
    pub async fn end_everywhere(&self, owner: &Name, inc: u64) -> Result<()> {
        if self.context.shards.len() == 1 {
            return Ok(());
        }
        let claim = Claim::exact(owner.clone(), Incarnation(inc));
        let ends = self.context.shards.iter().map(|shard| self.end_in(shard, &claim, "d"));
        try_join_all(ends).await.map(|_| ())
    }

    /// The `Lost` error for an incarnation that has ended, with the keys that it held when it ended.
    pub async fn lost(&self, owner: &Name, inc: u64) -> Result<Error> {
        self.end_everywhere(owner, inc).await?;
        let mut lost = Lost {
            owner: owner.clone(),
            incarnation: Some(Incarnation(inc)),
            ending: None,
            ended_ms: None,
            held: Vec::new(),
            held_total: 0,
        };
        for shard in &self.context.shards {
            if let Some((record, _, _)) = self.record(shard, inc).await? {
                lost.ending = record.state.ended.or(lost.ending);
                lost.ended_ms = record.ended().map(|(_, at)| at).or(lost.ended_ms);
                lost.held_total += record.held_at_end;
            }
            for what in ["held", "lost"] {
                let mut cmd = redis::cmd("ZRANGE");
                cmd.arg(shard.prefix.key(&format!("{what}:{inc}"))).arg(0).arg(LOST_KEYS_MAX - 1);
                let keys: Vec<String> = self.context.connection.query("ZRANGE", &cmd).await?;
                lost.held.extend(keys.iter().filter_map(|key| Name::new(key).ok()));
            }
        }
        lost.held.sort();
        lost.held.dedup();
        lost.held_total = lost.held_total.max(lost.held.len() as u64);
        lost.held.truncate(LOST_KEYS_MAX);
        Ok(lost.into())
    }

    async fn record(&self, shard: &Shard, inc: u64) -> Result<Option<(OwnerRecord, u64, u64)>> {
        let args = Args::default().arg("some").arg(inc);
        let words: Vec<String> = self.context.run(shard, &script::OWNERS, args).await?;
        Ok(self
            .read_records(&words)?
            .into_iter()
            .next()
            .map(|(_, record, held, back)| (record, held, back)))
    }

    /// Reads an answer of `lives`: number, record, how much it holds, since when the server is
    /// back.
    fn read_records(&self, words: &[String]) -> Result<Vec<(u64, OwnerRecord, u64, u64)>> {
        let unexpected_answer = || self.context.unexpected_answer(&script::OWNERS);
        let number = |word: &String| word.parse::<f64>().ok().map(|n| n as u64);
        let back_ms = words.get(1).and_then(number).ok_or_else(unexpected_answer)?;
        let read = |row: &[String]| {
            let deadline_ms = number(&row[2]).unwrap_or(0);
            Some((
                number(&row[0])?,
                OwnerRecord::read(&row[1], deadline_ms)?,
                number(&row[3])?,
                back_ms,
            ))
        };
        words[2..].chunks_exact(4).map(|row| read(row).ok_or_else(unexpected_answer)).collect()
    }

    pub async fn owner(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        let infos = match claim.incarnation {
            Some(inc) => self.infos(|| Args::default().arg("some").arg(inc)).await?,
            None => self.infos(|| Args::default().arg("newest").arg(&claim.owner)).await?,
        };
        Ok(infos.into_iter().find(|info| info.owner == claim.owner))
    }

    /// Combines the answers of all shards: what the owner holds is summed up, and it has ended if it has in
    /// one shard.
    pub async fn infos(&self, args: impl Fn() -> Args) -> Result<Vec<OwnerInfo>> {
        let answers: Vec<Vec<String>> = self.context.run_all(&script::OWNERS, |_| args()).await?;
        let mut infos: BTreeMap<u64, OwnerInfo> = BTreeMap::new();
        let (mut unread_ttl, mut now_ms) = (BTreeMap::new(), 0);
        for (index, words) in answers.iter().enumerate() {
            now_ms = words.first().and_then(|now| now.parse().ok()).unwrap_or(now_ms);
            for (inc, record, held, back_ms) in self.read_records(words)? {
                let ttl_ms = record.unread_ttl(due_ms(&record.state, back_ms), now_ms);
                unread_ttl.extend(ttl_ms.map(|ttl_ms| (record.name.clone(), ttl_ms)));
                let known = infos.get_mut(&inc);
                match known {
                    Some(info) => {
                        info.held += held;
                        info.ended = info.ended.or(record.ended());
                        info.due_ms = info.due_ms.min(due_ms(&record.state, back_ms));
                    }
                    None if index > 0 => {}
                    None => {
                        infos.insert(inc, info(inc, &record, held, back_ms)?);
                    }
                }
            }
        }
        let good = self.heartbeat_deadlines(&self.context.shards[0], unread_ttl, now_ms).await?;
        let mut infos: Vec<OwnerInfo> = infos.into_values().collect();
        for info in infos.iter_mut().filter(|info| info.ended.is_none()) {
            info.due_ms =
                good.get(info.owner.as_str()).map_or(info.due_ms, |at| info.due_ms.max(*at));
        }
        Ok(infos)
    }
}

fn info(inc: u64, record: &OwnerRecord, held: u64, back_ms: u64) -> Result<OwnerInfo> {
    Ok(OwnerInfo {
        owner: Name::new(&record.name)?,
        incarnation: Incarnation(inc),
        ttl_ms: record.state.ttl_ms,
        started_ms: record.state.started_ms,
        due_ms: match record.state.ended {
            Some(_) => record.end_deadline_ms,
            None => due_ms(&record.state, back_ms),
        },
        held,
        ended: record.ended(),
    })
}
