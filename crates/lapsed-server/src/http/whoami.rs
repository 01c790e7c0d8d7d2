//! `/v1/whoami`: what the bearer of a token may do, so that a page or a script need not try.

use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Shared;
use super::auth::Caller;
use super::extract::JsonAnswer;
use crate::config::token::Scope;

/// The one there is.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(whoami))
}

/// Who asks, and what they may do.
#[derive(Serialize, ToSchema)]
struct Whoami {
    /// The name of the token; `token` and `read_token` are those of [server]. None without tokens.
    name: Option<String>,
    /// `read`, `write`, `act`.
    scopes: Vec<Scope>,
    /// Until when the token is valid, in milliseconds since 1970.
    expires_ms: Option<u64>,
    /// There are no tokens: whoever reaches the daemon may do everything.
    open: bool,
}

/// Who asks, and what they may do.
#[utoipa::path(get, path = "/v1/whoami", tag = "service",
    responses((status = 200, body = Whoami)))]
async fn whoami(caller: Caller) -> JsonAnswer<Whoami> {
    JsonAnswer(Whoami {
        name: caller.name().map(str::to_owned),
        scopes: caller.scopes().list(),
        expires_ms: caller.expires_ms(),
        open: caller.name().is_none(),
    })
}
