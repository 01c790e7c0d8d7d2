//! The bodies and answers of the routes of sessions.

use lapsed_core::Name;
use lapsed_core::owner::Claim;
use lapsed_core::sessions::{Activated, ReferenceChange, Session, SessionProfile};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::http::owners::claim;
use crate::http::problem::{HttpResult, Problem};

/// A session and its data. Absent fields stay as they are.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProfileBody {
    /// The session's id: 1 to 512 bytes, no control characters.
    #[schema(example = "7b1f3c1e-9f0a-4a53-8f5e-2a4f6f0f0a11")]
    pub session: String,
    /// A value of the application, stored unchanged.
    pub value: Option<String>,
    /// The broadcaster to whom the session belongs. Each broadcaster has at most one current
    /// session.
    pub broadcaster_user_id: Option<String>,
    /// The application's configuration of the session, stored unchanged.
    pub config_json: Option<String>,
}

impl ProfileBody {
    pub fn read(self) -> HttpResult<(Name, SessionProfile)> {
        let broadcaster = self.broadcaster_user_id.as_deref().map(Name::new).transpose()?;
        let (value, config_json) = (self.value, self.config_json);
        let profile = SessionProfile { value, broadcaster_user_id: broadcaster, config_json };
        Ok((Name::new(&self.session)?, profile))
    }
}

/// The session that the call is about.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionBody {
    pub session: String,
}

/// An owner that connects to or disconnects from a session.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReferenceBody {
    pub session: String,
    /// The owner of the reference; absent only where references have no owner (`mode = "adopt"`).
    #[schema(example = "chat-1")]
    pub owner: Option<String>,
    /// The incarnation of the owner; without it, the newest one.
    pub incarnation: Option<u64>,
}

impl ReferenceBody {
    pub fn claim(&self) -> HttpResult<Option<Claim>> {
        claim_of(self.owner.as_deref(), self.incarnation)
    }
}

/// An owner that connects to or disconnects from many sessions.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReferencesBody {
    pub sessions: Vec<String>,
    /// The owner of the references; absent only where references have no owner (`mode = "adopt"`).
    pub owner: Option<String>,
    /// The incarnation of the owner; without it, the newest one.
    pub incarnation: Option<u64>,
}

impl ReferencesBody {
    pub fn claim(&self) -> HttpResult<Option<Claim>> {
        claim_of(self.owner.as_deref(), self.incarnation)
    }
}

fn claim_of(owner: Option<&str>, incarnation: Option<u64>) -> HttpResult<Option<Claim>> {
    match (owner, incarnation) {
        (Some(owner), incarnation) => claim(owner, incarnation).map(Some),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Problem::invalid("`incarnation` goes with `owner`")),
    }
}

/// A session as the store has it.
#[derive(Serialize, ToSchema)]
pub struct SessionAnswer {
    pub session: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broadcaster_user_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_json: Option<String>,
    /// How many references the session has.
    pub references: u64,
    /// When the last reference was removed, in milliseconds on the store's clock; absent while the
    /// session is active.
    pub disconnected_ms: Option<u64>,
    /// When the session was last updated, where that is known.
    pub updated_ms: Option<u64>,
    /// When the session becomes an orphan unless somebody connects; absent while somebody is
    /// connected.
    pub due_ms: Option<u64>,
    /// The time of the answer, in milliseconds on the store's clock.
    pub now_ms: u64,
}

impl SessionAnswer {
    pub fn of(session: Session) -> Self {
        let Session { id, profile, references, disconnected_ms, updated_ms, due_ms, now_ms } =
            session;
        SessionAnswer {
            session: id.into(),
            value: profile.value,
            broadcaster_user_id: profile.broadcaster_user_id.map(String::from),
            config_json: profile.config_json,
            references,
            disconnected_ms,
            updated_ms,
            due_ms,
            now_ms,
        }
    }
}

/// A session that was created or reactivated.
#[derive(Serialize, ToSchema)]
pub struct ActivateAnswer {
    /// Whether the session was created; otherwise an existing one was reactivated.
    pub created: bool,
    #[serde(flatten)]
    pub session: SessionAnswer,
}

