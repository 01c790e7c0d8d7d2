//! Runs the console blocks of a page as a reader would: in one shell, from top to bottom, and compares what is
//! shown with what is printed.
//!
//! In a page, `$ ` begins a command, and what follows until the next one is what it prints; nothing is
//! compared where nothing is shown. `…` stands for whatever varies, alone on a line for any lines; so does
//! a time in milliseconds. `# exit 3` at the end of a command says how it ends. A block of another
//! language that begins with `# NAME.EXT` is that file. `lapsed serve` and `make run` go on until the
//! next one. Addresses are exchanged for those of servers that are really there.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use lapsed_testbed::Port;
use tempfile::TempDir;

/// Reached only when something is wrong.
const PATIENCE: Duration = Duration::from_secs(90);

/// The marker that the shell prints after each command.
const MARK: &str = "@@ended@@";

/// What a page tells its reader to do.
#[derive(Debug, PartialEq)]
pub enum Step {
    File { name: String, text: String },
    Type { line: usize, command: String, shown: Vec<String> },
}

/// The steps of a page.
pub fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((_, line)) = lines.next() {
        let Some(language) = line.strip_prefix("```") else { continue };
        let inside = lines.by_ref().take_while(|(_, line)| !line.starts_with("```"));
        let block: Vec<_> = inside.map(|(number, line)| (number + 1, line)).collect();
        match language {
            "console" => steps.extend(typed(&block)),
            _ => steps.extend(file(&block)),
        }
    }
    steps
}

/// The file that a block is, if it says its name.
fn file(block: &[(usize, &str)]) -> Option<Step> {
    let (_, first) = block.first()?;
    let name = first.strip_prefix("# ")?.split([' ', ':']).next()?;
    let named = name.contains('.') && !name.ends_with('.');
    let text: String = block.iter().map(|(_, line)| format!("{line}\n")).collect();
    named.then(|| Step::File { name: name.to_owned(), text })
}

/// The commands of a console block.
fn typed(block: &[(usize, &str)]) -> Vec<Step> {
    let mut found: Vec<Step> = Vec::new();
    for (number, text) in block {
        match (text.strip_prefix("$ "), found.last_mut()) {
            (Some(command), _) => {
                let (line, command) = (*number, command.to_owned());
                found.push(Step::Type { line, command, shown: Vec::new() });
            }
            (None, Some(Step::Type { command, .. })) if command.ends_with('\\') => {
                *command += &format!("\n{text}");
            }
            (None, Some(Step::Type { shown, .. })) => shown.push((*text).to_owned()),
            (None, _) => panic!("line {number}: a block begins with a command: {text}"),
        }
    }
    for step in &mut found {
        if let Step::Type { shown, .. } = step {
            let kept = shown.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
            shown.truncate(kept);
        }
    }
    found
}

/// Whether `line` is what is shown, `…` standing for anything.
fn same(shown: &str, line: &str) -> bool {
    let mut parts = shown.split('…');
    let first = parts.next().expect("a split has a first part");
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let Some(last) = shown.split('…').skip(1).last() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    line.len() >= first.len() + last.len() && line.ends_with(last)
}

/// Whether these lines are what is shown, a line of `…` standing for any.
fn all_same(shown: &[String], lines: &[String]) -> bool {
    match (shown.split_first(), lines.split_first()) {
        (None, None) => true,
        (Some((one, more)), _) if one.trim() == "…" => {
            (0..=lines.len()).any(|skipped| all_same(more, &lines[skipped..]))
        }
        (Some((one, more)), Some((line, rest))) => {
            same(&timeless(one), &timeless(line)) && all_same(more, rest)
        }
        _ => false,
    }
}

/// Times in milliseconds are exchanged for `…`: they have thirteen digits.
fn timeless(line: &str) -> String {
    let mut kept = String::new();
    for part in line.split_inclusive(|c: char| !c.is_ascii_digit()) {
        let digits = part.trim_end_matches(|c: char| !c.is_ascii_digit());
        kept += if digits.len() == 13 { "…" } else { digits };
        kept += &part[digits.len()..];
    }
    kept
}

/// A shell in a folder of its own, with the binary in its path.
pub struct Shell {
    dir: TempDir,
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    exchanges: Vec<(String, String)>,
    /// The port, reserved for as long as this shell runs.
    _port: Port,
}

/// What every shell begins with: serving until the next one, and a daemon that answers before the next line.
const PRELUDE: &str = r#"
shopt -s expand_aliases
serving=
serve_until_next() {
    if [ -n "$serving" ]; then kill "$serving"; wait "$serving" 2> /dev/null; fi
    command lapsed serve "$@" >> serve.log 2>&1 &
    serving=$!
    for _ in $(seq 300); do curl -sf "$LAPSED_URL/readyz" > /dev/null && return; sleep 0.1; done
    cat serve.log; return 1
}
"#;

impl Shell {
    /// With a free port in place of the default one, and the binary where a build leaves it.
    pub fn new() -> Shell {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("target/release");
        std::fs::create_dir_all(&bin).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_lapsed"), bin.join("lapsed")).unwrap();
        let port = Port::free().unwrap();
        let listen = format!("127.0.0.1:{}", port.number());
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("bash");
        for (name, _) in crate::support::lapsed().get_envs() {
            command.env_remove(name);
        }
        command.args(["--norc", "--noprofile"]).current_dir(dir.path()).process_group(0);
        command.env("PATH", path).env("LAPSED_LISTEN", &listen);
        command.env("LAPSED_URL", format!("http://{listen}"));
        let log = std::fs::File::create(dir.path().join("shell.log")).unwrap();
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let (stdin, lines) = (child.stdin.take().unwrap(), listen_to(&mut child));
        let exchanges = vec![("127.0.0.1:7227".to_owned(), listen)];
        let mut shell = Shell { dir, child, stdin, lines, exchanges, _port: port };
        shell.stdin.write_all(PRELUDE.as_bytes()).unwrap();
        shell
    }

