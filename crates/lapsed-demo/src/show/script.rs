//! What happens on stage, and when: a fixed round, so that every system has its turn. Decides from
//! values alone.

use std::time::Duration;

use crate::kinds::ROUND;

/// When the first act begins, after everybody has entered.
pub const OPENING: Duration = Duration::from_millis(500);

/// One thing that happens, to the role that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptStep {
    /// kill -9: nobody is told.
    Kill(&'static str),
    /// SIGSTOP for longer than its time, then SIGCONT.
    Freeze(&'static str),
    /// Leaves gracefully.
    Leave(&'static str),
    /// One of the special things of the kind of that role, by its number.
    Special(&'static str, usize),
}

/// How many acts come fast, one after the other.
const FAST: usize = 4;
const PAUSE_FAST: Duration = Duration::from_millis(700);
const PAUSE: Duration = Duration::from_secs(4);

/// Where in the round it is.
#[derive(Debug, Default)]
pub struct Script(usize);

impl Script {
    /// What happens now, and how long until the next.
    pub fn next(&mut self) -> (ScriptStep, Duration) {
        let act = ROUND[self.0 % ROUND.len()];
        self.0 += 1;
        (act, if self.0 < FAST { PAUSE_FAST } else { PAUSE })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::KINDS;

    #[test]
    fn every_role_dies_within_a_round_and_the_first_deaths_come_at_once() {
        let mut script = Script::default();
        let acts: Vec<_> = (0..ROUND.len()).map(|_| script.next()).collect();
        for kind in KINDS {
            assert!(
                acts.iter().any(|(act, _)| *act == ScriptStep::Kill(kind.role)),
                "{}",
                kind.role
            );
        }
        let opening: Duration = acts[..FAST - 1].iter().map(|(_, pause)| *pause).sum();
        assert!(opening < Duration::from_secs(3), "{opening:?}");
        assert_eq!(script.next().0, acts[0].0, "the round begins again");
    }
}
