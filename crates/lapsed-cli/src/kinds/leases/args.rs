//! `lapsed lease` and `lapsed decision`: the arguments.

use std::ffi::OsString;

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::{Output, TargetArgs};

const CODES: &str = "\
Further exit codes: 75 another owner holds the lease, 76 the lease is lost: the token is no longer \
valid.";

const RUN: &str = "\
Examples:
  lapsed lease run nightly-report -- /usr/local/bin/report
  lapsed lease run billing/invoices --wait 10m --ttl 1m -- sh -c 'make invoices'
  lapsed lease run -c lapsed.toml deploy -- ./deploy.sh      uses the store directly, no daemon

The environment of the command contains LAPSED_LEASE_TOKEN, LAPSED_LEASE_NAMESPACE, \
LAPSED_LEASE_KEY, LAPSED_LEASE_OWNER and LAPSED_LEASE_SYSTEM. The token increases with every lease \
of the key: send it along with every write, so that the receiver can refuse an older holder. \
Signals are forwarded to the command. When the lease is lost, the command gets SIGTERM, then \
SIGKILL. When renewals are not answered, the command is ended before another owner can acquire the \
lease. If this process is killed, so is the command.

Exit code: that of the command (128 + N if signal N ended it); 75 the lease was not acquired and the \
command not started; 76 the lease was lost and the command ended; 126 the command cannot be run; \
127 the command was not found.";

/// The subcommands of `lapsed lease`.
#[derive(Debug, Subcommand)]
#[command(after_help = CODES)]
pub enum LeaseCommand {
    /// Acquire a lease and print its token.
    #[command(after_help = CODES)]
    Acquire(AcquireArgs),
    /// Set a lease's deadline to one TTL from now.
    #[command(after_help = CODES)]
    Renew(Renew),
    /// Release a lease; the next one gets a higher token.
    #[command(after_help = CODES)]
    Release(TicketArgs),
    /// Show the owner, the token and the state of one key.
    Describe(One),
    /// List keys and the owners that hold them.
    List(List),
    /// Hold a lease while a command runs, and end the command if the lease is lost.
    #[command(after_help = RUN)]
    Run(Run),
}

/// The key of a lease, and the system that it is in.
#[derive(Debug, Args)]
pub struct Key {
    /// Key, as NAMESPACE/KEY; without a slash the namespace is `default`.
    #[arg(value_name = "KEY")]
    pub key: String,

    /// Namespace of the key; KEY is then not split at its slashes.
    #[arg(long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,

    /// System of leases, as NAME, KIND or KIND/NAME; required if there are several.
    #[arg(long, value_name = "SYSTEM")]
    pub system: Option<String>,
}

#[derive(Debug, Args)]
pub struct AcquireArgs {
    #[command(flatten)]
    pub key: Key,

    /// Owner of the lease [default: the name of this host].
    #[arg(long)]
    pub owner: Option<String>,

    /// How long the lease lasts after each renewal [default: as configured].
    #[arg(long, value_name = "DURATION")]
    pub ttl: Option<String>,

    /// How long to wait while another owner holds the lease [default: do not wait].
    #[arg(long, value_name = "DURATION")]
    pub wait: Option<String>,

    /// Unique name of this request; a retry with the same name gets the same answer.
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

    /// How long the lease lasts from now on [default: the same TTL as before].
    #[arg(long, value_name = "DURATION")]
    pub ttl: Option<String>,
}

/// A lease, identified by its key and its token.
#[derive(Debug, Args)]
pub struct TicketArgs {
    #[command(flatten)]
    pub key: Key,

    /// Token of the lease, as `lapsed lease acquire` printed it.
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
    /// List only keys in this namespace.
    pub namespace: Option<String>,

    /// System of leases, as NAME, KIND or KIND/NAME; required if there are several.
    #[arg(long, value_name = "SYSTEM")]
    pub system: Option<String>,

    /// Show at most N keys.
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

    /// Owner of the lease [default: the name of this host and the id of this process].
    #[arg(long)]
    pub owner: Option<String>,

    /// How long the lease lasts after each renewal [default: as configured].
    #[arg(long, value_name = "DURATION")]
    pub ttl: Option<String>,

    /// How long to wait while another owner holds the lease [default: do not wait].
    #[arg(long, value_name = "DURATION")]
    pub wait: Option<String>,

    /// Time that the command has between SIGTERM and SIGKILL.
    #[arg(long, default_value = "10s", value_name = "DURATION")]
    pub grace: String,

    #[command(flatten)]
    pub target: TargetArgs,

    /// Command to run, with its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// The arguments of `lapsed lease-child`, which `lapsed lease run` and `lapsed demo` start.
#[derive(Debug, Args)]
pub struct LeaseChild {
    /// Process id of the parent; the command is killed when the parent ends.
    #[arg(long)]
    pub parent: u32,
    /// Command that replaces this process, with its arguments.
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// The subcommands of `lapsed decision`.
#[derive(Debug, Subcommand)]
pub enum DecisionCommand {
    /// Decide a transaction and print the decision; an earlier decision stands: if it differs, the
    /// exit code is 1.
    Decide(Decide),
    /// Show how a transaction was decided.
    Show(ShowDecision),
}

/// The two ways in which a transaction can end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DecisionWordArg {
    /// The staged changes take effect.
    Commit,
    /// The staged changes are discarded.
    Rollback,
}

#[derive(Debug, Args)]
pub struct Decide {
    /// Id of the transaction.
    pub txn: String,

    /// How the transaction ends.
    #[arg(value_enum)]
    pub decision: DecisionWordArg,

    /// How long the decision is kept [default: as configured].
    #[arg(long, value_name = "DURATION")]
    pub ttl: Option<String>,

    /// System of leases, as NAME, KIND or KIND/NAME; required if there are several.
    #[arg(long, value_name = "SYSTEM")]
    pub system: Option<String>,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct ShowDecision {
    /// Id of the transaction.
    pub txn: String,

    /// System of leases, as NAME, KIND or KIND/NAME; required if there are several.
    #[arg(long, value_name = "SYSTEM")]
    pub system: Option<String>,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}
