//! What happens to the actors of the show, and when: a fixed round of steps, so that every system has its turn.
//! This module does no I/O.

use std::time::Duration;

use crate::kinds::ROUND;

/// Time between the start of the actors and the first step.
pub const OPENING: Duration = Duration::from_millis(500);

/// One step of the script, with the role of the process that it affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptStep {
    /// The process is killed with SIGKILL, and cannot say goodbye.
    Kill(&'static str),
    /// The process gets SIGSTOP, and SIGCONT after its TTL is over.
    Freeze(&'static str),
    /// The process retires and ends.
    Leave(&'static str),
    /// One of the `specials` of the kind that has this role, by its index.
    Special(&'static str, usize),
}

/// How many steps at the beginning follow each other quickly.
const FAST: usize = 4;
const PAUSE_FAST: Duration = Duration::from_millis(700);
const PAUSE: Duration = Duration::from_secs(4);

/// The position in the round; after the last step it begins again.
#[derive(Debug, Default)]
pub struct Script(usize);

impl Script {
    /// The step to carry out now, and the pause before the next one.
    pub fn advance(&mut self) -> (ScriptStep, Duration) {
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
        let acts: Vec<_> = (0..ROUND.len()).map(|_| script.advance()).collect();
        for kind in KINDS {
            assert!(
                acts.iter().any(|(act, _)| *act == ScriptStep::Kill(kind.role)),
                "{}",
                kind.role
            );
        }
        let opening: Duration = acts[..FAST - 1].iter().map(|(_, pause)| *pause).sum();
        assert!(opening < Duration::from_secs(3), "{opening:?}");
        assert_eq!(script.advance().0, acts[0].0, "the round begins again");
    }
}
