//! Several processes that want the same key: this very program, started anew for each.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use lapsed_core::Name;
use lapsed_core::leases::{AcquireRequest, Acquired, Fenced, Leases, LeasesParts};
use lapsed_testbed::Program;
use serde::{Deserialize, Serialize};

use super::object_server::{BenchObjectServer, BucketAddress, lease_key};

const PREFIX: &str = "contest";
const TTL: Duration = Duration::from_secs(30);
/// How long a holder works.
const WORK: Duration = Duration::from_millis(50);
/// How long anybody waits for a turn, and for all of them.
const PATIENCE: Duration = Duration::from_secs(600);

/// The task of one process, passed on its command line.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Task {
    address: BucketAddress,
    owner: String,
    acquires: usize,
}

/// What it says at its end.
#[derive(Debug, Serialize, Deserialize)]
struct ContentionResult {
    requests: u64,
    acquired: u64,
}

pub struct Contention {
    tasks: Vec<Task>,
}

impl Contention {
    pub fn new(site: &BenchObjectServer, processes: usize, acquires: usize) -> Result<Contention> {
        let task =
            |number| Task { address: site.address(), owner: format!("process-{number}"), acquires };
        Ok(Contention { tasks: (0..processes).map(task).collect() })
    }

    /// Requests and acquires of all together.
    pub fn run(&self) -> Result<(u64, u64)> {
        let own = std::env::current_exe()?;
        let mut programs = Vec::new();
        for task in &self.tasks {
            let task = serde_json::to_string(task)?;
            programs.push(Program::start(&own, |command| {
                command.args(["--contend", &task]);
            })?);
        }
        let (mut requests, mut acquired) = (0, 0);
        for program in &programs {
            let said: ContentionResult = serde_json::from_str(&program.line(PATIENCE)?)?;
            requests += said.requests;
            acquired += said.acquired;
        }
        Ok((requests, acquired))
    }
}

pub fn contend(task: &str) -> Result<()> {
    let task: Task = serde_json::from_str(task).context("the task")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(take_turns(&task))?;
    println!("{}", serde_json::to_string(&result)?);
    Ok(())
}

async fn take_turns(task: &Task) -> Result<ContentionResult> {
    let place = task.address.open(PREFIX)?;
    let leases = Leases::new(
        LeasesParts::new(place.leases.clone(), place.store.clone(), TTL)
            .timeout(Duration::from_secs(60)),
        TTL,
    );
    let acquire = AcquireRequest {
        key: lease_key("ns", 0)?,
        owner: Name::new(&task.owner)?,
        ttl_ms: TTL.as_millis() as u64,
        request: None,
    };
    for _ in 0..task.acquires {
        let Acquired::Granted(grant) = leases.acquire(&acquire, PATIENCE).await? else {
            bail!("its turn never came");
        };
        tokio::time::sleep(WORK).await;
        if let Fenced::Lost(loss) = leases.release(&grant.ticket()).await? {
            bail!(loss.describe());
        }
    }
    let requests = place.store.requests().total();
    Ok(ContentionResult { requests, acquired: task.acquires as u64 })
}
