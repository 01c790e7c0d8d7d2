//! ZooKeeper, by its own protocol: sessions that each make a few ephemeral nodes, and are then cut off.
//!
//! A message is its length and its fields one after the other, numbers with the high byte first.
//! Only what is needed is written down: connecting, `create`, `exists`, `ping`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lapsed_testbed::{Coordinator, CoordinatorEngine};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::drain_time::{DrainTime, RemainingCounts};

/// What a session asks for, and how often it says that it is there.
const TIMEOUT: Duration = Duration::from_secs(10);
const PING_EVERY: Duration = Duration::from_secs(3);
/// How many sessions are begun at a time.
const BEGINNING: usize = 64;
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// It looks for what has expired every two seconds: sessions on both sides of such a tick go in two
/// lots, and the time between them is not work.
const BETWEEN_TICKS: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(300);
const PARENT: &str = "/leases";

const CREATE: i32 = 1;
const EXISTS: i32 = 3;
const PING: i32 = 11;
const PING_XID: i32 = -2;
const EPHEMERAL: i32 = 1;
const LASTING: i32 = 0;
/// Where in the answer to `exists` the number of children stands.
const CHILDREN_AT: usize = 16 + 56;

pub struct ZooKeeper {
    server: Coordinator,
}

impl ZooKeeper {
    pub async fn start(dir: &std::path::Path) -> Result<ZooKeeper> {
        let server = Coordinator::start(CoordinatorEngine::ZooKeeper, dir)?;
        Session::begin(server.port()).await?.create(PARENT, LASTING).await?;
        Ok(ZooKeeper { server })
    }

    pub fn version(&self) -> Result<String> {
        Ok(self.server.version()?)
    }

    /// So many sessions with so many nodes each lose their connections at one instant: how long it
    /// takes from the first node that goes to the last.
    pub async fn expire(&self, sessions: usize, each: usize) -> Result<DrainTime> {
        let mut watching = Session::begin(self.server.port()).await?;
        let (cut, is_cut) = watch::channel(false);
        let beginning = Arc::new(Semaphore::new(BEGINNING));
        let mut running = JoinSet::new();
        for number in 0..sessions {
            let (port, beginning, is_cut) = (self.server.port(), beginning.clone(), is_cut.clone());
            running.spawn(live(port, number, each, beginning, is_cut));
        }
        self.until_all_are_there(&mut watching, sessions * each, &mut running).await?;
        cut.send(true)?;
        while let Some(session) = running.join_next().await {
            session??;
        }
        self.until_gone(&mut watching, sessions * each).await
    }

    async fn until_all_are_there(
        &self,
        watching: &mut Session,
        all: usize,
        running: &mut JoinSet<Result<()>>,
    ) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(early) = running.try_join_next() {
                early?.context("a session")?;
            }
            let there = watching.children(PARENT).await?;
            if there == all {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "of {all} nodes there are only {there}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn until_gone(&self, watching: &mut Session, all: usize) -> Result<DrainTime> {
        let mut watched = RemainingCounts::new(all);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = watching.children(PARENT).await?;
            watched.saw(left);
            if left == 0 {
                return watched.result_without(BETWEEN_TICKS).context("they went at once");
            }
            ensure!(Instant::now() < deadline, "{left} of {all} are still there");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// One session: makes its nodes, says that it is there, and is cut off after it has said so once more.
async fn live(
    port: u16,
    number: usize,
    each: usize,
    beginning: Arc<Semaphore>,
    mut is_cut: watch::Receiver<bool>,
) -> Result<()> {
    let permit = beginning.acquire().await?;
    let mut session = Session::begin(port).await?;
    let paths: Vec<String> = (0..each).map(|i| format!("{PARENT}/{number:05}-{i:03}")).collect();
    session.create_all(&paths, EPHEMERAL).await?;
    drop(permit);
    loop {
        let waited = tokio::time::timeout(PING_EVERY, is_cut.changed()).await;
        session.ping().await?;
        if waited.is_ok() || *is_cut.borrow() {
            return Ok(());
        }
    }
}

struct Session {
    stream: TcpStream,
    xid: i32,
}

impl Session {
    async fn begin(port: u16) -> Result<Session> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let mut session = Session { stream, xid: 0 };
        let mut hello = Frame::new();
        // Version, last seen, what is asked for, no session so far, an empty password.
        hello.int(0).long(0).int(TIMEOUT.as_millis() as i32).long(0).bytes(&[0; 16]);
        session.stream.write_all(&hello.finish()).await?;
        let answer = session.answer().await?;
        ensure!(answer.len() >= 16, "the session was refused");
        Ok(session)
    }

    async fn create(&mut self, path: &str, kind: i32) -> Result<()> {
        self.create_all(&[path.to_owned()], kind).await
    }

    /// All of them are sent before the first answer is read.
    async fn create_all(&mut self, paths: &[String], kind: i32) -> Result<()> {
        let mut sent = Vec::new();
        for path in paths {
            let mut frame = self.request(CREATE);
            // One rule: anybody may do everything.
            frame.bytes(path.as_bytes()).bytes(b"holder").int(1).int(31);
            frame.bytes(b"world").bytes(b"anyone").int(kind);
            sent.extend(frame.finish());
        }
        self.stream.write_all(&sent).await?;
        for _ in paths {
            self.success().await?;
        }
        Ok(())
    }

    /// How many children a node has.
    async fn children(&mut self, path: &str) -> Result<usize> {
        let mut frame = self.request(EXISTS);
        frame.bytes(path.as_bytes()).flag(false);
        self.stream.write_all(&frame.finish()).await?;
        let answer = self.success().await?;
        let field = answer.get(CHILDREN_AT..CHILDREN_AT + 4).context("the answer is short")?;
        Ok(u32::from_be_bytes(field.try_into()?) as usize)
    }

    async fn ping(&mut self) -> Result<()> {
        let mut frame = Frame::new();
        frame.int(PING_XID).int(PING);
        self.stream.write_all(&frame.finish()).await?;
        self.success().await?;
        Ok(())
    }

    fn request(&mut self, what: i32) -> Frame {
        self.xid += 1;
        let mut frame = Frame::new();
        frame.int(self.xid).int(what);
        frame
    }

    /// The next answer, if it says that all went well: `xid`, `zxid`, the error, and what was asked.
    async fn success(&mut self) -> Result<Vec<u8>> {
        let answer = self.answer().await?;
        let error = answer.get(12..16).context("the answer is short")?;
        let error = i32::from_be_bytes(error.try_into()?);
        ensure!(error == 0, "ZooKeeper refuses: error {error}");
        Ok(answer)
    }

    async fn answer(&mut self) -> Result<Vec<u8>> {
        let length = self.stream.read_i32().await.context("the connection")?;
        let mut answer = vec![0; usize::try_from(length)?];
        self.stream.read_exact(&mut answer).await?;
        Ok(answer)
    }
}

/// A message that is being written.
struct Frame(Vec<u8>);

impl Frame {
    fn new() -> Self {
        // Room for the length.
        Frame(vec![0; 4])
    }

    fn int(&mut self, value: i32) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn long(&mut self, value: i64) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn flag(&mut self, value: bool) -> &mut Self {
        self.0.push(u8::from(value));
        self
    }

    fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.int(value.len() as i32);
        self.0.extend(value);
        self
    }

    fn finish(mut self) -> Vec<u8> {
        let length = (self.0.len() - 4) as i32;
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}
