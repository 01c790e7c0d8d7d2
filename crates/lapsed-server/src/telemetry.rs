//! OpenTelemetry traces, if configured: requests, passes with their batches, reconciliations, and
//! deliveries to webhooks.
//!
//! Spans go to a queue of bounded length and are sent by a thread of their own, so an unreachable
//! collector costs the spans that do not fit, and nothing else. Without `[telemetry]` the only cost
//! is one check per request. Traces and the log (`commands::log`) share nothing.

mod client;
mod tracing_observer;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, Method};
use axum::response::Response;
use opentelemetry::context::FutureExt;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanKind, Status, TraceContextExt, TraceFlags, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};

use self::client::OtlpClient;
pub use self::tracing_observer::TracingObserver;
use crate::config::telemetry::TelemetryPlan;
use crate::failure::Failure;

/// The time limit of one export.
const EXPORT: Duration = Duration::from_secs(5);

/// The time limit of the last export, when the daemon stops.
const FLUSH: Duration = Duration::from_secs(3);

/// Creates spans and exports them.
pub struct Telemetry {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
}

impl Telemetry {
    pub fn start(plan: &TelemetryPlan) -> Result<Arc<Telemetry>, Failure> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(OtlpClient::new(&plan.otlp, EXPORT))
            .with_endpoint(format!("{}/v1/traces", plan.otlp.reveal()))
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(EXPORT)
            .build()
            .map_err(|_| Failure::usage("`telemetry.otlp`: no traces can be sent there"))?;
        let who = Resource::builder().with_service_name(plan.service.clone());
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let sampler = Sampler::TraceIdRatioBased(plan.sample);
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(Sampler::ParentBased(Box::new(sampler)))
            .with_resource(who.with_attribute(version).build())
            .build();
        let tracer = provider.tracer("lapsed");
        let propagator = TraceContextPropagator::new();
        Ok(Arc::new(Telemetry { provider, tracer, propagator }))
    }

    /// Exports the remaining spans, within a short time limit. Blocks the calling thread.
    pub fn end(&self) {
        if self.provider.shutdown_with_timeout(FLUSH).is_err() {
            tracing::warn!("not all traces could be sent");
        }
    }

    /// Handles a request inside a span whose parent is the span that the `traceparent` header
    /// names.
    pub async fn answer<E>(
        self: Arc<Self>,
        asked: TracedRequest,
        work: impl Future<Output = Result<Response, E>>,
    ) -> Result<Response, E> {
        let parent = self.propagator.extract(&HeaderExtractor(&asked.headers));
        let span = self
            .tracer
            .span_builder(asked.method.to_string())
            .with_kind(SpanKind::Server)
            .with_attributes([
                KeyValue::new("http.request.method", asked.method.to_string()),
                KeyValue::new("url.path", asked.path),
            ])
            .start_with_context(&self.tracer, &parent);
        let context = parent.with_span(span);
        let answer = work.with_context(context.clone()).await;
        if let Ok(answer) = &answer {
            let status = answer.status();
            let code = i64::from(status.as_u16());
            context.span().set_attribute(KeyValue::new("http.response.status_code", code));
            if status.is_server_error() {
                context.span().set_status(Status::error(status.to_string()));
            }
        }
        context.span().end();
        answer
    }

    /// Starts a span for one attempt at a delivery; the receiver can continue its trace.
    pub fn begin_delivery(&self, attributes: Vec<KeyValue>) -> Context {
        let parent = Context::current();
        let span = self
            .tracer
            .span_builder("webhook delivery")
            .with_kind(SpanKind::Client)
            .with_attributes(attributes)
            .start_with_context(&self.tracer, &parent);
        parent.with_span(span)
    }
}

/// The headers that say to which trace a request belongs.
const TRACE_HEADERS: [&str; 2] = ["traceparent", "tracestate"];

/// The parts of a request that its span needs.
pub struct TracedRequest {
    pub method: Method,
    pub path: String,
    pub headers: HeaderMap,
}

impl TracedRequest {
    pub fn of(request: &Request) -> TracedRequest {
        let path = request.uri().path().to_owned();
        let headers =
            request.headers().iter().filter(|(name, _)| TRACE_HEADERS.contains(&name.as_str()));
        let headers = headers.map(|(name, value)| (name.clone(), value.clone())).collect();
        TracedRequest { method: request.method().clone(), path, headers }
    }
}

/// The header `traceparent` in the W3C format.
pub fn traceparent(context: &Context) -> String {
    let span = context.span();
    let span = span.span_context();
    let flags = span.trace_flags() & TraceFlags::SAMPLED;
    format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), flags.to_u8())
}

/// Ends a span; `why` marks it as failed.
pub fn end_with(context: &Context, why: Option<&str>) {
    if let Some(why) = why {
        context.span().set_status(Status::error(why.to_owned()));
    }
    context.span().end();
}
