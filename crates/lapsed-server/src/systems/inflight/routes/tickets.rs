//! Who holds the jobs whose tokens a request shows.

use futures::{StreamExt, TryStreamExt};
use lapsed_core::Name;
use lapsed_core::inflight::JobPlace;
use serde_json::Value;

use super::inflight;
use crate::http::Shared;
use crate::http::problem::{HttpResult, Problem};
use crate::systems::{ShownTicket, TICKETS_MAX, TicketRequest};

/// How many jobs are looked up concurrently.
const AT_ONCE: usize = 64;

/// The tickets of a request that ends one claim or, in `jobs`, many.
pub async fn shown(app: &Shared, request: &TicketRequest) -> HttpResult<Vec<ShownTicket>> {
    let inflight = inflight(app, &request.system)?;
    let all = match request.body.get("jobs").and_then(Value::as_array) {
        Some(jobs) => jobs.as_slice(),
        None => std::slice::from_ref(&request.body),
    };
    if all.len() > TICKETS_MAX {
        return Err(Problem::invalid(format!("at most {TICKETS_MAX} jobs in one call")));
    }
    let tickets: Vec<(Name, u64)> = all.iter().map(read).collect::<HttpResult<_>>()?;
    let look = async |(id, token): (Name, u64)| {
        let holder = match inflight.job(&id).await?.map(|job| job.place) {
            Some(JobPlace::InFlight { owner, token, .. }) => Some((owner, token.0)),
            _ => None,
        };
        Ok(ShownTicket { token, holder })
    };
    futures::stream::iter(tickets).map(look).buffered(AT_ONCE).try_collect().await
}

fn read(job: &Value) -> HttpResult<(Name, u64)> {
    let missing = || Problem::invalid("give the `id` and the `token` of each job");
    let (id, token) = job["id"].as_str().zip(job["token"].as_u64()).ok_or_else(missing)?;
    Ok((Name::new(id)?, token))
}
