//! Who holds the leases whose tokens a request shows.

use axum::http::Method;
use futures::{StreamExt, TryStreamExt};
use lapsed_core::leases::LeaseKey;
use serde_json::Value;

use super::{AT_ONCE, leases};
use crate::http::Shared;
use crate::http::problem::{HttpResult, Problem};
use crate::systems::{ShownTicket, TICKETS_MAX, TicketRequest};

/// The tickets of a request about one lease or, in `leases`, many. A request for a key's state has
/// the key in its path; one that removes the state has its token in the query.
pub async fn shown(app: &Shared, request: &TicketRequest) -> HttpResult<Vec<ShownTicket>> {
    let leases = leases(app, &request.system)?;
    let all = match request.body.get("leases").and_then(Value::as_array) {
        Some(leases) => leases.as_slice(),
        None => std::slice::from_ref(&request.body),
    };
    if all.len() > TICKETS_MAX {
        return Err(Problem::invalid(format!("at most {TICKETS_MAX} leases in one call")));
    }
    let tickets = all.iter().map(|one| read(request, one));
    let tickets: Vec<(LeaseKey, u64)> = tickets.collect::<HttpResult<_>>()?;
    let look = async |(key, token): (LeaseKey, u64)| {
        let holder = leases.describe(&key).await?.and_then(|found| {
            found.lease.filter(|_| !found.expired).map(|lease| (lease.owner, found.token.0))
        });
        Ok(ShownTicket { token, holder })
    };
    futures::stream::iter(tickets).map(look).buffered(AT_ONCE).try_collect().await
}

fn read(request: &TicketRequest, one: &Value) -> HttpResult<(LeaseKey, u64)> {
    let param = |name: &str| {
        let found = request.params.iter().find(|(param, _)| param == name);
        found.map(|(_, value)| value.as_str())
    };
    let namespace =
        param("namespace").or_else(|| one.get("namespace").map_or(Some("default"), Value::as_str));
    let key = param("key").or_else(|| one["key"].as_str());
    let in_query = || request.query.split('&').find_map(|pair| pair.strip_prefix("token="));
    let token = match request.method == Method::DELETE {
        true => in_query().and_then(|token| token.parse().ok()),
        false => one["token"].as_u64(),
    };
    match (namespace, key, token) {
        (Some(namespace), Some(key), Some(token)) => Ok((LeaseKey::new(namespace, key)?, token)),
        _ => Err(Problem::invalid("give the `key` and the `token` of each lease")),
    }
}
