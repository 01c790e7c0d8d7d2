//! Who leads. An answer that was lost leaves more than one possibility, until one is ruled out.

use crate::model::Model;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelTerm {
    pub number: u64,
    pub holder: String,
    pub until: u64,
}

impl Model {
    /// A candidate takes or renews the term. Each possible state, and what would be answered in it.
    pub fn campaign(
        &self,
        candidate: &str,
        ttl_ms: u64,
        now: u64,
    ) -> Vec<(Option<ModelTerm>, Option<u64>)> {
        let one = |term: &Option<ModelTerm>| {
            let last = term.as_ref().map_or(0, |term| term.number);
            let number = match term.as_ref().filter(|term| now < term.until) {
                Some(term) if term.holder != candidate => return (Some(term.clone()), None),
                Some(term) => term.number,
                None => last + 1,
            };
            let holder = candidate.to_owned();
            (Some(ModelTerm { number, holder, until: now + ttl_ms }), Some(number))
        };
        self.terms.iter().map(one).collect()
    }

    /// Resigns the term with this number.
    pub fn resign(&mut self, number: u64) {
        for term in self.terms.iter_mut().flatten().filter(|term| term.number == number) {
            term.until = 0;
        }
    }

    /// Whether `number` may be the current term.
    pub fn may_lead(&self, number: u64, now: u64) -> bool {
        self.terms.iter().flatten().any(|term| term.number == number && now < term.until)
    }

    /// Whether `number` must be the current term.
    pub fn must_lead(&self, number: u64, now: u64) -> bool {
        let leads = |term: &ModelTerm| term.number == number && now < term.until;
        self.terms.iter().all(|term| term.as_ref().is_some_and(leads))
    }
}
