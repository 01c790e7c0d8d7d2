//! SQL quoting of table names, column names and text literals, by the client library's own rules.

use postgres_protocol::escape::{escape_identifier, escape_literal};

/// Quotes one identifier: `a"b` becomes `"a""b"`.
pub(crate) fn name(name: &str) -> String {
    escape_identifier(name)
}

/// Quotes a table name. Everything before the first dot is its schema.
pub(crate) fn table(table: &str) -> String {
    match table.split_once('.') {
        Some((schema, table)) => format!("{}.{}", name(schema), name(table)),
        None => name(table),
    }
}

/// Quotes a text literal. A text with a backslash becomes an escape string (` E'…'`), which the server reads
/// in the same way whatever `standard_conforming_strings` is set to.
pub(crate) fn literal(text: &str) -> String {
    escape_literal(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_backslashes_cannot_end_a_quoted_name_or_literal() {
        assert_eq!(table("mitras"), r#""mitras""#);
        assert_eq!(table("app.Mitras"), r#""app"."Mitras""#);
        assert_eq!(table(r#"a"; DROP TABLE b; --"#), r#""a""; DROP TABLE b; --""#);
        assert_eq!(literal(r"it's"), "'it''s'");
        assert_eq!(literal(r"a\'b"), r" E'a\\''b'");
    }
}
