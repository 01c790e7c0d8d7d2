//! Checks a request against the limits of its bearer: systems, operations and owners.
//!
//! Only requests of limited bearers come here; for all others the check costs one comparison. The
//! system and the operation follow from the path. An owner may be in the path or in the body, and the
//! route declares where ([`OwnerRule`]); the body is then read here, checked, and passed on as it is.
//! A route that declares nothing is refused, so that a new one cannot be forgotten.
//!
//! An entry that a request names by its token is checked by its holder. Between this look and the
//! change, the entry may pass to somebody else, with a greater token. The change itself compares the
//! token, and tokens only grow: a request whose token is that of the holder seen here, or is smaller,
//! cannot change what somebody else holds by then. Any other token is answered `lost`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::route_table::{TableRoute, route_of};
use crate::config::bearer_limits::BearerLimits;
use crate::http::Shared;
use crate::http::auth::looks;
use crate::http::extract;
use crate::http::jwt::strict_json;
use crate::http::problem::Problem;
use crate::http::route_rules::OwnerRule;
use crate::systems::{self, ShownTicket, TicketRequest};

/// What every bearer may ask, whatever it is limited to.
const WHOAMI: &str = "/v1/whoami";

/// The decoded parameters of `path`, which is of `route`; `None` if one of them is not UTF-8.
pub(super) fn params(route: &TableRoute, path: &str) -> Option<Vec<(String, String)>> {
    let pairs = route.path.split('/').zip(path.split('/'));
    let params = pairs.filter_map(|(name, value)| {
        let name = name.strip_prefix('{')?.strip_suffix('}')?;
        Some(decode(value).map(|value| (name.to_owned(), value)))
    });
    params.collect()
}

/// Decodes `%xx` as the router does.
fn decode(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let pair = (*first == b'%').then(|| after.get(..2)).flatten();
        let pair = pair.and_then(|pair| std::str::from_utf8(pair).ok());
        let pair = pair.filter(|pair| pair.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

pub(super) fn param<'a>(params: &'a [(String, String)], name: &str) -> Option<&'a str> {
    params.iter().find(|(param, _)| param == name).map(|(_, value)| value.as_str())
}

fn forbidden(detail: String) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, "forbidden", "This token may not do that", detail)
}

/// The owners of a request that are still to be checked.
pub struct OwnerCheck {
    limits: Arc<BearerLimits>,
    route: &'static TableRoute,
    rule: &'static OwnerRule,
    params: Vec<(String, String)>,
}

/// Checks the system, the operation and an owner in the path. Returns what has to be checked in the
/// body, if anything.
pub fn check(limits: &Arc<BearerLimits>, request: &Request) -> Result<Option<OwnerCheck>, Problem> {
    let (method, path) = (request.method(), request.uri().path());
    if path == WHOAMI {
        return Ok(None);
    }
    let unknown = || forbidden("this token is limited, and there is no such route".to_owned());
    let route = route_of(method, path).ok_or_else(unknown)?;
    let params = params(route, path).ok_or_else(unknown)?;
    check_system(limits, route, &params)?;
    if limits.limits_operations()
        && (route.kind.is_none() || !limits.allows_operation(&route.operation))
    {
        return Err(forbidden(match route.kind {
            Some(_) => format!(
                "this token is limited to some operations, and `{}` is none of them; GET {WHOAMI} \
                 lists them",
                route.operation
            ),
            None => {
                format!("this token is limited to operations of systems; GET {WHOAMI} lists them")
            }
        })
        .with("operation", json!(route.operation)));
    }
    if !limits.limits_owners() || looks(method) {
        return Ok(None);
    }
    let Some(rule) = &route.owner else { return Err(refused(route)) };
    match rule {
        OwnerRule::NotAnOwners => Ok(None),
        OwnerRule::Refused => Err(refused(route)),
        OwnerRule::Path(name) => {
            let owner = param(&params, name).ok_or_else(|| refused(route))?;
            allow(limits, owner).map(|()| None)
        }
        OwnerRule::Body(_) | OwnerRule::Holder => {
            Ok(Some(OwnerCheck { limits: limits.clone(), route, rule, params }))
        }
    }
}

