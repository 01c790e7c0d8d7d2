//! The command line: every command, argument and option. The doc comments are the texts of `--help`.

pub mod audit;
pub mod detect;
pub mod health;
pub mod init;
pub mod shell;
pub mod token;
pub mod top;
pub mod webhook;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::kinds::KindCommand;

const EXAMPLES: &str = "\
Examples:
  lapsed serve                                 run the daemon: ./lapsed-data, 127.0.0.1:7227
  lapsed demo                                  watch owners die and their entries reclaimed
  lapsed demo --serve                          serve the dashboard with simulated traffic
  lapsed init                                  write a configuration; asks for system and store
  lapsed status                                show the state of every system
  lapsed top                                   watch the state of every system live
  lapsed sweep registry --dry-run              list what a pass would reclaim, and why
  lapsed explain registry 356307042441013      say why this key is, or is not, dead
  lapsed reconcile chat --dry-run --verbose    list where the index differs from the data
  lapsed dead list                             list jobs that will not be retried automatically
  lapsed lease run nightly -- ./report.sh      run a script only while holding a lease
  lapsed receipts --follow                     print every reclaim as it happens
  lapsed check -c lapsed.toml                  validate a configuration and explain it
  lapsed schema apply -c lapsed.toml           create the tables of availability in Postgres
  lapsed functions load -c lapsed.toml         let Node, Python, Ruby call lapsed inside Redis

Exit codes: 0 success, 1 failure, 2 wrong usage or configuration, 3 held back by the brake.";

/// Tracks which owners are alive and what they hold, and reclaims what dead owners left behind.
#[derive(Debug, Parser)]
#[command(name = "lapsed", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct Cli {
    /// The command to run, with its own arguments.
    #[command(subcommand)]
    pub command: Command,

    /// Log more to stderr; give it twice to log everything. RUST_LOG sets the level of each module.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, display_order = 90)]
    pub verbose: u8,

    /// Format of the log on stderr.
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

/// Format of the log on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Plain lines for people to read.
    Text,
    /// One JSON object on each line.
    Json,
}

/// Every command of `lapsed`; the hidden ones are started by other commands only.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon: sweeps, HTTP API, /metrics and dashboard; uses the embedded store by default.
    Serve(Serve),
    /// Run a demonstration on the embedded store: for a minute, owners are started, killed and
    /// reclaimed; with --serve, the dashboard shows simulated traffic until Ctrl-C.
    Demo(lapsed_demo::args::Demo),
    /// Write a commented configuration for one of the five systems, chosen by --preset or in a dialog.
    Init(init::Init),
    /// Find the job systems on a Redis or Valkey: their workers, which of them are dead, and jobs nobody will run.
    Detect(detect::Detect),
    /// Validate a configuration, connect to its stores, and explain what the daemon would do with it.
    Check(Check),
    /// Watch all systems live in the terminal: reclaim lag, passes, brakes, and receipts as they arrive.
    Top(top::Top),
    /// Show live owners, suspects, the last pass, the reclaim lag and the brake of every system.
    Status(Status),
    /// Check whether a daemon and its stores answer, for probes: the exit code is 0 if they do, else 1.
    Healthcheck(health::Healthcheck),
    /// Run one pass of a sweep now; with --dry-run, say why each suspect is dead and change nothing.
    Sweep(SweepArgs),
    /// Compare a system's index with its stored data, and repair the index.
    Reconcile(ReconcileArgs),
    /// Explain why a key (or an owner) is, or is not, considered dead.
    Explain(Explain),
    /// List the receipts of reclaimed entries: owner, time and evidence.
    Receipts(ReceiptsArgs),
    /// Restore the entry that a receipt records as removed, if its key is free; an entry of a registry also needs a living owner.
    Restore(Restore),
    /// List what operators did by hand (brakes, adoptions, passes, restores, dead letters), and who did it.
    Audit(audit::Audit),
    /// List the daemon's webhooks and their undelivered events, retry one, or send a test event.
    #[command(subcommand)]
    Webhook(webhook::WebhookCommand),
    /// The verbs that belong to one kind of system.
    #[command(flatten)]
    OfKind(KindCommand),
    /// Confirm that the configuration of an adopted system is right, so that it stops observing and reclaims.
    Adopt(AdoptArgs),
    /// Hold a system's brake, let one pass through it, or return it to automatic operation.
    Brake(BrakeArgs),
    /// Create a token for the daemon's API, or print the hash of a token for its configuration.
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Run one owner process of `lapsed demo`.
    #[command(hide = true)]
    DemoOwner(lapsed_demo::args::DemoOwner),
    /// Run one actor process of `lapsed demo --serve`.
    #[command(hide = true)]
    DemoPlayer(lapsed_demo::args::DemoPlayer),
    /// Print or load the functions that let any language call lapsed inside Redis or Valkey.
    #[command(subcommand)]
    Functions(Functions),
    /// Print a script with which your shell completes commands and options.
    Completions(shell::Completions),
    /// Print the manual page, or write a page for every command into a folder.
    Man(shell::Man),
}

/// Where the command is carried out: on a running daemon, or with `-c` on the store itself.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Connection")]
pub struct TargetArgs {
    /// Use the store of this configuration directly, or its daemon if that has the store open.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Ask the daemon at this address [env: LAPSED_URL] [default: http://127.0.0.1:7227].
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,

