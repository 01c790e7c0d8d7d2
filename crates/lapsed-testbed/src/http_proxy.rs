//! A proxy that understands HTTP: it answers in the server's place, is slow, tells another time, or loses
//! the answer to what was carried out. It also writes down what was asked.
//!
//! One request a connection: the answer says so, and clients mind it.

use std::io::{BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use crate::http::{Message, connect};
use crate::port::Port;
use crate::{TestbedError, TestbedResult};

/// How long either side may take over one step.
const LIMIT: Duration = Duration::from_secs(60);
/// How many ports are tried when another process takes one first.
const PORTS_MAX: usize = 10;

/// What goes wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Answered by the proxy; the server never sees it.
    Answer(u16),
    /// Carried out, but answered with this status.
    AnswerAfter(u16),
    /// Carried out after this delay, then answered.
    Delay(Duration),
    /// Carried out; the connection is closed without an answer.
    DropAnswer,
    /// Never seen by the server; the connection is closed without an answer.
    DropRequest,
    /// Carried out at once, and answered after this delay.
    DelayAnswer(Duration),
}

/// Which requests it happens to.
#[derive(Debug, Clone)]
pub struct Rule {
    /// `GET`, `PUT`, ...; empty: any.
    pub method: &'static str,
    /// What its path and query contain; empty: anything.
    pub part: String,
    /// The number of matching requests that pass first.
    pub skip: usize,
    /// How often the fault happens after that.
    pub times: usize,
    pub fault: Fault,
}

impl Rule {
    /// To the next request of that kind.
    pub fn next(method: &'static str, part: &str, fault: Fault) -> Self {
        Rule { method, part: part.to_owned(), skip: 0, times: 1, fault }
    }

    /// To every one from now on.
    pub fn always(method: &'static str, part: &str, fault: Fault) -> Self {
        Rule { times: usize::MAX, ..Rule::next(method, part, fault) }
    }

    /// Lets this many matching requests pass first.
    pub fn skip(self, skip: usize) -> Self {
        Rule { skip, ..self }
    }
}

/// A proxy on a port of its own. Dropping it closes it.
pub struct HttpProxy {
    port: Port,
    shared: Arc<Shared>,
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    upstream: AtomicU16,
    rules: Mutex<Vec<Rule>>,
    seen: Mutex<Vec<String>>,
    date_shift_s: AtomicI64,
    /// Seconds since 1970; 0: the date is not set.
    date_set_s: AtomicU64,
    closed: AtomicBool,
    busy: AtomicUsize,
}

