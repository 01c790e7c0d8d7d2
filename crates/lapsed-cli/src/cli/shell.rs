//! `lapsed completions` and `lapsed man`: what there is to type.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

/// `lapsed completions`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lapsed completions bash > ~/.local/share/bash-completion/completions/lapsed
  lapsed completions zsh > ~/.zfunc/_lapsed        (with `fpath+=~/.zfunc` before `compinit`)
  lapsed completions fish > ~/.config/fish/completions/lapsed.fish")]
pub struct Completions {
    /// For which shell.
    #[arg(value_enum)]
    pub shell: Shell,
}

/// `lapsed man`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lapsed man | man -l -                       read it now
  lapsed man ~/.local/share/man/man1          install every page, then `man lapsed-sweep`")]
pub struct Man {
    /// Write lapsed.1 and a page for every command into this folder; without it, lapsed.1 is printed.
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
}
