//! `/v1/whoami`: what the client's token allows, so that a page or a script can ask instead of
//! trying.

use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Shared;
use super::caller::Caller;
use super::extract::JsonAnswer;
use crate::config::bearer_limits::BearerLimits;
use crate::config::token::Scope;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(whoami))
}

/// The client's token and its scopes.
#[derive(Serialize, ToSchema)]
struct Whoami {
    /// The name of the token; `token` and `read_token` are the ones of `[server]`. Absent if no
    /// tokens are configured.
    name: Option<String>,
    /// The scopes of the token: `read`, `write`, `act`.
    scopes: Vec<Scope>,
    /// When the token expires, in milliseconds since 1970; absent if it does not.
    expires_ms: Option<u64>,
    /// The systems that the token is limited to, as patterns of `KIND/NAME`; absent: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    systems: Option<Vec<String>>,
    /// The operations that the token is limited to; absent: all that its scopes allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    operations: Option<Vec<String>>,
    /// The owners as which the token may act, as patterns; absent: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    owners: Option<Vec<String>>,
    /// True if no tokens are configured: everybody who can reach the daemon may do everything.
    open: bool,
}

/// Shows the client's token and its scopes.
#[utoipa::path(get, path = "/v1/whoami", tag = "service",
    responses((status = 200, body = Whoami)))]
async fn whoami(caller: Caller) -> JsonAnswer<Whoami> {
    let limits = caller.limits();
    JsonAnswer(Whoami {
        name: caller.name().map(str::to_owned),
        scopes: caller.scopes().list(),
        expires_ms: caller.expires_ms(),
        systems: limits.and_then(|limits| limits.systems().map(<[String]>::to_vec)),
        operations: limits.and_then(|limits| limits.operations().map(<[String]>::to_vec)),
        owners: limits.and_then(BearerLimits::owners),
        open: caller.name().is_none(),
    })
}
