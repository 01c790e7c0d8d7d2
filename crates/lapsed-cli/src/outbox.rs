//! The outbox: jobs that go back to queues out of the store's reach are delivered by HTTP.
//!
//! A delivery is a job in flight like any other: it is taken from the outbox by a worker of this
//! process, and completed when the other side has said that it has it. Whoever dies in between is
//! found by a pass, and the job is delivered again: at least once, with the same key each time.

use std::sync::Arc;
use std::time::Duration;

use lapsed::inflight::rules::End;
use lapsed::inflight::{Claimed, Done, Inflight, Worker};
use lapsed::schedule::Stop;
use lapsed::{Error, SystemId};
use serde::Serialize;
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::systems::inflight::webhook::{OUTBOX, Webhook};

/// Who delivers. Every process is a life of its own under this name.
const OWNER: &str = "lapsed:outbox";

/// How soon a worker that could not begin, or was lost, begins again.
const AGAIN: Duration = Duration::from_secs(1);

/// Delivers until told to stop. What is between two tries then is given back.
pub async fn run(system: SystemId, inflight: Arc<Inflight>, webhook: Webhook, stop: Stop) {
    let outbox = Outbox { system, inflight, agent: agent(&webhook), webhook, stop };
    while !outbox.stop.is_told() {
        if let Err(error) = outbox.deliver().await {
            tracing::warn!(system = %outbox.system, %error, "delivering broke off; beginning again");
            outbox.pause(AGAIN).await;
        }
    }
}

struct Outbox {
    system: SystemId,
    inflight: Arc<Inflight>,
    agent: Agent,
    webhook: Webhook,
    stop: Stop,
}

/// What is sent.
#[derive(Serialize)]
struct Delivery<'a> {
    system: &'a str,
    id: &'a str,
    queue: &'a str,
    payload: &'a str,
    crashes: u32,
    token: u64,
}

impl Outbox {
    /// One life of the worker.
    async fn deliver(&self) -> Result<(), Error> {
        let worker = Worker::start(self.inflight.clone(), OWNER).await?;
        let at_once = self.webhook.at_once;
        let ran = worker.run(&OUTBOX, at_once, &self.stop, |job| self.deliver_one(job)).await;
        // Whatever it still holds goes back at once; if even that fails, a pass finds it.
        let retired = worker.retire().await;
        ran.and(retired.map(drop))
    }

    /// Tries until it was taken, until there were too many tries, or until told to stop.
    async fn deliver_one(&self, job: Claimed) -> Result<Done, String> {
        let Some(key) = self.key(&job).await else { return Ok(Done::GiveBack(End::Front)) };
        let body = self.body(&job);
        let attempts = self.webhook.attempts;
        for attempt in 1..=attempts {
            let Err(why) = self.post(&key, &body).await else {
                tracing::info!(system = %self.system, job = %job.id, attempt, "delivered");
                return Ok(Done::Complete);
            };
            if attempt == attempts {
                tracing::error!(system = %self.system, job = %job.id, why, "delivery given up");
                return Err(format!("the webhook did not take it in {attempts} tries: {why}"));
            }
            tracing::warn!(system = %self.system, job = %job.id, attempt, why, "not delivered");
            self.pause(self.webhook.pause(attempt)).await;
            if self.stop.is_told() {
                break;
            }
        }
        Ok(Done::GiveBack(End::Front))
    }

    /// The same for every try at this job, and another one should an id be used again later.
    /// None when the job is gone, or told to stop before the store has answered.
    async fn key(&self, job: &Claimed) -> Option<String> {
        while !self.stop.is_told() {
            match self.inflight.job(&job.id).await {
                Ok(found) => {
                    let SystemId { kind, name } = &self.system;
                    return Some(format!("{kind}-{name}-{}-{}", job.id, found?.entered_ms));
                }
                Err(_) => self.pause(AGAIN).await,
            }
        }
        None
    }

