//! How claims are shown, and what is answered when they end.

use lapsed_core::Name;
use lapsed_core::inflight::{Finished, JobTicket, JobToken};
use lapsed_core::owner::Incarnation;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::owners::HttpResult;
use crate::systems::inflight::routes::shapes::EndWord;

/// A claim, as its holder shows it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TicketBody)]
pub struct JobTicketBody {
    pub id: String,
    pub token: u64,
    /// Which life it belongs to, if known: spares some stores a second look.
    pub incarnation: Option<u64>,
}

impl JobTicketBody {
    pub fn read(&self) -> HttpResult<JobTicket> {
        ticket(self.id.clone(), self.token, self.incarnation)
    }
}

pub fn ticket(id: String, token: u64, incarnation: Option<u64>) -> HttpResult<JobTicket> {
    let incarnation = incarnation.map(Incarnation);
    Ok(JobTicket { id: Name::new(&id)?, token: JobToken(token), incarnation })
}

/// Many claims; at most 1,000.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TicketsBody {
    pub jobs: Vec<JobTicketBody>,
}

/// A claim whose work cannot be done.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FailBody {
    pub id: String,
    pub token: u64,
    pub incarnation: Option<u64>,
    /// In the worker's words; kept with the dead letter.
    #[serde(default)]
    pub error: String,
}

/// Many of them, for the same reason.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FailManyBody {
    pub jobs: Vec<JobTicketBody>,
    #[serde(default)]
    pub error: String,
}

/// A claim that is given back.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GiveBackBody {
    pub id: String,
    pub token: u64,
    pub incarnation: Option<u64>,
    #[serde(default)]
    pub end: EndWord,
}

/// Many of them.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GiveBackManyBody {
    pub jobs: Vec<JobTicketBody>,
    #[serde(default)]
    pub end: EndWord,
}

/// The claim has ended.
#[derive(Serialize, ToSchema)]
pub struct FinishAnswer {
    pub id: String,
    /// `done`
    #[schema(value_type = String, example = "done")]
    pub outcome: Finished,
}

/// One of many: `done` (`ok` is true), or `owner_ended`, `superseded` or `gone`: nothing changed.
#[derive(Serialize, ToSchema)]
pub struct OneFinish {
    pub ok: bool,
    pub id: String,
    #[schema(value_type = String)]
    pub outcome: Finished,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<&'static str>,
}

/// One a claim, in order.
#[derive(Serialize, ToSchema)]
pub struct FinishManyAnswer {
    pub results: Vec<OneFinish>,
}
