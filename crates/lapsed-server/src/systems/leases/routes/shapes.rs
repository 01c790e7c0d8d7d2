//! What the routes of leases are given and answer.

use std::time::Duration;

use lapsed_core::Name;
use lapsed_core::leases::rules::StagedState;
use lapsed_core::leases::{
    AcquireRequest, Decision, LeaseInfo, LeaseKey, LeaseState, LeaseTicket, LeaseToken, NAMESPACE,
    txn,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use crate::http::owners::HttpResult;
use crate::http::schemas;

fn namespace() -> String {
    NAMESPACE.to_owned()
}

/// What to acquire, and for whom.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcquireBody {
    /// `default` unless told: 1 to 64 letters, digits, `_`, `-` and `.`.
    #[serde(default = "namespace")]
    #[schema(required = false, example = "default")]
    pub namespace: String,
    /// 1 to 256 bytes of UTF-8, no control characters.
    #[schema(example = "nightly-report")]
    pub key: String,
    #[schema(example = "host-1")]
    pub owner: String,
    /// How long it lasts from each renewal; what the configuration says unless told.
    pub ttl_ms: Option<u64>,
    /// How long to wait while somebody else holds it; 0 unless told, 60,000 at the most.
    pub wait_ms: Option<u64>,
    /// A name that only this request has: the same request again gets the same answer, so that one
    /// whose answer was lost may be repeated.
    pub request: Option<String>,
}

impl AcquireBody {
    pub fn read(&self, usual: Duration) -> HttpResult<AcquireRequest> {
        Ok(AcquireRequest {
            key: LeaseKey::new(&self.namespace, &self.key)?,
            owner: Name::new(&self.owner)?,
            ttl_ms: self.ttl_ms.unwrap_or(usual.as_millis() as u64),
            request: self.request.as_deref().map(Name::new).transpose()?,
        })
    }

    pub fn named(&self) -> Value {
        json!({ "namespace": self.namespace, "key": self.key })
    }
}

/// Many to acquire; at most 1,000. None of them waits.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcquireManyBody {
    pub leases: Vec<AcquireBody>,
}

/// A lease, as its holder shows it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LeaseTicketBody)]
pub struct LeaseTicketBody {
    #[serde(default = "namespace")]
    #[schema(required = false, example = "default")]
    pub namespace: String,
    #[schema(example = "nightly-report")]
    pub key: String,
    /// As it was granted.
    pub token: u64,
}

impl LeaseTicketBody {
    pub fn of(ticket: &LeaseTicket) -> LeaseTicketBody {
        let (namespace, key) = (ticket.key.namespace.to_string(), ticket.key.key.to_string());
        LeaseTicketBody { namespace, key, token: ticket.token.0 }
    }

    pub fn read(&self) -> HttpResult<LeaseTicket> {
        Ok(LeaseTicket {
            key: LeaseKey::new(&self.namespace, &self.key)?,
            token: LeaseToken(self.token),
        })
    }

    pub fn named(&self) -> Value {
        json!({ "namespace": self.namespace, "key": self.key })
    }
}

/// A lease to renew. (Flattened shapes cannot refuse unknown members, so the fields are named anew.)
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, try_from = "RenewFields")]
pub struct RenewBody {
    #[serde(flatten)]
    #[schema(inline)]
    pub ticket: LeaseTicketBody,
    /// How long it lasts from now on; as long as before unless told.
    pub ttl_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RenewFields {
    #[serde(default = "namespace")]
    namespace: String,
    key: String,
    token: u64,
    ttl_ms: Option<u64>,
}

impl From<RenewFields> for RenewBody {
    fn from(fields: RenewFields) -> RenewBody {
        let RenewFields { namespace, key, token, ttl_ms } = fields;
        RenewBody { ticket: LeaseTicketBody { namespace, key, token }, ttl_ms }
    }
}

impl RenewBody {
    pub fn ttl(&self) -> Option<Duration> {
        self.ttl_ms.map(Duration::from_millis)
    }
}

/// Many to renew; at most 1,000.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewManyBody {
    pub leases: Vec<RenewBody>,
}

