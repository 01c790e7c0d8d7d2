//! A postmaster and its children, signalled as one.

use std::fs;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::{TestbedError, TestbedResult, until};

/// The children of a postmaster, by their pids.
pub(super) struct Family {
    children: Vec<u32>,
}

impl Family {
    /// Reads the current children of a postmaster.
    pub(super) fn of(postmaster: u32) -> TestbedResult<Self> {
        let mut children = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // One that ended meanwhile is nobody's child.
            if stat(pid).is_some_and(|stat| stat.parent == postmaster) {
                children.push(pid);
            }
        }
        Ok(Self { children })
    }

    /// SIGSTOP to all; returns when they stand still. The postmaster first: then there will be no more.
    pub(super) fn freeze(postmaster: u32, limit: Duration) -> TestbedResult<Self> {
        signal(postmaster, Signal::STOP)?;
        until("its standstill", limit, || Ok(stands(postmaster).then_some(())))?;
        let family = Self::of(postmaster)?;
        family.signal(Signal::STOP)?;
        until("its children's standstill", limit, || {
            Ok(family.children.iter().all(|pid| stands(*pid)).then_some(()))
        })?;
        Ok(family)
    }

    pub(super) fn signal(&self, what: Signal) -> TestbedResult<()> {
        self.children.iter().try_for_each(|pid| signal(*pid, what))
    }

    pub(super) fn await_end(&self, limit: Duration) -> TestbedResult<()> {
        until("the end of its children", limit, || {
            let left = self.children.iter().filter(|pid| !is_over(**pid)).count();
            Ok((left == 0).then_some(()))
        })
    }
}

/// To a process of this family; one that has ended needs no signal.
fn signal(pid: u32, signal: Signal) -> TestbedResult<()> {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = raw.ok_or_else(|| TestbedError::new(format!("{pid} is no pid")))?;
    match kill_process(pid, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

struct Stat {
    state: char,
    parent: u32,
}

/// `None`: there is no such process.
fn stat(pid: u32) -> Option<Stat> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some(Stat { state, parent: fields.next()?.parse().ok()? })
}

fn stands(pid: u32) -> bool {
    stat(pid).is_none_or(|stat| matches!(stat.state, 'T' | 'Z' | 'X'))
}

fn is_over(pid: u32) -> bool {
    stat(pid).is_none_or(|stat| matches!(stat.state, 'Z' | 'X'))
}
