//! How much one request may ask for: rows of a page, items of a batch.

use lapsed_core::Name;

use super::problem::{HttpResult, Problem};

/// Rows per page if the request has no `limit`.
const PAGE_DEFAULT: usize = 1_000;

/// The most heartbeats in one batch, and the most rows in one page.
const MANY_MAX: usize = 10_000;

/// Checks all names; the error is about the first invalid one.
pub fn names(keys: &[String]) -> HttpResult<Vec<Name>> {
    keys.iter().map(|key| Name::new(key).map_err(Problem::from)).collect()
}

/// The number of rows of a page: the given one if it is allowed, else the default.
pub fn page_limit(limit: Option<usize>) -> HttpResult<usize> {
    match limit.unwrap_or(PAGE_DEFAULT) {
        0 => Err(Problem::malformed("`limit` must be above 0")),
        limit => Ok(limit.min(MANY_MAX)),
    }
}

/// Whether there may be a further page. Some kinds never answer more rows than a page has by
/// default, even if more are asked for.
pub fn is_full(rows: usize, limit: usize) -> bool {
    rows >= limit.min(PAGE_DEFAULT)
}

/// Refuses a batch of more than 10,000 items.
pub fn bounded(count: usize, what: &str) -> HttpResult<()> {
    match count <= MANY_MAX {
        true => Ok(()),
        false => {
            Err(Problem::invalid(format!("at most {MANY_MAX} {what} in one call, not {count}")))
        }
    }
}
