//! The tables: as SQL for a database administrator to read and run, or created from here.
//!
//! What is there already stays as it is. Nothing is ever added to an application's table; what lapsed
//! needs besides is in tables of its own.

mod apply;
mod tables;
mod triggers;

use crate::layout::Layout;
use crate::own_tables::OwnTables;

pub use apply::Applied;
pub(crate) use tables::occupying;
pub use triggers::{AVAILABILITY_CHANNEL, SETTINGS_CHANNEL};

/// Whether triggers announce changes of the application's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Triggers {
    /// No triggers: only lapsed writes to the tables, or the application announces its changes itself.
    Without,
    /// Each change is notified (NOTIFY), so that the mirror follows an application that knows nothing of it.
    With,
}

/// One statement of the schema.
pub(crate) struct Statement {
    /// The quoted name of the table that it makes or belongs to; empty if there is none.
    pub table: String,
    pub sql: String,
    pub kind: StatementKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StatementKind {
    /// Creates a schema or a table.
    Table,
    /// Creates an index that queries need, on the column with this name.
    Index(String),
    /// Creates a function or a trigger.
    Trigger,
}

/// Everything, as SQL that can be run again and again. `prefix` is that of
/// [`PostgresAddress`](crate::PostgresAddress::prefix).
pub fn print(prefix: &str, layout: &Layout, triggers: Triggers) -> String {
    let statements = statements(&OwnTables::new(prefix), layout, triggers);
    let each = statements.iter().map(|statement| match statement.kind {
        // A table that is in use is not locked meanwhile.
        StatementKind::Index(_) => {
            statement.sql.replacen("CREATE INDEX", "CREATE INDEX CONCURRENTLY", 1)
        }
        StatementKind::Table | StatementKind::Trigger => statement.sql.clone(),
    });
    let body: Vec<String> = each.map(|sql| format!("{sql};\n")).collect();
    format!(
        "-- The tables of lapsed. What is there already stays as it is; run it as often as you like, but not\n\
         -- inside one transaction (the indexes are made beside running work).\n\n{}",
        body.join("\n")
    )
}

fn statements(own: &OwnTables, layout: &Layout, triggers: Triggers) -> Vec<Statement> {
    let mut all = tables::own(own);
    all.extend(tables::application(own, layout));
    if triggers == Triggers::With {
        all.extend(triggers::all(own, layout));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_wherever_they_stand() {
        let mut layout = Layout::default();
        layout.providers.table = r#"app.my "mitras""#.to_owned();
        layout.sessions.provider = "Who".to_owned();
        let sql = print("ops.lapsed_", &layout, Triggers::With);
        assert!(sql.contains(r#""app"."my ""mitras""""#), "{sql}");
        assert!(sql.contains(r#"NEW."Who""#), "{sql}");
        assert!(sql.contains(r#""ops"."lapsed_receipts""#), "{sql}");
        assert!(!sql.contains("ALTER TABLE"), "{sql}");
        let without = print("lapsed_", &Layout::default(), Triggers::Without);
        assert!(!without.contains("TRIGGER"), "{without}");
    }
}
