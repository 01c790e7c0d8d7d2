//! The bodies and answers of the routes that end claims.

use lapsed_core::Name;
use lapsed_core::inflight::{Finished, JobTicket, JobToken};
use lapsed_core::owner::Incarnation;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::problem::HttpResult;
use crate::systems::inflight::routes::shapes::EndWord;

/// A job and the token with which its holder identifies itself.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TicketBody)]
pub struct JobTicketBody {
    pub id: String,
    pub token: u64,
    /// The owner's incarnation that holds the job, if known: it saves some stores a lookup.
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

/// Many jobs with their tokens, at most 1,000.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TicketsBody {
    pub jobs: Vec<JobTicketBody>,
}

/// A job that its worker cannot complete.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FailBody {
    pub id: String,
    pub token: u64,
    pub incarnation: Option<u64>,
    /// The worker's error message, which is stored with the dead letter.
    #[serde(default)]
    pub error: String,
}

/// Many jobs that their worker cannot complete, for the same reason.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FailManyBody {
    pub jobs: Vec<JobTicketBody>,
    #[serde(default)]
    pub error: String,
}

/// A job that its worker gives back to its queue.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GiveBackBody {
    pub id: String,
    pub token: u64,
    pub incarnation: Option<u64>,
    #[serde(default)]
    pub end: EndWord,
}

/// Many jobs that their worker gives back to their queues.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GiveBackManyBody {
    pub jobs: Vec<JobTicketBody>,
    #[serde(default)]
    pub end: EndWord,
}

/// The result of ending the claim on a job.
#[derive(Serialize, ToSchema)]
pub struct FinishAnswer {
    pub id: String,
    /// The result, which is always `done`.
    #[schema(value_type = String, example = "done")]
    pub outcome: Finished,
}

/// The result for one of many jobs: `done` (`ok` is true), or `owner_ended`, `superseded` or
/// `gone`, which changed nothing.
#[derive(Serialize, ToSchema)]
pub struct OneFinish {
    pub ok: bool,
    pub id: String,
    #[schema(value_type = String)]
    pub outcome: Finished,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<&'static str>,
}

/// One result per job, in the order of the request.
#[derive(Serialize, ToSchema)]
pub struct FinishManyAnswer {
    pub results: Vec<OneFinish>,
}
