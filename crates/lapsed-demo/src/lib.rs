//! `lapsed demo`: a demonstration of about a minute with real processes.
//!
//! It starts a daemon on an empty folder and six owners in processes of their own. One owner is killed, one is
//! frozen and comes back as a zombie, one leaves gracefully. At the end, the guarantees are compared with the
//! receipts. Every process that is started is stopped by its pid. [`show`] is `lapsed demo --serve`: all systems
//! on the dashboard, without an end and without a verdict.

mod api;
pub mod args;
mod kinds;
pub mod owner;
mod processes;
mod screen;
pub mod show;
mod verdict;

use std::time::{Duration, Instant};

use api::Api;
use lapsed_server::failure::Failure;
use processes::{DemoDaemon, DemoProcess};
use screen::Screen;

/// How many owners there are, and how many entries each of them holds.
const OWNERS: usize = 6;
const ENTRIES: usize = 2_000;
/// How many of the frozen owner's entries another owner registers meanwhile.
const MOVED: usize = 200;

/// The factor for all times of the demonstration.
#[derive(Debug, Clone, Copy)]
pub struct Pace(f64);

impl Pace {
    /// Accepts factors from 0.1 to 5; with 1.8 the demonstration takes about a minute.
    pub fn new(factor: f64) -> Result<Pace, Failure> {
        if (0.1..=5.0).contains(&factor) {
            return Ok(Pace(factor));
        }
        Err(Failure::usage(format!("--pace must be between 0.1 and 5, not {factor}")))
    }

    fn seconds(self, seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds * self.0)
    }

    fn ttl(self) -> Duration {
        self.seconds(6.0)
    }

    fn every(self) -> Duration {
        self.seconds(3.0)
    }
}

/// The state of a running demonstration: its daemon and its owners.
struct DemoRun {
    pace: Pace,
    screen: Screen,
    api: Api,
    daemon: DemoDaemon,
    owners: Vec<DemoProcess>,
}

/// Runs the demonstration and prints its verdict. Fails if a guarantee was violated.
pub fn run(pace: Pace) -> Result<(), Failure> {
    let folder = processes::Folder::make()?;
    let daemon = DemoDaemon::start(&folder, &config(&folder, pace), None)?;
    let api = Api::new(daemon.url(), None);
    let mut demo =
        DemoRun { pace, screen: Screen::new(daemon.url()), api, daemon, owners: Vec::new() };
    let told = demo.tell();
    for owner in &mut demo.owners {
        owner.stop();
    }
    let verdict = told.and_then(|story| verdict::judge(&demo.api, &story, pace));
    demo.screen.finish();
    demo.daemon.stop();
    verdict?.print()
}

/// A configuration with one registry, whose times follow the pace.
fn config(folder: &processes::Folder, pace: Pace) -> String {
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n\n[store.demo]\nurl = \"embedded:{}\"\n\n\
         [[system]]\nkind = \"registry\"\nname = \"default\"\nstore = \"demo\"\n\
         heartbeat_ttl = \"{}ms\"\nsweep = {{ every = \"{}ms\" }}\n",
        folder.data().display(),
        pace.ttl().as_millis(),
        pace.every().as_millis()
    )
}

/// What happened in the demonstration, for the verdict.
pub(crate) struct Story {
    pub killed: String,
    pub frozen: String,
    pub left: String,
    pub lost_told: u64,
    pub reasserted: u64,
    pub moved: u64,
    pub began: Instant,
}

impl DemoRun {
    fn tell(&mut self) -> Result<Story, Failure> {
        let began = Instant::now();
        self.enter()?;
        let killed = self.kill()?;
        let (frozen, lost_told, reasserted, moved) = self.freeze()?;
        let left = self.leave()?;
        self.watch(self.pace.seconds(4.0))?;
        Ok(Story { killed, frozen, left, lost_told, reasserted, moved, began })
    }

    fn enter(&mut self) -> Result<(), Failure> {
        self.screen.say(&format!(
            "{OWNERS} owners start, each a process of its own; a beat is good for {:.1} s, the \
             sweep runs every {:.1} s",
            self.pace.ttl().as_secs_f64(),
            self.pace.every().as_secs_f64()
        ));
        for number in 1..=OWNERS {
            self.owners.push(self.start_owner(&format!("gateway-{number}"))?);
        }
        let all = (OWNERS * ENTRIES) as u64;
        self.until("every owner has registered its entries", |demo| {
            Ok(demo.api.census()?.population >= all)
        })?;
        self.screen.say(&format!("{all} entries are registered, each on disk before its answer"));
        // A store that has just been started declares nobody dead for a whole TTL.
        self.watch(self.pace.ttl() + self.pace.seconds(2.0))
    }

