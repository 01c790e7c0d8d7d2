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
    /// The log of when providers went online or offline.
    pub logs: Logs,
    /// The table of sessions, each with its provider.
    pub sessions: Sessions,
    /// The table of logins.
    pub logins: Logins,
    pub config: Config,
    /// The type of ids in tables that lapsed makes. Existing tables have their own type.
    pub id_type: IdType,
}

/// The type of an id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
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
            /// The configured names, each with the key that configures it.
            fn names(&self) -> Vec<(&'static str, &str)> {
                vec![$((stringify!($field), self.$field.as_str()),)*]
            }
        }
    };
}

names! {
    /// The table of providers, with one row for each.
    Providers {
        table: "mitras",
        /// The provider's id: a uuid, a text or a number.
        id: "id",
        /// The name that is shown; a table without this column has no names.
        display_name: "display_name",
        /// Whether the provider is activated.
        is_active: "is_active",
    }
}

names! {
    /// The status of providers, with at most one row for each.
    Status {
        table: "mitra_online_status",
        provider: "mitra_id",
        /// Whether the provider is set online.
        is_online: "is_online",
        /// When the provider was last set online.
        last_online_at: "last_online_at",
        /// When the provider was last set offline.
        last_offline_at: "last_offline_at",
        /// The provider's last heartbeat that was written to this table.
        last_heartbeat_at: "last_heartbeat_at",
        /// When the row was last changed; written if the column exists.
        updated_at: "updated_at",
    }
}

names! {
    /// The log of changes between online and offline, with one row for each.
    Logs {
        table: "mitra_online_logs",
        provider: "mitra_id",
        status: "status",
        /// The time of the change. Without this column the log is written but cannot be read.
        created_at: "created_at",
    }
}

names! {
    /// The table of sessions, with one row for each.
    Sessions {
        table: "chat_sessions",
        id: "id",
        provider: "mitra_id",
        /// `active`, `pending_payment`, `ended`, `expired`, `cancelled`, or what comes before.
        status: "status",
        /// When the row was last changed; written if the column exists.
        updated_at: "updated_at",
    }
}

names! {
    /// The table of logins, with one row for each. An empty table name: there are no logins to revoke.
    Logins {
        table: "auth_sessions",
        provider: "user_id",
        /// When the login was revoked; NULL if it was not.
        revoked_at: "revoked_at",
    }
}

names! {
    /// The table of settings, with one row for each.
    Config {
        table: "app_config",
        key: "key",
        /// The value, as JSON or as text.
        value: "value",
        /// When the row was last changed; written if the column exists.
        updated_at: "updated_at",
        /// The key of the setting for how long a provider may be silent.
        stale_after_seconds: "stale_after_seconds",
        /// The key of the setting for whether silent providers are set offline.
        require_ping: "require_ping",
        /// The key of the setting for how many sessions a provider can have.
        max_customers_per_mitra: "max_customers_per_mitra",
        /// The key of the setting for how often a provider sends a heartbeat.
        heartbeat_cadence_seconds: "heartbeat_cadence_seconds",
    }
}

impl Layout {
    /// Refuses names that PostgreSQL cannot have.
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
