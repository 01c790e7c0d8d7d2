//! A program beside the test: it is talked to in lines, frozen and killed.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;

use lapsed_testbed::Program;

const LIMIT: Duration = Duration::from_secs(60);

/// Says its pid, then every line back.
fn echo() -> Program {
    let script = "echo $$; while read -r line; do echo \"$line!\"; done; echo over; exit 3";
    Program::start(Path::new("/bin/sh"), |command| {
        command.args(["-c", script]);
    })
    .unwrap()
}

#[test]
fn a_program_exchanges_lines_until_it_ends() {
    let program = echo();
    assert_eq!(program.line(LIMIT).unwrap(), program.pid().unwrap().to_string());
    for word in ["one", "two"] {
        program.say(word).unwrap();
        assert_eq!(program.line(LIMIT).unwrap(), format!("{word}!"));
    }
    assert_eq!(program.finish(LIMIT).unwrap().code(), Some(3));
    assert_eq!(program.line(LIMIT).unwrap(), "over");
    let error = program.line(LIMIT).unwrap_err().to_string();
    assert!(error.contains("exit status: 3"), "{error}");
    assert!(program.say("three").is_err());
}

#[test]
fn a_frozen_program_continues_after_thaw() {
    let program = echo();
    program.line(LIMIT).unwrap();
    program.freeze().unwrap();
    program.say("one").unwrap();
    let error = program.line(Duration::from_millis(50)).unwrap_err().to_string();
    assert!(error.contains("said nothing for"), "{error}");
    program.thaw().unwrap();
    assert_eq!(program.line(LIMIT).unwrap(), "one!");
}

#[test]
fn a_killed_program_is_gone() {
    let program = echo();
    let pid = program.line(LIMIT).unwrap();
    program.kill().unwrap();
    assert!(program.pid().is_none());
    assert!(!Path::new("/proc").join(pid).exists());
    assert!(program.line(LIMIT).is_err());
}
