//! Owners over HTTP, the same for every kind of system that has owners: routes, parameters and
//! answers. A kind adds its own routes for the entries that its owners hold, and for retiring an
//! owner.

mod routes;
mod shapes;

use std::sync::Arc;

use lapsed_core::owner::{Claim, Incarnation};
use lapsed_core::system::OwnerService;
use lapsed_core::{Kind, Name};

use super::App;
use super::problem::Problem;
pub use routes::routes;
pub use shapes::*;

/// Rows per page if the request has no `limit`.
const PAGE_DEFAULT: usize = 1_000;

/// The most heartbeats in one batch, and the most rows in one page.
const MANY_MAX: usize = 10_000;

/// The result of a handler; an error is answered as a problem.
pub type HttpResult<T> = std::result::Result<T, Problem>;

/// The owners of one system; a `not_found` problem if its kind has no owners.
fn owners<'a>(app: &'a App, kind: Kind, name: &str) -> HttpResult<&'a OwnerService> {
    let none = || Problem::not_found(format!("{kind} has no owners"));
    app.live(kind.as_str(), name)?.owner_service().ok_or_else(none)
}

/// Retires an incarnation by calling `retire`, which releases everything that the incarnation
/// holds. The work runs to its end even if the client disconnects.
pub async fn retire<T, R, F>(
    app: &App,
    kind: Kind,
    name: &str,
    claim: Claim,
    retire: impl FnOnce(Arc<T>, Claim) -> F,
) -> HttpResult<R>
where
    T: Send + Sync + 'static,
    R: Send + 'static,
    F: Future<Output = lapsed_core::Result<R>> + Send + 'static,
{
    let live = app.live(kind.as_str(), name)?;
    let system = live.share_operations::<T>().ok_or_else(|| app.no_such_system())?;
    Ok(app.finish(retire(system, claim)).await??)
}

/// One page of the names of the entries that an incarnation holds, and the key after which the next
/// page begins.
pub async fn held<F>(
    owner: &str,
    query: HeldQuery,
    page: impl FnOnce(Claim, Option<Name>, usize) -> F,
) -> HttpResult<(Vec<String>, Option<String>)>
where
    F: Future<Output = lapsed_core::Result<Vec<Name>>>,
{
    let claim = claim(owner, query.incarnation)?;
    let limit = page_limit(query.limit)?;
    let after = query.after.as_deref().map(Name::new).transpose()?;
    let names = page(claim, after, limit).await?;
    let next = names.last().filter(|_| is_full(names.len(), limit)).map(|name| name.to_string());
    Ok((names.into_iter().map(String::from).collect(), next))
}

pub fn claim(owner: &str, incarnation: Option<u64>) -> HttpResult<Claim> {
    let incarnation = incarnation.map(Incarnation);
    Ok(Claim { owner: Name::new(owner)?, incarnation })
}

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