    /// Replaces the address `this` of the page by the real address `there`.
    pub fn exchange(&mut self, this: &str, there: &str) {
        self.exchanges.push((this.to_owned(), there.to_owned()));
    }

    /// A program of the page's that is called otherwise here.
    pub fn program(&self, name: &str, script: &str) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.dir.path().join("target/release").join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Does everything that a page says.
    pub fn follow(&mut self, page: &str) {
        for step in steps(page) {
            match step {
                Step::File { name, text } => {
                    std::fs::write(self.dir.path().join(name), self.exchanged(&text)).unwrap();
                }
                Step::Type { line, command, shown } => self.try_out(line, &command, &shown),
            }
        }
    }

    fn exchanged(&self, text: &str) -> String {
        let exchange = |text: String, (this, there): &(String, String)| text.replace(this, there);
        self.exchanges.iter().fold(text.to_owned(), exchange)
    }

    fn try_out(&mut self, line: usize, command: &str, shown: &[String]) {
        let (code, printed) = self.type_in(&self.exchanged(command));
        let shown: Vec<_> = shown.iter().map(|line| self.exchanged(line)).collect();
        let expected = command.split("# exit ").nth(1).map_or(0, |told| {
            let digits: String = told.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().unwrap()
        });
        let log = || std::fs::read_to_string(self.dir.path().join("serve.log")).unwrap_or_default();
        let whole = printed.join("\n");
        assert_eq!(code, expected, "line {line}: {command}\nprinted\n{whole}\n{}", log());
        let fits = shown.is_empty() || all_same(&shown, &printed);
        assert!(fits, "line {line}: {command}\nprinted\n{whole}\nand not\n{}", shown.join("\n"));
    }

    /// Runs a command in the shell: its exit code and the lines that it printed.
    fn type_in(&mut self, command: &str) -> (i32, Vec<String>) {
        let command =
            match command.strip_prefix("make run").or(command.strip_prefix("lapsed serve")) {
                Some(rest) if !rest.contains(" &") => format!("serve_until_next {rest}"),
                _ => command.to_owned(),
            };
        std::fs::write(self.dir.path().join(".typed"), command + "\n").unwrap();
        let run = format!(". ./.typed 2>&1 < /dev/null; printf '\\n%s %d\\n' {MARK} $?\n");
        self.stdin.write_all(run.as_bytes()).unwrap();
        let mut printed = Vec::new();
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("no end of it: {printed:#?}"));
            match line.strip_prefix(MARK) {
                Some(code) => return (code.trim().parse().unwrap(), without_the_shell(printed)),
                None => printed.push(line),
            }
        }
    }
}

/// Its lines, as they come.
fn listen_to(child: &mut Child) -> Receiver<String> {
    let out = BufReader::new(child.stdout.take().unwrap());
    let (tell, lines) = channel();
    std::thread::spawn(move || {
        let lines = out.lines().map_while(Result::ok);
        lines
            .map(|line| line.trim_end_matches('\r').to_owned())
            .try_for_each(|line| tell.send(line))
    });
    lines
}

/// What was printed, without what the shell says of its children, and without empty lines at the end.
fn without_the_shell(printed: Vec<String>) -> Vec<String> {
    let of_shell =
        |line: &String| line.starts_with("bash: line ") || line.starts_with("./.typed: line ");
    let mut kept: Vec<_> = printed.into_iter().filter(|line| !of_shell(line)).collect();
    while kept.last().is_some_and(|line| line.is_empty()) {
        kept.pop();
    }
    kept
}

impl Drop for Shell {
    /// The shell and all that it has started: they are a group of their own.
    fn drop(&mut self) {
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args(["-CONT", "--", &group]).stderr(Stdio::null()).status();
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.child.wait();
    }
}

#[test]
fn shown_output_is_compared_with_printed_output() {
    assert!(same("a … c", "a b c") && same("…c", "abc") && same("a…", "a") && same("", ""));
    assert!(!same("a … c", "a b d") && !same("ab", "abc") && !same("ab…ba", "aba"));
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(all_same(&lines("a\n…\nd"), &lines("a\nb\nc\nd")));
    assert!(all_same(&lines("at 1794811625374."), &lines("at 1794811699999.")));
    assert!(!all_same(&lines("a\n…\nd"), &lines("a\nb")) && !all_same(&lines("a"), &lines("a\nb")));
}

#[test]
fn console_blocks_become_steps() {
    let page = "Text.\n```toml\n# lapsed.toml\n[server]\n```\n```console\n$ one \\\n  two\nout\n\n$ three\n```\n";
    let file = Step::File { name: "lapsed.toml".into(), text: "# lapsed.toml\n[server]\n".into() };
    let one = Step::Type { line: 7, command: "one \\\n  two".into(), shown: vec!["out".into()] };
    let three = Step::Type { line: 11, command: "three".into(), shown: vec![] };
    assert_eq!(steps(page), [file, one, three]);
}

/// The runner fails on a page whose shown output is wrong.
#[test]
fn a_page_with_wrong_output_fails() {
    let fails = |page: &str| {
        let page = format!("```console\n{page}\n```\n");
        std::panic::catch_unwind(|| Shell::new().follow(&page)).is_err()
    };
    assert!(!fails("$ export A=b\n$ echo $A\nb\n$ false   # exit 1"));
    assert!(fails("$ echo b\nc"));
    assert!(fails("$ echo b\nb\n$ false"));
}
