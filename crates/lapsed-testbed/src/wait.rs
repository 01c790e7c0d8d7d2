//! Waiting for something outside: look again and again, until a deadline.

use std::thread;
use std::time::{Duration, Instant};

use crate::{TestbedError, TestbedResult};

const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Looks until `look` answers `Some`, at least once. Past `limit` an error that says `what` was
/// waited for.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> TestbedResult<Option<T>>,
) -> TestbedResult<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            return Err(TestbedError::new(format!("{what}: not within {limit:?}")));
        }
        thread::sleep(BETWEEN_LOOKS);
    }
}
