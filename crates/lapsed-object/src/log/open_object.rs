//! Makes a log object final that this process has opened.

use std::collections::BTreeSet;

use lapsed_core::Result;
use lapsed_core::leases::Subject;
use lapsed_core::receipt::Receipt;

use super::OpenLogObject;
use super::log_object::LogHead;

impl OpenLogObject<'_> {
    /// The number that the changes must name.
    pub(crate) fn number(&self) -> u64 {
        self.page.number
    }

    /// The receipts that are intended for a subject.
    pub(crate) fn intended(&self, subject: &Subject) -> Vec<Receipt> {
        let name = subject.name();
        let entry = self.page.entries.iter().find(|entry| entry.subject == name.as_str());
        entry.map(|entry| entry.receipts.clone()).unwrap_or_default()
    }

    /// Makes it final with the changes that were made. All changes were tried and answered.
    pub(crate) async fn close(mut self, confirmed: &BTreeSet<String>) -> Result<BTreeSet<String>> {
        let page = self.log.finish(self.page, self.version, confirmed).await?;
        *self.head = Some(LogHead::of(&page));
        Ok(page.entries.into_iter().map(|entry| entry.subject).collect())
    }

    /// Finds out which changes were made and makes it final, because not every change was answered.
    pub(crate) async fn settle(mut self) -> Result<BTreeSet<String>> {
        let page = self.log.settle_page(self.page, self.version).await?;
        *self.head = Some(LogHead::of(&page));
        Ok(page.entries.into_iter().map(|entry| entry.subject).collect())
    }
}
