//! Asks the catalogue whether this user may write what the systems write, for `lapsed check`. Nothing is written.

use lapsed_core::{Result, SystemId};

use crate::Postgres;
use crate::layout::Layout;
use crate::own_tables::OwnTables;
use crate::quote::table;

/// The privileges on lapsed's own tables.
const OWN: &[&str] = &["SELECT", "INSERT", "UPDATE", "DELETE"];
const CHANGED: &[&str] = &["SELECT", "INSERT", "UPDATE"];

/// The privileges of a list of tables and privileges that this user lacks. A privilege on some columns counts: which
/// columns are needed depends on the table. Tables that are missing are not its matter.
const LACKING: &str = "SELECT t, string_agg(p, ', ' ORDER BY n) \
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS asked(t, p, n) \
    WHERE to_regclass(t) IS NOT NULL AND NOT CASE p \
        WHEN 'DELETE' THEN has_table_privilege(to_regclass(t), p) \
        ELSE has_any_column_privilege(to_regclass(t), p) END \
    GROUP BY t ORDER BY min(n)";

/// The sequences that fill columns of a table by default, and that this user may not use.
const SEQUENCES: &str = "SELECT s.name FROM pg_attribute AS a, \
    LATERAL pg_get_serial_sequence($1::text, a.attname) AS s(name) \
    WHERE a.attrelid = to_regclass($1::text) AND a.attnum > 0 AND NOT a.attisdropped \
        AND a.attidentity = '' AND s.name IS NOT NULL \
        AND NOT has_sequence_privilege(s.name, 'USAGE')";

impl Postgres {
    pub(crate) fn register_layout(&self, id: &SystemId, layout: &Layout) {
        let mut layouts = self.inner.layouts.lock().expect("no holder of this lock panics");
        layouts.insert(id.clone(), layout.clone());
    }

    /// Which tables of the systems opened here this user may not write, one sentence each. An error if the server
    /// does not answer.
    pub async fn write_faults(&self) -> Result<Vec<String>> {
        let layouts = self.inner.layouts.lock().expect("no holder of this lock panics").clone();
        if layouts.is_empty() {
            return Ok(Vec::new());
        }
        let sql = "SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', \
                   current_user::text";
        let row = self.pool().query_one("look at the permissions", sql, &[]).await?;
        let user: String = row.get(2);
        let mut faults = Vec::new();
        match (row.get(0), row.get(1)) {
            (true, _) => faults.push(
                "it is a standby and takes no writes; lapsed must talk to the primary \
                 (target_session_attrs=read-write in its address finds it among several hosts)"
                    .to_owned(),
            ),
            (false, true) => faults.push(format!(
                "it takes no writes of the user {user}: default_transaction_read_only is on"
            )),
            (false, false) => {}
        }
        for (id, layout) in layouts {
            faults.extend(self.lacking(&id, &layout, &user).await?);
        }
        Ok(faults)
    }

    async fn lacking(&self, id: &SystemId, layout: &Layout, user: &str) -> Result<Vec<String>> {
        let asked = asked(self.own(), layout);
        let (tables, privileges): (Vec<&str>, Vec<&str>) =
            asked.iter().map(|(table, privilege)| (table.as_str(), *privilege)).unzip();
        let call = "look at the permissions";
        let rows = self.pool().query(call, LACKING, &[&tables, &privileges]).await?;
        let mut faults: Vec<String> = rows
            .iter()
            .map(|row| {
                let (table, privileges): (&str, &str) = (row.get(0), row.get(1));
                format!(
                    "{id}: the user {user} lacks {privileges} on {table}; GRANT {privileges} ON \
                     {table} TO {user}"
                )
            })
            .collect();
        let logs = table(&layout.logs.table);
        for row in self.pool().query(call, SEQUENCES, &[&logs]).await? {
            let sequence: &str = row.get(0);
            faults.push(format!(
                "{id}: the user {user} lacks USAGE on the sequence {sequence}; GRANT USAGE ON SEQUENCE \
                 {sequence} TO {user}"
            ));
        }
        Ok(faults)
    }
}

/// Each table with each privilege that the daemon needs on it, as `docs/operations.md` lists them.
fn asked(own: &OwnTables, layout: &Layout) -> Vec<(String, &'static str)> {
    let OwnTables { receipts, batches, terms, settings, availability, notes, marks, .. } = own;
    let of = |table: String, privileges: &'static [&'static str]| {
        privileges.iter().map(move |privilege| (table.clone(), *privilege))
    };
    let own = [receipts, batches, terms, settings, availability, notes, marks];
    let own = own.into_iter().flat_map(|table| of(table.clone(), OWN));
    let Layout { providers, status, logs, sessions, logins, config, .. } = layout;
    let changed = [&providers.table, &status.table, &sessions.table, &config.table];
    let changed = changed.into_iter().flat_map(|name| of(table(name), CHANGED));
    let logs = of(table(&logs.table), &["SELECT", "INSERT"]);
    let logins = layout.has_logins().then(|| of(table(&logins.table), &["SELECT", "UPDATE"]));
    own.chain(changed).chain(logs).chain(logins.into_iter().flatten()).collect()
}
