//! The scope that a request needs, and whether it has the request timeout: what its route declares, or
//! what follows from the method. Reading needs `read`; an operation of a kind needs `write`; every
//! other change is an operator's and needs `act`.
//!
//! The decision is made on the path as the router sees it, by whole segments and without decoding,
//! so that a key that has the name of an operation is not taken for one. An unknown path needs the
//! highest scope.

use std::sync::LazyLock;

use axum::http::Method;

use super::openapi::METHODS;
use crate::config::token::Scope;
use crate::http::route_rules::{RouteRules, operations, take_rules};
use crate::systems;

/// A route that declares something.
struct DeclaredRoute {
    method: Method,
    /// The path, with `{name}` for a segment that varies.
    path: String,
    /// What follows the last segment of `path` that varies.
    end: String,
    rules: RouteRules,
}

static DECLARED: LazyLock<Vec<DeclaredRoute>> = LazyLock::new(|| {
    let mut found = Vec::new();
    for (path, mut item) in super::routes().to_openapi().paths.paths {
        for (method, operation) in METHODS.into_iter().zip(operations(&mut item)) {
            let rules = operation.map(take_rules).unwrap_or_default();
            if rules.scope.is_some() || rules.slow {
                let end = path.rsplit('}').next().unwrap_or_default().to_owned();
                found.push(DeclaredRoute { method, path: path.clone(), end, rules });
            }
        }
    }
    found
});

impl DeclaredRoute {
    fn is_of(&self, method: &Method, path: &str) -> bool {
        // Most requests differ in the method or the end of the path, which is quick to see.
        self.method == *method && path.ends_with(&self.end) && is_like(&self.path, path)
    }
}

/// Whether `path` has the segments of `template`, of which some vary.
pub fn is_like(template: &str, path: &str) -> bool {
    let (mut wanted, mut given) = (template.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return true,
            (Some(wanted), Some(given)) if wanted == given || wanted.starts_with('{') => {}
            _ => return false,
        }
    }
}

/// What the route of a request declares.
fn declared(method: &Method, path: &str) -> RouteRules {
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let found = DECLARED.iter().find(|route| route.is_of(method, path));
    found.map(|route| route.rules).unwrap_or_default()
}

/// Whether a request is exempt from the request timeout.
pub fn is_slow(method: &Method, path: &str) -> bool {
    declared(method, path).slow
}

/// What a request needs, decided before its body is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The scope without which the request is refused.
    pub scope: Scope,
    /// Whether the handler needs the client's identity, to check the body against its scopes or to
    /// record it in the audit.
    pub told: bool,
}

/// What a request to a guarded path needs.
pub fn needed(method: &Method, path: &str) -> Need {
    let (looks, of_kind) =
        (method == Method::GET || method == Method::HEAD, systems::is_operation(path));
    let usual = match looks {
        true => Scope::Read,
        false if of_kind => Scope::Write,
        false => Scope::Act,
    };
    let scope = declared(method, path).scope.unwrap_or(usual);
    Need { scope, told: scope == Scope::Act || !of_kind }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_writing_and_acting_are_told_apart() {
        let scope = |method: &str, path: &str| {
            needed(&Method::from_bytes(method.as_bytes()).unwrap(), path).scope
        };
        for path in ["/v1/sweeps", "/v1/registry/a/lookup/k", "/v1/whoami", "/metrics"] {
            assert_eq!(scope("GET", path), Scope::Read, "{path}");
            assert_eq!(scope("HEAD", path), Scope::Read, "{path}");
        }
        for (method, path) in [
            ("POST", "/v1/registry/a/lookup_many"),
            ("POST", "/v1/sessions/a/get_many"),
            ("POST", "/v1/sweeps/registry/a"),
            ("POST", "/v1/reconcile/registry/a"),
        ] {
            assert_eq!(scope(method, path), Scope::Read, "{path}");
        }
        for (method, path) in [
            ("POST", "/v1/registry/a/beat"),
            ("POST", "/v1/inflight/a/take"),
            ("PUT", "/v1/leases/a/state/ns/lookup_many"),
            ("DELETE", "/v1/leases/a/state/ns/get_many"),
            ("PUT", "/v1/availability/a/providers/lookup_many"),
            ("POST", "/v1/registry/lookup_many/beat"),
            ("POST", "/v1/sessions/a/lookup_many"),
            ("OPTIONS", "/v1/registry/a/beat"),
        ] {
            assert_eq!(scope(method, path), Scope::Write, "{path}");
        }
        for (method, path) in [
            ("PUT", "/v1/brakes/registry/a"),
            ("POST", "/v1/adopt/registry/a"),
            ("POST", "/v1/receipts/registry-a-1/restore"),
            ("POST", "/v1/inflight/a/dead/put_back"),
            ("POST", "/v1/inflight/a/dead/delete"),
            ("PATCH", "/v1/availability/a/config"),
            ("POST", "/v1/nothing"),
            ("POST", "/v1/"),
            ("POST", "/v1//registry/a/beat"),
            ("POST", "/v1/registry"),
            ("POST", "/v1/%72egistry/a/beat"),
        ] {
            assert_eq!(scope(method, path), Scope::Act, "{path}");
        }
    }
}
