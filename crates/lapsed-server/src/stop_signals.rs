//! What tells a program in the foreground to stop: SIGTERM, SIGINT (Ctrl-C) and SIGHUP (its terminal is gone).

use std::sync::mpsc::{Receiver, channel};

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// Listens from now on: one message when it is time to stop. `then` runs after that message was sent, for
/// whoever cannot be sure that it is read.
pub fn stop_signals(then: impl FnOnce() + Send + 'static) -> Result<Receiver<()>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut all = Vec::new();
    {
        let _inside = runtime.enter();
        for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
            all.push(signal(kind)?);
        }
    }
    let (tell, told) = channel();
    std::thread::spawn(move || {
        runtime.block_on(async {
            let heard = all.iter_mut().map(|signal| Box::pin(signal.recv()));
            let _ = futures::future::select_all(heard).await;
        });
        let _ = tell.send(());
        then();
    });
    Ok(told)
}
