//! Who can take work: those who ask for the same at the same time are answered by one call.
//!
//! Nobody is given what was found before they asked: whoever asks while a call is under way is in the next.

use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use lapsed_availability::AvailablePage;
use lapsed_availability::rules::AvailabilitySettings;
use lapsed_core::Result;
use lapsed_core::sweep::Cursor;

use super::{Inner, RedisMirror};
use crate::joint::{Ask, Question};

/// What somebody asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sought {
    pub settings: AvailabilitySettings,
    pub after: Cursor,
    pub limit: usize,
    pub only_count: bool,
}

impl Question for Sought {
    const MOST: usize = 1_000;
    const TOGETHER: usize = 1_000;

    fn weight(&self) -> usize {
        1
    }

    fn goes_with(&self, other: &Self) -> bool {
        self == other
    }
}

/// Whoever carries the calls.
#[derive(Clone)]
struct Carrier(Arc<Inner>);

impl Ask<Sought, Option<AvailablePage>> for Carrier {
    fn ask(&self, all: Vec<Sought>) -> BoxFuture<'static, Result<Vec<Option<AvailablePage>>>> {
        let inner = self.0.clone();
        async move {
            let Some(Sought { settings, after, limit, only_count }) = all.first() else {
                return Ok(Vec::new());
            };
            let page = inner.available(settings, after, *limit, *only_count).await?;
            Ok(vec![page; all.len()])
        }
        .boxed()
    }
}

impl RedisMirror {
    pub(super) async fn seek(&self, sought: Sought) -> Result<Option<AvailablePage>> {
        self.sought.call(sought, &Carrier(self.inner.clone())).await
    }
}
