//! `lapsed token`: the arguments.

use clap::{Args, Subcommand, ValueEnum};

use super::Output;
use lapsed_server::config::token::Scope;

/// The subcommands of `lapsed token`.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a random token, and print it with its line for the configuration; it is not stored.
    New(NewToken),
    /// Print the hash of a token that is read from standard input.
    Hash(HashToken),
}

#[derive(Debug, Args)]
pub struct NewToken {
    /// Name of the token; the audit log shows actions under this name.
    #[arg(long, value_name = "NAME", default_value = "ops")]
    pub name: String,

    /// What the token allows; `write` and `act` include `read`.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SCOPES", default_value = "read")]
    pub scopes: Vec<ScopeWord>,

    /// How long the token is valid, for example 90d; without it, the token does not expire.
    #[arg(long = "for", value_name = "DURATION")]
    pub span: Option<String>,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct HashToken {
    #[command(flatten)]
    pub output: Output,
}

/// A group of requests that a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScopeWord {
    /// Read everything, and run dry runs.
    Read,
    /// Make the calls of an application: register, beat, take and so on.
    Write,
    /// Act as an operator: set brakes, start passes, restore entries, handle dead letters.
    Act,
}

impl From<ScopeWord> for Scope {
    fn from(word: ScopeWord) -> Scope {
        match word {
            ScopeWord::Read => Scope::Read,
            ScopeWord::Write => Scope::Write,
            ScopeWord::Act => Scope::Act,
        }
    }
}
