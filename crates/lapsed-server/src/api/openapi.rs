//! The OpenAPI document: the descriptions of the routes, completed with what is the same for all of
//! them.

mod bounds;

use axum::Router;
use axum::http::{Method, header};
use axum::routing::get;
use utoipa::OpenApi;
use utoipa::openapi::path::{Operation, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::Type;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{
    Components, ContentBuilder, ObjectBuilder, Ref, RefOr, Required, ResponseBuilder,
};

use super::gate::is_guarded;
use super::route_table::{self, TableRoute};
use crate::config::token::Scope;
use crate::http::Shared;
use crate::http::route_rules::{operations, take_rules};
use crate::schemas;
use crate::systems::{self, SystemKind};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "lapsed",
        description = "Tracks which processes are alive and what each holds, and takes back what dead ones held."
    ),
    components(schemas(schemas::Problem)),
    tags(
        (name = "sweeps", description = "Passes: status, dry runs, one pass now"),
        (name = "receipts", description = "What was reclaimed, on what evidence, and restoring it"),
        (name = "webhooks", description = "Receivers of receipts by HTTP, and deliveries that were given up"),
        (name = "adopt", description = "Adopted systems: who was seen alive, and the confirmation that the configuration is right"),
        (name = "brakes", description = "Brakes, which stop reclaims when too many owners would be declared dead at once"),
        (name = "service", description = "Health, metrics, this document")
    )
)]
struct Base;

const TOKEN: &str = "token";

/// The methods that a route may have, in the order of [`operations`].
pub const METHODS: [Method; 5] =
    [Method::GET, Method::PUT, Method::POST, Method::DELETE, Method::PATCH];

/// The document before any route is added.
pub fn base() -> utoipa::openapi::OpenApi {
    let mut base = Base::openapi();
    let of = |kind: &&dyn SystemKind| {
        TagBuilder::new().name(kind.kind().as_str()).description(Some(kind.words().tag)).build()
    };
    let kinds = systems::KINDS.iter().map(of);
    base.tags = Some(kinds.chain(base.tags.take().unwrap_or_default()).collect());
    let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    base.components.get_or_insert_with(Components::new).add_security_scheme(TOKEN, scheme);
    base
}

/// The route `/openapi.json`, which serves the completed document.
pub fn route(mut document: utoipa::openapi::OpenApi) -> Router<Shared> {
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in METHODS.into_iter().zip(operations(item)) {
            let Some(operation) = operation else { continue };
            take_rules(operation);
            name(operation);
            if route_table::route_of(&method, path).is_some_and(TableRoute::changes) {
                describe_key(operation);
            }
            if is_guarded(path) {
                guard(operation, route_table::needed(&method, path).scope);
            }
        }
    }
    let mut document = serde_json::to_value(document).expect("the document is plain data");
    bounds::refine(&mut document);
    let body = document.to_string();
    let serve = move || {
        let body = body.clone();
        async move { ([(header::CONTENT_TYPE, "application/json")], body) }
    };
    Router::new().route("/openapi.json", get(serve))
}

/// Makes the operation's id unique by its tag, and fills in response descriptions that are missing.
fn name(operation: &mut Operation) {
    let tag = operation.tags.iter().flatten().next().cloned().unwrap_or_default();
    operation.operation_id = operation.operation_id.take().map(|id| format!("{tag}_{id}"));
    for response in operation.responses.responses.values_mut() {
        if let RefOr::T(response) = response
            && response.description.is_empty()
        {
            response.description = "Done".to_owned();
        }
    }
}

/// Adds the header of the idempotency key, which every operation has that changes something.
fn describe_key(operation: &mut Operation) {
    let text = ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        .max_length(Some(255))
        .pattern(Some(r#"^["-~][!-~]*$"#));
    let header = ParameterBuilder::new()
        .name("Idempotency-Key")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some("The same for all attempts of one request; at most 255 characters"))
        .schema(Some(text));
    operation.parameters.get_or_insert_default().push(RefOr::T(header.build()));
}

/// Adds the security requirement and the error responses that every operation behind a token has.
fn guard(operation: &mut Operation, needed: Scope) {
    let needed = SecurityRequirement::new(TOKEN, [needed.as_str()]);
    operation.security.get_or_insert_default().push(needed);
    let problem = |what: &str| {
        let schema = RefOr::Ref(Ref::from_schema_name("Problem"));
        let content = ContentBuilder::new().schema(Some(schema)).build();
        let response = ResponseBuilder::new().description(what);
        RefOr::T(response.content("application/problem+json", content).build())
    };
    for (status, what) in [
        ("401", "A token is needed"),
        ("403", "This token has not the scope that is needed"),
        ("503", "The store does not answer; try again later"),
        ("default", "Any other problem"),
    ] {
        operation.responses.responses.entry(status.to_owned()).or_insert_with(|| problem(what));
    }
}
