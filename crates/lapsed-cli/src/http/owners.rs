//! Owners over HTTP, the same for every kind of system that has them: what the routes are given, do
//! and answer. Each kind only names its own paths.

mod shapes;

use std::time::Duration;

use async_trait::async_trait;
use axum::http::StatusCode;
use lapsed::Name;
use lapsed::owner::{Beat, Claim, Incarnation, OwnerInfo};
use lapsed::registry::Registry;
use lapsed::sessions::Sessions;

use super::extract::Answer;
use super::problem::Problem;
pub use shapes::*;

/// How many rows a page has unless told.
const PAGE_DEFAULT: usize = 1_000;

/// The most beats in one batch, and the most rows of a page.
const MANY_MAX: usize = 10_000;

/// What went wrong is a problem.
pub type Result<T> = std::result::Result<T, Problem>;

/// A system that has owners.
#[async_trait]
pub trait Lives: Send + Sync {
    /// Begins a new life.
    async fn start(&self, owner: &Name, ttl: Option<Duration>) -> lapsed::Result<Beat>;
    /// Life.
    async fn beat(&self, claim: &Claim) -> lapsed::Result<Beat>;
    /// Owners, oldest incarnation first.
    async fn owners(
        &self,
        after: Option<Incarnation>,
        limit: usize,
    ) -> lapsed::Result<Vec<OwnerInfo>>;
    /// One owner.
    async fn owner_info(&self, claim: &Claim) -> lapsed::Result<Option<OwnerInfo>>;
}

macro_rules! lives {
    ($($system:ty),*) => { $(
        #[async_trait]
        impl Lives for $system {
            async fn start(&self, owner: &Name, ttl: Option<Duration>) -> lapsed::Result<Beat> {
                self.start(owner, ttl).await
            }

            async fn beat(&self, claim: &Claim) -> lapsed::Result<Beat> {
                self.beat(claim).await
            }

            async fn owners(
                &self,
                after: Option<Incarnation>,
                limit: usize,
            ) -> lapsed::Result<Vec<OwnerInfo>> {
                self.owners(after, limit).await
            }

            async fn owner_info(&self, claim: &Claim) -> lapsed::Result<Option<OwnerInfo>> {
                self.owner_info(claim).await
            }
        }
    )* };
}
lives!(Registry, Sessions);

/// Begins a new life of an owner.
pub async fn start(lives: &dyn Lives, body: StartBody) -> Result<(StatusCode, Answer<BeatAnswer>)> {
    let owner = Name::new(&body.owner)?;
    let beat = lives.start(&owner, body.ttl()?).await?;
    Ok((StatusCode::CREATED, Answer(BeatAnswer::of(body.owner, beat))))
}

/// Many beats, each with its own answer, in order.
pub async fn beat_many(lives: &dyn Lives, body: BeatsBody) -> Result<Answer<BeatsAnswer>> {
    bounded(body.beats.len(), "beats")?;
    let mut results = Vec::with_capacity(body.beats.len());
    for one in body.beats {
        let answer = match one.claim() {
            Ok(claim) => lives.beat(&claim).await.map_err(Problem::from),
            Err(problem) => Err(problem),
        };
        results.push(OneBeat::of(one.owner, answer));
    }
    Ok(Answer(BeatsAnswer { results }))
}

/// A page of owners.
pub async fn owners(lives: &dyn Lives, query: OwnersQuery) -> Result<Answer<Owners>> {
    let limit = page_limit(query.limit)?;
    let owners = lives.owners(query.after.map(Incarnation), limit).await?;
    let more = owners.len() == limit;
    let next = owners.last().filter(|_| more).map(|o| o.incarnation.0);
    Ok(Answer(Owners { owners, next }))
}

/// One life of one owner.
pub async fn owner(lives: &dyn Lives, owner: &str, query: LifeQuery) -> Result<Answer<OwnerInfo>> {
    let claim = claim(owner, query.incarnation)?;
    let info = lives.owner_info(&claim).await?;
    info.map(Answer).ok_or_else(|| Problem::not_found(format!("no owner {owner:?} is known")))
}

/// Who acts.
pub fn claim(owner: &str, incarnation: Option<u64>) -> Result<Claim> {
    let incarnation = incarnation.map(Incarnation);
    Ok(Claim { owner: Name::new(owner)?, incarnation })
}

/// All of them, or what is wrong with the first that is wrong.
pub fn names(keys: &[String]) -> Result<Vec<Name>> {
    keys.iter().map(|key| Name::new(key).map_err(Problem::from)).collect()
}

/// How many rows a page has.
pub fn page_limit(limit: Option<usize>) -> Result<usize> {
    match limit.unwrap_or(PAGE_DEFAULT) {
        0 => Err(Problem::malformed("`limit` must be above 0")),
        limit => Ok(limit.min(MANY_MAX)),
    }
}

/// Refuses a batch that is too large.
pub fn bounded(count: usize, what: &str) -> Result<()> {
    match count <= MANY_MAX {
        true => Ok(()),
        false => {
            Err(Problem::invalid(format!("at most {MANY_MAX} {what} in one call, not {count}")))
        }
    }
}
