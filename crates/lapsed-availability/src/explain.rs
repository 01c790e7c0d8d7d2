//! Explains why a provider can, or cannot, take work now, from both stores, and in what they
//! differ.

use serde_json::json;

use crate::operations::Availability;
use crate::reconcile::differences;
use crate::rules::AvailabilitySettings;
use crate::{ListedProvider, MirrorEntry, MirrorView, ProviderState, SeenBeat};
use lapsed_core::error::Result;
use lapsed_core::name::Name;
use lapsed_core::system::Explanation;
use lapsed_core::system::explain::{Explainer, RECEIPTS_SEARCHED, seconds};

impl Availability {
    pub(super) async fn explain_provider(&self, id: &Name) -> Result<Explanation> {
        let settings = self.settings_now().await?;
        let ids = [id.clone()];
        let states = self.calls.quiet("read", self.parts.truth.read(&ids)).await?;
        let listed = self.describe(id).await?;
        let looked = self.background("look", self.parts.mirror.look(&ids)).await;
        let (Some(state), Some(listed)) = (states.first(), &listed) else {
            return self.explain_absence(id, looked.ok()).await;
        };
        let mut because = vec![introduce(id, state, listed)];
        let seen = match &looked {
            Err(error) => {
                because
                    .push(format!("the mirror does not answer ({error}); reads go to the truth"));
                None
            }
            Ok(looked) if !looked.seeded => {
                because.push("the mirror is not seeded; reads go to the truth".to_owned());
                None
            }
            Ok(looked) => looked.seen.first().map(|seen| (seen, looked.now_ms)),
        };
        let verdict = self.judge(&mut because, state, seen, &settings).await?;
        because.extend(self.explain_mass_beat(seen.map(|(seen, _)| seen.beat), &settings).await);
        if let Some((seen, _)) = seen {
            for change in differences(state, seen) {
                because.push(format!(
                    "truth and mirror differ: {}; a reconciliation corrects it",
                    change.why
                ));
            }
        }
        let facts = json!({
            "truth": state,
            "listed": listed,
            "mirror": seen.map(|(seen, _)| facts(seen)),
            "settings": settings,
        });
        Ok(self.words().explanation(id, verdict, because, facts))
    }

