//! `lapsed man`: one page for the program and one for every command, from the same texts as `--help`.

use std::io::Write;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::completions::visible;
use crate::cli::shell;
use lapsed_server::failure::Failure;
use lapsed_server::print::{self, plural};

/// Writes all pages into the folder, or prints lapsed.1.
pub fn run(args: &shell::Man) -> Result<(), Failure> {
    let mut program = visible().disable_help_subcommand(true);
    program.build();
    let Some(dir) = &args.dir else {
        std::io::stdout().lock().write_all(&page(&program)?)?;
        return Ok(());
    };
    std::fs::create_dir_all(dir).map_err(|error| cannot(dir, &error))?;
    let written = write_all(&program, dir)?;
    let pages = plural(written, "page", "pages");
    print::line(&format!("{pages} written to {}", dir.display()))
}

/// Writes a page for `command` and for each of its subcommands; the number of pages.
fn write_all(command: &Command, dir: &Path) -> Result<u64, Failure> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let file = dir.join(format!("{name}.1"));
    std::fs::write(&file, page(command)?).map_err(|error| cannot(&file, &error))?;
    let mut written = 1;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        written += write_all(below, dir)?;
    }
    Ok(written)
}

fn cannot(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!("{}: cannot be written: {error}", path.display()))
}

/// Renders the sections in order. Examples keep their line breaks, which clap_mangen would remove.
fn page(command: &Command) -> Result<Vec<u8>, Failure> {
    let man = Man::new(command.clone()).manual("lapsed");
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut out)?;
    }
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(&mut out)?;
    }
    if let Some(after) = command.get_after_help() {
        examples(&after.to_string()).to_writer(&mut out)?;
    }
    Ok(out)
}

fn examples(text: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES"]);
    roff.control("nf", []);
    for line in text.lines().filter(|line| *line != "Examples:") {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff
}
