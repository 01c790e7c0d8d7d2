//! The operations as a function library inside the server (`FCALL`), for callers in any language.
//!
//! The library's text is made of the very same scripts, each wrapped as a function of its keys and arguments;
//! what `scripts/library/` adds is thin: checking what callers send, deriving lapsed's own keys from
//! the application's, and calling a script again with what it asks for. Nothing of a system's rules
//! is written twice.

use lapsed_core::inflight::PAYLOAD_BYTES_MAX;
use lapsed_core::name::NAME_BYTES_MAX;
use lapsed_core::sessions::PROFILE_BYTES_MAX;
use lapsed_core::{Error, Result};
use redis::{FromRedisValue, Value};

use crate::Redis;
use crate::registry::KEYS_A_CALL;
use crate::script::{
    self, INFLIGHT_PRELUDE, PRELUDE, QUEUES_PRELUDE, REQUESTS_PRELUDE, SESSIONS_PRELUDE, Script,
};
use crate::system_context::BASE;

/// The library's version. One more with every release in which its text differs: a server is then
/// brought up to date by loading it again, and an older lapsed does not put its own in place of it.
/// Within a version, functions may be added and answers may grow at their end; a name keeps its
/// meaning for ever.
pub const FUNCTIONS_VERSION: u32 = 4;

/// The name of the library in `FUNCTION LIST`.
const LIBRARY: &str = "lapsed";

/// The scripts that the library contains, each as a local Lua function.
const SCRIPTS: [&str; 14] = [
    "owner_start",
    "owner_beat",
    "owner_end",
    "registry_register",
    "registry_unregister",
    "registry_find",
    "session_write",
    "session_reference",
    "session_delete",
    "inflight_enqueue",
    "inflight_take",
    "inflight_register",
    "inflight_finish",
    "inflight_counts",
];

/// The Lua files that register the public functions on top of those scripts.
const WRAPPERS: [&str; 5] = [
    include_str!("../scripts/library/common.lua"),
    include_str!("../scripts/library/owners.lua"),
    include_str!("../scripts/library/registry.lua"),
    include_str!("../scripts/library/sessions.lua"),
    include_str!("../scripts/library/inflight.lua"),
];

/// The beginning of the line that states the library's version.
const VERSION_LINE: &str = "local VERSION = ";

/// What to do if a server has a newer version of the library than this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Downgrade {
    /// The newer version stays, and loading fails.
    Refuse,
    /// The newer version is replaced, as is a library of that name that is not lapsed's.
    Allow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The newest version that any node had.
    pub before: Option<u32>,
    /// The version that all of them have now.
    pub now: u32,
    /// The number of masters.
    pub nodes: usize,
}

/// The library that a node has under this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum InstalledLibrary {
    Nothing,
    Version(u32),
    /// A library without lapsed's version line, which is not lapsed's.
    Foreign,
}

impl Redis {
    /// The text of the function library, as `FUNCTION LOAD` takes it.
    pub fn functions() -> String {
        let base: Vec<String> = BASE.iter().map(|what| format!("'{what}'")).collect();
        let mut text = format!(
            "#!lua name={LIBRARY}\n\
             -- The operations of lapsed on registries, sessions and jobs, for callers in any language.\n\
             {VERSION_LINE}{FUNCTIONS_VERSION}\n\
             local NAME_BYTES_MAX = {NAME_BYTES_MAX}\n\
             local PROFILE_BYTES_MAX = {PROFILE_BYTES_MAX}\n\
             local PAYLOAD_BYTES_MAX = {PAYLOAD_BYTES_MAX}\n\
             local KEYS_MAX = {KEYS_A_CALL}\n\
             local BASE = {{ {} }}\n\n{PRELUDE}\n{SESSIONS_PRELUDE}\n\
             {QUEUES_PRELUDE}\n{INFLIGHT_PRELUDE}\n{REQUESTS_PRELUDE}\n",
            base.join(", ")
        );
        for script in scripts() {
            text.push_str(&script.as_function(script.name));
        }
        crate::prelude::changed(text + &WRAPPERS.join("\n"))
    }

