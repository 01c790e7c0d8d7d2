//! The HTTP client that sends traces to the collector. It blocks, and is called on the exporter's
//! own thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use ureq::Agent;

use crate::outbound::{self, OutboundUrl, silent};

/// The longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug)]
pub struct OtlpClient {
    agent: Agent,
    /// Whether the last call failed. Only a change is logged, not every failed batch.
    is_away: AtomicBool,
}

impl OtlpClient {
    /// A client of the collector at `address`; no call takes longer than `timeout`.
    pub fn new(address: &OutboundUrl, timeout: Duration) -> OtlpClient {
        OtlpClient { agent: outbound::agent(address, timeout), is_away: AtomicBool::new(false) }
    }

    fn call(&self, request: Request<Bytes>) -> Result<Response<Bytes>, String> {
        let answer = self.agent.run(request.map(|body| body.to_vec())).map_err(|e| silent(&e))?;
        let (parts, body) = answer.into_parts();
        let body = body.into_with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let body = body.map_err(|error| silent(&error))?;
        Ok(Response::from_parts(parts, Bytes::from(body)))
    }

    fn tell(&self, failed: Option<&str>) {
        let was_away = self.is_away.swap(failed.is_some(), Ordering::Relaxed);
        match (was_away, failed) {
            (false, Some(why)) => {
                tracing::warn!(why, "traces cannot be sent; some will be missing")
            }
            (true, None) => tracing::info!("traces can be sent again"),
            _ => {}
        }
    }
}

#[async_trait]
impl HttpClient for OtlpClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.call(request);
        let refused = match &answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("the collector answers {}", answer.status().as_u16())),
            Err(why) => Some(why.clone()),
        };
        self.tell(refused.as_deref());
        answer.map_err(HttpError::from)
    }
}
