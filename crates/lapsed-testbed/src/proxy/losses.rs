//! Which answers are to be lost, and how many were.

use std::sync::Mutex;

use super::locked;

#[derive(Default)]
pub(super) struct Losses(Mutex<Plan>);

#[derive(Default)]
struct Plan {
    any: usize,
    matching: Vec<Vec<u8>>,
    lost: usize,
}

impl Losses {
    pub(super) fn any(&self, n: usize) {
        locked(&self.0).any += n;
    }

    pub(super) fn matching(&self, part: &str) {
        locked(&self.0).matching.push(part.to_ascii_lowercase().into_bytes());
    }

    pub(super) fn lost(&self) -> usize {
        locked(&self.0).lost
    }

    pub(super) fn note_lost(&self) {
        locked(&self.0).lost += 1;
    }

    /// Whether this request's answer is to be lost; uses up one loss if so.
    pub(super) fn take(&self, request: &[u8]) -> bool {
        let mut plan = locked(&self.0);
        if plan.any == 0 && plan.matching.is_empty() {
            return false;
        }
        let request = request.to_ascii_lowercase();
        if let Some(nth) = plan.matching.iter().position(|part| contains(&request, part)) {
            plan.matching.remove(nth);
            return true;
        }
        let any = plan.any > 0;
        plan.any -= usize::from(any);
        any
    }
}

fn contains(all: &[u8], part: &[u8]) -> bool {
    part.is_empty() || all.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::Losses;

    #[test]
    fn each_loss_is_used_once() {
        let losses = Losses::default();
        losses.matching("EvalSha");
        losses.any(1);
        assert!(losses.take(b"evalsha abc"));
        assert!(losses.take(b"evalsha abc"));
        assert!(!losses.take(b"evalsha abc"));
    }
}
