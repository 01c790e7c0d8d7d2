//! Converts numbers and times: the server has signed numbers and timestamps.

/// The largest number that can still grow by one on the server.
const MOST: u64 = i64::MAX as u64 / 2;

/// Converts a number for the server. No counter reaches a number that is too large for it.
pub(crate) fn to_i64(number: u64) -> i64 {
    number.min(MOST) as i64
}

pub(crate) fn to_u64(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The SQL that converts a timestamp to milliseconds since 1970, rounded down.
pub(crate) fn ms_of(time: &str) -> String {
    format!("floor(extract(epoch FROM {time}) * 1000)::bigint")
}