/// Many to release; at most 1,000.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseManyBody {
    pub leases: Vec<LeaseTicketBody>,
}

/// The lease has ended by its holder's will.
#[derive(Serialize, ToSchema)]
pub struct Released {
    pub namespace: String,
    pub key: String,
    pub token: u64,
    /// `released`
    pub outcome: &'static str,
}

impl Released {
    pub fn of(ticket: LeaseTicket) -> Released {
        let LeaseTicketBody { namespace, key, token } = LeaseTicketBody::of(&ticket);
        Released { namespace, key, token, outcome: "released" }
    }
}

/// Either what a single call would answer (`ok` is true) or a problem (`ok` is false).
#[derive(Serialize, ToSchema)]
pub struct OneOfMany {
    pub ok: bool,
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub answer: Value,
}

/// One answer each, in order.
#[derive(Serialize, ToSchema)]
pub struct Many {
    pub results: Vec<OneOfMany>,
}

/// Which part of a list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LeasePageQuery {
    /// Those after this one: `next` of the page before.
    pub after: Option<String>,
    /// At most so many; 1,000 at the most.
    pub limit: Option<usize>,
}

/// A page of keys.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct LeasesPage {
    #[schema(value_type = Vec<schemas::Described>)]
    pub leases: Vec<LeaseInfo>,
    /// Where the next page begins: give it as `after`.
    pub next: Option<String>,
}

/// A page of namespaces.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Namespaces {
    pub namespaces: Vec<String>,
    /// Where the next page begins: give it as `after`.
    pub next: Option<String>,
}

/// The state of a key, to be set by its holder.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StateBody {
    pub token: u64,
    #[schema(value_type = schemas::LeaseState)]
    pub state: LeaseState,
}

/// Who asks.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TokenQuery {
    /// As it was granted.
    pub token: u64,
}

/// The state of a key.
#[derive(Serialize, ToSchema)]
pub struct StateAnswer {
    pub namespace: String,
    pub key: String,
    /// The newest token of the key.
    pub token: u64,
    #[schema(value_type = Option<schemas::LeaseState>)]
    pub state: Option<LeaseState>,
}

/// A state that becomes the key's if the transaction is decided `commit`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StageBody {
    #[serde(default = "namespace")]
    #[schema(required = false, example = "default")]
    pub namespace: String,
    pub key: String,
    pub token: u64,
    /// The id of the transaction: 1 to 256 bytes.
    pub txn: String,
    #[schema(value_type = schemas::LeaseState)]
    pub state: LeaseState,
}

impl StageBody {
    pub fn read(self) -> HttpResult<(LeaseTicket, StagedState)> {
        let StageBody { namespace, key, token, txn: id, state } = self;
        let ticket = LeaseTicketBody { namespace, key, token }.read()?;
        Ok((ticket, StagedState { txn: txn(&id)?, state }))
    }
}

/// What is staged now.
#[derive(Serialize, ToSchema)]
pub struct StageAnswer {
    pub namespace: String,
    pub key: String,
    pub token: u64,
    /// The transaction that decides; none when nothing is staged.
    pub txn: Option<String>,
}

/// How a transaction ends.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DecisionWord {
    Commit,
    Rollback,
}

impl From<DecisionWord> for Decision {
    fn from(word: DecisionWord) -> Decision {
        match word {
            DecisionWord::Commit => Decision::Commit,
            DecisionWord::Rollback => Decision::Rollback,
        }
    }
}

impl From<Decision> for DecisionWord {
    fn from(decision: Decision) -> DecisionWord {
        match decision {
            Decision::Commit => DecisionWord::Commit,
            Decision::Rollback => DecisionWord::Rollback,
        }
    }
}

/// A decision to be made.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DecideBody {
    /// The id of the transaction: 1 to 256 bytes.
    #[schema(example = "order-4711")]
    pub txn: String,
    pub decision: DecisionWord,
    /// How long it is kept; what the configuration says unless told.
    pub ttl_ms: Option<u64>,
}
