//! The part of HTTP/1.1 that a proxy and a probe of a server need: one request per connection.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::{TestbedError, TestbedResult};

/// The largest head in bytes; a longer one is not HTTP.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// A request or an answer: its first line, its headers as they came, its body.
#[derive(Debug, Clone, Default)]
pub(crate) struct Message {
    pub(crate) first: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Message {
    /// Reads one; `None` if the other side closed before it began. `to_end`: without a length the
    /// body ends where the connection does.
    pub(crate) fn read(input: &mut impl BufRead, to_end: bool) -> TestbedResult<Option<Message>> {
        let mut message = Message::default();
        let mut size = 0;
        loop {
            let mut line = String::new();
            if input.read_line(&mut line)? == 0 {
                return if size == 0 {
                    Ok(None)
                } else {
                    Err(TestbedError::new("a head without end"))
                };
            }
            size += line.len();
            if size > HEAD_BYTES_MAX {
                return Err(TestbedError::new("the head is too long"));
            }
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            match line.split_once(':') {
                Some((name, value)) if !message.first.is_empty() => {
                    message.headers.push((name.to_owned(), value.trim().to_owned()));
                }
                _ => line.clone_into(&mut message.first),
            }
        }
        message.body = message.read_body(input, to_end)?;
        Ok(Some(message))
    }

    fn read_body(&self, input: &mut impl BufRead, to_end: bool) -> TestbedResult<Vec<u8>> {
        let mut body = Vec::new();
        if self.header("transfer-encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked")) {
            while read_chunk(input, &mut body)? {}
        } else if let Some(length) = self.header("content-length") {
            let length = length.parse().map_err(|_| TestbedError::new("not a length"))?;
            body.resize(length, 0);
            input.read_exact(&mut body)?;
        } else if to_end {
            input.read_to_end(&mut body)?;
        }
        Ok(body)
    }

    /// The first header of that name, in any case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Sets a header in place of those of that name.
    pub(crate) fn set_header(&mut self, name: &str, value: &str) {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.to_owned()));
    }

    /// As bytes, with the length of its body and for one connection.
    pub(crate) fn bytes(mut self) -> Vec<u8> {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case("transfer-encoding"));
        self.set_header("connection", "close");
        // The answer to a HEAD tells a length that it does not have.
        if self.header("content-length").is_none() || !self.body.is_empty() {
            let length = self.body.len().to_string();
            self.set_header("content-length", &length);
        }
        let mut bytes = format!("{}\r\n", self.first).into_bytes();
        for (name, value) in &self.headers {
            bytes.extend(format!("{name}: {value}\r\n").into_bytes());
        }
        bytes.extend(b"\r\n");
        bytes.extend(self.body);
        bytes
    }

    /// The status of an answer; 0 if this is none.
    pub(crate) fn status(&self) -> u16 {
        self.first.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or_default()
    }
}

/// One chunk; whether there may be more.
fn read_chunk(input: &mut impl BufRead, body: &mut Vec<u8>) -> TestbedResult<bool> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let size = line.trim().split(';').next().unwrap_or_default();
    let size = usize::from_str_radix(size, 16).map_err(|_| TestbedError::new("not a chunk"))?;
    let begin = body.len();
    body.resize(begin + size, 0);
    input.read_exact(&mut body[begin..])?;
    line.clear();
    input.read_line(&mut line)?;
    Ok(size > 0)
}

/// The answer to a request.
#[derive(Debug, Clone)]
pub struct HttpAnswer {
    pub status: u16,
    pub body: String,
}

/// One request to a server on this machine: `method` and `target` as in `GET` and `/path?query`.
pub fn http_call(
    port: u16,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    limit: Duration,
) -> TestbedResult<HttpAnswer> {
    let mut stream = connect(port, limit)?;
    let mut request =
        Message { first: format!("{method} {target} HTTP/1.1"), ..Message::default() };
    request.set_header("host", &format!("127.0.0.1:{port}"));
    headers.iter().for_each(|(name, value)| request.set_header(name, value));
    stream.write_all(&request.bytes())?;
    let answer = Message::read(&mut BufReader::new(stream), true)?;
    let answer = answer.ok_or_else(|| TestbedError::new("no answer"))?;
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    Ok(HttpAnswer { status: answer.status(), body })
}

/// A connection on which every step may take `limit`.
pub(crate) fn connect(port: u16, limit: Duration) -> TestbedResult<TcpStream> {
    let place = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect_timeout(&place, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::Message;

    #[test]
    fn bodies_end_where_they_say() {
        let whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        let answer = Message::read(&mut &whole[..], true).unwrap().unwrap();
        assert_eq!((answer.status(), &*answer.body), (200, &b"abc"[..]));
        let text = String::from_utf8(answer.bytes()).unwrap();
        assert!(text.contains("content-length: 3") && text.ends_with("\r\n\r\nabc"), "{text}");
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab...";
        assert_eq!(Message::read(&mut &head[..], true).unwrap().unwrap().body, b"ab");
        assert!(Message::read(&mut &b""[..], true).unwrap().is_none());
    }
}
