//! `lapsed init`: a commented configuration for one of the five systems, asked for or chosen by flags, or for the job
//! systems that were found on a server.

use std::io::{BufRead, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::detect;
use crate::cli::init::Init;
use lapsed_server::failure::Failure;
use lapsed_server::preset::{Chosen, PRESETS, kind_of, renamed};
use lapsed_server::print::{self, Table};
use lapsed_server::systems::Preset;

/// Lists the presets, or writes a configuration.
pub fn run(args: Init) -> Result<(), Failure> {
    if args.list {
        return list(args.shape.json);
    }
    if let Some(url) = &args.from {
        return write_found(url, &args);
    }
    let (chosen, file) = match args.preset {
        Some(preset) => (given(preset, &args), args.output.clone()),
        None if is_asked() => {
            ask(&mut std::io::stdin().lock(), &mut std::io::stderr(), &args.output)?
        }
        None => {
            return Err(Failure::usage(format!(
                "which preset? Nobody can be asked without a terminal; give --preset {} \
                 (`lapsed init --list` says what each is)",
                names().join("|")
            )));
        }
    };
    let text = chosen.text()?;
    write(&file, &text, args.force)?;
    match args.shape.json {
        true => print::json(&json!({
            "file": file, "preset": chosen.preset.name, "kind": kind_of(chosen.preset).as_str(),
        })),
        false => print::lines(&next_steps(&chosen, &file)),
    }
}

/// Looks at the server, and writes a system for each job system that was found.
fn write_found(url: &str, args: &Init) -> Result<(), Failure> {
    let detected = detect::find(url)?;
    let usable: Vec<_> = detected.found.iter().filter(|found| found.version != "unknown").collect();
    if usable.is_empty() {
        return Err(Failure::failed(format!(
            "{}: no job system was found that lapsed can rescue; `lapsed detect` says what is there. Nothing was written",
            detected.store
        )));
    }
    let mut text = format!(
        "# Jobs that dead workers left, put back in place. No line of the application changes.\n\
         # lapsed check -c FILE says what it means; lapsed sweep NAME --dry-run -c FILE says what it would put back;\n\
         # lapsed serve -c FILE runs it.\n\n\
         [server]\n\
         listen = \"127.0.0.1:7227\"          # dashboard, HTTP, /metrics; another address than loopback needs a token\n\n\
         [store.main]\nurl = {}\n",
        toml_string(url)
    );
    let names = names_of(&usable);
    for (found, name) in usable.iter().zip(&names) {
        text.push_str(&format!(
            "\n[[system]]\nkind   = \"inflight\"\nname   = \"{name}\"\nstore  = \"main\"\nmode   = \"adopt\"\npreset = \"{0}\"\n\
             {1}{2}on_death = \"front\"                # or back, dead_letter, drop\n\
             crashes_max = 3                   # after this many workers died with it, a job is not put back again\n",
            found.preset,
            prefix_of(found),
            only_queues(&found.preset, &found.queues)
        ));
    }
    write(&args.output, &text, args.force)?;
    let presets: Vec<&str> = usable.iter().map(|found| found.preset.as_str()).collect();
    if args.shape.json {
        let file = &args.output;
        return print::json(&json!({ "file": file, "presets": presets, "systems": names }));
    }
    let (file, first) = (args.output.display(), &names[0]);
    let mut steps = Table::bare();
    for (what, why) in [
        (format!("check -c {file}"), "is it right, and what does it mean"),
        (format!("sweep {first} --dry-run -c {file}"), "what would be put back, and why"),
        (format!("serve -c {file}"), "run it: dashboard on http://127.0.0.1:7227/"),
    ] {
        steps.row(vec![format!("  lapsed {what}"), why.to_owned()]);
    }
    print::lines(&format!("wrote {file}: {}\n\nNext:\n{}", names.join(", "), steps.text()))
}

/// A name for each system: its preset, and its prefix if the preset comes a second time.
fn names_of(found: &[&detect::FoundSystem]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for one in found {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let prefix: String = one.prefix.iter().flat_map(|text| text.chars()).map(plain).collect();
        let long: String = format!("{}-{prefix}", one.preset).chars().take(60).collect();
        let numbered = (2..).map(|number| format!("{long}-{number}"));
        let mut wanted = [one.preset.clone(), long.clone()].into_iter().chain(numbered);
        names.extend(wanted.find(|name| !names.contains(name)));
    }
    names
}

/// The line that says what stands before the keys of a system.
fn prefix_of(found: &detect::FoundSystem) -> String {
    let line = |prefix: &String| format!("prefix = {}\n", toml_string(prefix));
    found.prefix.as_ref().map_or(String::new(), line)
}

/// The line that limits a system to some queues. Jobs that the application registers itself are all put back.
fn only_queues(preset: &str, queues: &[String]) -> String {
    if !detect::is_rescued(preset) {
        return String::new();
    }
    let queues: Vec<String> = queues.iter().map(|name| toml_string(name)).collect();
    match preset {
        // Any program may have streams, so that they are rescued by name only.
        "streams" => format!("queues = [{}]\n", queues.join(", ")),
        _ => format!("# queues = [{}]    # only these; default: all\n", queues.join(", ")),
    }
}

/// A text as TOML writes it.
fn toml_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn is_asked() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

fn names() -> Vec<&'static str> {
    PRESETS.iter().map(|preset| preset.name).collect()
}

