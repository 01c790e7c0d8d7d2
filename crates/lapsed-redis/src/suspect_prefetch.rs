//! Reads several pages of suspects from the index in one call and serves them page by page.
//!
//! A prefetched suspect may be stale, like every suspect: only the guard decides. Prefetched suspects are
//! served only to a caller that resumes exactly where they begin, and only for [`AGE_MAX`].

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use lapsed_core::Result;
use lapsed_core::clock::Clock;
use lapsed_core::sweep::{Cursor, PageRequest, Suspect, SuspectPage};

/// Prefetched suspects older than this are read again, because the guard would refuse most of them.
const AGE_MAX: Duration = Duration::from_secs(1);

const LOCK: &str = "no holder of this lock panics";

/// The suspects that were read and not served yet.
#[derive(Default)]
pub(crate) struct SuspectPrefetch {
    prefetched: Mutex<Option<PrefetchedPage>>,
}

struct PrefetchedPage {
    /// The cursor that the next request must have to be served from here.
    from: Cursor,
    read: Duration,
    suspects: VecDeque<Suspect>,
    last: bool,
}

impl SuspectPrefetch {
    /// Returns one page: from the prefetched suspects if the request resumes there, otherwise by calling
    /// `read`. The first page of a pass reads no more than it serves; later ones read up to `prefetch_max`.
    /// `after` returns the cursor just after a suspect.
    pub async fn page<R: Future<Output = Result<SuspectPage>>>(
        &self,
        clock: &dyn Clock,
        request: &PageRequest,
        prefetch_max: usize,
        read: impl FnOnce(PageRequest) -> R,
        after: impl Fn(&Suspect) -> Cursor,
    ) -> Result<SuspectPage> {
        let prefetched = match self.take(clock, request) {
            Some(prefetched) => prefetched,
            None => {
                let is_under_way = request.after.0.is_some() && request.undeclared_max.is_none();
                let limit =
                    if is_under_way { request.limit.max(prefetch_max) } else { request.limit };
                let began = clock.mono();
                let page = read(PageRequest { limit, ..request.clone() }).await?;
                let (from, suspects) = (request.after.clone(), page.suspects.into());
                PrefetchedPage { from, read: began, suspects, last: page.last }
            }
        };
        Ok(self.serve(prefetched, request.limit, after))
    }

    /// `None` if the request cannot be served from here. A request with a limit of the brake never can,
    /// because the brake counts owners again for every page.
    fn take(&self, clock: &dyn Clock, request: &PageRequest) -> Option<PrefetchedPage> {
        if request.undeclared_max.is_some() {
            return None;
        }
        let prefetched = self.prefetched.lock().expect(LOCK).take()?;
        let is_usable =
            prefetched.from == request.after && clock.mono() < prefetched.read + AGE_MAX;
        is_usable.then_some(prefetched)
    }

    /// Serves at most `limit` suspects and keeps the rest for the next page.
    fn serve(
        &self,
        mut prefetched: PrefetchedPage,
        limit: usize,
        after: impl Fn(&Suspect) -> Cursor,
    ) -> SuspectPage {
        let count = limit.min(prefetched.suspects.len());
        let suspects: Vec<Suspect> = prefetched.suspects.drain(..count).collect();
        let last = prefetched.last && prefetched.suspects.is_empty();
        if let Some(suspect) = suspects.last().filter(|_| !prefetched.suspects.is_empty()) {
            prefetched.from = after(suspect);
            *self.prefetched.lock().expect(LOCK) = Some(prefetched);
        }
        SuspectPage { examined: suspects.len() as u64, suspects, last }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use lapsed_core::Name;
    use lapsed_core::clock::ManualClock;
    use lapsed_core::owner::Incarnation;
    use lapsed_core::receipt::Reason;

    use super::*;

    const ALL: usize = 25;

    fn suspect(at: usize) -> Suspect {
        Suspect {
            key: Name::new(&format!("{at:02}")).unwrap(),
            owner: Name::new("dead").unwrap(),
            incarnation: Incarnation(1),
            deadline_ms: 1,
            reason: Reason::OwnerDead,
        }
    }

    fn after(suspect: &Suspect) -> Cursor {
        Cursor(Some(suspect.key.to_string()))
    }

    /// An index of [`ALL`] suspects that counts how often it is read.
    struct Index {
        prefetch: SuspectPrefetch,
        clock: ManualClock,
        reads: Cell<usize>,
    }

    impl Index {
        fn new() -> Index {
            Index {
                prefetch: SuspectPrefetch::default(),
                clock: ManualClock::at(0),
                reads: Cell::new(0),
            }
        }

        async fn page(&self, from: &Cursor, undeclared_max: Option<usize>) -> SuspectPage {
            let request = PageRequest { after: from.clone(), limit: 4, undeclared_max };
            let read = async |request: PageRequest| {
                self.reads.set(self.reads.get() + 1);
                let text = request.after.0.as_ref();
                let from = text.map_or(0, |text| text.parse::<usize>().unwrap() + 1);
                let to = ALL.min(from + request.limit);
                let suspects = (from..to).map(suspect).collect();
                Ok(SuspectPage { suspects, examined: 0, last: to == ALL })
            };
            self.prefetch.page(&self.clock, &request, 12, read, after).await.unwrap()
        }
    }

    #[tokio::test]
    async fn every_suspect_is_served_once_in_order_with_a_third_of_the_reads() {
        let index = Index::new();
        let (mut found, mut cursor) = (Vec::new(), Cursor::default());
        loop {
            let page = index.page(&cursor, None).await;
            assert_eq!(page.examined, page.suspects.len() as u64);
            found.extend(page.suspects);
            cursor = after(found.last().unwrap());
            if page.last {
                break;
            }
        }
        assert_eq!(found, (0..ALL).map(suspect).collect::<Vec<_>>());
        assert_eq!(index.reads.get(), 3, "4, then 12, then what is left");
    }

    #[tokio::test]
    async fn another_cursor_an_old_page_or_a_brake_limit_causes_a_new_read() {
        let index = Index::new();
        let at = |n: usize| after(&suspect(n));
        index.page(&at(3), None).await;
        assert_eq!(index.page(&at(3), None).await.suspects[0], suspect(4), "the same place again");
        assert_eq!(index.reads.get(), 2);
        index.page(&at(7), None).await;
        assert_eq!(index.reads.get(), 2, "from what was read");
        assert_eq!(index.page(&at(11), Some(9)).await.suspects.len(), 4);
        assert_eq!(index.reads.get(), 3, "the brake counts anew");
        index.clock.advance(AGE_MAX);
        index.page(&at(11), None).await;
        assert_eq!(index.reads.get(), 4, "it was too old");
    }
}
