//! The part of the Redis protocol (RESP2, and RESP3's frames) that tests need to query a server, and
//! the proxy to separate answers. No pipelining, no reconnecting.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::{TestbedError, TestbedResult};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Text of any length, also numbers that are not integers.
    Text(Vec<u8>),
    Integer(i64),
    Nil,
    /// The server's refusal, with its code in front: `WRONGTYPE ...`.
    Refusal(String),
    /// Arrays, sets, and maps as key, value, key, value.
    List(Vec<Reply>),
    Push(Vec<Reply>),
}

/// Text as it is, `(nil)`, and lists one element a line.
impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(bytes) => f.write_str(&String::from_utf8_lossy(bytes)),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Nil => f.write_str("(nil)"),
            Self::Refusal(words) => f.write_str(words),
            Self::List(items) | Self::Push(items) => {
                for (nth, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if nth == 0 { "" } else { "\n" })?;
                }
                Ok(())
            }
        }
    }
}

/// One connection to a server on loopback.
pub struct RespConnection {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl RespConnection {
    /// Connects; from then on each reading and writing may take `limit`.
    pub fn open(port: u16, limit: Duration) -> TestbedResult<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, unread: Vec::new() })
    }

    /// Sends a command and waits for its answer. A refusal by the server is an `Err` with its words.
    /// After any other `Err` the command may have been carried out, and the connection is of no use.
    pub fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> TestbedResult<Reply> {
        self.stream.write_all(&encode(args))?;
        loop {
            match self.read()? {
                Reply::Refusal(words) => return Err(TestbedError::new(words)),
                Reply::Push(_) => {}
                reply => return Ok(reply),
            }
        }
    }

    fn read(&mut self) -> TestbedResult<Reply> {
        let mut chunk = [0; 16 * 1024];
        loop {
            if let Some((reply, used)) = decode(&self.unread)? {
                self.unread.drain(..used);
                return Ok(reply);
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(TestbedError::new("connection closed before the answer")),
                Ok(n) => self.unread.extend_from_slice(&chunk[..n]),
                // With a time limit a stop of this process (SIGSTOP, SIGCONT) ends the waiting.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn encode<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args.iter().map(AsRef::as_ref) {
        bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The first whole frame in `bytes` and its length; `None` while it is not all there.
pub(crate) fn decode(bytes: &[u8]) -> TestbedResult<Option<(Reply, usize)>> {
    let Some((line, head)) = first_line(bytes) else { return Ok(None) };
    let (Some(kind), text) = (line.first(), line.get(1..).unwrap_or_default()) else {
        return Err(TestbedError::new("an empty line where an answer should begin"));
    };
    let reply = match kind {
        b'+' | b',' | b'(' | b'#' => Reply::Text(text.to_vec()),
        b'-' => Reply::Refusal(String::from_utf8_lossy(text).into_owned()),
        b':' => Reply::Integer(number(text)?),
        b'_' => Reply::Nil,
        b'$' | b'=' | b'!' => return block(*kind, number(text)?, bytes, head),
        b'*' | b'~' | b'>' => return list(*kind, number(text)?, bytes, head),
        b'%' => return list(*kind, number(text)? * 2, bytes, head),
        other => {
            return Err(TestbedError::new(format!("unknown answer type {:?}", char::from(*other))));
        }
    };
    Ok(Some((reply, head)))
}

/// The length of the first whole request in `bytes`: an array, or a line of an inline command.
pub(crate) fn request_length(bytes: &[u8]) -> TestbedResult<Option<usize>> {
    match bytes.first() {
        Some(b'*') => Ok(decode(bytes)?.map(|(_, used)| used)),
        _ => Ok(first_line(bytes).map(|(_, used)| used)),
    }
}

/// The first line without its end, and its length with it.
fn first_line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    Some((&bytes[..end], end + 2))
}

fn number(text: &[u8]) -> TestbedResult<i64> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| {
        TestbedError::new(format!("not a number: {}", String::from_utf8_lossy(text)))
    })
}

fn block(
    kind: u8,
    length: i64,
    bytes: &[u8],
    head: usize,
) -> TestbedResult<Option<(Reply, usize)>> {
    let Ok(length) = usize::try_from(length) else { return Ok(Some((Reply::Nil, head))) };
    let Some(body) = bytes.get(head..head + length) else { return Ok(None) };
    let used = head + length + 2;
    if bytes.len() < used {
        return Ok(None);
    }
    let reply = match kind {
        b'!' => Reply::Refusal(String::from_utf8_lossy(body).into_owned()),
        // Verbatim text begins with its format: `txt:`.
        b'=' => Reply::Text(body.get(4..).unwrap_or_default().to_vec()),
        _ => Reply::Text(body.to_vec()),
    };
    Ok(Some((reply, used)))
}

fn list(kind: u8, length: i64, bytes: &[u8], head: usize) -> TestbedResult<Option<(Reply, usize)>> {
    if length < 0 {
        return Ok(Some((Reply::Nil, head)));
    }
    let (mut items, mut used) = (Vec::new(), head);
    for _ in 0..length {
        let Some((item, length)) = decode(&bytes[used..])? else { return Ok(None) };
        items.push(item);
        used += length;
    }
    Ok(Some((if kind == b'>' { Reply::Push(items) } else { Reply::List(items) }, used)))
}

#[cfg(test)]
mod tests {
    use super::{Reply, decode, encode, request_length};

    #[test]
    fn a_frame_is_found_only_when_it_is_whole() {
        let whole = b"*3\r\n$2\r\nab\r\n:7\r\n*1\r\n$-1\r\n";
        for cut in 0..whole.len() {
            assert_eq!(decode(&whole[..cut]).unwrap(), None, "cut at {cut}");
        }
        let inner = Reply::List(vec![Reply::Nil]);
        let list = Reply::List(vec![Reply::Text(b"ab".to_vec()), Reply::Integer(7), inner]);
        assert_eq!(decode(whole).unwrap(), Some((list.clone(), whole.len())));
        assert_eq!(list.to_string(), "ab\n7\n(nil)");
    }

    #[test]
    fn frames_of_resp3_are_told_apart() {
        let map = b"%1\r\n+a\r\n,1.5\r\n+next\r\n";
        let (reply, used) = decode(map).unwrap().unwrap();
        assert_eq!((reply.to_string().as_str(), used), ("a\n1.5", map.len() - 7));
        assert!(matches!(decode(b">1\r\n+x\r\n").unwrap(), Some((Reply::Push(_), 8))));
        assert_eq!(decode(b"=6\r\ntxt:hi\r\n").unwrap().unwrap().0.to_string(), "hi");
        assert!(decode(b"?\r\n").is_err());
    }

    #[test]
    fn requests_end_where_they_end() {
        let mut two = encode(&["GET", "k"]);
        let first = two.len();
        two.extend_from_slice(b"PING\r\n");
        assert_eq!(request_length(&two).unwrap(), Some(first));
        assert_eq!(request_length(&two[first..]).unwrap(), Some(6));
        assert_eq!(request_length(&two[..first - 1]).unwrap(), None);
    }
}
