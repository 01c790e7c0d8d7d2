//! The bodies and answers of the routes of leases.

use std::time::Duration;

use lapsed_core::Name;
use lapsed_core::leases::rules::StagedState;
use lapsed_core::leases::{
    AcquireRequest, Decision, LeaseInfo, LeaseKey, LeaseState, LeaseTicket, LeaseToken, NAMESPACE,
    txn,
};
use lapsed_core::request::RequestId;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use crate::http::problem::HttpResult;
use crate::schemas;

fn namespace() -> String {
    NAMESPACE.to_owned()
}

/// A lease to acquire for an owner.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcquireBody {
    /// The namespace of the key: 1 to 64 letters, digits, `_`, `-` and `.`; by default `default`.
    #[serde(default = "namespace")]
    #[schema(required = false, example = "default")]
    pub namespace: String,
    /// The key: 1 to 256 bytes of UTF-8, no control characters.
    #[schema(example = "nightly-report")]
    pub key: String,
    #[schema(example = "host-1")]
    pub owner: String,
    /// How long the lease lasts from each renewal, in milliseconds; by default as the system is
    /// configured.
    pub ttl_ms: Option<u64>,
    /// How long to wait while another owner holds the lease, in milliseconds; by default 0, at most
    /// 60,000.
    pub wait_ms: Option<u64>,
    /// A unique name of this request. The same request repeated with the same name gets the same
    /// answer, so that a request whose answer was lost can be repeated.
    pub request: Option<String>,
}

impl AcquireBody {
    /// The request of the store. It is named by the body or, if that has no `request`, by the client's
    /// `Idempotency-Key`. A request belongs to one lease, so that many leases may share one header.
    pub fn read(&self, usual: Duration, header: &RequestId) -> HttpResult<AcquireRequest> {
        let header = header.is_repeatable().then(|| header.key.clone());
        Ok(AcquireRequest {
            key: LeaseKey::new(&self.namespace, &self.key)?,
            owner: Name::new(&self.owner)?,
            ttl_ms: self.ttl_ms.unwrap_or(usual.as_millis() as u64),
            request: self.request.as_deref().map(Name::new).transpose()?.or(header),
        })
    }

    pub fn named(&self) -> Value {
        json!({ "namespace": self.namespace, "key": self.key })
    }
}

/// Many leases to acquire, at most 1,000; none of the requests waits.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcquireManyBody {
    pub leases: Vec<AcquireBody>,
}

/// A lease and the token with which its holder identifies itself.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LeaseTicketBody)]
pub struct LeaseTicketBody {
    #[serde(default = "namespace")]
    #[schema(required = false, example = "default")]
    pub namespace: String,
    #[schema(example = "nightly-report")]
    pub key: String,
    /// The token that was granted with the lease.
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

/// A lease to renew. (Serde cannot refuse unknown fields in flattened structures, so the fields are
/// listed again.)
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, try_from = "RenewFields")]
pub struct RenewBody {
    #[serde(flatten)]
    #[schema(inline)]
    pub ticket: LeaseTicketBody,
    /// How long the lease lasts from now on, in milliseconds; by default as long as before.
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

/// Many leases to renew, at most 1,000.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewManyBody {
    pub leases: Vec<RenewBody>,
}

/// Many leases to release, at most 1,000.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseManyBody {
    pub leases: Vec<LeaseTicketBody>,
}

/// A lease that its holder has released.
#[derive(Serialize, ToSchema)]
pub struct Released {
    pub namespace: String,
    pub key: String,
    pub token: u64,
    /// The result, which is always `released`.
    pub outcome: &'static str,
}

impl Released {
    pub fn of(ticket: LeaseTicket) -> Released {
        let LeaseTicketBody { namespace, key, token } = LeaseTicketBody::of(&ticket);
        Released { namespace, key, token, outcome: "released" }
    }
}

/// Either the answer of the corresponding single call (`ok` is true) or a problem (`ok` is false).
#[derive(Serialize, ToSchema)]
pub struct OneOfMany {
    pub ok: bool,
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub answer: Value,
}

/// One result per lease, in the order of the request.
#[derive(Serialize, ToSchema)]
pub struct Many {
    pub results: Vec<OneOfMany>,
}

/// The page of a list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LeasePageQuery {
    /// Start after this name: `next` of the previous page.
    pub after: Option<String>,
    /// The length of the page, at most 1,000.
    pub limit: Option<usize>,
}

/// One page of the keys of a namespace.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct LeasesPage {
    #[schema(value_type = Vec<schemas::Described>)]
    pub leases: Vec<LeaseInfo>,
    /// The cursor of the next page: pass it as `after`. Absent on the last page.
    pub next: Option<String>,
}

/// One page of the namespaces.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Namespaces {
    pub namespaces: Vec<String>,
    /// The cursor of the next page: pass it as `after`. Absent on the last page.
    pub next: Option<String>,
}

/// A state of a key that its holder sets.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StateBody {
    pub token: u64,
    #[schema(value_type = schemas::LeaseState)]
    pub state: LeaseState,
}

/// The holder's proof that it holds the lease.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TokenQuery {
    /// The token that was granted with the lease.
    pub token: u64,
}

/// A key and its state.
#[derive(Serialize, ToSchema)]
pub struct StateAnswer {
    pub namespace: String,
    pub key: String,
    /// The newest token of the key.
    pub token: u64,
    #[schema(value_type = Option<schemas::LeaseState>)]
    pub state: Option<LeaseState>,
}

/// A state that becomes the key's state if the transaction is decided `commit`.
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

/// The transaction for which a state is staged now.
#[derive(Serialize, ToSchema)]
pub struct StageAnswer {
    pub namespace: String,
    pub key: String,
    pub token: u64,
    /// The id of the transaction; absent when nothing is staged.
    pub txn: Option<String>,
}

/// The decision on a transaction.
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

/// A decision to make on a transaction.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DecideBody {
    /// The id of the transaction: 1 to 256 bytes.
    #[schema(example = "order-4711")]
    pub txn: String,
    pub decision: DecisionWord,
    /// How long the decision is kept, in milliseconds; by default as the system is configured.
    pub ttl_ms: Option<u64>,
}
