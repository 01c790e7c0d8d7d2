//! The quoted names of lapsed's own tables.

use crate::quote;

/// The quoted names of lapsed's own tables; each begins with the configured prefix.
#[derive(Clone, Debug)]
pub(crate) struct OwnTables {
    pub receipts: String,
    pub batches: String,
    pub terms: String,
    pub settings: String,
    pub availability: String,
    pub notes: String,
    pub marks: String,
    prefix: String,
}

impl OwnTables {
    pub fn new(prefix: &str) -> OwnTables {
        let table = |name: &str| quote::table(&format!("{prefix}{name}"));
        OwnTables {
            receipts: table("receipts"),
            batches: table("batches"),
            terms: table("terms"),
            settings: table("settings"),
            availability: table("availability"),
            notes: table("notes"),
            marks: table("marks"),
            prefix: prefix.to_owned(),
        }
    }

    /// The quoted name of a function of lapsed's in the schema of its tables.
    pub fn named(&self, name: &str) -> String {
        quote::table(&format!("{}{name}", self.prefix))
    }

    /// The name of a trigger or an index, which are in their table's schema.
    pub fn bare(&self, name: &str) -> String {
        quote::name(&self.unquoted(name))
    }

    /// The name without quotes, as the catalogue has it.
    pub fn unquoted(&self, name: &str) -> String {
        let prefix = self.prefix.split_once('.').map_or(self.prefix.as_str(), |(_, rest)| rest);
        format!("{prefix}{name}")
    }

    /// The schema of lapsed's tables, if the prefix names one.
    pub fn schema(&self) -> Option<&str> {
        self.prefix.split_once('.').map(|(schema, _)| schema)
    }
}
