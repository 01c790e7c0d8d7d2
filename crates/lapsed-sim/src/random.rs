//! The source of all randomness in a run. It depends on the seed alone.

use std::sync::{Arc, Mutex};

/// A shared random generator. It is splitmix64, written out here so that a seed gives the same run
/// in every version.
#[derive(Clone, Debug)]
pub struct SimRandom(Arc<Mutex<u64>>);

impl SimRandom {
    /// Starts the sequence of this seed.
    pub fn new(seed: u64) -> Self {
        SimRandom(Arc::new(Mutex::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x5851_f42d)))
    }

    pub fn any(&self) -> u64 {
        let mut state = self.0.lock().expect("nobody panics while holding the lock");
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(*state)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&self, low: u64, high: u64) -> u64 {
        low + self.any() % (high - low + 1)
    }

    /// True with probability `share`.
    pub fn odds(&self, share: f64) -> bool {
        ((self.any() >> 11) as f64 / (1u64 << 53) as f64) < share
    }

    /// One element at random, or `None` if there are none.
    pub fn pick<'a, T>(&self, from: &'a [T]) -> Option<&'a T> {
        match from.len() {
            0 => None,
            n => from.get(self.any() as usize % n),
        }
    }
}

/// The mixing function of splitmix64.
pub fn mix(state: u64) -> u64 {
    let mut z = state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