impl HttpProxy {
    /// A proxy to the server on `upstream_port`.
    pub fn start(upstream_port: u16) -> TestbedResult<Self> {
        let mut last = TestbedError::new("no port tried");
        for _ in 0..PORTS_MAX {
            let port = Port::free()?;
            match TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())) {
                Ok(listener) => return Self::open(port, listener, upstream_port),
                Err(error) => last = error.into(),
            }
        }
        Err(last)
    }

    fn open(port: Port, listener: TcpListener, upstream_port: u16) -> TestbedResult<Self> {
        let shared = Arc::new(Shared {
            upstream: AtomicU16::new(upstream_port),
            rules: Mutex::default(),
            seen: Mutex::default(),
            date_shift_s: AtomicI64::new(0),
            date_set_s: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
        });
        let (accepting, serving) = (listener.try_clone()?, Arc::clone(&shared));
        let thread = thread::spawn(move || {
            while let Ok((client, _)) = accepting.accept() {
                let shared = Arc::clone(&serving);
                thread::spawn(move || {
                    shared.busy.fetch_add(1, Ordering::SeqCst);
                    let _ = shared.serve(&client);
                    shared.busy.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Ok(Self { port, shared, listener, thread: Some(thread) })
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Rules are asked in their order; the first that fits a request decides.
    pub fn add(&self, rule: Rule) {
        locked(&self.shared.rules).push(rule);
    }

    /// Nothing goes wrong any more.
    pub fn clear(&self) {
        locked(&self.shared.rules).clear();
    }

    /// Whether every rule that happens a number of times has happened that often.
    pub fn is_done(&self) -> bool {
        locked(&self.shared.rules).iter().all(|rule| rule.times == 0 || rule.times == usize::MAX)
    }

    /// From now on every answer has this `date`, in seconds since 1970-01-01 UTC; nothing else changes.
    pub fn set_date(&self, unix_seconds: u64) {
        self.shared.date_set_s.store(unix_seconds, Ordering::SeqCst);
    }

    /// Shifts the `date` of the answers by this many seconds from now on; nothing else changes.
    pub fn shift_date(&self, seconds: i64) {
        self.shared.date_shift_s.store(seconds, Ordering::SeqCst);
    }

    /// Whether no request is under way: not even one whose client has gone.
    pub fn is_idle(&self) -> bool {
        self.shared.busy.load(Ordering::SeqCst) == 0
    }

    /// How many requests were seen since the last [`take_seen`](Self::take_seen).
    pub fn seen(&self) -> usize {
        locked(&self.shared.seen).len()
    }

    /// What was asked since the last call: `METHOD path?query`, in the order of arrival.
    pub fn take_seen(&self) -> Vec<String> {
        std::mem::take(&mut locked(&self.shared.seen))
    }
}

impl Drop for HttpProxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        // Wakes the thread out of its `accept`.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self, client: &TcpStream) -> TestbedResult<()> {
        client.set_read_timeout(Some(LIMIT))?;
        client.set_nodelay(true)?;
        let Some(request) = Message::read(&mut BufReader::new(client), false)? else {
            return Ok(());
        };
        let line = request.first.trim_end_matches(" HTTP/1.1").to_owned();
        locked(&self.seen).push(line.clone());
        let answer = match self.fault(&line) {
            None => self.forward(request)?,
            Some(Fault::Answer(status)) => made_up(status),
            Some(Fault::AnswerAfter(status)) => {
                self.forward(request)?;
                made_up(status)
            }
            Some(Fault::Delay(span)) => {
                thread::sleep(span);
                self.forward(request)?
            }
            Some(Fault::DelayAnswer(span)) => {
                let answer = self.forward(request)?;
                thread::sleep(span);
                answer
            }
            Some(Fault::DropAnswer) => return self.forward(request).map(|_| ()),
            Some(Fault::DropRequest) => return Ok(()),
        };
        let mut client = client;
        Ok(client.write_all(&self.redated(answer).bytes())?)
    }

    /// What happens to this request.
    fn fault(&self, line: &str) -> Option<Fault> {
        let mut rules = locked(&self.rules);
        let fits = |rule: &&mut Rule| {
            rule.times > 0 && line.starts_with(rule.method) && line.contains(&rule.part)
        };
        let rule = rules.iter_mut().find(fits)?;
        if rule.skip > 0 {
            rule.skip -= 1;
            return None;
        }
        if rule.times != usize::MAX {
            rule.times -= 1;
        }
        Some(rule.fault.clone())
    }

    fn forward(&self, request: Message) -> TestbedResult<Message> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(TestbedError::new("closed"));
        }
        let is_head = request.first.starts_with("HEAD ");
        let mut server = connect(self.upstream.load(Ordering::SeqCst), LIMIT)?;
        server.write_all(&request.bytes())?;
        let mut input = BufReader::new(server);
        let answer = if is_head {
            Message::read(&mut HeadOnly(input), false)?
        } else {
            Message::read(&mut input, true)?
        };
        answer.ok_or_else(|| TestbedError::new("the server closed without an answer"))
    }

    /// Changes the `date` of an answer as told by `set_date` or `shift_date`.
    fn redated(&self, mut answer: Message) -> Message {
        let set_s = self.date_set_s.load(Ordering::SeqCst);
        if set_s != 0 {
            let date = SystemTime::UNIX_EPOCH + Duration::from_secs(set_s);
            answer.set_header("date", &httpdate::fmt_http_date(date));
            return answer;
        }
        let shift = self.date_shift_s.load(Ordering::SeqCst);
        if shift == 0 {
            return answer;
        }
        let now = SystemTime::now();
        let span = Duration::from_secs(shift.unsigned_abs());
        let now = if shift < 0 { now - span } else { now + span };
        answer.set_header("date", &httpdate::fmt_http_date(now));
        answer
    }
}

/// The answer to a HEAD has a length and no body.
struct HeadOnly<R>(R);

impl<R: std::io::Read> std::io::Read for HeadOnly<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }

    fn read_exact(&mut self, _: &mut [u8]) -> std::io::Result<()> {
        Ok(())
    }
}

impl<R: std::io::BufRead> std::io::BufRead for HeadOnly<R> {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        self.0.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.0.consume(amount);
    }
}

/// As a server in trouble would put it.
fn made_up(status: u16) -> Message {
    let code = match status {
        412 => "PreconditionFailed",
        429 | 503 => "SlowDown",
        _ => "InternalError",
    };
    let mut answer = Message { first: format!("HTTP/1.1 {status} {code}"), ..Message::default() };
    answer.set_header("content-type", "application/xml");
    answer.set_header("date", &httpdate::fmt_http_date(SystemTime::now()));
    answer.body = format!("<Error><Code>{code}</Code></Error>").into_bytes();
    answer
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
