//! An HTTP server that records requests and answers each as the test says; one thread per
//! connection.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Sender};

use serde_json::Value;

use super::PATIENCE;

/// A received request, and the channel for its answer.
pub struct ReceivedRequest {
    pub path: String,
    pub key: String,
    pub headers: BTreeMap<String, String>,
    pub bytes: Vec<u8>,
    pub body: Value,
    pub answer: Sender<&'static str>,
}

pub struct Receiver {
    pub port: u16,
    pub knocks: mpsc::Receiver<ReceivedRequest>,
}

pub const OK: &str = "204 No Content\r\n";
pub const SERVER_ERROR: &str = "500 Internal Server Error\r\n";

impl Receiver {
    pub fn open() -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (tell, knocks) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let tell = tell.clone();
                std::thread::spawn(move || serve(stream, &tell));
            }
        });
        Receiver { port, knocks }
    }

    pub fn next(&self) -> ReceivedRequest {
        self.knocks.recv_timeout(PATIENCE).expect("it is called")
    }
}

fn serve(mut stream: TcpStream, tell: &Sender<ReceivedRequest>) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?);
    let mut first = String::new();
    lines.read_line(&mut first).ok()?;
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let mut bytes = vec![0; headers.get("content-length")?.parse().ok()?];
    lines.read_exact(&mut bytes).ok()?;
    let (answer, told) = mpsc::channel();
    let path = first.split(' ').nth(1)?.to_owned();
    let key = headers.get("idempotency-key").cloned().unwrap_or_default();
    let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    tell.send(ReceivedRequest { path, key, headers, bytes, body, answer }).ok()?;
    let answer = told.recv().ok()?;
    write!(stream, "HTTP/1.1 {answer}connection: close\r\ncontent-length: 0\r\n\r\n").ok()
}
