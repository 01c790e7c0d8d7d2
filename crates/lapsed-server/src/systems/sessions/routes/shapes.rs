//! What the routes of sessions are given and answer.

use lapsed_core::Name;
use lapsed_core::owner::Claim;
use lapsed_core::sessions::{Activated, ReferenceChange, Session, SessionProfile};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::http::owners::{HttpResult, claim};
use crate::http::problem::Problem;

/// A session and what it carries; what is absent stays as it is.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProfileBody {
    /// 1 to 512 bytes, no control characters.
    #[schema(example = "7b1f3c1e-9f0a-4a53-8f5e-2a4f6f0f0a11")]
    pub session: String,
    /// The application's own value, as it writes it.
    pub value: Option<String>,
    /// Whose session it is; one session a broadcaster is the current one.
    pub broadcaster_user_id: Option<String>,
    /// The application's configuration, as it writes it.
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

/// Which session.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionBody {
    pub session: String,
}

/// Who connects to, or disconnects from, which session.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReferenceBody {
    pub session: String,
    /// Whose reference it is; left out only where references have no owner (`mode = "adopt"`).
    #[schema(example = "chat-1")]
    pub owner: Option<String>,
    /// Which life of that owner; the newest without it.
    pub incarnation: Option<u64>,
}

impl ReferenceBody {
    pub fn claim(&self) -> HttpResult<Option<Claim>> {
        claim_of(self.owner.as_deref(), self.incarnation)
    }
}

/// Who connects to, or disconnects from, which sessions.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReferencesBody {
    pub sessions: Vec<String>,
    /// Whose references they are; left out only where references have no owner.
    pub owner: Option<String>,
    /// Which life of that owner; the newest without it.
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

/// One session.
#[derive(Serialize, ToSchema)]
pub struct SessionAnswer {
    pub session: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broadcaster_user_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_json: Option<String>,
    /// How many references there are.
    pub references: u64,
    /// When the last of them went, on the store's clock; none while it is active.
    pub disconnected_ms: Option<u64>,
    /// When it was last updated, where that is known.
    pub updated_ms: Option<u64>,
    /// When it is an orphan unless somebody connects; none while somebody is connected.
    pub due_ms: Option<u64>,
    /// The store's clock.
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

/// What an activation made or brought back.
#[derive(Serialize, ToSchema)]
pub struct ActivateAnswer {
    /// Whether it was made; otherwise an existing one was brought back.
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

/// How a session stands after a reference came or went.
#[derive(Serialize, ToSchema)]
pub struct StandingAnswer {
    pub session: String,
    /// How many references there are now.
    pub references: u64,
    /// How many of them are the caller's.
    pub yours: u64,
    /// Whether this call changed anything: a disconnect without a reference does not.
    pub changed: bool,
    /// When the last reference went; none while it is active.
    pub disconnected_ms: Option<u64>,
    /// The life that was meant; none where references have no owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// Whether this call began that life.
    pub started: bool,
    /// Until when that life lives, if this call began it.
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

/// One answer a session, in order.
#[derive(Serialize, ToSchema)]
pub struct StandingsAnswer {
    pub results: Vec<OneStanding>,
}

/// Either how one session stands (`ok` is true) or a problem (`ok` is false).
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

/// Many sessions.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionsBody {
    pub sessions: Vec<String>,
}

/// One a session, in order.
#[derive(Serialize, ToSchema)]
pub struct SessionsAnswer {
    pub results: Vec<Option<SessionAnswer>>,
}

/// It is gone, with what hung on it.
#[derive(Serialize, ToSchema)]
pub struct DeleteAnswer {
    pub session: String,
    /// `deleted`
    #[schema(example = "deleted")]
    pub outcome: &'static str,
}

/// How many orphans.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OrphansQuery {
    /// At most so many; 1,000 unless told.
    pub limit: Option<usize>,
}

/// The longest overdue first.
#[derive(Serialize, ToSchema)]
pub struct Orphans {
    pub orphans: Vec<String>,
}

/// How many sessions nobody is connected to.
#[derive(Serialize, ToSchema)]
pub struct DisconnectedCount {
    pub disconnected_count: u64,
}

/// A broadcaster's current session.
#[derive(Serialize, ToSchema)]
pub struct BroadcasterAnswer {
    pub broadcaster_user_id: String,
    pub session: String,
}

/// A page of the sessions that one life refers to.
#[derive(Serialize, ToSchema)]
pub struct Referred {
    pub sessions: Vec<String>,
    /// Where the next page begins: give it as `after`.
    pub next: Option<String>,
}

/// What a graceful end did.
#[derive(Serialize, ToSchema)]
pub struct SessionsRetireAnswer {
    pub owner: String,
    pub incarnation: u64,
    /// How many sessions it was let go from.
    pub released: u64,
}
