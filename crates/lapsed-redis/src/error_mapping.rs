//! Maps errors of the server and of the connection to [`lapsed_core::Error`].

use std::collections::BTreeSet;

use lapsed_core::Error;
use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::script;

/// Parts of the messages with which servers refuse a command inside a script for lack of a permission.
const UNPERMITTED: [&str; 3] =
    ["ACL failure", "has no permissions", "The user executing the script can't"];

/// The error for a failed call. Its text says what happened and, where the operator can act, what to do.
pub(crate) fn store_error(place: &str, call: &str, error: &RedisError) -> Error {
    let unavailable = |what: String| Error::Unavailable { store: place.to_owned(), what };
    if error.is_timeout() {
        return unavailable(format!("no answer to `{call}` in time; it may have been carried out"));
    }
    let code = error.code().unwrap_or_default().to_owned();
    let server_message = server_message(error);
    match (error.kind(), code.as_str()) {
        (_, "OOM") => unavailable(format!(
            "it is out of memory and takes no writes: {server_message}. Give it more (maxmemory), or remove \
             what is not needed; lapsed continues automatically"
        )),
        (ErrorKind::Server(ServerErrorKind::NoPerm), _) | (_, "NOPERM") => unavailable(format!(
            "this user lacks a permission for `{call}`: {server_message}. Grant it with ACL SETUSER; lapsed \
             continues automatically"
        )),
        // Inside a script the server returns no error code for this, only a message.
        _ if UNPERMITTED.iter().any(|words| server_message.contains(words)) => {
            unavailable(format!(
                "this user lacks a permission for `{call}`{}: {server_message}. Grant it with ACL SETUSER; \
                 lapsed continues automatically",
                denied_commands(call, &server_message).unwrap_or_default()
            ))
        }
        (ErrorKind::AuthenticationFailed, _) | (_, "NOAUTH" | "WRONGPASS") => {
            unavailable(format!("it does not accept user and password: {server_message}"))
        }
        (ErrorKind::Server(ServerErrorKind::ReadOnly), _) | (_, "READONLY") => unavailable(
            "it is a replica and takes no writes; lapsed must talk to the master".to_owned(),
        ),
        (_, "MISCONF") => unavailable(format!("it takes no writes: {server_message}")),
        (_, "WRONGTYPE") => Error::Corrupt {
            store: place.to_owned(),
            what: format!(
                "a key that `{call}` works on holds another type than it should: {server_message}. Nothing \
                 was changed; are the key names of the configuration right?"
            ),
        },
        (ErrorKind::Server(ServerErrorKind::CrossSlot), _) => Error::Unsupported {
            operation: format!("`{call}` over keys of several slots"),
            store: place.to_owned(),
        },
        (ErrorKind::Extension, _) | (ErrorKind::Server(ServerErrorKind::ResponseError), _) => {
            unavailable(format!("`{call}` failed: {server_message}"))
        }
        (ErrorKind::Parse | ErrorKind::UnexpectedReturnType, _) => Error::Corrupt {
            store: place.to_owned(),
            what: format!("its answer to `{call}` makes no sense here: {server_message}"),
        },
        _ => unavailable(format!("`{call}`: {server_message}")),
    }
}

/// What the script was about to call, where the server says no more than its line (Redis 7.0): the commands
/// that stand there, or all of the script's if they are handed on.
fn denied_commands(call: &str, server_message: &str) -> Option<String> {
    let line =
        server_message.split_once("can't run this command")?.1.split_once("@user_script:")?.1;
    let line: usize = line.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    let script = script::ALL.iter().find(|script| script.name == call)?;
    let there = commands(script.text().lines().nth(line.checked_sub(1)?)?);
    Some(match there.is_empty() {
        false => format!(" ({})", join(&there)),
        true => format!(" (one of {})", join(&commands(script.text()))),
    })
}

fn join(commands: &BTreeSet<&str>) -> String {
    commands.iter().copied().collect::<Vec<_>>().join(", ")
}

/// The Redis commands that a Lua text calls.
fn commands(text: &str) -> BTreeSet<&str> {
    let calls = ["redis.call('", "redis.pcall('", "each('", "every('"];
    let words = calls.iter().flat_map(|call| text.split(call).skip(1));
    words.filter_map(|rest| rest.split('\'').next()).collect()
}

/// The server's message; never contains an address with a password.
fn server_message(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}

/// The error for an answer that does not have the shape that the script promises.
pub(crate) fn unexpected_answer(place: &str, call: &str) -> Error {
    Error::Corrupt {
        store: place.to_owned(),
        what: format!("its answer to `{call}` has not the shape it should have"),
    }
}
