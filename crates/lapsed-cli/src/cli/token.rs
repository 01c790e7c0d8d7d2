//! `lapsed token`: what there is to type.

use clap::{Args, Subcommand, ValueEnum};

use super::Output;
use lapsed_server::config::token::Scope;

/// `lapsed token`
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token out of chance, and print what goes into the configuration. It is kept nowhere.
    New(NewToken),
    /// Print the hash of the token on standard input.
    Hash(HashToken),
}

#[derive(Debug, Args)]
pub struct NewToken {
    /// Whose it is to be: the audit says who did what by this name.
    #[arg(long, value_name = "NAME", default_value = "ops")]
    pub name: String,

    /// What it is to allow; `write` and `act` include `read`.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SCOPES", default_value = "read")]
    pub scopes: Vec<ScopeWord>,

    /// How long it is to be valid, for example 90d; for ever without it.
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

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScopeWord {
    /// Looking, and dry runs.
    Read,
    /// What an application does: register, beat, take, ...
    Write,
    /// What an operator does: brakes, a pass by hand, restoring, dead letters.
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
