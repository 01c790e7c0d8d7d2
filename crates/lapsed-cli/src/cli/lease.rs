//! `lapsed lease` and `lapsed decision`.

use std::ffi::OsString;

use clap::{Args, Subcommand, ValueEnum};

use super::{Output, TargetArgs};

const CODES: &str = "\
Exit codes besides the usual: 75 somebody else holds it, 76 the lease is lost: that token holds \
nothing any more.";

const RUN: &str = "\
Examples:
  lapsed lease run nightly-report -- /usr/local/bin/report
  lapsed lease run billing/invoices --wait 10m --ttl 1m -- sh -c 'make invoices'
  lapsed lease run -c lapsed.toml deploy -- ./deploy.sh      straight to the store, without a daemon

The command finds in its environment: LAPSED_LEASE_TOKEN, which only grows and should go along with \
whatever it writes elsewhere; LAPSED_LEASE_NAMESPACE, LAPSED_LEASE_KEY, LAPSED_LEASE_OWNER and \
LAPSED_LEASE_SYSTEM. Signals are passed on to it. It is told to end (SIGTERM, then SIGKILL) when the \
lease is lost, and when renewals go unanswered it is gone before the lease may be somebody else's. \
It is killed when this process is.

Exit code: the command's own (128 + N when signal N ended it); 75 the lease was not got, and the \
command not started; 76 the lease was lost, and the command ended; 126 the command cannot be run, \
127 there is none of that name.";

/// `lapsed lease`
#[derive(Debug, Subcommand)]
#[command(after_help = CODES)]
pub enum LeaseCommand {
    /// AcquireArgs a lease, and print its token.
    #[command(after_help = CODES)]
    Acquire(AcquireArgs),
    /// Let a lease last for another TTL.
    #[command(after_help = CODES)]
    Renew(Renew),
    /// End a lease; its token lives on.
    #[command(after_help = CODES)]
    Release(TicketArgs),
    /// Show one key: who holds it, by which token, and its state.
    Describe(One),
    /// List keys and who holds them.
    List(List),
    /// Hold a lease while a command runs, and end it when the lease is lost.
    #[command(after_help = RUN)]
    Run(Run),
}

/// Which key.
#[derive(Debug, Args)]
pub struct Key {
    /// NAMESPACE/KEY; without a slash the namespace is `default`.
    #[arg(value_name = "KEY")]
    pub key: String,

    /// The namespace; then KEY is taken as it stands, whatever slashes it has.
    #[arg(long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,

    /// NAME, KIND or KIND/NAME; needed when there are several systems of leases.
    #[arg(long, value_name = "SYSTEM")]
    pub system: Option<String>,
}

#[derive(Debug, Args)]
pub struct AcquireArgs {
    #[command(flatten)]
    pub key: Key,

    /// For whom [default: the name of this host].
    #[arg(long)]
    pub owner: Option<String>,

    /// How long it lasts from each renewal [default: what the configuration says].
    #[arg(long, value_name = "DURATION")]
    pub ttl: Option<String>,

    /// How long to wait while somebody else holds it [default: not at all].
    #[arg(long, value_name = "DURATION")]
    pub wait: Option<String>,

    /// A name that only this request has: the same one again gets the same answer.
    #[arg(long, value_name = "NAME")]
    pub request: Option<String>,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct Renew {
    #[command(flatten)]
    pub ticket: TicketArgs,

    /// How long it lasts from now on [default: as long as before].
    #[arg(long, value_name = "DURATION")]
    pub ttl: Option<String>,
}

/// A lease, as its holder shows it.
#[derive(Debug, Args)]
pub struct TicketArgs {
    #[command(flatten)]
    pub key: Key,

    /// The lease's token, as it was granted.
    #[arg(env = "LAPSED_LEASE_TOKEN", value_name = "TOKEN")]
    pub fence: u64,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct One {
    #[command(flatten)]
    pub key: Key,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct List {
    /// Of this namespace; of all without it.
    pub namespace: Option<String>,

    /// NAME, KIND or KIND/NAME; needed when there are several systems of leases.
    #[arg(long, value_name = "SYSTEM")]
    pub system: Option<String>,

    /// At most so many.
    #[arg(short = 'n', long, default_value_t = 100, value_name = "N")]
    pub limit: usize,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    pub key: Key,

    /// For whom [default: the name of this host and the number of this process].
    #[arg(long)]
    pub owner: Option<String>,

    /// How long it lasts from each renewal [default: what the configuration says].
    #[arg(long, value_name = "DURATION")]
    pub ttl: Option<String>,

    /// How long to wait while somebody else holds it [default: not at all].
    #[arg(long, value_name = "DURATION")]
    pub wait: Option<String>,

    /// How long the command has between SIGTERM and SIGKILL.
    #[arg(long, default_value = "10s", value_name = "DURATION")]
    pub grace: String,

    #[command(flatten)]
    pub target: TargetArgs,

    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `lapsed lease-child`, started by `lapsed lease run`.
#[derive(Debug, Args)]
pub struct LeaseChild {
    /// Whose child it is.
    #[arg(long)]
    pub parent: u32,
    /// What it turns into.
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// `lapsed decision`
#[derive(Debug, Subcommand)]
pub enum DecisionCommand {
    /// Decide a transaction; whoever comes second is told the decision.
    Decide(Decide),
    /// Show the decision on a transaction.
    Show(ShowDecision),
}

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DecisionWordArg {
    /// What was staged becomes true.
    Commit,
    /// What was staged is discarded.
    Rollback,
}

#[derive(Debug, Args)]
pub struct Decide {
    /// The id of the transaction.
    pub txn: String,

    /// How it ends.
    #[arg(value_enum)]
    pub decision: DecisionWordArg,

    /// How long the decision is kept [default: what the configuration says].
    #[arg(long, value_name = "DURATION")]
    pub ttl: Option<String>,

    /// NAME, KIND or KIND/NAME; needed when there are several systems of leases.
    #[arg(long, value_name = "SYSTEM")]
    pub system: Option<String>,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct ShowDecision {
    /// The id of the transaction.
    pub txn: String,

    /// NAME, KIND or KIND/NAME; needed when there are several systems of leases.
    #[arg(long, value_name = "SYSTEM")]
    pub system: Option<String>,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}
