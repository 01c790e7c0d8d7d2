//! `lapsed top`: every system live in a terminal.
//!
//! What is known is a `TopModel`; what a key means is decided from it by `keys`, how it looks by `draw`,
//! both without any I/O. Here the three meet: threads of `feed` ask the daemon and tell what they heard,
//! the terminal tells which key was pressed, and every change is drawn. The terminal is given back
//! whatever ends it: the loop, a panic, a signal.

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

use self::feed::{Feed, News};
use self::model::TopModel;
use crate::backend::{self, RemoteBackend};
use crate::cli::TargetArgs;
use lapsed_server::failure::Failure;
use lapsed_server::stop_signals::stop_signals;

/// How often the picture moves by itself: ages grow.
const TICK: Duration = Duration::from_millis(500);

/// How long a look for keys takes before what was heard is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// What a shell calls the end by a signal, here SIGHUP.
const EXIT_HANGUP: i32 = 128 + 1;

/// How long the loop has to see that it was told to stop.
const PATIENCE: Duration = Duration::from_secs(1);

/// Runs until `q`, or until it is told to stop.
pub fn run(target: &TargetArgs) -> Result<(), Failure> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::usage(
            "`lapsed top` draws on a terminal, and this is none; use `lapsed status` for one look, or \
             `lapsed receipts --follow` for what comes",
        ));
    }
    let remote = backend::remote(target)?;
    // The first look must work: a wrong address or token is said in plain words, not on a picture.
    let status = backend::Backend::status(&remote)?;
    let mut model = TopModel::new(remote.url(), std::env::var_os("NO_COLOR").is_none());
    model.hear(News::Status(status), feed::now_ms());
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
    let (tell, heard) = channel();
    let feed = Feed::start(remote, tell);
    let mut drawn: Option<Instant> = None;
    loop {
        if ending.try_recv().is_ok() {
            return Ok(());
        }
        let mut changed = drawn.is_none_or(|at| at.elapsed() >= TICK);
        match heard.recv_timeout(if changed { Duration::ZERO } else { LOOK }) {
            Ok(news) => {
                model.hear(news, feed::now_ms());
                heard.try_iter().for_each(|news| model.hear(news, feed::now_ms()));
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

/// The look for keys never comes back from a terminal that was closed: then it ends from here.
fn leave_by_force() {
    std::thread::sleep(PATIENCE);
    ratatui::restore();
    std::process::exit(EXIT_HANGUP);
}
