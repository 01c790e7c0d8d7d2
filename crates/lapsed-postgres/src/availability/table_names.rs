//! The application's tables as they were found: quoted names, types of ids, and which columns exist.

use lapsed_core::{Error, Name, Result};

use crate::layout::Layout;
use crate::own_tables::OwnTables;
use crate::pool::PostgresPool;
use crate::quote::{name, table};
use crate::schema::occupying;

/// The type of an id's column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdColumn {
    /// The name of the type in SQL.
    sql: String,
    form: IdFormat,
}

/// The form in which the server writes ids of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdFormat {
    Uuid,
    Integer { bits: u32 },
    Any,
}

impl IdColumn {
    fn new(full: &str, short: &str) -> IdColumn {
        let form = match short {
            "uuid" => IdFormat::Uuid,
            "int2" => IdFormat::Integer { bits: 16 },
            "int4" => IdFormat::Integer { bits: 32 },
            "int8" => IdFormat::Integer { bits: 64 },
            _ => IdFormat::Any,
        };
        // `character` without its length would be one character long.
        let sql = if short == "bpchar" { "bpchar" } else { full };
        IdColumn { sql: sql.to_owned(), form }
    }

    /// Whether there can be such an id: only as the server itself would write it, so that one provider
    /// has one name.
    pub fn accepts(&self, id: &Name) -> bool {
        let text = id.as_str();
        match self.form {
            IdFormat::Any => true,
            IdFormat::Uuid => {
                let fits = |(place, byte): (usize, u8)| match place {
                    8 | 13 | 18 | 23 => byte == b'-',
                    _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
                };
                text.len() == 36 && text.bytes().enumerate().all(fits)
            }
            IdFormat::Integer { bits } => text.parse::<i64>().is_ok_and(|number| {
                let beyond = i128::from(number).unsigned_abs() > (1_u128 << (bits - 1)) - 1;
                !beyond && number.to_string() == text
            }),
        }
    }

    /// Like [`Self::accepts`], with an error that says why an id is not accepted.
    pub fn require(&self, id: &Name) -> Result<()> {
        match self.accepts(id) {
            true => Ok(()),
            false => {
                Err(Error::Invalid(format!("{id:?} is no id here: ids are of type {}", self.sql)))
            }
        }
    }

    /// The SQL for a parameter of this type, which is sent as text.
    pub fn one(&self, number: usize) -> String {
        format!("${number}::text::{}", self.sql)
    }

    pub fn many(&self, number: usize) -> String {
        format!("${number}::text[]::{}[]", self.sql)
    }

    /// The SQL that converts a text in a query to this type.
    pub fn of(&self, text: &str) -> String {
        format!("{text}::{}", self.sql)
    }

    /// The SQL that makes a value of another column comparable with this column.
    pub fn like(&self, value: &str, column: &IdColumn) -> String {
        match self == column {
            true => value.to_owned(),
            false => format!("{value}::text::{}", self.sql),
        }
    }
}

/// The quoted names of tables and columns. An optional column that does not exist is `None`.
pub(crate) struct TableNames {
    pub own: OwnTables,
    pub providers: String,
    pub p_id: String,
    pub p_name: Option<String>,
    pub p_active: String,
    pub status: String,
    pub s_provider: String,
    pub s_online: String,
    pub s_last_online: String,
    pub s_last_offline: String,
    pub s_beat: String,
    /// The SQL `, "updated_at" = clock_timestamp()`; empty if the table has no such column.
    pub s_touch: String,
    pub logs: String,
    pub l_provider: String,
    pub l_status: String,
    pub l_at: Option<String>,
    pub sessions: String,
    pub c_id: String,
    pub c_provider: String,
    pub c_status: String,
    pub c_touch: String,
    /// The table of logins, the column of the provider and the column of the time of revocation.
    pub logins: Option<(String, String, String)>,
    pub config: String,
    pub k_key: String,
    pub k_value: String,
    pub k_touch: String,
    pub k_type: String,
    pub provider: IdColumn,
    pub status_provider: IdColumn,
    pub log_provider: IdColumn,
    pub session: IdColumn,
    pub session_provider: IdColumn,
    pub login_provider: IdColumn,
    pub s_of_m: String,
    /// The subquery `SELECT count(*) … WHERE c.provider = m.id`.
    pub count_of_m: String,
}

