//! Setting those offline whom the mirror declared silent: the row, the log and the receipt in one
//! transaction, each only if the truth agrees.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::BoxFuture;
use lapsed_availability::{Flip, Flipped, ProviderState};
use lapsed_core::owner::Incarnation;
use lapsed_core::receipt::{Evidence, Reason, Receipt, ReceiptId};
use lapsed_core::sweep::{Batch, BatchId, Refusal};
use lapsed_core::{Error, Name, SystemId};
use serde_json::json;
use tokio_postgres::Row;

use crate::availability::PostgresTruth;
use crate::availability::states::Locked;
use crate::availability::table_names::TableNames;
use crate::call_error::CallResult;
use crate::number::{ms_of, to_i64, to_u64};
use crate::pool::{Call, TransactionEnd};
use crate::receipts;

/// What the transaction found and did for one provider.
struct FlipJudgement {
    verdict: Verdict,
    judged_ms: u64,
    last_online_at: Option<String>,
    last_heartbeat_at: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Flipped,
    /// The provider has beaten recently; the mirror did not see it.
    FreshBeat,
    Moved,
}

/// Into how many pieces a batch is divided within its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pieces {
    One,
    /// The batch is divided until only the rows that the server refuses are left out.
    AsNeeded,
}

impl TableNames {
    /// The decisive statement: system, ids, epochs, how long silence must last.
    ///
    /// Being set online is a heartbeat like a beat. An application that toggled by itself has moved it,
    /// whatever the epoch says that was remembered; of whom nothing is remembered, only the times count.
    fn flip(&self) -> String {
        let TableNames { status, s_provider, s_online, s_last_online, s_beat, .. } = self;
        format!(
            "WITH asked AS (SELECT a.id, a.epoch FROM unnest($2::text[], $3::bigint[]) AS a(id, epoch)), \
             held AS MATERIALIZED (SELECT s.{s_provider} AS id, coalesce(s.{s_online}, false) AS online, \
             s.{s_last_online} AS last_online, s.{s_beat} AS beat FROM {status} s \
             WHERE s.{s_provider} = ANY({ids}) ORDER BY s.{s_provider} FOR NO KEY UPDATE), \
             judged AS MATERIALIZED (SELECT h.*, CASE \
             WHEN NOT h.online OR v.epoch <> a.epoch OR (v.was_online IS NOT NULL \
             AND (h.online, h.last_online) IS DISTINCT FROM (v.was_online, v.online_mark)) THEN 2 \
             WHEN greatest(h.beat, h.last_online) > clock_timestamp() - $4 * interval '1 millisecond' \
             THEN 1 ELSE 0 END AS verdict \
             FROM held h JOIN asked a ON a.id = h.id::text \
             JOIN {own} v ON v.system = $1 AND v.provider = a.id), \
             flipped AS (UPDATE {status} s SET {s_online} = false, \
             {last_offline} = clock_timestamp(){touch} \
             FROM judged j WHERE s.{s_provider} = j.id AND j.verdict = 0 RETURNING j.id::text AS id), \
             logged AS ({logged}) \
             SELECT j.id::text, j.verdict, {now}, to_json(j.last_online)#>>'{{}}', \
             to_json(j.beat)#>>'{{}}', (SELECT count(*) FROM logged) FROM judged j",
            ids = self.status_provider.many(2),
            own = self.own.availability,
            last_offline = self.s_last_offline,
            touch = self.s_touch,
            logged = self.log(&self.log_provider.of("f.id"), "offline", "FROM flipped f"),
            now = ms_of("clock_timestamp()"),
        )
    }
}

impl PostgresTruth {
    pub(super) async fn try_flip(
        &self,
        batch: &Batch,
        flips: &[Flip],
        stale_ms: u64,
    ) -> CallResult<Vec<Flipped>> {
        if flips.is_empty() {
            return Ok(Vec::new());
        }
        // In one piece first, which takes the fewest statements. A row that the server refuses undoes all of it.
        match self.flip_all(batch, flips, stale_ms, Pieces::One).await {
            Err(failure) if failure.of_row => {
                self.flip_all(batch, flips, stale_ms, Pieces::AsNeeded).await
            }
            answer => answer,
        }
    }

    /// Carries out the batch in one transaction.
    async fn flip_all(
        &self,
        batch: &Batch,
        flips: &[Flip],
        stale_ms: u64,
        pieces: Pieces,
    ) -> CallResult<Vec<Flipped>> {
        self.names().await?;
        let own = self.postgres.own();
        let (system, sweeper, number) = receipts::batch_key(&self.id, &batch.id);
        let params: crate::pool::Params<'_> = &[&system, &sweeper, &number, &true];
        let (call, noted) =
            self.pool().begin("set the silent offline", &receipts::note_batch(own), params).await?;
        let flipped = match noted.is_empty() {
            true => self.answer_repeated_batch(&call, batch, flips).await,
            false => self.flip_in(&call, batch, flips, stale_ms, pieces).await,
        };
        call.finish(flipped).await
    }