    /// Puts the library into every master, in place of an older version. Calls go on meanwhile: each
    /// is carried out by the old library or by the new one.
    ///
    /// What is there is looked at before, not in the same step: of two lapsed of different versions
    /// that load at the same moment, the older may come last.
    pub async fn load_functions(&self, downgrade: Downgrade) -> Result<Loaded> {
        let mut list = redis::cmd("FUNCTION");
        list.arg("LIST").arg("LIBRARYNAME").arg(LIBRARY).arg("WITHCODE");
        let lists: Vec<Value> = self.connection().on_every_node("FUNCTION LIST", &list).await?;
        let held = lists
            .into_iter()
            .map(InstalledLibrary::read)
            .max()
            .unwrap_or(InstalledLibrary::Nothing);
        if downgrade == Downgrade::Refuse {
            self.may_replace(held)?;
        }
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg("REPLACE").arg(Self::functions());
        let names: Vec<String> = self.connection().on_every_node("FUNCTION LOAD", &load).await?;
        let before = match held {
            InstalledLibrary::Version(version) => Some(version),
            InstalledLibrary::Nothing | InstalledLibrary::Foreign => None,
        };
        Ok(Loaded { before, now: FUNCTIONS_VERSION, nodes: names.len() })
    }

    fn may_replace(&self, held: InstalledLibrary) -> Result<()> {
        let what = match held {
            InstalledLibrary::Version(newer) if newer > FUNCTIONS_VERSION => {
                format!("version {newer} of the functions, which is newer")
            }
            InstalledLibrary::Foreign => {
                format!("a function library `{LIBRARY}` that is not lapsed's")
            }
            InstalledLibrary::Version(_) | InstalledLibrary::Nothing => return Ok(()),
        };
        Err(Error::Unsupported {
            operation: format!("replacing {what}, by version {FUNCTIONS_VERSION}"),
            store: self.connection().place.to_string(),
        })
    }
}

fn scripts() -> impl Iterator<Item = &'static Script> {
    script::ALL.iter().copied().filter(|script| SCRIPTS.contains(&script.name))
}

impl InstalledLibrary {
    /// From what FUNCTION LIST answers: the code is one of the texts in it, however they are nested.
    fn read(list: Value) -> InstalledLibrary {
        match &list {
            Value::Array(found) if found.is_empty() => InstalledLibrary::Nothing,
            Value::Nil => InstalledLibrary::Nothing,
            _ => version_in(&list).map_or(InstalledLibrary::Foreign, InstalledLibrary::Version),
        }
    }
}

fn version_in(value: &Value) -> Option<u32> {
    match value {
        Value::Array(values) | Value::Set(values) => values.iter().find_map(version_in),
        Value::Map(pairs) => pairs.iter().find_map(|(_, value)| version_in(value)),
        text => {
            let text = String::from_redis_value(text.clone()).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix(VERSION_LINE))?;
            line.trim().parse().ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_library_text() {
        let text = Redis::functions();
        let row = |text: &str| Value::Array(vec![Value::BulkString(text.as_bytes().to_vec())]);
        assert_eq!(
            InstalledLibrary::read(Value::Array(vec![row(&text)])),
            InstalledLibrary::Version(FUNCTIONS_VERSION)
        );
        assert_eq!(
            InstalledLibrary::read(Value::Array(vec![row("#!lua name=lapsed")])),
            InstalledLibrary::Foreign
        );
        assert_eq!(InstalledLibrary::read(Value::Array(Vec::new())), InstalledLibrary::Nothing);
        assert!(
            InstalledLibrary::Foreign > InstalledLibrary::Version(7)
                && InstalledLibrary::Version(7) > InstalledLibrary::Nothing
        );
    }

    #[test]
    fn the_library_contains_every_script_unchanged() {
        let text = Redis::functions();
        assert_eq!(scripts().count(), SCRIPTS.len());
        assert!(scripts().all(|script| text.contains(script.body)));
    }
}
