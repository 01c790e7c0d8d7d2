//! Routes for the settings in the application's configuration table.

use axum::extract::State;
use lapsed_availability::rules::{AvailabilitySettings, SettingsPatch};
use lapsed_core::{Error, Kind};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::shapes::*;
use super::{From, availability};
use crate::config::token::Scope;
use crate::http::Shared;
use crate::http::caller::Caller;
use crate::http::extract::{Json, JsonAnswer, Path};
use crate::http::problem::HttpResult;
use crate::http::route_rules::with_scope;
use crate::schemas;
use crate::systems::availability::AvailabilityOperations;

/// The routes of the settings.
pub fn routes() -> OpenApiRouter<Shared> {
    // Only an operator may change the settings, which decide when a provider counts as silent.
    let change = with_scope(Scope::Act, routes!(change));
    OpenApiRouter::new().routes(routes!(config)).routes(change)
}

/// Returns the current settings from the configuration table.
#[utoipa::path(get, path = "/v1/availability/{name}/config", tag = "availability",
    responses((status = 200, body = AvailabilityConfig)))]
async fn config(
    State(app): State<Shared>,
    Path(name): Path<String>,
) -> HttpResult<From<AvailabilityConfig>> {
    Ok(From::truth(shown(availability(&app, &name)?.settings_now().await?)))
}

/// Changes the given settings and notifies every daemon, which then drops the snapshot of the
/// beacon.
#[utoipa::path(patch, path = "/v1/availability/{name}/config", tag = "availability",
    request_body = ConfigBody,
    responses((status = 200, body = AvailabilityConfig),
        (status = 422, description = "The change would set living providers offline", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn change(
    State(app): State<Shared>,
    caller: Caller,
    Path(name): Path<String>,
    Json(body): Json<ConfigBody>,
) -> HttpResult<JsonAnswer<AvailabilityConfig>> {
    let patch = SettingsPatch {
        stale_after_seconds: body.stale_after_seconds,
        require_ping: body.require_ping,
        max_customers_per_mitra: body.max_customers_per_mitra,
        heartbeat_cadence_seconds: body.heartbeat_cadence_seconds,
    };
    let live = app.live(Kind::Availability.as_str(), &name)?.clone();
    let action = caller.audit_action("config", live.id());
    let work = async move {
        let change = async {
            let providers: Option<&AvailabilityOperations> = live.operations();
            let providers =
                providers.ok_or_else(|| Error::Invalid("it has no providers".to_owned()));
            providers?.system.set_settings(&patch).await
        };
        live.audited(action, change, |_| "done".to_owned()).await
    };
    Ok(JsonAnswer(shown(app.finish(work).await??)))
}

fn shown(settings: AvailabilitySettings) -> AvailabilityConfig {
    AvailabilityConfig {
        stale_after_seconds: settings.stale_after_seconds,
        require_ping: settings.require_ping,
        max_customers_per_mitra: settings.max_customers_per_mitra,
        heartbeat_cadence_seconds: settings.heartbeat_cadence_seconds,
    }
}
