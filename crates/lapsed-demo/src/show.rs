//! `lapsed demo --serve`: serves the dashboard with simulated traffic until Ctrl-C.
//!
//! It starts a daemon on a temporary folder with one system of every kind, and actor processes that use
//! them: gateways, chat servers, workers, runners and providers. Every few seconds one of them is killed,
//! frozen or asked to leave, and a line describes how lapsed reacts. The daemon and the actors are child
//! processes that the kernel kills when their parent ends; the folder is removed at the end. Unlike
//! `lapsed demo`, it checks nothing and has no verdict.

pub mod actor;
mod actor_group;
mod config;
mod narrator;
pub mod script;

use std::net::TcpListener;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use self::actor_group::ActorGroup;
use self::narrator::Narrator;
use self::script::{Script, ScriptStep};
use super::api::Api;
use super::processes::{DemoDaemon, Folder};
use crate::kinds::{KINDS, kind_of_role};
use lapsed_server::config::server::LISTEN_DEFAULT;
use lapsed_server::failure::Failure;
use lapsed_server::print;
use lapsed_server::stop_signals::stop_signals;

/// Time between two steps of the show.
const LOOK: Duration = Duration::from_millis(250);

/// Time between two calls of `now_and_then`, which adds for example a job.
const JOB_EVERY: Duration = Duration::from_millis(800);

/// The numbers of added jobs start here; smaller numbers belong to the jobs that `prepare` adds.
const NUMBERS_FROM: u64 = 100;

/// How long to wait for a termination signal after a step has failed: one that was sent to all processes may have
/// ended the daemon first.
const ENDING: Duration = Duration::from_millis(500);

/// Runs the show until SIGINT or SIGTERM. Fails if the daemon ends before that.
pub fn run(listen: Option<&str>, token: Option<&str>) -> Result<(), Failure> {
    let ending = stop_signals(|| {})?;
    let (listen, taken) = place(listen)?;
    let folder = Folder::make()?;
    let mut daemon = DemoDaemon::start(&folder, &config::text(&folder, &listen), token)?;
    print_addresses(daemon.url(), taken)?;
    let mut show = Show::new(daemon.url(), token);
    let played = show.play(&ending);
    let ended = daemon.has_ended();
    drop(show);
    daemon.stop();
    match played {
        Err(_) if ending.recv_timeout(ENDING).is_ok() => Ok(()),
        Err(_) if ended => {
            Err(Failure::failed("the daemon of the demonstration has ended unexpectedly"))
        }
        other => other,
    }
}

/// The address to listen on, and whether the default address was in use, so that any free port is taken.
fn place(listen: Option<&str>) -> Result<(String, bool), Failure> {
    if let Some(listen) = listen {
        return Ok((listen.to_owned(), false));
    }
    match TcpListener::bind(LISTEN_DEFAULT) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            Ok(("127.0.0.1:0".to_owned(), true))
        }
        _ => Ok((LISTEN_DEFAULT.to_owned(), false)),
    }
}

fn print_addresses(url: &str, taken: bool) -> Result<(), Failure> {
    print::line(&format!("listening on {url}"))?;
    if taken {
        print::lines(&format!(
            "\n{LISTEN_DEFAULT} is taken by another process, so this port was chosen; --listen \
             chooses another"
        ))?;
    }
    print::lines(&format!(
        "\n  open this     {url}/\n  or here       lapsed top --url {url}\n  and stop it   Ctrl-C\n\n\
         All five systems are in use by processes of their own. Now and then one of them is killed or\n\
         frozen; the lines with an arrow are what lapsed does about it.\n"
    ))
}

/// The actors, and the times of the next steps.
struct Show {
    began: Instant,
    api: Api,
    actors: ActorGroup,
    script: Script,
    narrator: Narrator,
    next_step_at: Instant,
    next_job_at: Instant,
    number: u64,
}

impl Show {
    fn new(url: &str, token: Option<&str>) -> Show {
        let now = Instant::now();
        Show {
            began: now,
            api: Api::new(url, token),
            actors: ActorGroup::new(url, token),
            script: Script::default(),
            narrator: Narrator::default(),
            next_step_at: now,
            next_job_at: now,
            number: NUMBERS_FROM,
        }
    }

    fn play(&mut self, ending: &Receiver<()>) -> Result<(), Failure> {
        KINDS.iter().try_for_each(|kind| (kind.prepare)(&self.api))?;
        self.actors.enter()?;
        self.say(&format!("{} start", self.actors.describe()))?;
        self.next_step_at = Instant::now() + script::OPENING;
        loop {
            match ending.recv_timeout(LOOK) {
                Err(RecvTimeoutError::Timeout) => self.step()?,
                _ => {
                    return self.say(
                        "the demonstration is over: every process is ended, the folder removed",
                    );
                }
            }
        }
    }

    fn step(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        for line in self.actors.advance(now)? {
            self.say(&line)?;
        }
        if now >= self.next_job_at {
            self.next_job_at = now + JOB_EVERY;
            let number = self.count();
            KINDS.iter().try_for_each(|kind| (kind.now_and_then)(&self.api, number))?;
        }
        if now >= self.next_step_at {
            let (act, pause) = self.script.advance();
            self.next_step_at = now + pause;
            if let Some(line) = self.act(act, now)? {
                self.say(&line)?;
            }
        }
        for line in self.narrator.look(&self.api)? {
            self.say(&format!("→ {line}"))?;
        }
        Ok(())
    }

    fn act(&mut self, act: ScriptStep, now: Instant) -> Result<Option<String>, Failure> {
        match act {
            ScriptStep::Kill(role) => self.actors.kill(role, now),
            ScriptStep::Freeze(role) => self.actors.freeze(role, now),
            ScriptStep::Leave(role) => self.actors.leave(role, now),
            ScriptStep::Special(role, which) => {
                let special = kind_of_role(role).and_then(|kind| kind.specials.get(which));
                let number = self.count();
                special.map(|special| special(&self.api, number)).transpose()
            }
        }
    }

    /// The next unused number, for example for a job.
    fn count(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn say(&self, text: &str) -> Result<(), Failure> {
        print::line(&format!("{:6.1} s  {text}", self.began.elapsed().as_secs_f64()))
    }
}
