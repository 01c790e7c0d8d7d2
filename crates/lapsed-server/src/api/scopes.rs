//! The scope that a request needs. Reading needs `read`; an operation of a kind needs `write`,
//! unless the kind says otherwise; every other change is an operator's and needs `act`.
//!
//! The decision is made on the path as the router sees it, by whole segments and without decoding,
//! so that a key that has the name of an operation is not taken for one. An unknown path needs the
//! highest scope.

use axum::http::Method;

use crate::config::token::Scope;
use crate::systems;

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
    let looks = method == Method::GET || method == Method::HEAD;
    if let Some((kind, operation)) = systems::operation(path) {
        let special = || kind.scopes().iter().find(|(name, _)| *name == operation);
        let scope = match looks {
            true => Scope::Read,
            false => special().map_or(Scope::Write, |(_, scope)| *scope),
        };
        return Need { scope, told: scope == Scope::Act };
    }
    let scope = if looks || may_be_dry(path) { Scope::Read } else { Scope::Act };
    Need { scope, told: true }
}

/// Whether the path has a dry run, which needs `read` only. The body says whether it is one, so the
/// handler demands the higher scope after reading it.
fn may_be_dry(path: &str) -> bool {
    path.starts_with("/v1/sweeps/") || path.starts_with("/v1/reconcile/")
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
