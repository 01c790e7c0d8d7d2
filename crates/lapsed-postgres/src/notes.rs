//! Books, marks and turns on PostgreSQL: each change is one statement. The row of a book in the table of
//! marks is its counter and its lock; turns are rows in the table of terms.

use async_trait::async_trait;
use lapsed_core::notes::{NOTES_MAX, Note, NoteQuery, NoteStore, check_note};
use lapsed_core::{Name, Result, SystemId};

use crate::Postgres;
use crate::number::{ms_of, to_i64, to_u64};

/// The server's clock in microseconds, so that a server that lost its last commits gives no number twice.
const MICROSECONDS: &str = "floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

fn book_mark(book: &Name) -> String {
    format!("book/{book}")
}

fn mark_name(name: &Name) -> String {
    format!("mark/{name}")
}

/// The key of a turn's row in the table of terms; no system can have this name.
fn turn_key(system: &SystemId, name: &Name) -> String {
    format!("{system}#{name}")
}

#[async_trait]
impl NoteStore for Postgres {
    async fn note(&self, system: &SystemId, book: &Name, text: &str) -> Result<u64> {
        check_note(text)?;
        let (marks, notes) = (&self.own().marks, &self.own().notes);
        let sql = format!(
            "WITH next AS (INSERT INTO {marks} AS m (system, name, place) VALUES ($1, $2, {MICROSECONDS}) \
             ON CONFLICT (system, name) DO UPDATE SET place = greatest(m.place + 1, EXCLUDED.place) \
             RETURNING place), \
             old AS (DELETE FROM {notes} WHERE system = $1 AND book = $3 AND seq <= (SELECT seq FROM {notes} \
             WHERE system = $1 AND book = $3 ORDER BY seq DESC OFFSET $5 LIMIT 1)) \
             INSERT INTO {notes} (system, book, seq, text) SELECT $1, $3, place, $4 FROM next RETURNING seq"
        );
        let (system, mark, book) = (system.to_string(), book_mark(book), book.as_str());
        let kept = to_i64(NOTES_MAX - 1);
        let row =
            self.pool().query_one("note", &sql, &[&system, &mark, &book, &text, &kept]).await?;
        Ok(to_u64(row.get(0)))
    }

    async fn notes(&self, system: &SystemId, book: &Name, query: NoteQuery) -> Result<Vec<Note>> {
        let sql = format!(
            "SELECT seq, {}, text FROM {} WHERE system = $1 AND book = $2 AND seq < $3 \
             ORDER BY seq DESC LIMIT $4",
            ms_of("at"),
            self.own().notes
        );
        let before = query.before.map_or(i64::MAX, to_i64);
        let limit = to_i64(query.limit as u64);
        let (system, book) = (system.to_string(), book.as_str());
        let rows = self.pool().query("notes", &sql, &[&system, &book, &before, &limit]).await?;
        let read = |row: &tokio_postgres::Row| Note {
            seq: to_u64(row.get(0)),
            at_ms: to_u64(row.get(1)),
            text: row.get(2),
        };
        Ok(rows.iter().map(read).collect())
    }

    async fn delete_note(&self, system: &SystemId, book: &Name, seq: u64) -> Result<bool> {
        let sql = format!(
            "DELETE FROM {} WHERE system = $1 AND book = $2 AND seq = $3 RETURNING seq",
            self.own().notes
        );
        let (system, book, seq) = (system.to_string(), book.as_str(), to_i64(seq));
        let struck = self.pool().query("strike", &sql, &[&system, &book, &seq]).await?;
        Ok(!struck.is_empty())
    }

    async fn mark(&self, system: &SystemId, name: &Name) -> Result<Option<u64>> {
        let sql = format!("SELECT place FROM {} WHERE system = $1 AND name = $2", self.own().marks);
        let (system, name) = (system.to_string(), mark_name(name));
        let rows = self.pool().query("mark", &sql, &[&system, &name]).await?;
        Ok(rows.first().map(|row| to_u64(row.get(0))))
    }

    async fn advance_mark(&self, system: &SystemId, name: &Name, to: u64) -> Result<u64> {
        let sql = format!(
            "INSERT INTO {} AS m (system, name, place) VALUES ($1, $2, $3) \
             ON CONFLICT (system, name) DO UPDATE SET place = greatest(m.place, EXCLUDED.place) \
             RETURNING place",
            self.own().marks
        );
        let (system, name, to) = (system.to_string(), mark_name(name), to_i64(to));
        let row = self.pool().query_one("advance mark", &sql, &[&system, &name, &to]).await?;
        Ok(to_u64(row.get(0)))
    }

    async fn take_turn(
        &self,
        system: &SystemId,
        name: &Name,
        holder: &str,
        ttl_ms: u64,
    ) -> Result<bool> {
        Ok(self.take_term(&turn_key(system, name), holder, ttl_ms).await?.is_some())
    }

    async fn end_turn(&self, system: &SystemId, name: &Name, holder: &str) -> Result<()> {
        let sql = format!(
            "UPDATE {} SET until = '-infinity' WHERE system = $1 AND holder = $2",
            self.own().terms
        );
        let key = turn_key(system, name);
        self.pool().query("end turn", &sql, &[&key, &holder]).await.map(|_| ())
    }
}