fn check_system(
    limits: &BearerLimits,
    route: &TableRoute,
    params: &[(String, String)],
) -> Result<(), Problem> {
    if !limits.limits_systems() {
        return Ok(());
    }
    let kind =
        route.kind.or_else(|| systems::named(param(params, "kind")?).map(|kind| kind.kind()));
    match (kind, param(params, "name")) {
        (Some(kind), Some(name)) if limits.allows_system(kind, name) => Ok(()),
        (Some(kind), Some(name)) => Err(forbidden(format!(
            "this token is limited to some systems, and `{kind}/{name}` is none of them; GET \
             {WHOAMI} lists them"
        ))),
        _ => Err(forbidden(format!(
            "this token is limited to some systems, and this is about all of them; GET {WHOAMI} \
             lists them"
        ))),
    }
}

fn refused(route: &TableRoute) -> Problem {
    forbidden(format!(
        "this token is limited to some owners, and `{}` is not the operation of one owner; use a \
         token without `owners`",
        route.operation
    ))
}

fn allow(limits: &BearerLimits, owner: &str) -> Result<(), Problem> {
    if limits.allows_owner(owner) {
        return Ok(());
    }
    let detail = format!(
        "this token may not act as the owner {owner:?}, and nothing was changed; GET {WHOAMI} lists \
         its owners"
    );
    Err(forbidden(detail).with("owner", json!(owner)))
}

impl OwnerCheck {
    /// Reads the body and checks the owners in it. Returns the request with the same body.
    pub async fn pass(self, app: &Shared, request: Request) -> Result<Request, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = extract::read(body, app).await?;
        let value = match bytes.is_empty() {
            true => Value::Null,
            // The members must be unique: the handler could take another one than was checked.
            false => strict_json::parse(&bytes)
                .map_err(|e| Problem::malformed(format!("the body is not JSON: {e}")))?,
        };
        match self.rule {
            OwnerRule::Body(place) => {
                let places: Vec<&str> = place.split('/').collect();
                self.check_names(&value, &places)?;
            }
            _ => {
                let query = parts.uri.query().unwrap_or_default().to_owned();
                self.check_holders(app, query, value).await?;
            }
        }
        Ok(Request::from_parts(parts, Body::from(bytes)))
    }

    fn check_names(&self, value: &Value, places: &[&str]) -> Result<(), Problem> {
        match (places, value) {
            ([], Value::String(owner)) => allow(&self.limits, owner),
            (["*", rest @ ..], Value::Array(list)) => {
                list.iter().try_for_each(|value| self.check_names(value, rest))
            }
            ([name, rest @ ..], Value::Object(map)) if map.contains_key(*name) => {
                self.check_names(&map[*name], rest)
            }
            _ => Err(forbidden(format!(
                "this token is limited to some owners, and the body of `{}` does not name one where \
                 it should",
                self.route.operation
            ))),
        }
    }

    async fn check_holders(self, app: &Shared, query: String, body: Value) -> Result<(), Problem> {
        let kind = self.route.kind.ok_or_else(|| refused(self.route))?;
        let system = param(&self.params, "name").unwrap_or_default().to_owned();
        let method = self.route.method.clone();
        let request = TicketRequest { method, system, params: self.params, query, body };
        for ShownTicket { token, holder } in systems::of(kind).shown_tickets(app, &request).await? {
            match holder {
                Some((owner, held)) if token == held => allow(&self.limits, owner.as_str())?,
                Some((_, held)) if token < held => {}
                _ => return Err(lost(token)),
            }
        }
        Ok(())
    }
}

/// The problem `lost` for a token that holds nothing now.
fn lost(token: u64) -> Problem {
    let detail = format!(
        "the token {token} does not hold what the request names, and nothing was changed; leave it \
         out if the request names several"
    );
    Problem::new(StatusCode::CONFLICT, "lost", "You no longer hold it", detail)
        .with("token", json!(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_decoded_as_the_router_does() {
        assert_eq!(decode("a%20b%2fc+%zz%4").as_deref(), Some("a b/c+%zz%4"));
        assert_eq!(decode("%ff"), None);
    }
}
