//! The signals that stop a program in the foreground: SIGTERM, SIGINT (Ctrl-C) and SIGHUP (the
//! terminal was closed).

use std::sync::mpsc::{Receiver, channel};

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// Starts to listen for these signals. The receiver gets one message at the first signal. `then`
/// runs right after that message was sent, for callers that may be unable to read it.
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
