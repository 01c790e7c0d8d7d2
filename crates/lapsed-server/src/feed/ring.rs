//! The newest pages of a feed, up to a size in bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Places;
use super::page::Page;

/// What a listener is to do next.
pub enum Next {
    /// Send this page, which has this number.
    Page(u64, Arc<Page>),
    /// Wait: the page of this number does not exist yet.
    Wait(u64),
    /// Send the places: the listener had none in some system until now.
    Placed,
    /// Read the store, because it is behind the oldest page. The value is the feed's own position.
    Behind(Places),
}

/// Consecutive pages, without a gap between them.
pub struct Ring {
    pages: VecDeque<Arc<Page>>,
    /// The number of the oldest page.
    first: u64,
    bytes: usize,
    room: usize,
    head: Places,
}

impl Ring {
    /// An empty ring whose first page will begin at `head`. It keeps at most `room` bytes, but
    /// always the newest page.
    pub fn new(head: Places, room: usize) -> Ring {
        Ring { pages: VecDeque::new(), first: 0, bytes: 0, room, head }
    }

    /// The places where the next page will begin.
    pub fn head(&self) -> &[u64] {
        &self.head
    }

    /// Adds a page, and drops the oldest pages that no longer fit.
    pub fn push(&mut self, page: Page) {
        debug_assert_eq!(page.before, self.head, "pages are contiguous");
        self.head.clone_from(&page.after);
        self.bytes += page.bytes.len();
        self.pages.push_back(Arc::new(page));
        while self.bytes > self.room && self.pages.len() > 1 {
            let oldest = self.pages.pop_front().expect("there are two");
            self.bytes -= oldest.bytes.len();
            self.first += 1;
        }
    }

    /// Moves the beginning of the next page in one system, without a page for what is skipped. Drops
    /// all pages and their numbers, so that every listener is located again.
    pub fn jump(&mut self, system: usize, place: u64) {
        self.head[system] = place;
        self.first += self.pages.len() as u64 + 1;
        self.pages.clear();
        self.bytes = 0;
    }

    /// The next page for a listener at `places`; `at` is the number of the page that it expects, if
    /// known.
    pub fn next(&self, at: Option<u64>, places: &[u64]) -> Next {
        let at = at.filter(|at| *at >= self.first).or_else(|| self.locate(places));
        let Some(number) = at else { return Next::Behind(self.head.clone()) };
        match self.pages.get((number - self.first) as usize) {
            Some(page) => Next::Page(number, page.clone()),
            None => Next::Wait(number),
        }
    }

    /// The newest page that does not begin after `places`: everything that a listener has not seen
    /// is in this page or a later one.
    fn locate(&self, places: &[u64]) -> Option<u64> {
        let reaches = |start: &[u64]| start.iter().zip(places).all(|(start, place)| start <= place);
        if reaches(&self.head) {
            return Some(self.first + self.pages.len() as u64);
        }
        let within = self.pages.partition_point(|page| reaches(&page.before));
        within.checked_sub(1).map(|index| self.first + index as u64)
    }
}