impl ActivateAnswer {
    pub fn of(activated: Activated) -> Self {
        let session = SessionAnswer::of(activated.session);
        ActivateAnswer { created: activated.created, session }
    }
}

/// The state of a session after a reference was added or removed.
#[derive(Serialize, ToSchema)]
pub struct StandingAnswer {
    pub session: String,
    /// How many references the session has now.
    pub references: u64,
    /// How many of the references belong to the calling owner.
    pub yours: u64,
    /// Whether this call changed anything; a disconnect without a reference does not.
    pub changed: bool,
    /// When the last reference was removed; absent while the session is active.
    pub disconnected_ms: Option<u64>,
    /// The owner's incarnation that the call applied to; absent where references have no owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// Whether this call started the incarnation.
    pub started: bool,
    /// The deadline of the incarnation's next heartbeat, if this call started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

impl StandingAnswer {
    pub fn of(session: String, standing: ReferenceChange) -> Self {
        let ReferenceChange { references, yours, changed, disconnected_ms, incarnation, started } =
            standing;
        StandingAnswer {
            session,
            references,
            yours,
            changed,
            disconnected_ms,
            incarnation: incarnation.map(|i| i.0),
            started: started.is_some(),
            deadline_ms: started.map(|beat| beat.deadline_ms),
            ttl_ms: started.map(|beat| beat.ttl_ms),
        }
    }
}

/// One result per session, in the order of the request.
#[derive(Serialize, ToSchema)]
pub struct StandingsAnswer {
    pub results: Vec<OneStanding>,
}

/// Either the state of one session (`ok` is true) or a problem (`ok` is false).
#[derive(Serialize, ToSchema)]
pub struct OneStanding {
    pub ok: bool,
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub answer: Value,
}

impl OneStanding {
    pub fn of(session: String, answer: HttpResult<ReferenceChange>) -> Self {
        let ok = answer.is_ok();
        let answer = match answer {
            Ok(standing) => {
                serde_json::to_value(StandingAnswer::of(session, standing)).unwrap_or_default()
            }
            Err(problem) => {
                let mut body = problem.body();
                body["session"] = Value::String(session);
                body
            }
        };
        OneStanding { ok, answer }
    }
}

/// The ids of many sessions.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionsBody {
    pub sessions: Vec<String>,
}

/// One result per session, in the order of the request; `null` for a session that does not exist.
#[derive(Serialize, ToSchema)]
pub struct SessionsAnswer {
    pub results: Vec<Option<SessionAnswer>>,
}

/// The session was deleted with all of its data.
#[derive(Serialize, ToSchema)]
pub struct DeleteAnswer {
    pub session: String,
    /// The result, which is always `deleted`.
    #[schema(example = "deleted")]
    pub outcome: &'static str,
}

/// How many orphaned sessions to list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OrphansQuery {
    /// The most sessions to list; by default 1,000.
    pub limit: Option<usize>,
}

/// Orphaned sessions, the longest overdue first.
#[derive(Serialize, ToSchema)]
pub struct Orphans {
    pub orphans: Vec<String>,
}

/// The number of sessions that nobody is connected to.
#[derive(Serialize, ToSchema)]
pub struct DisconnectedCount {
    pub disconnected_count: u64,
}

/// The current session of a broadcaster.
#[derive(Serialize, ToSchema)]
pub struct BroadcasterAnswer {
    pub broadcaster_user_id: String,
    pub session: String,
}

/// One page of the sessions that one incarnation of an owner refers to.
#[derive(Serialize, ToSchema)]
pub struct Referred {
    pub sessions: Vec<String>,
    /// The cursor of the next page: pass it as `after`. Absent on the last page.
    pub next: Option<String>,
}

/// What the graceful end of an owner did.
#[derive(Serialize, ToSchema)]
pub struct SessionsRetireAnswer {
    pub owner: String,
    pub incarnation: u64,
    /// How many sessions lost the owner's references.
    pub released: u64,
}
