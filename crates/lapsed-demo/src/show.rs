//! `lapsed demo --serve`: the dashboard with something alive on it, until Ctrl-C.
//!
//! A daemon on a throw-away folder with one of every system, and a company of real processes that use
//! them: gateways, chat servers, workers, runners and providers. Now and then one is killed, frozen or
//! leaves, and what lapsed does about it is told in plain words. The daemon and the company are
//! children that the kernel ends with their parent; the folder is removed at the end. Deliberately
//! absent: a verdict. Nothing is proved here, it is only shown.

mod company;
mod config;
pub mod player;
pub mod script;
mod teller;

use std::net::TcpListener;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use self::company::ActorGroup;
use self::script::{Script, ScriptStep};
use self::teller::Narrator;
use super::api::Api;
use super::cast::{DemoDaemon, Folder};
use crate::kinds::{KINDS, playing};
use lapsed_server::config::server::LISTEN_DEFAULT;
use lapsed_server::failure::Failure;
use lapsed_server::print;
use lapsed_server::stop_signals::stop_signals;

/// How often the show looks at what goes on.
const LOOK: Duration = Duration::from_millis(250);

/// How often something new comes, for example a job.
const JOB_EVERY: Duration = Duration::from_millis(800);

/// Numbers of new things start here; those below are for what is there at the beginning.
const NUMBERS_FROM: u64 = 100;

/// How long an ending may take to be heard of after the daemon has gone.
const ENDING: Duration = Duration::from_millis(500);

/// Plays until it is told to stop.
pub fn run(listen: Option<&str>, token: Option<&str>) -> Result<(), Failure> {
    let ending = stop_signals(|| {})?;
    let (listen, taken) = place(listen)?;
    let folder = Folder::make()?;
    let mut daemon = DemoDaemon::start(&folder, &config::text(&folder, &listen), token)?;
    greet(daemon.url(), taken)?;
    let mut show = Show::new(daemon.url(), token);
    let played = show.play(&ending);
    let ended = daemon.has_ended();
    drop(show);
    daemon.stop();
    match played {
        Err(_) if ending.recv_timeout(ENDING).is_ok() => Ok(()),
        Err(_) if ended => Err(Failure::failed("the daemon of the show has ended by itself")),
        other => other,
    }
}

/// Where to listen; where nothing was said and the usual place is taken, wherever there is room.
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

fn greet(url: &str, taken: bool) -> Result<(), Failure> {
    print::line(&format!("listening on {url}"))?;
    if taken {
        print::line(&format!(
            "\n{LISTEN_DEFAULT} is taken by another process, so this port was chosen; --listen \
             chooses another"
        ))?;
    }
    print::line(&format!(
        "\n  open this     {url}/\n  or here       lapsed top --url {url}\n  and stop it   Ctrl-C\n\n\
         All five systems are in use by processes of their own. Now and then one of them is killed or\n\
         frozen; the lines with an arrow are what lapsed does about it.\n"
    ))
}

/// What is on stage, and what comes next.
struct Show {
    began: Instant,
    api: Api,
    company: ActorGroup,
    script: Script,
    teller: Narrator,
    next_act: Instant,
    next_job: Instant,
    number: u64,
}

impl Show {
    fn new(url: &str, token: Option<&str>) -> Show {
        let now = Instant::now();
        Show {
            began: now,
            api: Api::new(url, token),
            company: ActorGroup::new(url, token),
            script: Script::default(),
            teller: Narrator::default(),
            next_act: now,
            next_job: now,
            number: NUMBERS_FROM,
        }
    }

    fn play(&mut self, ending: &Receiver<()>) -> Result<(), Failure> {
        KINDS.iter().try_for_each(|kind| (kind.prepare)(&self.api))?;
        self.company.enter()?;
        self.say(&format!("{} enter", self.company.describe()))?;
        self.next_act = Instant::now() + script::OPENING;
        loop {
            match ending.recv_timeout(LOOK) {
                Err(RecvTimeoutError::Timeout) => self.step()?,
                _ => {
                    return self
                        .say("the show is over: every process is ended, the folder removed");
                }
            }
        }
    }

    fn step(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        for line in self.company.tend(now)? {
            self.say(&line)?;
        }
        if now >= self.next_job {
            self.next_job = now + JOB_EVERY;
            let number = self.count();
            KINDS.iter().try_for_each(|kind| (kind.now_and_then)(&self.api, number))?;
        }
        if now >= self.next_act {
            let (act, pause) = self.script.next();
            self.next_act = now + pause;
            if let Some(line) = self.act(act, now)? {
                self.say(&line)?;
            }
        }
        for line in self.teller.look(&self.api)? {
            self.say(&format!("→ {line}"))?;
        }
        Ok(())
    }

    fn act(&mut self, act: ScriptStep, now: Instant) -> Result<Option<String>, Failure> {
        match act {
            ScriptStep::Kill(role) => self.company.kill(role, now),
            ScriptStep::Freeze(role) => self.company.freeze(role, now),
            ScriptStep::Leave(role) => self.company.leave(role, now),
            ScriptStep::Special(role, which) => {
                let special = playing(role).and_then(|kind| kind.specials.get(which));
                let number = self.count();
                special.map(|special| special(&self.api, number)).transpose()
            }
        }
    }

    /// The next number for something new.
    fn count(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn say(&self, text: &str) -> Result<(), Failure> {
        print::line(&format!("{:6.1} s  {text}", self.began.elapsed().as_secs_f64()))
    }
}