fn given(preset: &'static Preset, args: &Init) -> Chosen {
    let store = args.store.clone().unwrap_or_else(|| preset.usual_store().to_owned());
    Chosen { preset, store, mirror: args.mirror.clone() }
}

fn list(as_json: bool) -> Result<(), Failure> {
    if as_json {
        return PRESETS.iter().try_for_each(|preset| {
            let stores = preset.examples();
            let kind = kind_of(preset).as_str();
            let about = preset.about;
            print::json(
                &json!({ "preset": preset.name, "kind": kind, "about": about, "stores": stores }),
            )
        });
    }
    print::lines(&listed().text())
}

fn listed() -> Table {
    let mut table = Table::new(&["preset", "kind", "what it is", "stores"]);
    for preset in PRESETS.iter() {
        let stores = preset.examples();
        table.row(vec![
            preset.name.to_owned(),
            kind_of(preset).to_string(),
            preset.about.to_owned(),
            stores.join(", "),
        ]);
    }
    table
}

/// Asks for the preset, the stores and the file; Enter takes the default answer.
fn ask(
    answers: &mut dyn BufRead,
    out: &mut dyn Write,
    file: &Path,
) -> Result<(Chosen, PathBuf), Failure> {
    let mut table = Table::bare();
    for (index, preset) in PRESETS.iter().enumerate() {
        let number = (index + 1).to_string();
        table.row(vec![format!(" {number}"), preset.name.to_owned(), preset.about.to_owned()]);
    }
    writeln!(out, "Which system?\n{}", table.text())?;
    let preset = loop {
        let answer = question(answers, out, "number or name", PRESETS[0].name)?;
        match preset_of(&answer) {
            Some(preset) => break preset,
            None => match renamed(&answer) {
                Some(told) => writeln!(out, "{told}")?,
                None => writeln!(
                    out,
                    "there is no {answer:?}; 1 to {}, or one of the names",
                    PRESETS.len()
                )?,
            },
        }
    };
    let examples = preset.examples();
    writeln!(out, "\nWhere is its data? For example {}", examples.join(" or "))?;
    let mut chosen = Chosen { preset, store: String::new(), mirror: None };
    loop {
        chosen.store = question(answers, out, "store", preset.usual_store())?;
        match chosen.text() {
            Ok(_) => break,
            Err(wrong) => writeln!(out, "{wrong}")?,
        }
    }
    let file = question(answers, out, "write it to", &file.display().to_string())?;
    Ok((chosen, PathBuf::from(file)))
}

