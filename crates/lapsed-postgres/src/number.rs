//! Numbers and times on their way: the server counts in signed numbers, and in timestamps.

/// The largest number that can still grow by one on the server.
const MOST: u64 = i64::MAX as u64 / 2;

/// As the server takes it. What is beyond its numbers comes from nobody's counter.
pub(crate) fn to_i64(number: u64) -> i64 {
    number.min(MOST) as i64
}

pub(crate) fn to_u64(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A timestamp as milliseconds since 1970, rounded down.
pub(crate) fn ms_of(time: &str) -> String {
    format!("floor(extract(epoch FROM {time}) * 1000)::bigint")
}
