//! The command line: what there is to type, and what `--help` says of it.

pub mod audit;
pub mod health;
pub mod init;
pub mod lease;
pub mod schema;
pub mod shell;
pub mod token;
pub mod top;
pub mod webhook;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

const EXAMPLES: &str = "\
Examples:
  lapsed serve                                 start on ./lapsed-data, http://127.0.0.1:7227
  lapsed demo                                  see it happen first
  lapsed demo --serve                          the dashboard with something alive on it
  lapsed init                                  write a configuration: asks which system and store
  lapsed status                                how every system stands
  lapsed top                                   the same, live
  lapsed sweep registry --dry-run              what a pass would take back, and why
  lapsed explain registry 356307042441013      why this one is, or is not, dead
  lapsed reconcile chat --dry-run --verbose    where index and truth differ
  lapsed dead list                             jobs that nobody is to try again by himself
  lapsed lease run nightly -- ./report.sh      run it only while holding the lease `nightly`
  lapsed receipts --follow                     who is reclaimed, as it happens
  lapsed check -c lapsed.toml                  is the configuration right, and what does it mean
  lapsed schema apply -c lapsed.toml           make the tables of availability in Postgres
  lapsed functions load -c lapsed.toml         let Node, Python, Ruby call lapsed inside Redis

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 held back by the brake.";

/// Knows who is alive and what they hold, and takes back what the dead left behind.
#[derive(Debug, Parser)]
#[command(name = "lapsed", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,

    /// Say more on stderr; twice for everything. RUST_LOG says it in detail.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, display_order = 90)]
    pub verbose: u8,

    /// How the log on stderr is written.
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "text",
        env = "LAPSED_LOG",
        hide_env_values = true,
        display_order = 91
    )]
    pub log: LogFormat,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon: sweeps, HTTP API, /metrics, dashboard; embedded by default.
    Serve(Serve),
    /// Watch a minute's story on the embedded store: owners live, some are killed; with --serve, on
    /// the dashboard until Ctrl-C.
    Demo(lapsed_demo::args::Demo),
    /// One owner of the demo.
    #[command(hide = true)]
    DemoOwner(lapsed_demo::args::DemoOwner),
    /// One process of the living dashboard.
    #[command(hide = true)]
    DemoPlayer(lapsed_demo::args::DemoPlayer),
    /// Write a commented configuration for one of the five systems: asks, or by --preset.
    Init(init::Init),
    /// Validate a configuration, connect, and print the plan in plain words.
    Check(Check),
    /// Watch all systems live in the terminal: lag, passes, brakes, receipts as they come.
    Top(top::Top),
    /// Show who is alive, suspects, the last pass, the reclaim lag and the brake.
    Status(Status),
    /// Ask a daemon whether it is there and its stores answer: exit code 0 or 1, for probes.
    Healthcheck(health::Healthcheck),
    /// Run one pass now; a dry run says, for each suspect, why it is dead.
    Sweep(SweepArgs),
    /// Compare a system's index with its truth, and heal it.
    Reconcile(ReconcileArgs),
    /// Say why one key (or owner) is, or is not, dead.
    Explain(Explain),
    /// List who was reclaimed, when, and on what evidence.
    Receipts(ReceiptsArgs),
    /// Put back what a receipt removed, if its place is still free.
    Restore(Restore),
    /// List who did what by hand: brakes, passes, restoring, dead letters.
    Audit(audit::Audit),
    /// List, show, put back or delete dead letters: jobs that nobody is to try again by himself.
    #[command(subcommand)]
    Dead(Dead),
    /// List webhooks, their dead letters, or try one. Asks the daemon.
    #[command(subcommand)]
    Webhook(webhook::WebhookCommand),
    /// Acquire, renew, release or look at leases; hold one while a command runs.
    #[command(subcommand)]
    Lease(lease::LeaseCommand),
    /// A command that dies with its parent (`lapsed lease run`, `lapsed demo`), before it is that command.
    #[command(hide = true)]
    LeaseChild(lease::LeaseChild),
    /// Decide a transaction, once, or show how it was decided.
    #[command(subcommand)]
    Decision(lease::DecisionCommand),
    /// Release or hold a system's brake, or let it decide by itself again.
    Brake(BrakeArgs),
    /// Make a token for the daemon, or the hash of one for its configuration.
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Print or make the tables of availability in Postgres.
    #[command(subcommand)]
    Schema(schema::Schema),
    /// Show or load the server-side functions, for use from any language.
    #[command(subcommand)]
    Functions(Functions),
    /// Print a script that completes commands and options in your shell.
    Completions(shell::Completions),
    /// Print the manual page, or write one for every command into a folder.
    Man(shell::Man),
}

/// Whom to ask: a running daemon, or with `-c` the store itself.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Whom to ask")]
pub struct TargetArgs {
    /// Go straight to the store of this configuration; to its daemon if that has the store open.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Ask the daemon at this address [env: LAPSED_URL] [default: http://127.0.0.1:7227].
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,

    /// The daemon's token.
    #[arg(long, env = "LAPSED_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: Option<String>,

