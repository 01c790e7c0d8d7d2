//! The one thread that starts every server.
//!
//! A server is to die with the test process, also when that is killed: it asks the kernel for a
//! SIGKILL at its parent's death. To the kernel the parent is the *thread* that started it, and a
//! test's thread ends with its test. So one thread that ends only with the process starts them all.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use crate::{TestbedError, TestbedResult, paths};

type Order = (Command, Sender<io::Result<Child>>);

/// `program` as it must be started to die with this process. `setpriv` turns into the program, so
/// the child's pid is the program's.
pub(crate) fn dies_with_parent(program: &Path) -> TestbedResult<Command> {
    dies_with_parent_and(&[], program)
}

/// Like [`dies_with_parent`], with further arguments for `setpriv`.
pub(crate) fn dies_with_parent_and(
    arguments: &[OsString],
    program: &Path,
) -> TestbedResult<Command> {
    let mut command = Command::new(paths::setpriv()?);
    command.args(arguments).args(["--pdeathsig", "KILL", "--"]).arg(program);
    Ok(command)
}

/// Starts `command` from the long-living thread.
pub(crate) fn spawn(command: Command) -> TestbedResult<Child> {
    static ORDERS: OnceLock<Sender<Order>> = OnceLock::new();
    let gone = || TestbedError::new("the thread that starts servers is gone");
    let (answer, child) = channel();
    ORDERS.get_or_init(begin).send((command, answer)).map_err(|_| gone())?;
    Ok(child.recv().map_err(|_| gone())??)
}

fn begin() -> Sender<Order> {
    let (sender, orders) = channel::<Order>();
    thread::spawn(move || {
        for (mut command, answer) in orders {
            // The caller has gone away, so nobody would end the child: end it here.
            if let Err(unwanted) = answer.send(command.spawn())
                && let Ok(mut child) = unwanted.0
            {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    });
    sender
}