    /// A batch that was noted before: it was carried out, or it was settled and never will be.
    async fn answer_repeated_batch(
        &self,
        call: &Call,
        batch: &Batch,
        flips: &[Flip],
    ) -> CallResult<TransactionEnd<Vec<Flipped>>> {
        let sql = format!(
            "SELECT carried_out FROM {} WHERE system = $1 AND sweeper = $2 AND number = $3",
            self.postgres.own().batches
        );
        let (system, sweeper, number) = receipts::batch_key(&self.id, &batch.id);
        let row = call.query_opt(&sql, &[&system, &sweeper, &number]).await?;
        if row.is_some_and(|row| row.get(0)) {
            return self.refuse_all(call, flips, Refusal::Moved).await;
        }
        let BatchId { sweeper, number } = &batch.id;
        let what = format!("batch {number} of {sweeper} was settled as not carried out");
        Err(Error::Invalid(what).into())
    }

    /// Refuses all flips of the batch, each with the provider's current state.
    async fn refuse_all(
        &self,
        call: &Call,
        flips: &[Flip],
        why: Refusal,
    ) -> CallResult<TransactionEnd<Vec<Flipped>>> {
        let ids: Vec<Name> = flips.iter().map(|flip| flip.id.clone()).collect();
        let mut states = BTreeMap::new();
        for state in self.states_in(call, &ids).await? {
            states.insert(state.id.clone(), state);
        }
        let left = ids.iter().map(|id| Flipped::Left(why, states.get(id).cloned()));
        Ok(TransactionEnd::Rollback(left.collect()))
    }

    async fn flip_in(
        &self,
        call: &Call,
        batch: &Batch,
        flips: &[Flip],
        stale_ms: u64,
        pieces: Pieces,
    ) -> CallResult<TransactionEnd<Vec<Flipped>>> {
        if let Some(term) = batch.term
            && !self.holds_term(call, term).await?
        {
            return self.refuse_all(call, flips, Refusal::NotLeader).await;
        }
        let flipped = match pieces {
            Pieces::One => self.flip_piece(call, batch, flips, stale_ms).await?,
            Pieces::AsNeeded => self.flip_halves(call, batch, flips, stale_ms).await?,
        };
        Ok(match batch.act.reclaims() {
            true => TransactionEnd::Commit(flipped),
            false => TransactionEnd::Rollback(flipped),
        })
    }

    /// Carries out what the server accepts. What it refuses is undone and divided, until the rows that it does not
    /// accept are found: those are left for the next pass.
    fn flip_halves<'a>(
        &'a self,
        call: &'a Call,
        batch: &'a Batch,
        flips: &'a [Flip],
        stale_ms: u64,
    ) -> BoxFuture<'a, CallResult<Vec<Flipped>>> {
        Box::pin(async move {
            call.savepoint().await?;
            let tried = self.flip_piece(call, batch, flips, stale_ms).await;
            let failure = match tried {
                Err(failure) if !failure.of_row => return Err(failure),
                tried => {
                    call.end_savepoint(&tried).await?;
                    match tried {
                        Ok(flipped) => return Ok(flipped),
                        Err(failure) => failure,
                    }
                }
            };
            if let [flip] = flips {
                tracing::error!(system = self.system, provider = %flip.id, error = %failure.error,
                    "a silent provider cannot be set offline; the next pass tries again");
                let state = self.states_in(call, std::slice::from_ref(&flip.id)).await?.pop();
                return Ok(vec![Flipped::Left(Refusal::NotTaken, state)]);
            }
            let (first, second) = flips.split_at(flips.len() / 2);
            let mut flipped = self.flip_halves(call, batch, first, stale_ms).await?;
            flipped.extend(self.flip_halves(call, batch, second, stale_ms).await?);
            Ok(flipped)
        })
    }

    async fn flip_piece(
        &self,
        call: &Call,
        batch: &Batch,
        flips: &[Flip],
        stale_ms: u64,
    ) -> CallResult<Vec<Flipped>> {
        let locked = self.lock(call, flips.iter().map(|flip| (&flip.id, 0))).await?;
        let judged = self.judge(call, &locked, flips, stale_ms).await?;
        let toggled: BTreeSet<&Name> = judged
            .iter()
            .filter(|(_, judged)| judged.verdict != Verdict::Moved)
            .map(|(id, _)| id)
            .collect();
        let toggled: Vec<&Name> = toggled.into_iter().collect();
        let mut states = self.conclude(call, &locked, &toggled).await?;
        let receipts = self.write_receipts(call, batch, flips, stale_ms, &judged, &locked).await?;
        Ok(answers(flips, &judged, receipts, &mut states))
    }

    /// Whether that term holds, and still does when this is committed; where no term was ever kept here,
    /// it is the mirror's business.
    async fn holds_term(&self, call: &Call, term: u64) -> CallResult<bool> {
        let sql = format!(
            "SELECT number = $2 AND until > clock_timestamp() FROM {} WHERE system = $1 FOR SHARE",
            self.postgres.own().terms
        );
        let row = call.query_opt(&sql, &[&self.system, &to_i64(term)]).await?;
        Ok(row.is_none_or(|row| row.get(0)))
    }

    async fn judge(
        &self,
        call: &Call,
        locked: &BTreeMap<Name, Locked>,
        flips: &[Flip],
        stale_ms: u64,
    ) -> CallResult<BTreeMap<Name, FlipJudgement>> {
        let epochs: BTreeMap<&Name, u64> = flips
            .iter()
            .filter(|flip| locked.contains_key(&flip.id))
            .map(|flip| (&flip.id, flip.epoch))
            .collect();
        let ids: Vec<&str> = epochs.keys().map(|id| id.as_str()).collect();
        let epochs: Vec<i64> = epochs.values().map(|epoch| to_i64(*epoch)).collect();
        let params: crate::pool::Params<'_> = &[&self.system, &ids, &epochs, &(stale_ms as f64)];
        let rows = call.query(&self.names().await?.flip(), params).await?;
        let mut judged = BTreeMap::new();
        for row in &rows {
            let id = Name::new(row.get(0)).map_err(|error| call.unexpected_answer(error))?;
            judged.insert(id, FlipJudgement::of(row));
        }
        Ok(judged)
    }

    async fn write_receipts(
        &self,
        call: &Call,
        batch: &Batch,
        flips: &[Flip],
        stale_ms: u64,
        judged: &BTreeMap<Name, FlipJudgement>,
        locked: &BTreeMap<Name, Locked>,
    ) -> CallResult<BTreeMap<Name, Receipt>> {
        let mut found = Vec::new();
        let mut seen = BTreeSet::new();
        for flip in flips {
            let Some(judged) = judged.get(&flip.id) else { continue };
            let Some(locked) = locked.get(&flip.id) else { continue };
            if judged.verdict == Verdict::Flipped && seen.insert(&flip.id) {
                found.push((flip, judged, locked));
            }
        }
        if found.is_empty() {
            return Ok(BTreeMap::new());
        }
        let own = self.postgres.own();
        let first = receipts::take_numbers(call, own, &self.id, found.len()).await?;
        let receipts: Vec<Receipt> = found
            .into_iter()
            .zip(first..)
            .map(|((flip, judged, locked), seq)| {
                let id = ReceiptId { system: SystemId::clone(&self.id), seq };
                judged.receipt(id, batch, flip, stale_ms, locked.version)
            })
            .collect();
        receipts::write(call, own, &receipts).await?;
        self.note_written(receipts.len());
        Ok(receipts.into_iter().map(|receipt| (receipt.key.clone(), receipt)).collect())
    }
}

