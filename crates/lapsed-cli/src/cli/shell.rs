//! `lapsed completions` and `lapsed man`: the arguments.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

/// The arguments of `lapsed completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lapsed completions bash > ~/.local/share/bash-completion/completions/lapsed
  lapsed completions zsh > ~/.zfunc/_lapsed        (with `fpath+=~/.zfunc` before `compinit`)
  lapsed completions fish > ~/.config/fish/completions/lapsed.fish")]
pub struct Completions {
    /// Shell that will read the script.
    #[arg(value_enum)]
    pub shell: Shell,
}

/// The arguments of `lapsed man`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lapsed man | man -l -                       read the manual page now
  lapsed man ~/.local/share/man/man1          install all pages: `man lapsed-sweep`")]
pub struct Man {
    /// Folder for lapsed.1 and a page for every command; without it, lapsed.1 is printed.
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
}
