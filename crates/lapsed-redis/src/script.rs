//! The scripts: files of their own, each with its contract on top, run by their digest.

use std::sync::LazyLock;

use crate::prelude::begin;

/// One script, ready to be called.
pub(crate) struct Script {
    pub name: &'static str,
    /// The script without its prelude, from which the function library is made.
    pub body: &'static str,
    pub(crate) inner: LazyLock<(String, String)>,
}

/// Scripts that change something for a caller, each with what carries it out once for a request. Left out are
/// those that do no more when they are repeated (heartbeats), those that a newer version refuses
/// (mirrors), and those that a batch's number makes repeatable (sweeps).
static ONCE: &[(&Script, &Script)] = &[
    (&INFLIGHT_ADOPT_DEAD_LETTER, &INFLIGHT_ADOPT_DEAD_LETTER_ONCE),
    (&INFLIGHT_ADOPT_RESTORE, &INFLIGHT_ADOPT_RESTORE_ONCE),
    (&INFLIGHT_DEAD_LETTER, &INFLIGHT_DEAD_LETTER_ONCE),
    (&INFLIGHT_FINISH, &INFLIGHT_FINISH_ONCE),
    (&INFLIGHT_REGISTER, &INFLIGHT_REGISTER_ONCE),
    (&INFLIGHT_RESTORE, &INFLIGHT_RESTORE_ONCE),
    (&OWNER_END, &OWNER_END_ONCE),
    (&REGISTRY_REGISTER, &REGISTRY_REGISTER_ONCE),
    (&REGISTRY_RESTORE, &REGISTRY_RESTORE_ONCE),
    (&REGISTRY_UNREGISTER, &REGISTRY_UNREGISTER_ONCE),
    (&SESSION_DELETE, &SESSION_DELETE_ONCE),
    (&SESSION_REFERENCE, &SESSION_REFERENCE_ONCE),
    (&SESSION_RESTORE, &SESSION_RESTORE_ONCE),
    (&SESSION_WRITE, &SESSION_WRITE_ONCE),
];

/// What carries out a script once for a request; `None` if it needs no such thing.
pub(crate) fn once_of(script: &Script) -> Option<&'static Script> {
    ONCE.iter().find(|(plain, _)| std::ptr::eq(*plain, script)).map(|(_, once)| *once)
}

/// The decisive step for one foreign job system: `part` in front of `rescue_reclaim.lua`.
pub(crate) fn rescue_text(part: &str) -> (String, String) {
    let body = format!("{part}\n{}", include_str!("../scripts/rescue_reclaim.lua"));
    let preludes = [
        PRELUDE,
        DEATHS_PRELUDE,
        QUEUES_PRELUDE,
        INFLIGHT_PRELUDE,
        INFLIGHT_ADOPT_PRELUDE,
        RESCUE_PRELUDE,
    ];
    let text = begin(&preludes, &body);
    let sha = redis::Script::new(&text).get_hash().to_owned();
    (text, sha)
}

/// The step that checks and heals findings of drift in one foreign job system: `part` in front of `rescue_drift.lua`.
pub(crate) fn drift_text(part: &str) -> (String, String) {
    let body = format!("{part}\n{}", include_str!("../scripts/rescue_drift.lua"));
    let text = begin(&[PRELUDE], &body);
    let sha = redis::Script::new(&text).get_hash().to_owned();
    (text, sha)
}

/// The dead letters of one foreign job system: `part` in front of `rescue_letters.lua`.
pub(crate) fn letters_text(part: &str) -> (String, String) {
    let body = format!("{part}\n{}", include_str!("../scripts/rescue_letters.lua"));
    let text = begin(&[PRELUDE, RESCUE_PRELUDE], &body);
    let sha = redis::Script::new(&text).get_hash().to_owned();
    (text, sha)
}

/// A script of a profile: the name that errors have, and the files beside the profile. `$text` puts them in front of what all
/// profiles share.
macro_rules! profile_script {
    ($text:ident, $name:literal, $($file:literal),+) => {
        $crate::script::Script {
            name: $name,
            body: concat!($(include_str!($file)),+),
            inner: std::sync::LazyLock::new(|| {
                $crate::script::$text(concat!($(include_str!($file)),+))
            }),
        }
    };
}
pub(crate) use profile_script;

/// The script of a profile that puts jobs back.
macro_rules! rescue_script {
    ($name:literal, $($file:literal),+) => {
        $crate::script::profile_script!(rescue_text, $name, $($file),+)
    };
}
pub(crate) use rescue_script;

/// The prelude of all scripts.
pub(crate) const PRELUDE: &str = include_str!("../scripts/prelude.lua");

/// The prelude of the scripts that count deaths for the brake. No function of the library does.
const DEATHS_PRELUDE: &str = include_str!("../scripts/deaths_prelude.lua");

/// The prelude of the scripts for sessions, which follows the first.
pub(crate) const SESSIONS_PRELUDE: &str = include_str!("../scripts/sessions_prelude.lua");

