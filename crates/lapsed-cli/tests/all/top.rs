//! `lapsed top` on a real terminal (tmux) and a real daemon: a receipt arrives, keys work, and the
//! terminal is given back.

use std::process::Command;

use crate::support::{Daemon, Home, lapsed, run, until};

/// A terminal of 100 by 30 of a server of its own.
pub struct Screen {
    socket: String,
}

impl Screen {
    /// A shell in it; none where there is no tmux.
    pub fn open(dir: &std::path::Path) -> Option<Screen> {
        let socket = dir.join("tmux").display().to_string();
        let screen = Screen { socket };
        let args = ["-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30"];
        // A shell takes its prompt over from its own environment, not from the terminal's.
        let shell = ["env", "PS1=ready> ", "sh"];
        let opened = screen.command(&[&args[..], &shell].concat()).env("TERM", "xterm").status();
        opened.ok()?.success().then_some(screen)
    }

    /// With `lapsed top` in it, which shows that daemon.
    fn of_top(home: &Home, daemon: &Daemon) -> Screen {
        let Some(screen) = Screen::open(home.config().parent().unwrap()) else {
            panic!("tmux is missing; `make servers` installs it");
        };
        screen.until_shows("ready>");
        let program = lapsed().get_program().to_string_lossy().into_owned();
        screen.press(&[&format!("{program} top --url {}", daemon.url), "Enter"]);
        screen.until_shows("registry/devices");
        screen
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.args(["-S", &self.socket]).args(args).env_remove("TMUX");
        command
    }

    pub fn press(&self, keys: &[&str]) {
        let told = self.command(&[&["send-keys"], keys].concat()).status().unwrap();
        assert!(told.success());
    }

    fn shows(&self) -> String {
        let out = self.command(&["capture-pane", "-p"]).output().unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// The pid of what runs in its shell, or nothing when the shell waits for a command.
    fn child(&self) -> String {
        let shell = self.command(&["display-message", "-p", "#{pane_pid}"]).output().unwrap();
        let shell = String::from_utf8(shell.stdout).unwrap();
        let children = format!("/proc/{0}/task/{0}/children", shell.trim());
        std::fs::read_to_string(children).unwrap().trim().to_owned()
    }

    #[track_caller]
    pub fn until_shows(&self, text: &str) -> String {
        until(&format!("the terminal to show {text:?}"), || {
            let picture = self.shows();
            picture.contains(text).then_some(picture)
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.command(&["kill-server"]).status();
    }
}

#[test]
fn top_shows_a_receipt_and_restores_the_terminal() {
    let home = Home::new("300ms", "sweep = { every = \"1d\" }");
    let daemon = home.serve();
    let screen = Screen::of_top(&home, &daemon);
    daemon.hold("i-1", &["imei-1"]);
    daemon.until_overdue(1);
    screen.press(&["d"]);
    screen.until_shows("1 of 1 suspect would be reclaimed");
    screen.press(&["s"]);
    screen.until_shows("Run a real pass of registry/devices?");
    screen.press(&["y"]);
    screen.until_shows("1 of 1 suspect reclaimed");
    screen.press(&["Escape"]);
    let picture = screen.until_shows("imei-1");
    assert!(picture.contains("owner_dead"), "{picture}");
    screen.press(&["h"]);
    screen.until_shows("Hold the brake of registry/devices?");
    screen.press(&["y"]);
    until("the brake to be held", || {
        (daemon.get("/v1/brakes/registry/devices").body["setting"] == "hold").then_some(())
    });
    screen.press(&["q"]);
    // The shell's first line is back before the program has ended, and until then the program reads the keys.
    until("top to end", || screen.child().is_empty().then_some(()));
    let after = screen.until_shows("ready>");
    assert!(!after.contains("lapsed top  http"), "the picture is gone: {after}");
    screen.press(&["stty -a | tr ';' '\\n' | grep -ow -e '-*icanon' -e '-*echo'", "Enter"]);
    let modes = screen.until_shows("\nicanon");
    assert!(!modes.contains("\n-echo") && !modes.contains("\n-icanon"), "{modes}");
}

#[test]
fn top_restores_the_terminal_on_a_signal_and_reports_a_lost_daemon() {
    let home = Home::new("300ms", "");
    let daemon = home.serve();
    let screen = Screen::of_top(&home, &daemon);
    let top = screen.child();
    daemon.kill();
    screen.until_shows("CONNECTION LOST");
    assert!(Command::new("kill").args(["-TERM", &top]).status().unwrap().success());
    screen.until_shows("ready>");
}

/// Its window was closed: it does not go on looking for keys on a terminal that is not there.
#[test]
fn top_ends_when_its_terminal_is_gone() {
    let home = Home::new("300ms", "");
    let daemon = home.serve();
    let screen = Screen::of_top(&home, &daemon);
    let top = screen.child();
    assert!(screen.command(&["kill-server"]).status().unwrap().success());
    let of_it = format!("/proc/{top}/stat");
    until("it to end", || {
        let stat = std::fs::read_to_string(&of_it).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
}

#[test]
fn top_without_a_terminal_names_another_command() {
    let told = run(&["top"]);
    assert_eq!(told.code, 2, "{told:?}");
    assert!(told.err.contains("lapsed status"), "{told:?}");
}
