//! The newest pages of a feed, as many as fit.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Places;
use super::page::Page;

/// What somebody is given next.
pub enum Next {
    /// This page, which has this number.
    Page(u64, Arc<Page>),
    /// Nothing yet: the page of this number is still to come.
    Wait(u64),
    /// What it has not seen begins before the oldest page. The feed itself stands there.
    Behind(Places),
}

/// Pages without a gap between them.
pub struct Ring {
    pages: VecDeque<Arc<Page>>,
    /// The number of the oldest page.
    first: u64,
    bytes: usize,
    room: usize,
    head: Places,
}

impl Ring {
    /// Empty; the first page begins at `head`. Keeps at most `room` bytes, and the newest page always.
    pub fn new(head: Places, room: usize) -> Ring {
        Ring { pages: VecDeque::new(), first: 0, bytes: 0, room, head }
    }

    /// Where the next page begins.
    pub fn head(&self) -> &[u64] {
        &self.head
    }

    /// Adds a page; the oldest ones make room.
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

    /// The next page of somebody at `places`, who waits for the page number `at`, if that is known.
    pub fn next(&self, at: Option<u64>, places: &[u64]) -> Next {
        let at = at.filter(|at| *at >= self.first).or_else(|| self.locate(places));
        let Some(number) = at else { return Next::Behind(self.head.clone()) };
        match self.pages.get((number - self.first) as usize) {
            Some(page) => Next::Page(number, page.clone()),
            None => Next::Wait(number),
        }
    }

    /// The newest page that does not begin beyond `places`: all that was not seen is in it or later.
    fn locate(&self, places: &[u64]) -> Option<u64> {
        let reaches = |start: &[u64]| start.iter().zip(places).all(|(start, place)| start <= place);
        if reaches(&self.head) {
            return Some(self.first + self.pages.len() as u64);
        }
        let within = self.pages.partition_point(|page| reaches(&page.before));
        within.checked_sub(1).map(|index| self.first + index as u64)
    }
}