    /// Token to send to the daemon.
    #[arg(long, env = "LAPSED_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: Option<String>,

    /// Trust the certificates in this PEM file instead of the system's certificates.
    #[arg(long, env = "LAPSED_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

impl TargetArgs {
    /// The options with which a further command reaches the same daemon or store, to be appended to it.
    pub fn again(&self) -> String {
        let file = self.config.iter().map(|file| format!(" -c {}", file.display()));
        let url = self.url.iter().map(|url| format!(" --url {url}"));
        file.chain(url).collect()
    }
}

/// The format of what the command prints.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Output {
    /// Print JSON: one object, or for lists one object on each line.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Serve {
    /// Configuration file; without it, the daemon runs one system of every kind, each named
    /// `default`, on the embedded store.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Address to listen on [default: 127.0.0.1:7227]; port 0 chooses a free port.
    #[arg(long, env = "LAPSED_LISTEN", value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,

    /// Data folder [default: ./lapsed-data]; only allowed without a configuration file.
    #[arg(long, env = "LAPSED_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,

    /// Token that clients must send, used if the configuration has no tokens.
    #[arg(long, env = "LAPSED_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: Option<String>,
}

#[derive(Debug, Args)]
pub struct Check {
    /// Configuration file; without it, the defaults are checked.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct Status {
    /// Name of the system, as NAME, KIND or KIND/NAME; all systems if not given.
    pub system: Option<String>,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct SweepArgs {
    /// Name of the system, as NAME, KIND or KIND/NAME.
    pub system: String,

    /// Change nothing: list what a real pass would reclaim, with the reason for each entry.
    #[arg(long)]
    pub dry_run: bool,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct ReconcileArgs {
    /// Name of the system, as NAME, KIND or KIND/NAME.
    pub system: String,

    /// Change nothing: count the differences; with --verbose, list each of them.
    #[arg(long)]
    pub dry_run: bool,

    /// Only check whether the index agrees with a full scan: the exit code is 0 if it does, else 1.
    #[arg(long)]
    pub compare: bool,

    /// Continue where an earlier run stopped, at the cursor that it printed.
    #[arg(long, value_name = "CURSOR")]
    pub from: Option<String>,

    /// Work on a native system in the Redis or Valkey at this address, without a configuration or a daemon; the
    /// system is named KIND/NAME, or KIND for the one named `default`, and has the default key names.
    #[arg(long, value_name = "URL", conflicts_with_all = ["config", "url", "token", "ca"])]
    pub redis: Option<String>,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct Explain {
    /// Name of the system, as NAME, KIND or KIND/NAME.
    pub system: String,

    /// Key of an entry, or name of an owner.
    pub key: String,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct ReceiptsArgs {
    /// Name of the system, as NAME, KIND or KIND/NAME; all systems if not given.
    pub system: Option<String>,

    /// Keep printing new receipts as they arrive; this needs a running daemon.
    #[arg(short, long)]
    pub follow: bool,

    /// Show at most N receipts, the newest ones; newest first, or oldest first with --follow.
    #[arg(short = 'n', long, default_value_t = 20, value_name = "N")]
    pub limit: usize,

    /// Show only receipts of this key.
    #[arg(long)]
    pub key: Option<String>,

    /// Show only receipts of this owner.
    #[arg(long)]
    pub owner: Option<String>,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct Restore {
    /// Id of the receipt, as `lapsed receipts` prints it, for example registry-default-42.
    pub receipt: String,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct AdoptArgs {
    /// Name of the system, as NAME, KIND or KIND/NAME.
    pub system: String,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct BrakeArgs {
    /// Name of the system, as NAME, KIND or KIND/NAME.
    pub system: String,

    /// What to do with the brake; without it, the brake's present state is shown.
    #[arg(value_enum)]
    pub order: Option<BrakeCommand>,

    /// Why the brake is overridden; required with `override`, kept in the audit log and shown in the status.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,

    /// Override without asking for a confirmation.
    #[arg(long)]
    pub yes: bool,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

/// What to do with a brake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BrakeCommand {
    /// Return to automatic operation: the brake holds when too many owners are silent at once.
    Auto,
    /// Declare no owner dead until `auto` or `override`; what owners left that were declared dead before
    /// is still removed.
    Hold,
    /// Let one pass reclaim every dead entry without limit; needs --reason and a confirmation.
    Override,
    /// The word of older versions, which is refused with a hint.
    #[value(hide = true)]
    Release,
}

/// The subcommands of `lapsed functions`.
#[derive(Debug, Subcommand)]
pub enum Functions {
    /// Print the function library in the form that FUNCTION LOAD accepts.
    Print,
    /// Load the function library into Redis or Valkey, replacing an older version without downtime.
    Load(LoadFunctions),
}

#[derive(Debug, Args)]
pub struct LoadFunctions {
    /// Load it into every Redis or Valkey store of this configuration.
    #[arg(short, long, value_name = "FILE", required_unless_present = "url")]
    pub config: Option<PathBuf>,

    /// Load it only into the store of this name.
    #[arg(long, value_name = "NAME", requires = "config")]
    pub store: Option<String>,

    /// Load it into the server or cluster at this address, for example redis://127.0.0.1:6379.
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    pub url: Option<String>,

    /// Also replace a newer version, or a library of the same name that does not belong to lapsed.
    #[arg(long)]
    pub force: bool,

    #[command(flatten)]
    pub output: Output,
}
