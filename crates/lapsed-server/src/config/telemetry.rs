//! `[telemetry]`: where traces are sent. Without it, there are no traces.

use serde::Deserialize;

use super::document::{Document, TomlNode};
use super::{ConfigError, Env};
use crate::outbound::OutboundUrl;

/// The default service name of the spans.
const SERVICE_DEFAULT: &str = "lapsed";

/// The section `[telemetry]` as it is written in the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TelemetrySection {
    otlp: Option<String>,
    service: Option<String>,
    sample: Option<f64>,
}

#[derive(Clone, Debug)]
pub struct TelemetryPlan {
    /// The address of the collector, without `/v1/traces`.
    pub otlp: OutboundUrl,
    pub service: String,
    /// The share of traces that is sampled, from 0 to 1, unless the caller's trace has decided
    /// already.
    pub sample: f64,
}

impl TelemetryPlan {
    pub fn describe(&self) -> String {
        let TelemetryPlan { otlp, service, sample } = self;
        format!(
            "traces of {service} go to {otlp} (OTLP over HTTP), {:.0} % of them",
            sample * 100.0
        )
    }
}

/// Reads the section, and uses OpenTelemetry's standard environment variables for what it does not
/// contain.
pub fn read(
    document: &Document,
    node: Option<&TomlNode<'_>>,
    env: &Env<'_>,
) -> Result<Option<TelemetryPlan>, ConfigError> {
    let given: TelemetrySection = match node {
        Some(node) => document.read("telemetry", node)?,
        None => TelemetrySection::default(),
    };
    let wrong = |key: &str, what: &str| {
        let value = node.and_then(|node| node.get_ref().get(key));
        document.wrong(value.map(|value| value.span()), &format!("telemetry.{key}"), what)
    };
    let said = |name: &str| env(name).filter(|text| !text.is_empty());
    let Some(otlp) = given.otlp.or_else(|| said("OTEL_EXPORTER_OTLP_ENDPOINT")) else {
        return Ok(None);
    };
    let sample = match (given.sample, said("OTEL_TRACES_SAMPLER_ARG")) {
        (Some(share), _) => share,
        (None, Some(text)) => text.parse().unwrap_or(f64::NAN),
        (None, None) => 1.0,
    };
    if !(0.0..=1.0).contains(&sample) {
        return Err(wrong("sample", "must be a share from 0 to 1"));
    }
    let service = given.service.or_else(|| said("OTEL_SERVICE_NAME"));
    Ok(Some(TelemetryPlan {
        otlp: OutboundUrl::parse(otlp.trim_end_matches('/')).map_err(|what| wrong("otlp", what))?,
        service: service.unwrap_or_else(|| SERVICE_DEFAULT.to_owned()),
        sample,
    }))
}
