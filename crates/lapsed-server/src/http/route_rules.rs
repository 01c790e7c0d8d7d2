//! What a route declares where it is registered, beside its handler. The declarations are extensions of
//! its OpenAPI description until `api::route_table` reads them; they are not in the served document.
//!
//! A route that declares nothing has the daemon's request timeout, and its scope follows from its
//! method. All routes have the same body limit, which is configured (`server.body_limit`).

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::openapi::path::{Operation, PathItem};
use utoipa_axum::router::UtoipaMethodRouter;

use super::Shared;
use crate::config::token::Scope;

const SCOPE: &str = "x-scope";
const SLOW: &str = "x-slow";
const OWNER: &str = "x-owner";
const KEEPS: &str = "x-keeps";
const OPERATION: &str = "x-operation";

/// How a request that changes something is limited to the owners of its bearer. A route that declares
/// nothing is refused to a bearer that is limited to owners.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnerRule {
    /// The names at this place of the body, such as `owner` or `beats/*/owner`, in which `*` stands
    /// for every element of a list. All of them must be allowed, and a missing one is refused.
    Body(String),
    /// The name in this parameter of the path.
    Path(String),
    /// The request shows the token of an entry, and its holder must be allowed. The kind finds the
    /// holder.
    Holder,
    /// The request is not about an owner: only systems and operations limit it.
    NotAnOwners,
    /// The request changes something that belongs to no owner alone, or to one that the request does
    /// not name.
    Refused,
}

/// The declarations of one route.
#[derive(Clone, Copy, Debug, Default)]
pub struct RouteRules {
    /// The scope without which a request is refused; none: it follows from the method.
    pub scope: Option<Scope>,
    /// Whether requests are exempt from the request timeout.
    pub slow: bool,
    /// Whether its operation keeps requests with a key itself.
    pub keeps: bool,
}

/// Declares that `routes` need `scope`, whatever their method.
pub fn with_scope(scope: Scope, routes: UtoipaMethodRouter<Shared>) -> UtoipaMethodRouter<Shared> {
    declare(routes, SCOPE, &json!(scope))
}

/// Declares how `routes` are limited to the owners of their bearer.
pub fn for_owner(
    rule: OwnerRule,
    routes: UtoipaMethodRouter<Shared>,
) -> UtoipaMethodRouter<Shared> {
    declare(routes, OWNER, &json!(rule))
}

/// Declares that the body of `routes` names the owner, or the owners, at `place`.
pub fn owner_in_body(
    place: &str,
    routes: UtoipaMethodRouter<Shared>,
) -> UtoipaMethodRouter<Shared> {
    for_owner(OwnerRule::Body(place.to_owned()), routes)
}

/// Declares that `routes` are the batch form of `operation`, where their path does not say so.
pub fn batch_of(operation: &str, routes: UtoipaMethodRouter<Shared>) -> UtoipaMethodRouter<Shared> {
    declare(routes, OPERATION, &json!(operation))
}

/// How the route of `operation` is limited to owners, if it declares that.
pub fn owner_rule(operation: &Operation) -> Option<OwnerRule> {
    let declared = operation.extensions.as_ref()?.get(OWNER)?;
    serde_json::from_value(declared.clone()).ok()
}

/// The name by which a configuration limits tokens to the operation at `path`: the last segment that
/// does not vary, without `_many`, which marks the batch form.
pub fn operation_name(path: &str, operation: &Operation) -> String {
    let declared = operation.extensions.as_ref().and_then(|declared| declared.get(OPERATION));
    if let Some(name) = declared.and_then(Value::as_str) {
        return name.to_owned();
    }
    let last = path.rsplit('/').find(|segment| !segment.starts_with('{')).unwrap_or_default();
    last.strip_suffix("_many").unwrap_or(last).to_owned()
}

/// Declares that `routes` may take long, so that they have no request timeout.
pub fn slow(routes: UtoipaMethodRouter<Shared>) -> UtoipaMethodRouter<Shared> {
    declare(routes, SLOW, &json!(true))
}

/// Declares that the operation of `routes` is told the request and keeps it with its answer, in the atomic step
/// of the change. The requests of all other routes are kept by the daemon.
pub fn keeps_requests(routes: UtoipaMethodRouter<Shared>) -> UtoipaMethodRouter<Shared> {
    declare(routes, KEEPS, &json!(true))
}

fn declare(
    (schemas, mut paths, router): UtoipaMethodRouter<Shared>,
    key: &str,
    value: &Value,
) -> UtoipaMethodRouter<Shared> {
    for operation in paths.paths.values_mut().flat_map(operations).flatten() {
        let extensions = operation.extensions.get_or_insert_default();
        extensions.insert(key.to_owned(), value.clone());
    }
    (schemas, paths, router)
}

/// The operations of one path: GET, PUT, POST, DELETE, PATCH.
pub fn operations(item: &mut PathItem) -> [Option<&mut Operation>; 5] {
    let PathItem { get, put, post, delete, patch, .. } = item;
    [get, put, post, delete, patch].map(Option::as_mut)
}

/// Takes the declarations out of the description of a route.
pub fn take_rules(operation: &mut Operation) -> RouteRules {
    let mut declared = operation.extensions.take().unwrap_or_default();
    let scope = declared.remove(SCOPE).and_then(|scope| serde_json::from_value(scope).ok());
    RouteRules { scope, slow: declared.contains_key(SLOW), keeps: declared.contains_key(KEEPS) }
}