impl FlipJudgement {
    fn of(row: &Row) -> FlipJudgement {
        FlipJudgement {
            verdict: match row.get::<_, i32>(1) {
                0 => Verdict::Flipped,
                1 => Verdict::FreshBeat,
                _ => Verdict::Moved,
            },
            judged_ms: to_u64(row.get(2)),
            last_online_at: row.get(3),
            last_heartbeat_at: row.get(4),
        }
    }

    fn receipt(
        &self,
        id: ReceiptId,
        batch: &Batch,
        flip: &Flip,
        stale_ms: u64,
        version: u64,
    ) -> Receipt {
        let over_ms = flip.silent_ms.map_or(0, |silent_ms| silent_ms.saturating_sub(stale_ms));
        let late_ms = flip.decided_ago_ms.saturating_add(over_ms).min(self.judged_ms);
        Receipt {
            id,
            key: flip.id.clone(),
            owner: flip.id.clone(),
            incarnation: Incarnation(flip.epoch),
            reason: Reason::HeartbeatStale,
            evidence: Evidence {
                clock: "postgres".to_owned(),
                deadline_ms: self.judged_ms - late_ms,
                judged_ms: self.judged_ms,
                late_ms,
            },
            removed: json!({
                "is_online": true,
                "last_online_at": self.last_online_at,
                "last_heartbeat_at": self.last_heartbeat_at,
                "epoch": flip.epoch,
                "offline_epoch": version,
            }),
            sweeper: batch.id.sweeper.clone(),
            batch: batch.id.number,
            at_ms: self.judged_ms,
            restored_ms: None,
        }
    }
}

/// One answer for each flip, in the same order.
fn answers(
    flips: &[Flip],
    judged: &BTreeMap<Name, FlipJudgement>,
    mut receipts: BTreeMap<Name, Receipt>,
    states: &mut BTreeMap<Name, ProviderState>,
) -> Vec<Flipped> {
    let answer = |flip: &Flip| {
        let state = states.get(&flip.id).cloned();
        match judged.get(&flip.id).map(|judged| judged.verdict) {
            Some(Verdict::Flipped) => match (receipts.remove(&flip.id), state) {
                (Some(receipt), Some(state)) => Flipped::Offline(Box::new(receipt), state),
                (_, state) => Flipped::Left(Refusal::Moved, state),
            },
            Some(Verdict::FreshBeat) => Flipped::Left(Refusal::Alive, state),
            Some(Verdict::Moved) | None => Flipped::Left(Refusal::Moved, state),
        }
    };
    flips.iter().map(answer).collect()
}