/// The prelude of the scripts that put something on a queue.
pub(crate) const QUEUES_PRELUDE: &str = include_str!("../scripts/queues_prelude.lua");

/// The prelude of the scripts for jobs in flight.
pub(crate) const INFLIGHT_PRELUDE: &str = include_str!("../scripts/inflight_prelude.lua");

/// The prelude of the scripts that may be repeated because their answer was lost.
pub(crate) const REQUESTS_PRELUDE: &str = include_str!("../scripts/requests_prelude.lua");

/// The prelude of the scripts for jobs that the application registers itself.
const INFLIGHT_ADOPT_PRELUDE: &str = include_str!("../scripts/inflight_adopt_prelude.lua");

/// The prelude of the scripts that put jobs of a foreign job system back.
const RESCUE_PRELUDE: &str = include_str!("../scripts/rescue_prelude.lua");

/// The prelude of the scripts for a mirror of availability.
const MIRROR_PRELUDE: &str = include_str!("../scripts/mirror_prelude.lua");

/// The preludes of a script, in order.
fn preludes(file: &str) -> Vec<&'static str> {
    match file.split_once('_').map_or(file, |(system, _)| system) {
        "session" => vec![PRELUDE, DEATHS_PRELUDE, SESSIONS_PRELUDE],
        "inflight" if file.starts_with("inflight_adopt_") => {
            let inflight = [QUEUES_PRELUDE, INFLIGHT_PRELUDE, INFLIGHT_ADOPT_PRELUDE];
            [[PRELUDE, DEATHS_PRELUDE, SESSIONS_PRELUDE].as_slice(), &inflight].concat()
        }
        "mirror" => vec![PRELUDE, DEATHS_PRELUDE, MIRROR_PRELUDE],
        "keep" | "kept" => vec![PRELUDE, REQUESTS_PRELUDE],
        "inflight" => vec![PRELUDE, QUEUES_PRELUDE, INFLIGHT_PRELUDE, REQUESTS_PRELUDE],
        "census" => vec![PRELUDE, DEATHS_PRELUDE],
        _ => vec![PRELUDE],
    }
}

impl Script {
    pub fn text(&self) -> &str {
        &self.inner.0
    }

    /// The script's SHA-1, by which the server knows it.
    pub fn sha(&self) -> &str {
        &self.inner.1
    }
}

/// The scripts that a script calls, each as a function of its keys and arguments.
fn with_called(file: &str, body: &str) -> String {
    let called: &[&Script] = match file {
        "inflight_undelivered" => &[&INFLIGHT_FINISH],
        _ => &[],
    };
    let called: String = called.iter().map(|script| script.as_function(script.name)).collect();
    called + body
}

impl Script {
    /// The script as a Lua function of the given name, without the prelude.
    pub fn as_function(&self, name: &str) -> String {
        format!("local function {name}(KEYS, ARGV)\n{}end\n\n", self.body)
    }
}

macro_rules! scripts {
    ($($constant:ident = $file:literal,)*) => {
        $(
            pub(crate) static $constant: Script = Script {
                name: $file,
                body: include_str!(concat!("../scripts/", $file, ".lua")),
                inner: LazyLock::new(|| {
                    let body = include_str!(concat!("../scripts/", $file, ".lua"));
                    let text = begin(&preludes($file), &with_called($file, body));
                    let sha = redis::Script::new(&text).get_hash().to_owned();
                    (text, sha)
                }),
            };
        )*
        /// All scripts, by name.
        pub(crate) static ALL: &[&Script] = &[$(&$constant,)*];
    };
}

