//! The body of a delivery: a batch of events as JSON, an id, and a signature over the time and the
//! exact bytes.

use lapsed_core::receipt::Receipt;
use lapsed_core::{Name, SystemId};
use ring::hmac;
use serde_json::{Value, json};

use crate::config::webhook::WebhookConfig;
use crate::outbound::header_safe;

/// One delivery, which is the same for each of its attempts.
pub struct Body {
    pub delivery: String,
    pub bytes: Vec<u8>,
}

impl Body {
    /// A delivery of receipts of one system; there must be at least one.
    pub fn of(webhook: &Name, system: &SystemId, receipts: &[Receipt]) -> Body {
        let seq = |receipt: Option<&Receipt>| receipt.map_or(0, |receipt| receipt.id.seq);
        let (first, last) = (seq(receipts.first()), seq(receipts.last()));
        let SystemId { kind, name } = system;
        let delivery = format!("{webhook}-{kind}-{name}-{first}-{last}");
        let events: Vec<Value> =
            receipts.iter().map(|receipt| json!({ "event": "receipt", "data": receipt })).collect();
        Self::write(webhook, delivery, events)
    }

    /// A test delivery, whose event has no content.
    pub fn test(webhook: &Name, chance: u64) -> Body {
        let event = json!({ "event": "test", "data": { "webhook": webhook } });
        Self::write(webhook, format!("{webhook}-test-{chance:016x}"), vec![event])
    }

    fn write(webhook: &Name, delivery: String, events: Vec<Value>) -> Body {
        let body = json!({ "delivery": delivery, "webhook": webhook, "events": events });
        Body { bytes: body.to_string().into_bytes(), delivery }
    }

    /// The headers of an attempt that is made at `now_s`, in seconds since 1970.
    pub fn headers(
        &self,
        webhook: &WebhookConfig,
        now_s: u64,
        attempt: u32,
    ) -> [(&'static str, String); 4] {
        let id = header_safe(&self.delivery);
        [
            ("lapsed-signature", sign(webhook.secret.reveal(), now_s, &self.bytes)),
            ("lapsed-delivery", id.clone()),
            ("idempotency-key", id),
            ("lapsed-attempt", attempt.to_string()),
        ]
    }
}

/// The signature header, `t=SECONDS,v1=HEX`: the HMAC-SHA256 of `SECONDS.BODY`.
fn sign(secret: &str, now_s: u64, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let mut context = hmac::Context::with_key(&key);
    context.update(format!("{now_s}.").as_bytes());
    context.update(body);
    let tag: String = context.sign().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={now_s},v1={tag}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected value was computed by another program: `printf '1700000000.{}' | openssl dgst
    /// -sha256 -hmac ...`.
    #[test]
    fn a_signature_covers_time_and_body() {
        assert_eq!(
            sign("0123456789abcdef", 1_700_000_000, b"{}"),
            "t=1700000000,v1=e4f8e2ecae2295b2ddb2f0b5584c8275e226c0ebe9b3b819e70156bb67122e3e"
        );
    }
}
