//! The routes `/v1/availability/{name}/...`: providers, their heartbeats, their sessions, and who
//! can take work now.
//!
//! The header `lapsed-source` of every read says where the answer was read. The header
//! `lapsed-mirror: behind` of a write says that the mirror could not be updated yet.

mod config;
mod providers;
mod reading;
mod sessions;
mod shapes;

use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use lapsed_availability::{Availability, Source, Sourced, Written};
use lapsed_core::{Kind, Name};
use serde::Serialize;
use serde_json::json;
use utoipa_axum::router::OpenApiRouter;

use crate::http::Shared;
use crate::http::extract::JsonAnswer;
use crate::http::problem::{HttpResult, Problem};
use crate::systems::availability::AvailabilityOperations;

/// The header that says where an answer was read: `mirror`, `truth` or `cache`.
const SOURCE: HeaderName = HeaderName::from_static("lapsed-source");

/// The header that is `behind` if the mirror could not be updated yet.
const MIRROR: HeaderName = HeaderName::from_static("lapsed-mirror");

/// The routes of all operations on availability.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .merge(providers::routes())
        .merge(reading::routes())
        .merge(sessions::routes())
        .merge(config::routes())
}

fn availability<'a>(app: &'a Shared, name: &str) -> HttpResult<&'a Availability> {
    Ok(&app.operations::<AvailabilityOperations>(Kind::Availability, name)?.system)
}

/// An answer with the header that says where it was read.
struct From<T> {
    source: Source,
    answer: T,
}

impl<T> From<T> {
    fn of<A>(sourced: Sourced<A>, shape: impl FnOnce(A) -> T) -> From<T> {
        From { source: sourced.source, answer: shape(sourced.answer) }
    }

    fn truth(answer: T) -> From<T> {
        From { source: Source::Truth, answer }
    }
}

impl<T: Serialize> IntoResponse for From<T> {
    fn into_response(self) -> Response {
        let mut response = JsonAnswer(self.answer).into_response();
        let value = HeaderValue::from_static(self.source.as_str());
        response.headers_mut().insert(SOURCE, value);
        response
    }
}

/// The answer to a write, with the header that says whether the mirror was updated.
struct WriteResponse<T> {
    mirrored: bool,
    answer: T,
}

impl<T> WriteResponse<T> {
    fn of<A>(written: Written<A>, shape: impl FnOnce(A) -> T) -> WriteResponse<T> {
        WriteResponse { mirrored: written.mirrored, answer: shape(written.answer) }
    }
}

impl<T: Serialize> IntoResponse for WriteResponse<T> {
    fn into_response(self) -> Response {
        let mut response = JsonAnswer(self.answer).into_response();
        if !self.mirrored {
            response.headers_mut().insert(MIRROR, HeaderValue::from_static("behind"));
        }
        response
    }
}

fn nobody(id: &Name) -> Problem {
    let detail =
        format!("there is no provider {:?}; make it with PUT providers/ID first", id.as_str());
    Problem::not_found(detail).with("provider", json!(id))
}

fn deactivated(id: &Name) -> Problem {
    let detail = format!(
        "{:?} is deactivated, and no heartbeat was recorded; an operator may let it work again with POST \
         providers/ID/activate",
        id.as_str()
    );
    Problem::new(StatusCode::FORBIDDEN, "deactivated", "The provider is deactivated", detail)
        .with("provider", json!(id))
}

fn not_online(id: &Name) -> Problem {
    let detail = format!(
        "{:?} is not online (any more), and nothing was noted: it was set offline, by itself or because \
         it was silent, or nobody knows it; it comes back with POST providers/ID/online",
        id.as_str()
    );
    Problem::new(StatusCode::CONFLICT, "not_online", "The provider is not online", detail)
        .with("provider", json!(id))
}