    /// Trust the certificates in this file (PEM), instead of those that this machine trusts.
    #[arg(long, env = "LAPSED_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

impl TargetArgs {
    /// What a further command needs to reach the same place, to be written behind it.
    pub fn again(&self) -> String {
        let file = self.config.iter().map(|file| format!(" -c {}", file.display()));
        let url = self.url.iter().map(|url| format!(" --url {url}"));
        file.chain(url).collect()
    }
}

/// How to print.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Output {
    /// Print JSON: one object, or one a line for lists.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Serve {
    /// The configuration; without one, every kind of system, named `default`, on the embedded
    /// store.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Where to listen [default: 127.0.0.1:7227]; port 0 takes any free one.
    #[arg(long, env = "LAPSED_LISTEN", value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,

    /// The data folder [default: ./lapsed-data]; only without a configuration.
    #[arg(long, env = "LAPSED_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,

    /// The token that clients must show, where the configuration has none.
    #[arg(long, env = "LAPSED_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: Option<String>,
}

#[derive(Debug, Args)]
pub struct Check {
    /// The configuration; without one, the defaults are checked.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct Status {
    /// NAME, KIND or KIND/NAME; all systems without it.
    pub system: Option<String>,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct SweepArgs {
    /// NAME, KIND or KIND/NAME.
    pub system: String,

    /// Do everything but the change: what it lists is what a real pass then reclaims.
    #[arg(long)]
    pub dry_run: bool,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct ReconcileArgs {
    /// NAME, KIND or KIND/NAME.
    pub system: String,

    /// Say what differs, and change nothing; with --verbose, list every difference.
    #[arg(long)]
    pub dry_run: bool,

    /// Only say whether the scan and the index agree: exit code 0 when they do, 1 when not.
    #[arg(long)]
    pub compare: bool,

    /// Go on from where an earlier run stopped, as it said.
    #[arg(long, value_name = "CURSOR")]
    pub from: Option<String>,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct Explain {
    /// NAME, KIND or KIND/NAME.
    pub system: String,

    /// The key of an entry, or the name of an owner.
    pub key: String,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct ReceiptsArgs {
    /// NAME, KIND or KIND/NAME; all systems without it.
    pub system: Option<String>,

    /// Go on printing them as they come (asks a daemon).
    #[arg(short, long)]
    pub follow: bool,

    /// The newest so many; newest first, or oldest first with --follow.
    #[arg(short = 'n', long, default_value_t = 20, value_name = "N")]
    pub limit: usize,

    /// Only those of this key.
    #[arg(long)]
    pub key: Option<String>,

    /// Only those of this owner.
    #[arg(long)]
    pub owner: Option<String>,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct Restore {
    /// As `lapsed receipts` prints it, for example registry-default-42.
    pub receipt: String,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

/// `lapsed dead`
#[derive(Debug, Subcommand)]
pub enum Dead {
    /// List them, by id.
    List(ListDead),
    /// Show one, with what it carries.
    Show(OneDead),
    /// Put one back on its queue, its crashes forgotten.
    PutBack(PutBackDead),
    /// Delete one for good.
    Delete(OneDead),
}

#[derive(Debug, Args)]
pub struct ListDead {
    /// NAME, KIND or KIND/NAME; without it, all systems of jobs.
    pub system: Option<String>,

    /// At most so many of each system.
    #[arg(short = 'n', long, default_value_t = 100, value_name = "N")]
    pub limit: usize,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct OneDead {
    /// Which: the system (unless there is only one of jobs), then the job's id.
    #[arg(required = true, num_args = 1..=2, value_names = ["SYSTEM", "ID"])]
    pub which: Vec<String>,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct PutBackDead {
    #[command(flatten)]
    pub one: OneDead,

    /// To which end of its queue.
    #[arg(long, value_enum, default_value = "front")]
    pub end: QueueEndArg,
}

/// Which end of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QueueEndArg {
    /// The next to be taken.
    Front,
    /// Behind all others.
    Back,
}

#[derive(Debug, Args)]
pub struct BrakeArgs {
    /// NAME, KIND or KIND/NAME.
    pub system: String,

    /// What to say to it; without it, what it does now is shown.
    #[arg(value_enum)]
    pub order: Option<BrakeCommand>,

    /// How long a release lasts [default: the longer of 10m and one threshold].
    #[arg(long = "for", value_name = "DURATION")]
    pub span: Option<String>,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

/// What to say to a brake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BrakeCommand {
    /// Reclaim whatever is dead, for a while.
    Release,
    /// Reclaim nothing until released.
    Hold,
    /// Decide by itself again.
    Auto,
}

/// `lapsed functions`
#[derive(Debug, Subcommand)]
pub enum Functions {
    /// Print the library, as FUNCTION LOAD takes it.
    Print,
    /// Put the library into Redis or Valkey, in place of an older version; calls go on meanwhile.
    Load(LoadFunctions),
}

#[derive(Debug, Args)]
pub struct LoadFunctions {
    /// Into every store of this configuration that is on Redis or Valkey.
    #[arg(short, long, value_name = "FILE", required_unless_present = "url")]
    pub config: Option<PathBuf>,

    /// Of these only the one of this name.
    #[arg(long, value_name = "NAME", requires = "config")]
    pub store: Option<String>,

    /// Into the server or cluster at this address, for example redis://127.0.0.1:6379.
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    pub url: Option<String>,

    /// Also in place of a newer version, or of a library of that name that is not lapsed's.
    #[arg(long)]
    pub force: bool,

    #[command(flatten)]
    pub output: Output,
}
