//! What a receiver of a webhook answers: any bytes, read by the client that delivers webhooks and the
//! outbox. The bytes come from memory, so that no port is used up.

use std::sync::OnceLock;
use std::time::Duration;

use lapsed_server::outbound::{OutboundUrl, agent, post};
use tokio::runtime::Runtime;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};
use ureq::{Agent, Error};

const SECRET: &str = "s3cret";

/// Answers every connection with the same bytes.
#[derive(Debug)]
struct FixedAnswer(Vec<u8>);

impl Connector<()> for FixedAnswer {
    type Out = AnswerInMemory;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _: Option<()>,
    ) -> Result<Option<AnswerInMemory>, Error> {
        let config = details.config;
        let buffers = LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size());
        Ok(Some(AnswerInMemory { buffers, rest: self.0.clone() }))
    }
}

/// A connection whose other side has said everything already.
struct AnswerInMemory {
    buffers: LazyBuffers,
    rest: Vec<u8>,
}

impl std::fmt::Debug for AnswerInMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes left", self.rest.len())
    }
}

impl Transport for AnswerInMemory {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, _: usize, _: NextTimeout) -> Result<(), Error> {
        Ok(())
    }

    fn await_input(&mut self, _: NextTimeout) -> Result<bool, Error> {
        let room = self.buffers.input_append_buf();
        let length = room.len().min(self.rest.len());
        room[..length].copy_from_slice(&self.rest[..length]);
        self.rest.drain(..length);
        self.buffers.input_appended(length);
        Ok(length > 0)
    }

    fn is_open(&mut self) -> bool {
        false
    }
}

/// Delivers to a receiver that answers with the input. Only an answer with a status of success is one.
pub fn read(input: &[u8]) {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| Runtime::new().expect("threads"));
    let address = OutboundUrl::parse(&format!("http://127.0.0.1:9/{SECRET}")).expect("an address");
    let config = agent(&address, Duration::from_secs(5)).config().clone();
    let client = Agent::with_parts(config, FixedAnswer(input.to_vec()), DefaultResolver::default());
    let headers = [("idempotency-key", "registry-default-1".to_owned())];
    match runtime.block_on(post(&client, &address, &headers, b"{}".to_vec())) {
        Ok(()) => {
            let words = input.split(|byte| *byte == b' ' || *byte == b'\r' || *byte == b'\n');
            let has_status = words.into_iter().any(|word| word.len() == 3 && word[0] == b'2');
            assert!(has_status, "taken for delivered: {:?}", String::from_utf8_lossy(input));
        }
        Err(why) => assert!(!why.is_empty() && !why.contains(SECRET), "{why}"),
    }
}