scripts! {
    RECORD_ABSENCE = "record_absence",
    CAMPAIGN = "campaign",
    CENSUS = "census",
    OVERDUE_OWNERS = "overdue_owners",
    EXTERNAL_OWNERS = "external_owners",
    RECORD_RUN = "record_run",
    INFLIGHT_ADOPT_CENSUS = "inflight_adopt_census",
    INFLIGHT_ADOPT_JOB = "inflight_adopt_job",
    INFLIGHT_ADOPT_DEAD_LETTER = "inflight_adopt_dead_letter",
    INFLIGHT_ADOPT_IN_DEAD_SET = "inflight_adopt_in_dead_set",
    INFLIGHT_ADOPT_PAGE = "inflight_adopt_page",
    INFLIGHT_ADOPT_RECLAIM = "inflight_adopt_reclaim",
    INFLIGHT_ADOPT_RESTORE = "inflight_adopt_restore",
    INFLIGHT_ADOPT_TIDY = "inflight_adopt_tidy",
    INFLIGHT_COUNTS = "inflight_counts",
    INFLIGHT_ENQUEUE = "inflight_enqueue",
    INFLIGHT_FIND = "inflight_find",
    INFLIGHT_FINISH = "inflight_finish",
    INFLIGHT_INDEX = "inflight_index",
    INFLIGHT_DEAD_LETTER = "inflight_dead_letter",
    INFLIGHT_RECLAIM = "inflight_reclaim",
    INFLIGHT_REGISTER = "inflight_register",
    INFLIGHT_RESTORE = "inflight_restore",
    INFLIGHT_TAKE = "inflight_take",
    INFLIGHT_UNDELIVERED = "inflight_undelivered",
    INFO = "info",
    KEEP_ANSWER = "keep_answer",
    KEPT_ANSWER = "kept_answer",
    OWNER_ADOPT = "owner_adopt",
    OWNER_BEAT = "owner_beat",
    OWNER_END = "owner_end",
    OWNER_START = "owner_start",
    OWNERS = "owners",
    ADVANCE_MARK = "advance_mark",
    MIRROR_APPLY = "mirror_apply",
    MIRROR_AVAILABLE = "mirror_available",
    MIRROR_BEAT = "mirror_beat",
    MIRROR_BEATS = "mirror_beats",
    MIRROR_CLAMP = "mirror_clamp",
    MIRROR_COUNT = "mirror_count",
    MIRROR_DECIDE = "mirror_decide",
    MIRROR_PENDING = "mirror_pending",
    MIRROR_FORGET = "mirror_forget",
    MIRROR_SHOW = "mirror_show",
    MIRROR_PRESENCE = "mirror_presence",
    MIRROR_SEED = "mirror_seed",
    MIRROR_SEEDED = "mirror_seeded",
    MIRROR_SNAPSHOT = "mirror_snapshot",
    MIRROR_SNAPSHOT_PUT = "mirror_snapshot_put",
    MIRROR_TRACES = "mirror_traces",
    APPEND_NOTE = "append_note",
    PROBE = "probe",
    SERVER_TIME = "server_time",
    CONFIRM_ADOPTION = "confirm_adoption",
    REGISTRY_FIND = "registry_find",
    REGISTRY_FORGET = "registry_forget",
    REGISTRY_OBSERVE = "registry_observe",
    REGISTRY_INDEX = "registry_index",
    REGISTRY_RECLAIM = "registry_reclaim",
    REGISTRY_REGISTER = "registry_register",
    REGISTRY_RESTORE = "registry_restore",
    REGISTRY_UNREGISTER = "registry_unregister",
    RESIGN = "resign",
    SESSION_DELETE = "session_delete",
    SESSION_REFERENCE_INDEX = "session_reference_index",
    SESSION_REFERENCE = "session_reference",
    SESSION_INDEX = "session_index",
    SESSION_RECLAIM = "session_reclaim",
    SESSION_RESTORE = "session_restore",
    SESSION_WRITE = "session_write",
    SETTLE_BATCH = "settle_batch",
    SWAP_BRAKE = "swap_brake",
    TERM = "term",
    TIDY = "tidy",
    TAKE_TURN = "take_turn",
}

/// A script that is carried out once for a request; see `once.lua`.
fn once_text(file: &str, body: &str) -> (String, String) {
    let mut preludes = preludes(file);
    if !preludes.contains(&REQUESTS_PRELUDE) {
        preludes.push(REQUESTS_PRELUDE);
    }
    let once = include_str!("../scripts/once.lua");
    let body = format!("local function operation(KEYS, ARGV)\n{body}end\n\n{once}");
    let text = begin(&preludes, &body);
    let sha = redis::Script::new(&text).get_hash().to_owned();
    (text, sha)
}

macro_rules! once_scripts {
    ($($constant:ident = $file:literal,)*) => {$(
        pub(crate) static $constant: Script = Script {
            name: $file,
            body: include_str!(concat!("../scripts/", $file, ".lua")),
            inner: LazyLock::new(|| {
                once_text($file, include_str!(concat!("../scripts/", $file, ".lua")))
            }),
        };
    )*};
}

once_scripts! {
    INFLIGHT_ADOPT_DEAD_LETTER_ONCE = "inflight_adopt_dead_letter",
    INFLIGHT_ADOPT_RESTORE_ONCE = "inflight_adopt_restore",
    INFLIGHT_DEAD_LETTER_ONCE = "inflight_dead_letter",
    INFLIGHT_ENQUEUE_ONCE = "inflight_enqueue",
    INFLIGHT_FINISH_ONCE = "inflight_finish",
    INFLIGHT_REGISTER_ONCE = "inflight_register",
    INFLIGHT_RESTORE_ONCE = "inflight_restore",
    OWNER_END_ONCE = "owner_end",
    OWNER_START_ONCE = "owner_start",
    REGISTRY_REGISTER_ONCE = "registry_register",
    REGISTRY_RESTORE_ONCE = "registry_restore",
    REGISTRY_UNREGISTER_ONCE = "registry_unregister",
    SESSION_DELETE_ONCE = "session_delete",
    SESSION_REFERENCE_ONCE = "session_reference",
    SESSION_RESTORE_ONCE = "session_restore",
    SESSION_WRITE_ONCE = "session_write",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_opens_with_its_contract() {
        for script in ALL {
            let head: String = script.body.lines().take_while(|l| l.starts_with("--")).collect();
            for word in ["KEYS", "O("] {
                assert!(head.contains(word), "{} says nothing of {word}", script.name);
            }
        }
    }
}