fn question(
    answers: &mut dyn BufRead,
    out: &mut dyn Write,
    what: &str,
    usual: &str,
) -> Result<String, Failure> {
    write!(out, "{what} [{usual}]: ")?;
    out.flush()?;
    let mut line = String::new();
    if answers.read_line(&mut line)? == 0 {
        return Err(Failure::usage("nothing was answered, and nothing was written"));
    }
    let answer = line.trim();
    Ok(if answer.is_empty() { usual } else { answer }.to_owned())
}

fn preset_of(answer: &str) -> Option<&'static Preset> {
    let all = PRESETS.as_slice();
    let by_number = answer.parse::<usize>().ok().and_then(|number| all.get(number.checked_sub(1)?));
    by_number.or_else(|| all.iter().find(|preset| preset.name == answer)).copied()
}

/// Writes the file. An existing file is replaced only with `force`; creating and checking are one operation.
fn write(file: &Path, text: &str, force: bool) -> Result<(), Failure> {
    let mut options = std::fs::File::options();
    match force {
        true => options.write(true).create(true).truncate(true),
        false => options.write(true).create_new(true),
    };
    let name = file.display();
    let mut opened = options.open(file).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::usage(format!(
            "{name} is already there and was left as it is; choose another with -o FILE, or pass --force"
        )),
        _ => Failure::failed(format!("{name}: cannot be written: {error}")),
    })?;
    opened.write_all(text.as_bytes())?;
    Ok(())
}

fn next_steps(chosen: &Chosen, file: &Path) -> String {
    let file = file.display();
    let mut text = format!("wrote {file}: {}, {}", chosen.preset.name, chosen.preset.about);
    if chosen.has_password() {
        text.push_str(
            "\nA password is in it. Write ${REDIS_PASSWORD} or the like in its place, and set that \
             variable, to keep it out.",
        );
    }
    let mut steps = Table::bare();
    let mut step = |what: &str, why: &str| {
        steps.row(vec![format!("  lapsed {what} -c {file}"), why.to_owned()]);
    };
    if chosen.store.starts_with("postgres") {
        step("schema apply", "make the tables that are missing");
    }
    step("check", "is it right, and what does it mean");
    step("serve", "run it: dashboard on http://127.0.0.1:7227/");
    format!("{text}\n\nNext:\n{}", steps.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(answers: &str) -> (Result<(Chosen, PathBuf), Failure>, String) {
        let mut out = Vec::new();
        let answer = ask(&mut answers.as_bytes(), &mut out, Path::new("lapsed.toml"));
        (answer, String::from_utf8(out).unwrap())
    }

    #[test]
    fn enter_takes_what_is_usual() {
        let (answer, out) = asked("\n\n\n");
        let (chosen, file) = answer.unwrap();
        assert_eq!((chosen.preset.name, file.to_str()), ("registry", Some("lapsed.toml")));
        assert_eq!(chosen.store, "redis://127.0.0.1:6379/0");
        assert!(out.contains("number or name [registry]"), "{out}");
    }

    #[test]
    fn a_wrong_answer_is_asked_again_and_no_answer_ends_it() {
        let (answer, out) = asked("9\nlockd\nleases\nredis://127.0.0.1\ns3://b/p\nx.toml\n");
        let (chosen, file) = answer.unwrap();
        assert_eq!((chosen.preset.name, chosen.store.as_str()), ("leases", "s3://b/p"));
        assert_eq!(file, PathBuf::from("x.toml"));
        assert!(
            ["there is no \"9\"", "is called `leases` now", "cannot be on that store"]
                .iter()
                .all(|words| out.contains(words)),
            "{out}"
        );
        assert!(matches!(asked("").0, Err(Failure::Usage(_))));
    }
}
