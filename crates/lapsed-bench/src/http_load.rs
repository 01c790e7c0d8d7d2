//! The smallest load generator that keeps connections alive: as little work of its own as possible,
//! since it shares the machine with the server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Connections that stay open between rounds.
pub struct HttpLoad {
    connections: Vec<HttpConnection>,
}

impl HttpLoad {
    pub async fn connect(address: SocketAddr, connections: usize) -> Result<Self> {
        let mut load = HttpLoad { connections: Vec::new() };
        for _ in 0..connections {
            load.connections.push(HttpConnection::open(address).await?);
        }
        Ok(load)
    }

    /// Sends `count` of the requests, over all connections, each waiting for its answer: answers a
    /// second.
    pub async fn run(&mut self, requests: &Arc<Vec<Vec<u8>>>, count: usize) -> Result<f64> {
        let each = count / self.connections.len();
        let began = Instant::now();
        let mut running = Vec::new();
        for (number, mut connection) in self.connections.drain(..).enumerate() {
            let requests = requests.clone();
            running.push(tokio::spawn(async move {
                for i in 0..each {
                    connection.ask(&requests[(number * each + i) % requests.len()]).await?;
                }
                Ok::<_, anyhow::Error>(connection)
            }));
        }
        for connection in running {
            self.connections.push(connection.await??);
        }
        Ok((each * self.connections.len()) as f64 / began.elapsed().as_secs_f64())
    }
}

pub struct HttpConnection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl HttpConnection {
    pub async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(HttpConnection { stream, buffer: vec![0; 16 << 10] })
    }

    /// One request, one answer; anything but a 2xx is an error.
    pub async fn ask(&mut self, request: &[u8]) -> Result<()> {
        self.stream.write_all(request).await?;
        let mut filled = 0;
        loop {
            let read = self.stream.read(&mut self.buffer[filled..]).await?;
            ensure!(read > 0, "the server closed the connection");
            filled += read;
            match whole(&self.buffer[..filled])? {
                true => return Ok(()),
                false => ensure!(filled < self.buffer.len(), "the answer is too long"),
            }
        }
    }
}

/// Whether a whole answer is there.
fn whole(answer: &[u8]) -> Result<bool> {
    let Some(head) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(false);
    };
    let text = std::str::from_utf8(&answer[..head])?;
    if text.as_bytes().get(9) != Some(&b'2') {
        bail!("the server answered:\n{}", String::from_utf8_lossy(answer));
    }
    Ok(answer.len() >= head + 4 + content_length(text)?)
}

fn content_length(head: &str) -> Result<usize> {
    for line in head.lines().skip(1) {
        let (name, value) = line.split_once(':').context("a header has no colon")?;
        if name.eq_ignore_ascii_case("content-length") {
            return Ok(value.trim().parse()?);
        }
    }
    // 204 and the like: nothing follows.
    Ok(0)
}

/// A request with a JSON body, or without one.
pub fn request(method: &str, path: &str, body: Option<&str>) -> Vec<u8> {
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
    let rest = match body {
        Some(body) => format!(
            "content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ),
        None => "\r\n".to_owned(),
    };
    (head + &rest).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_when_its_body_is() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        assert!(whole(answer).unwrap());
        assert!(!whole(&answer[..answer.len() - 1]).unwrap());
        assert!(!whole(&answer[..20]).unwrap());
        assert!(whole(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap());
        assert!(whole(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").is_err());
    }
}
