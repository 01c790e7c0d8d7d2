//! Creates the tables, indexes and triggers that are missing.

use lapsed_core::Result;

use crate::Postgres;
use crate::layout::Layout;
use crate::own_tables::OwnTables;
use crate::schema::{Statement, StatementKind, Triggers, statements};

/// What was done, and what is left to do by hand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The tables that were created.
    pub made: Vec<String>,
    /// The tables that existed and were not changed.
    pub kept: Vec<String>,
    /// How many triggers there are now.
    pub triggers: usize,
    /// Indexes that a table of the application's lacks: each as SQL, to be run when it suits.
    pub advice: Vec<String>,
}

impl Postgres {
    /// Makes the tables that are missing, and the triggers if they are wanted. Tables that are there are
    /// left as they are, except that triggers are hung on them if they are wanted.
    pub async fn apply_schema(&self, layout: &Layout, triggers: Triggers) -> Result<Applied> {
        layout.check()?;
        let own = OwnTables::new(&self.pool().address().prefix);
        let mut applied = Applied::default();
        for statement in statements(&own, layout, triggers) {
            self.apply(&statement, &mut applied).await?;
        }
        Ok(applied)
    }

    /// How many of the triggers there are that [`apply_schema`](Self::apply_schema) hangs on these tables,
    /// and how many it would be.
    pub async fn triggers(&self, layout: &Layout) -> Result<(usize, usize)> {
        let own = OwnTables::new(&self.pool().address().prefix);
        let all = statements(&own, layout, Triggers::With);
        let wanted: Vec<&str> = all
            .iter()
            .filter(|one| one.sql.starts_with("CREATE OR REPLACE TRIGGER"))
            .map(|one| one.table.as_str())
            .collect();
        let prefix = own.unquoted("tell_");
        let sql = "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal AND tgenabled <> 'D' \
                   AND starts_with(tgname::text, $2::text) \
                   AND tgrelid IN (SELECT to_regclass(t) FROM unnest($1::text[]) AS t)";
        let row = self.pool().query_one("look at the triggers", sql, &[&wanted, &prefix]).await?;
        Ok((row.get::<_, i64>(0) as usize, wanted.len()))
    }

    async fn apply(&self, statement: &Statement, applied: &mut Applied) -> Result<()> {
        let Statement { table, sql, kind } = statement;
        match kind {
            StatementKind::Table if table.is_empty() => self.run(sql).await,
            StatementKind::Table if self.is_there(table).await? => {
                applied.kept.push(table.clone());
                Ok(())
            }
            StatementKind::Table => {
                applied.made.push(table.clone());
                self.run(sql).await
            }
            StatementKind::Index(_) if applied.made.contains(table) => self.run(sql).await,
            StatementKind::Index(column) => {
                if !self.has_index(table, column).await? {
                    let sql = sql.replacen("CREATE INDEX", "CREATE INDEX CONCURRENTLY", 1);
                    applied.advice.push(format!("{sql};"));
                }
                Ok(())
            }
            StatementKind::Trigger => {
                applied.triggers += usize::from(sql.starts_with("CREATE OR REPLACE TRIGGER"));
                self.run(sql).await
            }
        }
    }

    async fn run(&self, sql: &str) -> Result<()> {
        self.pool().batch("schema apply", sql).await
    }

    async fn is_there(&self, table: &str) -> Result<bool> {
        let sql = "SELECT to_regclass($1::text) IS NOT NULL";
        Ok(self.pool().query_one("schema apply", sql, &[&table]).await?.get(0))
    }

    /// Whether a table has an index that begins with this column.
    async fn has_index(&self, table: &str, column: &str) -> Result<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM pg_index i JOIN pg_attribute a \
                   ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] \
                   WHERE i.indrelid = to_regclass($1::text) AND i.indisvalid AND a.attname = $2::text)";
        Ok(self.pool().query_one("schema apply", sql, &[&table, &column]).await?.get(0))
    }
}
