//! All routes, with what each one declares: what a request is checked for before it is routed.
//!
//! A request needs the scope and has the time limit that its route declares, or those that follow from the
//! method. Reading needs `read`; an operation of a kind needs `write`; every other change is an operator's
//! and needs `act`.
//!
//! The decision is made on the path as the router sees it, by whole segments and without decoding,
//! so that a key that has the name of an operation is not taken for one. An unknown path needs the
//! highest scope.

use std::sync::LazyLock;

use axum::http::Method;
use lapsed_core::Kind;

use super::openapi::METHODS;
use crate::config::token::Scope;
use crate::http::auth::looks;
use crate::http::kind_of;
use crate::http::route_rules::{
    OwnerRule, RouteRules, operation_name, operations, owner_rule, take_rules,
};

/// One route of the API.
pub struct TableRoute {
    pub method: Method,
    /// The path, with `{name}` for a segment that varies.
    pub path: String,
    /// What follows the last segment of `path` that varies.
    end: String,
    /// The kind whose operation it is; `None` if it belongs to no kind.
    pub kind: Option<Kind>,
    /// The name by which a configuration limits tokens to it.
    pub operation: String,
    /// How its requests are limited to owners, if it declares that.
    pub owner: Option<OwnerRule>,
    rules: RouteRules,
}

static ROUTES: LazyLock<Vec<TableRoute>> = LazyLock::new(|| {
    let mut found = Vec::new();
    for (path, mut item) in super::routes().to_openapi().paths.paths {
        for (method, operation) in METHODS.into_iter().zip(operations(&mut item)) {
            let Some(declared) = operation else { continue };
            let (owner, operation) = (owner_rule(declared), operation_name(&path, declared));
            let end = path.rsplit('}').next().unwrap_or_default().to_owned();
            let (kind, rules) = (kind_of(&path), take_rules(declared));
            found.push(TableRoute {
                method,
                path: path.clone(),
                end,
                kind,
                operation,
                owner,
                rules,
            });
        }
    }
    found
});

/// The routes that declare a scope or that they may take long: few, because every request is compared with
/// them.
static DECLARING: LazyLock<Vec<&'static TableRoute>> = LazyLock::new(|| {
    ROUTES.iter().filter(|route| route.rules.scope.is_some() || route.rules.slow).collect()
});

impl TableRoute {
    /// Whether its requests change something. Those of passes and of reconciling may, whatever their scope.
    pub fn changes(&self) -> bool {
        let only_reads = self.kind.is_some() && self.rules.scope == Some(Scope::Read);
        !looks(&self.method) && self.path.starts_with("/v1/") && !only_reads
    }

    /// Whether its operation keeps requests with a key itself.
    pub fn keeps_requests(&self) -> bool {
        self.rules.keeps
    }

    fn is_of(&self, method: &Method, path: &str) -> bool {
        // Most requests differ in the method or the end of the path, which is quick to see.
        self.method == *method && path.ends_with(&self.end) && is_like(&self.path, path)
    }
}

/// The route that the router takes for a request.
pub fn route_of(method: &Method, path: &str) -> Option<&'static TableRoute> {
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let fitting = ROUTES.iter().filter(|route| route.is_of(method, path));
    // Of several, the router takes the one with the fewest parameters.
    fitting.min_by_key(|route| route.path.matches('{').count())
}

/// Whether `path` has the segments of `template`, of which some vary.
fn is_like(template: &str, path: &str) -> bool {
    let (mut wanted, mut given) = (template.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return true,
            (Some(wanted), Some(given)) if wanted == given || wanted.starts_with('{') => {}
            _ => return false,
        }
    }
}

/// What a request needs and how it is handled, decided before its body is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The scope without which the request is refused, if its path is guarded.
    pub scope: Scope,
    /// Whether the handler needs the client's identity, to check the body against its scopes or to
    /// record it in the audit.
    pub told: bool,
    /// Whether it is exempt from the request timeout.
    pub slow: bool,
}

/// What a request needs.
pub fn needed(method: &Method, path: &str) -> Need {
    let as_declared = if method == Method::HEAD { &Method::GET } else { method };
    let declared = DECLARING.iter().find(|route| route.is_of(as_declared, path));
    let RouteRules { scope, slow, .. } = declared.map(|route| route.rules).unwrap_or_default();
    let of_kind = is_operation(path);
    let usual = match looks(method) {
        true => Scope::Read,
        false if of_kind => Scope::Write,
        false => Scope::Act,
    };
    let scope = scope.unwrap_or(usual);
    Need { scope, told: scope == Scope::Act || !of_kind, slow }
}

/// Whether `path` is that of an operation of a kind: `/v1/KIND/NAME/OPERATION`.
fn is_operation(path: &str) -> bool {
    kind_of(path).is_some() && path.splitn(5, '/').nth(4).is_some()
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
    #[test]
    fn only_long_work_is_slow() {
        let is_slow = |method: Method, path: &str| needed(&method, path).slow;
        assert!(is_slow(Method::POST, "/v1/sweeps/registry/default"));
        assert!(is_slow(Method::POST, "/v1/reconcile/registry/default"));
        assert!(is_slow(Method::GET, "/v1/events"));
        assert!(is_slow(Method::POST, "/v1/registry/default/retire"));
        assert!(!is_slow(Method::GET, "/v1/sweeps/registry/default"));
        assert!(!is_slow(Method::POST, "/v1/registry/default/beat"));
        assert!(!is_slow(Method::GET, "/v1/registry/default/lookup/retire"));
    }

    /// A bearer that is limited to owners never has `act`, so routes that need it are refused to it.
    #[test]
    fn every_writing_route_declares_how_it_is_limited_to_owners() {
        let missing: Vec<String> = ROUTES
            .iter()
            .filter(|route| route.method != Method::GET && route.path.starts_with("/v1/"))
            .filter(|route| needed(&route.method, &route.path).scope != Scope::Act)
            .filter(|route| route.owner.is_none())
            .map(|route| format!("{} {}", route.method, route.path))
            .collect();
        assert!(missing.is_empty(), "declare it with route_rules::for_owner: {missing:#?}");
    }

    #[test]
    fn declared_parameters_of_the_path_exist() {
        for route in ROUTES.iter() {
            if let Some(OwnerRule::Path(name)) = &route.owner {
                assert!(route.path.contains(&format!("{{{name}}}")), "{}", route.path);
            }
        }
    }
}
