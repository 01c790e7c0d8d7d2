//! Whether the mirror is seeded, since when its server has been reachable, and how a seed begins and ends.

use lapsed_availability::Presence;
use lapsed_core::Result;

use super::Inner;
use super::pages::mass_beats;
use crate::script;

impl Inner {
    pub(super) async fn presence(&self, stale_ms: u64) -> Result<Presence> {
        self.note_stale(stale_ms);
        let script = &script::MIRROR_PRESENCE;
        let words: Vec<String> =
            self.context.run_with_keys(script, self.args(6).arg(stale_ms)).await?;
        let [now_ms, back_ms, run, seeded, online, pending_offline, mass, masses, died] =
            &words[..]
        else {
            return Err(self.context.unexpected_answer(script));
        };
        let number =
            |word: &String| word.parse().map_err(|_| self.context.unexpected_answer(script));
        let (now_ms, back_ms) = (number(now_ms)?, number(back_ms)?);
        self.context.check_return_time(self.shard(), back_ms, now_ms);
        Ok(Presence {
            now_ms,
            incarnation: run.clone(),
            back_ms,
            seeded: seeded == "1",
            online: number(online)?,
            pending_offline: number(pending_offline)?,
            died_recently: number(died)?,
            mass_beats: mass_beats(mass),
            mass_beats_seen: number(masses)?,
        })
    }

    pub(super) async fn begin_seed(&self) -> Result<String> {
        let args = self.args(8).arg(format!("{:016x}", self.context.clock.random()));
        self.context.run_with_keys(&script::MIRROR_SEED, args).await
    }

    pub(super) async fn end_seed(&self, attempt: &str) -> Result<bool> {
        self.context.run_with_keys(&script::MIRROR_SEEDED, self.args(4).arg(attempt)).await
    }
}