/// A column that the layout names.
struct ExpectedColumn<'a> {
    table: &'a str,
    column: &'a str,
    needed: bool,
}

/// The type of a column as it was found, in full and in short; `None`: there is no such column.
type ColumnType = Option<(String, String)>;

impl TableNames {
    /// Reads the tables' columns. The error names each missing one, and says what to do.
    pub async fn find(pool: &PostgresPool, own: &OwnTables, layout: &Layout) -> Result<TableNames> {
        layout.check()?;
        let wanted = wanted(layout);
        let found = find_columns(pool, &wanted).await?;
        let lacking: Vec<String> = wanted
            .iter()
            .zip(&found)
            .filter(|(wanted, found)| wanted.needed && found.is_none())
            .map(|(wanted, _)| format!("{}.{}", wanted.table, wanted.column))
            .collect();
        if !lacking.is_empty() {
            return Err(Error::Corrupt {
                store: pool.place().to_owned(),
                what: format!(
                    "these columns are not there: {}. `lapsed schema apply` makes the tables that are \
                     missing; if they are there under other names, the configuration must say so",
                    lacking.join(", ")
                ),
            });
        }
        let of = |table: &str, column: &str| {
            let place = wanted.iter().position(|w| w.table == table && w.column == column);
            place.and_then(|place| found[place].clone())
        };
        Ok(TableNames::new(own.clone(), layout, &of))
    }

    fn new(own: OwnTables, layout: &Layout, of: &dyn Fn(&str, &str) -> ColumnType) -> TableNames {
        let Layout { providers, status, logs, sessions, logins, config, .. } = layout;
        let id = |table: &str, column: &str| {
            let (full, short) = of(table, column).unwrap_or_else(|| ("text".into(), "text".into()));
            IdColumn::new(&full, &short)
        };
        let touch = |table: &str, column: &str| match of(table, column) {
            Some(_) => format!(", {} = clock_timestamp()", name(column)),
            None => String::new(),
        };
        let provider = id(&providers.table, &providers.id);
        let status_provider = id(&status.table, &status.provider);
        let session_provider = id(&sessions.table, &sessions.provider);
        let m_id = format!("m.{}", name(&providers.id));
        let s_of_m =
            format!("s.{} = {}", name(&status.provider), status_provider.like(&m_id, &provider));
        let count_of_m = format!(
            "SELECT count(*) FROM {} c WHERE c.{} = {} AND {}",
            table(&sessions.table),
            name(&sessions.provider),
            session_provider.like(&m_id, &provider),
            occupying(&format!("c.{}", name(&sessions.status))),
        );
        TableNames {
            own,
            providers: table(&providers.table),
            p_id: name(&providers.id),
            p_name: of(&providers.table, &providers.display_name)
                .map(|_| name(&providers.display_name)),
            p_active: name(&providers.is_active),
            status: table(&status.table),
            s_provider: name(&status.provider),
            s_online: name(&status.is_online),
            s_last_online: name(&status.last_online_at),
            s_last_offline: name(&status.last_offline_at),
            s_beat: name(&status.last_heartbeat_at),
            s_touch: touch(&status.table, &status.updated_at),
            logs: table(&logs.table),
            l_provider: name(&logs.provider),
            l_status: name(&logs.status),
            l_at: of(&logs.table, &logs.created_at).map(|_| name(&logs.created_at)),
            sessions: table(&sessions.table),
            c_id: name(&sessions.id),
            c_provider: name(&sessions.provider),
            c_status: name(&sessions.status),
            c_touch: touch(&sessions.table, &sessions.updated_at),
            logins: layout
                .has_logins()
                .then(|| (table(&logins.table), name(&logins.provider), name(&logins.revoked_at))),
            config: table(&config.table),
            k_key: name(&config.key),
            k_value: name(&config.value),
            k_touch: touch(&config.table, &config.updated_at),
            k_type: id(&config.table, &config.value).sql,
            log_provider: id(&logs.table, &logs.provider),
            session: id(&sessions.table, &sessions.id),
            login_provider: id(&logins.table, &logins.provider),
            provider,
            status_provider,
            session_provider,
            s_of_m,
            count_of_m,
        }
    }
}

