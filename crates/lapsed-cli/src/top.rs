//! `lapsed top`: every system live in a terminal.
//!
//! The state is a `TopModel`; `keys` decides what a key does to it, and `draw` draws it, both without I/O. This
//! module has the main loop: it receives messages from the threads of `feed` and keys from the terminal, updates
//! the model, and redraws it. The terminal is restored when the loop ends, on a panic and on a signal.

mod draw;
mod feed;
mod keys;
mod model;
#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use self::feed::{Feed, TopUpdate};
use self::model::TopModel;
use crate::backend::{self, RemoteBackend};
use crate::cli::TargetArgs;
use lapsed_server::failure::Failure;
use lapsed_server::stop_signals::stop_signals;

/// The time between two redraws without an event, so that displayed ages stay correct.
const TICK: Duration = Duration::from_millis(500);

/// How long the loop waits for a key before it handles messages of the feed.
const LOOK: Duration = Duration::from_millis(50);

/// The exit code by which shells report an end by SIGHUP.
const EXIT_HANGUP: i32 = 128 + 1;

/// How long the loop may take to notice a termination signal.
const STOP_WITHIN: Duration = Duration::from_secs(1);

/// Runs until `q` is pressed or a termination signal arrives.
pub fn run(target: &TargetArgs) -> Result<(), Failure> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::usage(
            "`lapsed top` draws on a terminal, and this is none; use `lapsed status` for one look, or \
             `lapsed receipts --follow` for what comes",
        ));
    }
    let remote = backend::remote(target)?;
    // The first request must succeed: a wrong address or token is a plain error, not a screen.
    let status = backend::Backend::status(&remote)?;
    let mut model = TopModel::new(remote.url(), std::env::var_os("NO_COLOR").is_none());
    model.apply(TopUpdate::Status(status), feed::now_ms());
    let ending = stop_signals(leave_by_force)?;
    let mut terminal = ratatui::try_init()?;
    let shown = watch(&mut terminal, &mut model, remote, &ending);
    ratatui::restore();
    shown
}

fn watch(
    terminal: &mut DefaultTerminal,
    model: &mut TopModel,
    remote: RemoteBackend,
    ending: &Receiver<()>,
) -> Result<(), Failure> {
    let (tell, updates) = channel();
    let feed = Feed::start(remote, tell);
    let mut drawn: Option<Instant> = None;
    loop {
        if ending.try_recv().is_ok() {
            return Ok(());
        }
        let mut changed = drawn.is_none_or(|at| at.elapsed() >= TICK);
        match updates.recv_timeout(if changed { Duration::ZERO } else { LOOK }) {
            Ok(update) => {
                model.apply(update, feed::now_ms());
                updates.try_iter().for_each(|update| model.apply(update, feed::now_ms()));
                changed = true;
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        while event::poll(Duration::ZERO)? {
            changed = true;
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                match keys::press(model, key) {
                    keys::KeyAction::Nothing => {}
                    keys::KeyAction::Quit => return Ok(()),
                    keys::KeyAction::Ask(order) => feed.ask(order),
                }
            }
        }
        if changed {
            model.now_ms = feed::now_ms();
            terminal.draw(|frame| draw::draw(frame, model))?;
            drawn = Some(Instant::now());
        }
    }
}

/// Ends the process from the signal thread: waiting for a key never returns once the terminal was closed.
fn leave_by_force() {
    std::thread::sleep(STOP_WITHIN);
    ratatui::restore();
    std::process::exit(EXIT_HANGUP);
}
