//! Reserves ports: between a kill and a restart of a server, no other test takes its port.
//!
//! Ports come from below the range that the system gives to outgoing connections, and so that a
//! cluster's bus (10,000 higher) is also below it and never another server's port. A locked file a
//! port keeps parallel test processes apart; the lock ends with its process, whichever way. Another
//! program's server can still be there first: code that listens handles "Address already in use".

use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::path::PathBuf;

use rustix::process::getuid;

use crate::{TestbedError, TestbedResult};

const RANGE: Range<u16> = 10_000..20_000;
const BUS_OFFSET: u16 = 10_000;

/// A port, reserved for as long as this value lives.
pub struct Port {
    number: u16,
    /// `None` for a port that the caller chose, which is not reserved.
    _lock: Option<File>,
}

impl Port {
    pub(crate) fn fixed(number: u16) -> Self {
        Self { number, _lock: None }
    }

    /// A port on which, and on whose cluster bus port, no process listens now.
    pub fn free() -> TestbedResult<Self> {
        let locks = locks_dir()?;
        let width = RANGE.end - RANGE.start;
        let start = (RandomState::new().hash_one(0) % u64::from(width)) as u16;
        for step in 0..width {
            let number = RANGE.start + (start + step) % width;
            let lock = File::create(locks.join(number.to_string()))?;
            match lock.try_lock() {
                Ok(()) if unused(number) && unused(number + BUS_OFFSET) => {
                    return Ok(Self { number, _lock: Some(lock) });
                }
                Ok(()) | Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
        }
        Err(TestbedError::new(format!("no free port in {RANGE:?}")))
    }

    pub fn number(&self) -> u16 {
        self.number
    }
}

fn unused(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

fn locks_dir() -> TestbedResult<PathBuf> {
    let dir = std::env::temp_dir().join(format!("lapsed-testbed-ports-{}", getuid().as_raw()));
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Port;

    #[test]
    fn reserved_ports_differ() {
        let ports: Vec<Port> = (0..200).map(|_| Port::free().unwrap()).collect();
        let numbers: BTreeSet<u16> = ports.iter().map(Port::number).collect();
        assert_eq!(numbers.len(), 200);
    }
}