impl TableNames {
    /// Writes a log row of `status` for each that `rest` (a FROM or a WHERE) leaves; dated when it is
    /// written, with the provider's version locked, so that rows of one are in the order of its flips.
    pub fn log(&self, id: &str, status: &str, rest: &str) -> String {
        let (column, now) = match &self.l_at {
            Some(column) => (format!(", {column}"), ", clock_timestamp()"),
            None => (String::new(), ""),
        };
        format!(
            "INSERT INTO {} ({}, {}{column}) SELECT {id}, '{status}'{now} {rest} RETURNING 1",
            self.logs, self.l_provider, self.l_status
        )
    }
}

fn wanted(layout: &Layout) -> Vec<ExpectedColumn<'_>> {
    let Layout { providers, status, logs, sessions, logins, config, .. } = layout;
    let of = |table, column, needed| ExpectedColumn { table, column, needed };
    let mut all = vec![
        of(&providers.table, &providers.id, true),
        of(&providers.table, &providers.is_active, true),
        of(&providers.table, &providers.display_name, false),
        of(&status.table, &status.provider, true),
        of(&status.table, &status.is_online, true),
        of(&status.table, &status.last_online_at, true),
        of(&status.table, &status.last_offline_at, true),
        of(&status.table, &status.last_heartbeat_at, true),
        of(&status.table, &status.updated_at, false),
        of(&logs.table, &logs.provider, true),
        of(&logs.table, &logs.status, true),
        of(&logs.table, &logs.created_at, false),
        of(&sessions.table, &sessions.id, true),
        of(&sessions.table, &sessions.provider, true),
        of(&sessions.table, &sessions.status, true),
        of(&sessions.table, &sessions.updated_at, false),
        of(&config.table, &config.key, true),
        of(&config.table, &config.value, true),
        of(&config.table, &config.updated_at, false),
    ];
    if layout.has_logins() {
        all.push(of(&logins.table, &logins.provider, true));
        all.push(of(&logins.table, &logins.revoked_at, true));
    }
    all
}

async fn find_columns(
    pool: &PostgresPool,
    wanted: &[ExpectedColumn<'_>],
) -> Result<Vec<ColumnType>> {
    let tables: Vec<String> = wanted.iter().map(|wanted| table(wanted.table)).collect();
    let columns: Vec<&str> = wanted.iter().map(|wanted| wanted.column).collect();
    let sql = "SELECT format_type(a.atttypid, NULL), t.typname::text \
               FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS w(tab, col, n) \
               LEFT JOIN pg_attribute a ON a.attrelid = to_regclass(w.tab) AND a.attname = w.col \
               AND a.attnum > 0 AND NOT a.attisdropped \
               LEFT JOIN pg_type t ON t.oid = a.atttypid ORDER BY w.n";
    let rows = pool.query("look at the tables", sql, &[&tables, &columns]).await?;
    Ok(rows.iter().map(|row| row.get::<_, Option<String>>(0).zip(row.get(1))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_name_only() {
        let name = |text: &str| Name::new(text).unwrap();
        let uuid = IdColumn::new("uuid", "uuid");
        assert!(uuid.accepts(&name("0190f0a0-1111-7222-8333-44445555aaaa")));
        assert!(!uuid.accepts(&name("0190F0A0-1111-7222-8333-44445555AAAA")));
        assert!(!uuid.accepts(&name("m-1")));
        let number = IdColumn::new("integer", "int4");
        assert!(number.accepts(&name("-7")) && number.accepts(&name("2147483647")));
        for bad in ["+7", "07", "2147483648", "9223372036854775808", "7 ", "x"] {
            assert!(!number.accepts(&name(bad)), "{bad}");
        }
        let wide = IdColumn::new("bigint", "int8");
        assert!(wide.accepts(&name("9223372036854775807")));
        let text = IdColumn::new("character", "bpchar");
        assert!(text.accepts(&name("m-1")));
        assert_eq!(text.one(1), "$1::text::bpchar");
    }
}
