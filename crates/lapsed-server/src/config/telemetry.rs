//! `[telemetry]`: where traces go. Nowhere, unless told.

use serde::Deserialize;

use super::document::{Document, TomlNode};
use super::{ConfigError, Env};
use crate::outbound::OutboundUrl;

/// What the spans say of who made them, unless told.
const SERVICE_DEFAULT: &str = "lapsed";

/// As the file writes it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TelemetrySection {
    otlp: Option<String>,
    service: Option<String>,
    sample: Option<f64>,
}

#[derive(Clone, Debug)]
pub struct TelemetryPlan {
    /// The collector, without `/v1/traces`.
    pub otlp: OutboundUrl,
    pub service: String,
    /// Which share of traces is kept, where nobody has decided that before.
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

/// From the file, else from the variables that every exporter of OpenTelemetry knows.
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