    fn start_owner(&self, name: &str) -> Result<DemoProcess, Failure> {
        let beat = (self.pace.ttl().as_millis() / 3).to_string();
        let args = ["demo-owner", name, "--url", self.daemon.url(), "--every-ms", &beat];
        DemoProcess::start(name, &args, None)
    }

    fn kill(&mut self) -> Result<String, Failure> {
        let name = self.owners[1].name().to_owned();
        self.owners[1].kill()?;
        self.screen.say(&format!(
            "{name} is killed (kill -9, pid {}): nobody is told, {ENTRIES} entries stay behind",
            self.owners[1].pid()
        ));
        self.until_reclaimed(&name, "owner_dead", ENTRIES)?;
        self.watch(self.pace.seconds(3.0))?;
        Ok(name)
    }

    fn freeze(&mut self) -> Result<(String, u64, u64, u64), Failure> {
        let name = self.owners[2].name().to_owned();
        self.owners[2].freeze()?;
        self.screen.say(&format!("{name} is frozen (SIGSTOP): alive, but silent"));
        self.until_reclaimed(&name, "owner_dead", ENTRIES)?;
        let heir = self.owners[0].name().to_owned();
        let moved = self.api.register(&heir, &owner::keys(&name)[..MOVED])?;
        self.screen.say(&format!("{moved} of its devices reconnect, to {heir}"));
        self.watch(self.pace.seconds(2.0))?;
        self.owners[2].thaw()?;
        self.screen
            .say(&format!("{name} wakes up (SIGCONT) and believes that it still holds everything"));
        let (lost, back) = self.until_told()?;
        self.screen.say(&format!(
            "{name} is told: Lost, with the {lost} entries it held; it starts a new incarnation and \
             re-asserts {back}, leaving alone the {} that have moved on",
            lost - back
        ));
        self.watch(self.pace.seconds(3.0))?;
        Ok((name, lost, back, moved))
    }

    fn leave(&mut self) -> Result<String, Failure> {
        let name = self.owners[3].name().to_owned();
        self.owners[3].leave()?;
        self.screen
            .say(&format!("{name} leaves gracefully: a reclaim like any other, with receipts"));
        self.until_reclaimed(&name, "owner_retired", ENTRIES)?;
        Ok(name)
    }

    fn until_reclaimed(&mut self, owner: &str, reason: &str, count: usize) -> Result<(), Failure> {
        self.until(&format!("the entries of {owner} are taken back"), |demo| {
            Ok(demo.api.receipts_of(owner, reason)?.len() >= count)
        })?;
        let receipts = self.api.receipts_of(owner, reason)?;
        let late = receipts.iter().map(|r| r.evidence.late_ms).max().unwrap_or(0);
        self.screen.say(&match reason {
            "owner_dead" => format!(
                "{owner} was declared dead and its {count} entries taken back, the last {:.1} s \
                 after its time ran out",
                late as f64 / 1e3
            ),
            _ => format!("its {count} entries are gone"),
        });
        Ok(())
    }

    fn until_told(&mut self) -> Result<(u64, u64), Failure> {
        let mut told = None;
        self.until("the zombie is told that it was lost", |demo| {
            if let Some(line) = demo.owners[2].heard() {
                told = owner::parse_lost(&line);
            }
            Ok(told.is_some())
        })?;
        told.ok_or_else(|| Failure::failed("the zombie was not told"))
    }

    /// Updates the screen until `done` is true; fails after two minutes.
    fn until(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut DemoRun) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + Duration::from_secs(120);
        while !done(self)? {
            if Instant::now() > deadline {
                return Err(Failure::failed(format!(
                    "two minutes have passed and not yet: {what}"
                )));
            }
            self.show()?;
        }
        self.show()
    }

    /// Updates the screen for the time `span`.
    fn watch(&mut self, span: Duration) -> Result<(), Failure> {
        let until = Instant::now() + span;
        while Instant::now() < until {
            self.show()?;
        }
        Ok(())
    }

    fn show(&mut self) -> Result<(), Failure> {
        let view = self.api.view()?;
        self.screen.draw(&view)?;
        std::thread::sleep(Duration::from_millis(100));
        Ok(())
    }
}
