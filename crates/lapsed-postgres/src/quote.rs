//! Names of tables and columns as SQL takes them, whatever they are.

/// One name: `a"b` becomes `"a""b"`.
pub(crate) fn name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A table, with its schema if it has one before the first dot.
pub(crate) fn table(table: &str) -> String {
    match table.split_once('.') {
        Some((schema, table)) => format!("{}.{}", name(schema), name(table)),
        None => name(table),
    }
}

/// A text as a literal, whatever is in it.
pub(crate) fn literal(text: &str) -> String {
    match text.contains('\\') {
        // However the server reads backslashes.
        true => format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''")),
        false => format!("'{}'", text.replace('\'', "''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_gets_out_of_its_quotes() {
        assert_eq!(table("mitras"), r#""mitras""#);
        assert_eq!(table("app.Mitras"), r#""app"."Mitras""#);
        assert_eq!(table(r#"a"; DROP TABLE b; --"#), r#""a""; DROP TABLE b; --""#);
        assert_eq!(literal(r"it's"), "'it''s'");
        assert_eq!(literal(r"a\'b"), r"E'a\\''b'");
    }
}
