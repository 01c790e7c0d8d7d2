//! What the application's tables and columns are called. The defaults are the seed's names; what an
//! application calls otherwise is adopted by saying so.

use lapsed_core::{Error, Result};
use serde::Deserialize;

/// The tables that availability works on. A table may be named with its schema: `app.mitras`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Layout {
    pub providers: Providers,
    pub status: Status,
    /// When who went online or offline.
    pub logs: Logs,
    /// Who has which session.
    pub sessions: Sessions,
    /// Who is logged in.
    pub logins: Logins,
    pub config: Config,
    /// What the ids are in tables that lapsed makes. Those that are there already say it themselves.
    pub id_type: IdType,
}

/// What an id is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdType {
    #[default]
    Uuid,
    Text,
    Bigint,
}

impl IdType {
    pub(crate) fn sql(self) -> &'static str {
        match self {
            IdType::Uuid => "uuid",
            IdType::Text => "text",
            IdType::Bigint => "bigint",
        }
    }
}

macro_rules! names {
    ($(#[$doc:meta])* $struct:ident { $($(#[$field_doc:meta])* $field:ident: $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $struct { $($(#[$field_doc])* pub $field: String,)* }

        impl Default for $struct {
            fn default() -> Self {
                $struct { $($field: $name.to_owned(),)* }
            }
        }

        impl $struct {
            /// Each with what it stands for.
            fn names(&self) -> Vec<(&'static str, &str)> {
                vec![$((stringify!($field), self.$field.as_str()),)*]
            }
        }
    };
}

names! {
    /// One row a provider.
    Providers {
        table: "mitras",
        /// Who: uuid, text or a number.
        id: "id",
        /// What people call it; a table without this column has no names.
        display_name: "display_name",
        /// Whether it may work at all.
        is_active: "is_active",
    }
}

names! {
    /// At most one row a provider.
    Status {
        table: "mitra_online_status",
        provider: "mitra_id",
        /// Whether it says that it is there.
        is_online: "is_online",
        /// When it was last set online.
        last_online_at: "last_online_at",
        /// When it was last set offline.
        last_offline_at: "last_offline_at",
        /// Its last beat, as far as it was written down.
        last_heartbeat_at: "last_heartbeat_at",
        /// When the row was last changed; written where there is such a column.
        updated_at: "updated_at",
    }
}

names! {
    /// One row a flip between online and offline.
    Logs {
        table: "mitra_online_logs",
        provider: "mitra_id",
        status: "status",
        /// When; without such a column the log is written, and cannot be read.
        created_at: "created_at",
    }
}

names! {
    /// One row a session.
    Sessions {
        table: "chat_sessions",
        id: "id",
        provider: "mitra_id",
        /// `active`, `pending_payment`, `ended`, `expired`, `cancelled`, or what comes before.
        status: "status",
        /// When the row was last changed; written where there is such a column.
        updated_at: "updated_at",
    }
}

names! {
    /// One row a login. An empty name of the table: there are none to revoke.
    Logins {
        table: "auth_sessions",
        provider: "user_id",
        /// When it was revoked, if it was.
        revoked_at: "revoked_at",
    }
}

names! {
    /// One row a setting.
    Config {
        table: "app_config",
        key: "key",
        /// What, as JSON or as text.
        value: "value",
        /// When the row was last changed; written where there is such a column.
        updated_at: "updated_at",
        /// The key of how long a provider may be silent.
        stale_after_seconds: "stale_after_seconds",
        /// The key of whether silence means anything.
        require_ping: "require_ping",
        /// The key of how many sessions a provider can have.
        max_customers_per_mitra: "max_customers_per_mitra",
        /// The key of how often a provider beats.
        heartbeat_cadence_seconds: "heartbeat_cadence_seconds",
    }
}

impl Layout {
    /// Refuses names that cannot be.
    pub fn check(&self) -> Result<()> {
        let tables = [
            ("providers", self.providers.names()),
            ("status", self.status.names()),
            ("logs", self.logs.names()),
            ("sessions", self.sessions.names()),
            ("logins", self.logins.names()),
            ("config", self.config.names()),
        ];
        for (table, names) in tables {
            for (key, name) in names {
                let may_be_empty = (table, key) == ("logins", "table");
                if name.contains('\0') || name.is_empty() && !may_be_empty {
                    return Err(Error::Invalid(format!("{table}.{key} names nothing: {name:?}")));
                }
                if name.split('.').any(|part| part.len() > 63) {
                    return Err(Error::Invalid(format!(
                        "{table}.{key} is longer than the 63 bytes that PostgreSQL keeps of a name: {name:?}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Whether there are logins to revoke.
    pub fn has_logins(&self) -> bool {
        !self.logins.table.is_empty()
    }
}
