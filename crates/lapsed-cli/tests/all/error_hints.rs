//! Common mistakes of a new user: each error says what happened and what to do next.

use std::io::{Read, Write};
use std::net::TcpListener;

use crate::support::{Answer, Home, run};

/// What was typed, how it ends, and what must be said: what happened, then what to do.
struct Mistake<'m> {
    args: &'m [&'m str],
    code: i32,
    says: &'m [&'m str],
}

#[track_caller]
fn check(answer: &Answer, mistake: &Mistake<'_>) {
    let Mistake { args, code, says } = mistake;
    assert_eq!(answer.code, *code, "{args:?}: {answer:?}");
    let told = format!("{}{}", answer.out, answer.err);
    for words in *says {
        assert!(told.contains(words), "{args:?} should say {words:?}: {told}");
    }
}

#[test]
fn mistakes_without_a_daemon_are_answered_with_a_next_step() {
    let dir = tempfile::tempdir().unwrap();
    let in_dir = |name: &str| dir.path().join(name).display().to_string();
    let (missing, key, away, file) =
        (in_dir("missing.toml"), in_dir("key.toml"), in_dir("away.toml"), in_dir("file"));
    std::fs::write(&key, "[server]\nlissten = \"127.0.0.1:0\"\n").unwrap();
    std::fs::write(&away, "[store.main]\nurl = \"redis://127.0.0.1:1/0\"\n").unwrap();
    std::fs::write(&file, "").unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, data) = (taken.local_addr().unwrap().to_string(), in_dir("data"));
    let below = format!("{file}/data");
    let mistakes = [
        Mistake {
            args: &["status", "--url", "http://127.0.0.1:1"],
            code: 1,
            says: &["no daemon answers at http://127.0.0.1:1", "lapsed serve", "--url"],
        },
        Mistake {
            args: &["serve", "-c", &missing],
            code: 2,
            says: &["missing.toml", "lapsed init -o"],
        },
        Mistake { args: &["check", "-c", &key], code: 2, says: &["`lissten`", "`listen`", ":2"] },
        Mistake {
            args: &["check", "-c", &away],
            code: 1,
            says: &["redis://127.0.0.1:1", "Is the server running there?"],
        },
        Mistake {
            args: &["serve", "--data", &data, "--listen", &port],
            code: 1,
            says: &[&port, "--listen"],
        },
        Mistake {
            args: &["serve", "--data", &below, "--listen", "127.0.0.1:0"],
            code: 1,
            says: &["cannot be made", "Choose another folder with --data"],
        },
        Mistake { args: &["sevre"], code: 2, says: &["sevre", "'serve'"] },
        Mistake { args: &["top"], code: 2, says: &["terminal", "lapsed status"] },
    ];
    for mistake in mistakes {
        check(&run(mistake.args), &mistake);
    }
}

#[test]
fn mistakes_with_a_daemon_are_answered_with_a_next_step() {
    let home = Home::with("300ms", "", "token = \"writer\"\nread_token = \"reader\"");
    let daemon = home.serve();
    let data = home.data().display().to_string();
    let mistakes = [
        Mistake { args: &["status"], code: 1, says: &["refuses", "--token or LAPSED_TOKEN"] },
        Mistake { args: &["status", "--token", "x"], code: 1, says: &["refuses", "--token"] },
        Mistake {
            args: &["sweep", "devices", "--token", "reader"],
            code: 1,
            says: &["refuses", "a token that may do this"],
        },
        Mistake {
            args: &["sweep", "devics", "--token", "writer"],
            code: 2,
            says: &["no system `devics`", "did you mean `registry/devices`?"],
        },
        Mistake {
            args: &["restore", "registry-devices-9", "--token", "writer"],
            code: 1,
            says: &["there is no receipt registry-devices-9"],
        },
    ];
    for mistake in mistakes {
        check(&daemon.run(mistake.args), &mistake);
    }
    let args = ["serve", "--data", data.as_str(), "--listen", "127.0.0.1:0"];
    check(
        &run(&args),
        &Mistake { args: &args, code: 1, says: &["in use by", "choose another folder"] },
    );
}

#[test]
fn a_pass_held_by_the_brake_says_how_to_override_it() {
    let home = Home::new("300ms", "sweep = { every = \"1d\" }");
    let daemon = home.serve();
    daemon.hold("i-1", &["imei-1"]);
    daemon.until_overdue(1);
    assert_eq!(daemon.run(&["brake", "devices", "hold"]).code, 0);
    let args = ["sweep", "devices"];
    let says = ["brake", "lapsed brake registry/devices override"];
    check(&daemon.run(&args), &Mistake { args: &args, code: 3, says: &says });
}

/// Another program on the port: it is not taken for a daemon.
#[test]
fn another_program_on_the_port_is_reported_as_such() {
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", stranger.local_addr().unwrap());
    let answering = std::thread::spawn(move || {
        let (mut caller, _) = stranger.accept().unwrap();
        let _ = caller.read(&mut [0; 4096]);
        let _ = caller.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno");
    });
    let args = ["status", "--url", url.as_str()];
    check(&run(&args), &Mistake { args: &args, code: 1, says: &["another program", "--url"] });
    answering.join().unwrap();
}

/// What a command advises leads to the configuration that it was given itself.
#[test]
fn hints_name_the_configuration_that_the_command_was_given() {
    let home = Home::new("300ms", "sweep = { every = \"1d\" }");
    let file = home.config().display().to_string();
    let checked = home.run(&["check"]);
    assert!(checked.out.contains(&format!("`lapsed serve -c {file}`")), "{checked:?}");
    let daemon = home.serve();
    daemon.hold("i-1", &["imei-1"]);
    daemon.until_overdue(1);
    assert_eq!(daemon.stop(), Some(0));
    let mut told = String::new();
    for args in [
        &["sweep", "devices", "--dry-run"][..],
        &["brake", "devices", "hold"],
        &["sweep", "devices"],
        &["status", "devices"],
        &["brake", "devices", "override", "--reason", "it is gone", "--yes"],
        &["sweep", "devices"],
        &["receipts"],
    ] {
        let answer = home.run(args);
        // Lines of the log are no answer of the command.
        let errors = answer.err.lines().filter(|line| line.starts_with("error: "));
        told.push_str(&format!("{}\n{}\n", answer.out, errors.collect::<String>()));
    }
    let advised: Vec<&str> = told
        .split("lapsed ")
        .skip(1)
        .filter(|rest| ["sweep", "brake", "restore"].iter().any(|verb| rest.starts_with(verb)))
        .map(|rest| rest.split(['`', '\n', ';', ',']).next().unwrap())
        .collect();
    assert!(advised.len() >= 5, "{told}");
    for command in advised {
        assert!(command.contains(&format!(" -c {file}")), "lapsed {command}: {told}");
    }
}
