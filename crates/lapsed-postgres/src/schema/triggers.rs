//! Triggers that tell what an application changes by itself: who, and nothing else.
//!
//! They only NOTIFY: an application's transaction takes no additional lock on any row, and notices nothing.
//! (At their commit, transactions that notify wait for each other, as PostgreSQL has it.) Each fires only
//! for a change that matters: a recorded heartbeat does not. Changes that lapsed itself makes are not notified.

use crate::layout::Layout;
use crate::own_tables::OwnTables;
use crate::quote::{literal, name, table};
use crate::schema::{Statement, StatementKind};

/// The channel for changed providers. The payload is the provider's id; if empty, any may have changed.
pub const AVAILABILITY_CHANNEL: &str = "lapsed_availability";

/// The channel for changed settings. The payload is the setting's key; if empty, any may have changed.
pub const SETTINGS_CHANNEL: &str = "lapsed_settings";

/// The triggers of one table: which changes are announced on which channel.
struct NotifyTrigger<'a> {
    /// The name of the trigger, which lapsed's prefix precedes.
    what: &'static str,
    table: &'a str,
    channel: &'static str,
    /// The column whose value is announced: the provider's id or the setting's key.
    subject: &'a str,
    /// The columns whose change by an update is announced.
    columns: Vec<&'a str>,
}

pub(super) fn all(own: &OwnTables, layout: &Layout) -> Vec<Statement> {
    let Layout { providers, status, sessions, config, .. } = layout;
    let watched = [
        NotifyTrigger {
            what: "providers",
            table: &providers.table,
            channel: AVAILABILITY_CHANNEL,
            subject: &providers.id,
            columns: vec![&providers.id, &providers.is_active],
        },
        NotifyTrigger {
            what: "status",
            table: &status.table,
            channel: AVAILABILITY_CHANNEL,
            subject: &status.provider,
            columns: vec![&status.provider, &status.is_online, &status.last_online_at],
        },
        NotifyTrigger {
            what: "sessions",
            table: &sessions.table,
            channel: AVAILABILITY_CHANNEL,
            subject: &sessions.provider,
            columns: vec![&sessions.provider, &sessions.status],
        },
        NotifyTrigger {
            what: "config",
            table: &config.table,
            channel: SETTINGS_CHANNEL,
            subject: &config.key,
            columns: vec![&config.key, &config.value],
        },
    ];
    watched.iter().flat_map(|watched| watched.statements(own)).collect()
}

impl NotifyTrigger<'_> {
    fn statements(&self, own: &OwnTables) -> Vec<Statement> {
        // By the column, too: another system in the same database may call it otherwise.
        let function = own.named(&format!("tell_{}_by_{}", self.what, self.subject));
        let trigger = |event: &str, when: String, each: &str| {
            format!(
                "CREATE OR REPLACE TRIGGER {} AFTER {} ON {} FOR EACH {each}{when} EXECUTE FUNCTION {function}()",
                own.bare(&format!("tell_{}_{}", self.what, event.to_lowercase())),
                event,
                table(self.table),
            )
        };
        let values = |row: &str| {
            let each: Vec<String> =
                self.columns.iter().map(|column| format!("{row}.{}", name(column))).collect();
            each.join(", ")
        };
        let differs = format!(" WHEN (({}) IS DISTINCT FROM ({}))", values("OLD"), values("NEW"));
        let sql = [
            self.function(&function),
            trigger("INSERT", String::new(), "ROW"),
            trigger("UPDATE", differs, "ROW"),
            trigger("DELETE", String::new(), "ROW"),
            trigger("TRUNCATE", String::new(), "STATEMENT"),
        ];
        sql.map(|sql| Statement { table: table(self.table), sql, kind: StatementKind::Trigger })
            .into()
    }

    fn function(&self, function: &str) -> String {
        let (channel, subject) = (literal(self.channel), name(self.subject));
        format!(
            "CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $lapsed$
BEGIN
    IF current_setting('lapsed.quiet', true) = 'on' THEN
        RETURN NULL;
    END IF;
    IF TG_OP = 'TRUNCATE' THEN
        PERFORM pg_catalog.pg_notify({channel}, '');
        RETURN NULL;
    END IF;
    IF TG_OP <> 'INSERT' AND OLD.{subject} IS NOT NULL THEN
        PERFORM pg_catalog.pg_notify({channel}, OLD.{subject}::text);
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.{subject} IS NOT NULL THEN
        PERFORM pg_catalog.pg_notify({channel}, NEW.{subject}::text);
    END IF;
    RETURN NULL;
END
$lapsed$"
        )
    }
}
