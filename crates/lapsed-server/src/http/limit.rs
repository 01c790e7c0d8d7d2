//! Rate limits: how often a token may be used, and how often an address may show wrong tokens.
//!
//! A bucket is one number, the moment until which it is used up, and taking from it is one
//! compare-and-swap: there is no lock and nothing to clean up. Failures are counted by address in a
//! table of fixed size. Two addresses that share a slot of the table share its bucket; the effect
//! is only that a stranger may have to wait.
//!
//! An address that showed too many wrong tokens is refused for a while, because otherwise tokens
//! could be guessed at full speed. A token that was accepted from that address before is still
//! accepted: many clients may share one address (NAT), and a heartbeat that is refused because of
//! another client's mistake could let an owner be declared dead.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::config::limit::RateLimit;

/// How many wrong tokens an address may show: `burst` at first, then `per_second`.
const FAILURES: RateLimit = RateLimit { per_second: 10, burst: 50 };

/// The number of slots in the table of failures.
const PLACES: usize = 4_096;

/// A rate limiter that admits a fixed number of requests per second, and a burst at once.
#[derive(Debug)]
pub struct TokenBucket {
    step_ns: u64,
    room_ns: u64,
    /// The moment until which the bucket is used up, in nanoseconds of the monotonic clock.
    used_until_ns: AtomicU64,
}

impl TokenBucket {
    pub fn new(limit: RateLimit) -> TokenBucket {
        let step_ns = 1_000_000_000 / u64::from(limit.per_second.max(1));
        let room_ns = step_ns * u64::from(limit.burst.max(1));
        TokenBucket { step_ns, room_ns, used_until_ns: AtomicU64::new(0) }
    }

    /// Takes one request from the bucket. The error is how long to wait until one is available.
    pub fn take(&self, now: Duration) -> Result<(), Duration> {
        let now = now.as_nanos() as u64;
        let take = |used: u64| {
            let next = used.max(now) + self.step_ns;
            (next - now <= self.room_ns).then_some(next)
        };
        let order = Ordering::Relaxed;
        match self.used_until_ns.fetch_update(order, order, take) {
            Ok(_) => Ok(()),
            Err(used) => Err(self.wait(used, now)),
        }
    }

    /// Says whether a request is available, without taking it. The error is how long to wait.
    pub fn check(&self, now: Duration) -> Result<(), Duration> {
        let now = now.as_nanos() as u64;
        match self.wait(self.used_until_ns.load(Ordering::Relaxed), now) {
            Duration::ZERO => Ok(()),
            wait => Err(wait),
        }
    }

    /// Whether something was taken that is not available again yet.
    pub fn is_used(&self, now: Duration) -> bool {
        self.used_until_ns.load(Ordering::Relaxed) > now.as_nanos() as u64
    }

    fn wait(&self, used: u64, now: u64) -> Duration {
        let next = used.max(now) + self.step_ns - now;
        Duration::from_nanos(next.saturating_sub(self.room_ns))
    }
}

/// The failures of all client addresses, in a table of fixed size.
#[derive(Debug)]
pub struct FailureTable {
    places: Vec<FailureCount>,
    seed: RandomState,
}

/// The failures of the addresses that share one slot of the table.
#[derive(Debug)]
pub struct FailureCount {
    failures: TokenBucket,
    /// The tokens that were accepted from here, one bit each; with more than 64 tokens several
    /// share a bit.
    proven: AtomicU64,
}

impl FailureTable {
    /// An empty table: no address has failed yet.
    pub fn new() -> FailureTable {
        let counter =
            || FailureCount { failures: TokenBucket::new(FAILURES), proven: AtomicU64::new(0) };
        let places = std::iter::repeat_with(counter).take(PLACES).collect();
        FailureTable { places, seed: RandomState::new() }
    }

    /// The slot of `address`, which stays the same for as long as this table exists.
    pub fn place(&self, address: IpAddr) -> usize {
        (self.seed.hash_one(network(address)) % PLACES as u64) as usize
    }

    /// The failures that are counted in slot `place`.
    pub fn at(&self, place: usize) -> &FailureCount {
        &self.places[place % PLACES]
    }
}

impl FailureCount {
    /// Accepts the valid token number `token`. While the address is refused, only tokens that were
    /// accepted from it before are accepted; the error is how long to wait.
    pub fn pass(&self, token: usize, now: impl FnOnce() -> Duration) -> Result<(), Duration> {
        let bit = 1 << (token % 64);
        if self.proven.load(Ordering::Relaxed) & bit != 0 {
            return Ok(());
        }
        self.failures.check(now())?;
        self.proven.fetch_or(bit, Ordering::Relaxed);
        Ok(())
    }

    /// Counts a wrong token. The error is how long the address must wait, if there were too many.
    pub fn fail(&self, now: Duration) -> Result<(), Duration> {
        self.failures.take(now)
    }
}

/// The address under which failures are counted. IPv6 addresses are counted by network, because one
/// client can use any address of its own network.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let whole = u128::from(v6);
            IpAddr::V6(Ipv6Addr::from(whole & !u128::from(u64::MAX)))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_bucket_lets_a_burst_through_and_then_so_many_a_second() {
        let bucket = TokenBucket::new(RateLimit { per_second: 10, burst: 3 });
        let start = at(5_000);
        assert_eq!([0; 3].map(|_| bucket.take(start)), [Ok(()); 3]);
        assert_eq!(bucket.take(start), Err(at(100)));
        assert_eq!(bucket.check(start), Err(at(100)));
        assert_eq!(bucket.take(start + at(99)), Err(at(1)));
        assert_eq!(bucket.take(start + at(100)), Ok(()));
        assert_eq!(bucket.take(start + at(100)), Err(at(100)));
        let later = start + at(60_000);
        let taken = (0..10).filter(|_| bucket.take(later).is_ok()).count();
        assert_eq!(taken, 3, "what nobody asked for is not saved up");
    }

    #[test]
    fn a_bucket_never_lets_more_through_when_many_take_at_once() {
        let bucket = TokenBucket::new(RateLimit { per_second: 1, burst: 500 });
        let taken: usize = std::thread::scope(|scope| {
            let take = || (0..1_000).filter(|_| bucket.take(at(9_000)).is_ok()).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(taken, 500);
    }

    #[test]
    fn an_address_that_is_wrong_too_often_is_not_listened_to_except_for_who_was_good_before() {
        let failures = FailureTable::new();
        let counter = failures.at(failures.place([192, 0, 2, 7].into()));
        let now = at(1_000);
        assert_eq!(counter.pass(0, || now), Ok(()));
        let wrong = (0..1_000).filter(|_| counter.fail(now).is_ok()).count();
        assert_eq!(wrong, 50);
        assert!(counter.pass(1, || now).is_err(), "it may have been guessed");
        assert_eq!(counter.pass(0, || now), Ok(()), "it was good before");
        assert_eq!(counter.pass(1, || now + at(200)), Ok(()), "a while later");
    }

    #[test]
    fn an_ipv6_network_is_one_address() {
        let failures = FailureTable::new();
        let place = |text: &str| failures.place(text.parse().unwrap());
        assert_eq!(place("2001:db8::1"), place("2001:db8::ffff:2"));
        assert_eq!(place("::ffff:192.0.2.7"), place("192.0.2.7"));
    }
}