    fn body(&self, job: &Claimed) -> Vec<u8> {
        let delivery = Delivery {
            system: &self.system.name,
            id: job.id.as_str(),
            queue: job.queue.as_str(),
            payload: &job.payload,
            crashes: job.crashes,
            token: job.token.0,
        };
        serde_json::to_vec(&delivery).unwrap_or_default()
    }

    /// One try. The error says nothing of the address.
    async fn post(&self, key: &str, body: &[u8]) -> Result<(), String> {
        let request = self.agent.post(self.webhook.address.reveal());
        let request = request
            .header("content-type", "application/json")
            .header("idempotency-key", header_safe(key));
        let body = body.to_vec();
        let answer = tokio::task::spawn_blocking(move || request.send(&body[..]));
        let answer = answer.await.map_err(|_| "the try was cut off".to_owned())?;
        match answer.map_err(|error| silent(&error))?.status() {
            status if status.is_success() => Ok(()),
            status if status.is_redirection() => {
                Err(format!("it answers {}; redirects are not followed", status.as_u16()))
            }
            status => Err(format!("it answers {}", status.as_u16())),
        }
    }

    /// So long, or until told to stop.
    async fn pause(&self, most: Duration) {
        tokio::select! {
            () = self.stop.told() => {}
            () = tokio::time::sleep(most) => {}
        }
    }
}

/// A time limit on everything, no redirects, no proxy.
fn agent(webhook: &Webhook) -> Agent {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .timeout_global(Some(webhook.timeout))
        .user_agent(concat!("lapsed/", env!("CARGO_PKG_VERSION")));
    let config = match webhook.address.reveal().starts_with("https:") {
        true => config.tls_config(tls()),
        false => config,
    };
    config.build().new_agent()
}

/// The certificates that this machine trusts.
fn tls() -> TlsConfig {
    let found = rustls_native_certs::load_native_certs();
    let owned = found.certs.iter().map(|cert| Certificate::from_der(cert.as_ref()).to_owned());
    let roots = RootCerts::Specific(Arc::new(owned.collect()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    TlsConfig::builder().root_certs(roots).unversioned_rustls_crypto_provider(provider).build()
}

/// Why there was no answer, without a word that could have come from the address.
fn silent(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(_) => "it does not answer in time".to_owned(),
        ureq::Error::Io(error) => format!("it cannot be reached: {}", error.kind()),
        ureq::Error::HostNotFound => "its host is not known".to_owned(),
        ureq::Error::ConnectionFailed => "no connection".to_owned(),
        ureq::Error::Tls(what) => format!("TLS: {what}"),
        ureq::Error::Rustls(error) => format!("TLS: {error}"),
        _ => "no answer that makes sense".to_owned(),
    }
}

/// Names may be any UTF-8; a header may not. What cannot stand there is written as %XX.
fn header_safe(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'!'..=b'~' if byte != b'%' => safe.push(byte as char),
            _ => safe.push_str(&format!("%{byte:02X}")),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;
    use crate::systems::inflight::webhook::Address;

    fn webhook(url: &str) -> Webhook {
        Webhook {
            address: Address::parse(url).unwrap(),
            timeout: Duration::from_secs(20),
            attempts: 1,
            backoff: Duration::from_secs(1),
            backoff_max: Duration::from_secs(1),
            at_once: 1,
        }
    }

    /// What answers on an https address must be TLS, and nothing is sent before it is.
    #[test]
    fn an_https_address_is_not_spoken_to_in_the_clear() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}/s3cret", listener.local_addr().unwrap());
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
            let mut hello = [0; 3];
            std::io::Read::read_exact(&mut stream, &mut hello).unwrap();
            hello
        });
        let sent = agent(&webhook(&url)).post(&url).send("body");
        let why = silent(&sent.unwrap_err());
        assert!(!why.contains("s3cret"), "{why}");
        assert_eq!(answering.join().unwrap()[..2], [22, 3], "a TLS handshake: {why}");
    }

    #[test]
    fn any_name_fits_into_a_header() {
        assert_eq!(header_safe("inflight-jobs-a/b:c-17"), "inflight-jobs-a/b:c-17");
        assert_eq!(header_safe("é 100%"), "%C3%A9%20100%25");
    }
}