    /// The verdict, with its reason added to `because`.
    async fn judge(
        &self,
        because: &mut Vec<String>,
        state: &ProviderState,
        seen: Option<(&MirrorEntry, u64)>,
        settings: &AvailabilitySettings,
    ) -> Result<&'static str> {
        if let Some(pending) = seen.and_then(|(seen, _)| seen.pending_offline)
            && pending.epoch == state.epoch
            && state.online
        {
            because.push(
                "it was declared silent; the next pass sets it offline in the truth".to_owned(),
            );
            return Ok("dead");
        }
        if !state.active {
            because.push(
                "it is deactivated: its heartbeats are refused and it gets no work".to_owned(),
            );
            return Ok("deactivated");
        }
        if !state.online {
            if let Some(receipt) = self.words().last_receipt(&state.id).await? {
                because.push(format!(
                    "it was last set offline for silence, {:.1} s late: receipt {}",
                    seconds(receipt.evidence.late_ms),
                    receipt.id
                ));
            }
            because.push("it can take no work before it is set online".to_owned());
            return Ok("offline");
        }
        let beat_age_ms = match seen {
            Some((seen, now_ms)) => match seen.beat {
                SeenBeat::At(beat_ms) => Some(now_ms.saturating_sub(beat_ms)),
                SeenBeat::Missing(_) => None,
                SeenBeat::Unreadable => {
                    because.push(
                        "its heartbeat in the mirror cannot be read: it counts as silent to readers, \
                         and passes leave it alone until a heartbeat replaces it"
                            .to_owned(),
                    );
                    return Ok("unreadable");
                }
            },
            None => state.beat_age_ms,
        };
        because.push(beat_words(beat_age_ms, settings));
        if !settings.is_fresh(beat_age_ms) {
            return self.overdue(because).await;
        }
        if settings.has_room(state.sessions) {
            because.push("it can take work".to_owned());
            return Ok("available");
        }
        because.push(format!(
            "it has as many sessions as it can have ({})",
            settings.max_customers_per_mitra
        ));
        Ok("full")
    }

    /// Whether the heartbeat is one of many that were written at once.
    async fn explain_mass_beat(
        &self,
        beat: Option<SeenBeat>,
        settings: &AvailabilitySettings,
    ) -> Option<String> {
        let presence = self.parts.mirror.presence(settings.stale_ms());
        let mass = self.background("presence", presence).await.ok()?.mass_beats?;
        (beat == Some(SeenBeat::At(mass.at_ms))).then(|| {
            format!(
                "that heartbeat is no ping: {} of {} were written in the same millisecond, by an \
                 application that fills the mirror itself",
                mass.beats, mass.of
            )
        })
    }

    async fn overdue(&self, because: &mut Vec<String>) -> Result<&'static str> {
        let verdict = match self.words().census().await {
            Ok(census) => self.parts.brake.preview(&census),
            Err(_) => {
                because
                    .push("no provider is set offline while the mirror does not answer".to_owned());
                return Ok("spared");
            }
        };
        if verdict.undeclared_max().is_none() {
            because
                .push("the next pass sets it offline, unless a heartbeat arrives first".to_owned());
            return Ok("overdue");
        }
        let now_ms = self.words().census().await?.now_ms;
        because.push(format!("the brake is {}", verdict.describe(now_ms)));
        Ok("spared")
    }

    async fn explain_absence(&self, id: &Name, looked: Option<MirrorView>) -> Result<Explanation> {
        let mut because = vec![format!("the truth has no provider `{id}`")];
        let seen = looked.and_then(|looked| looked.seen.into_iter().next());
        let trace = seen.as_ref().is_some_and(|seen| {
            seen.online || seen.deactivated || seen.version.is_some() || seen.sessions != Some(0)
        });
        if trace {
            because.push("the mirror still has data of it; a reconciliation removes it".to_owned());
        }
        match self.words().last_receipt(id).await? {
            Some(receipt) => {
                because.push(format!("it was set offline once: receipt {}", receipt.id))
            }
            None => {
                because.push(format!("none of the last {RECEIPTS_SEARCHED} receipts is about it"))
            }
        }
        let facts = json!({ "mirror": seen.as_ref().map(facts) });
        Ok(self.words().explanation(id, "unknown", because, facts))
    }

    fn words(&self) -> Explainer<'_> {
        Explainer {
            calls: &self.calls,
            sweep: self,
            store: self.store(),
            brake: &self.parts.brake,
            holds: ("session", "sessions"),
        }
    }
}

fn introduce(id: &Name, state: &ProviderState, listed: &ListedProvider) -> String {
    let named = listed.display_name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
    let online = if state.online { "online" } else { "offline" };
    let sessions = match state.sessions {
        1 => "1 session".to_owned(),
        sessions => format!("{sessions} sessions"),
    };
    format!("`{id}`{named} is {online} and has {sessions}")
}

fn beat_words(beat_age_ms: Option<u64>, settings: &AvailabilitySettings) -> String {
    match (beat_age_ms, settings.require_ping) {
        (_, false) => "heartbeats are not required (`require_ping` is false)".to_owned(),
        (None, true) => "no heartbeat of it is known".to_owned(),
        (Some(age_ms), true) => format!(
            "its last heartbeat was {:.1} s ago; it counts as silent after {} s",
            seconds(age_ms),
            settings.stale_after_seconds
        ),
    }
}

fn facts(seen: &MirrorEntry) -> serde_json::Value {
    json!({
        "version": seen.version,
        "epoch": seen.epoch,
        "online": seen.online,
        "deactivated": seen.deactivated,
        "sessions": seen.sessions,
        "heartbeat": seen.beat,
        "doomed": seen.pending_offline,
    })
}
