//! One connection through the proxy: a thread for the requests, a thread for the answers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::Shared;
use crate::TestbedResult;
use crate::resp::{self, Reply};

const NONE: u64 = u64::MAX;

/// Connects on and carries both ways until one side closes or an answer is lost.
pub(super) fn serve(client: TcpStream, shared: &Shared) {
    let upstream = shared.upstream.load(Ordering::SeqCst);
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, upstream)) else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let Ok(number) = shared.note(&client, &server) else { return };
    // The proxy was redirected meanwhile: a client that was let in before is disconnected.
    if shared.upstream.load(Ordering::SeqCst) != upstream {
        return shared.close(number);
    }
    let victim = AtomicU64::new(NONE);
    thread::scope(|scope| {
        scope.spawn(|| {
            // After a victim the answers' thread closes: the answer is still to come.
            if !matches!(carry_requests(&client, &server, shared, &victim), Ok(true)) {
                shared.close(number);
            }
        });
        let _ = carry_answers(&server, &client, shared, &victim);
        shared.close(number);
    });
}

/// Requests, up to and with the first whose answer is to be lost; then `true`. Its number (from 0)
/// is in `victim` before the request is on its way.
fn carry_requests(
    mut from: &TcpStream,
    mut to: &TcpStream,
    shared: &Shared,
    victim: &AtomicU64,
) -> TestbedResult<bool> {
    let (mut unsent, mut chunk, mut count) = (Vec::new(), vec![0; 64 * 1024], 0);
    loop {
        let n = from.read(&mut chunk)?;
        if n == 0 {
            return Ok(false);
        }
        unsent.extend_from_slice(&chunk[..n]);
        let mut whole = 0;
        while let Some(length) = resp::request_length(&unsent[whole..])? {
            let request = &unsent[whole..whole + length];
            whole += length;
            if shared.losses.take(request) {
                victim.store(count, Ordering::SeqCst);
                to.write_all(&unsent[..whole])?;
                return Ok(true);
            }
            count += 1;
        }
        to.write_all(&unsent[..whole])?;
        unsent.drain(..whole);
    }
}

/// Answers, up to the one that is to be lost.
fn carry_answers(
    mut from: &TcpStream,
    mut to: &TcpStream,
    shared: &Shared,
    victim: &AtomicU64,
) -> TestbedResult<()> {
    let (mut unsent, mut chunk, mut count) = (Vec::new(), vec![0; 64 * 1024], 0);
    loop {
        let n = from.read(&mut chunk)?;
        if n == 0 {
            return Ok(());
        }
        unsent.extend_from_slice(&chunk[..n]);
        let mut whole = 0;
        while let Some((reply, length)) = resp::decode(&unsent[whole..])? {
            if count == victim.load(Ordering::SeqCst) && !matches!(reply, Reply::Push(_)) {
                thread::sleep(shared.delay());
                to.write_all(&unsent[..whole])?;
                shared.losses.note_lost();
                return Ok(());
            }
            count += u64::from(!matches!(reply, Reply::Push(_)));
            whole += length;
        }
        thread::sleep(shared.delay());
        to.write_all(&unsent[..whole])?;
        unsent.drain(..whole);
    }
}
