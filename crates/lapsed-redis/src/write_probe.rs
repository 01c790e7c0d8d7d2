//! Tries whether this user may write what the systems write, for `lapsed check`.
//!
//! A key of lapsed's own is set and removed again. On the application's keys a field that does not exist is removed
//! (`HDEL`): the server checks the user's rights on the key first, and then finds nothing to do, whatever type the
//! key has. Deliberately absent: asking with `ACL DRYRUN` or `ACL GETUSER`, which a user with few rights may not use.

use std::time::Duration;

use lapsed_core::{Error, Result, SystemId};

use crate::Redis;

/// The name that is used in the example of a key.
pub(crate) const PROBE: &str = "lapsed-check";

/// The TTL of the test key, in case it cannot be removed.
const OWN_KEY_TTL: Duration = Duration::from_secs(10);

impl Redis {
    /// Which keys of the systems opened here this user may not write, one sentence each. No data of a system
    /// change. An error if the server does not answer.
    pub async fn write_faults(&self) -> Result<Vec<String>> {
        let written = self.inner.written.read().expect("no holder of this lock panics").clone();
        // The field is unique, so that the content of the key stays.
        let field = format!("{PROBE}-{:016x}{:016x}", self.clock().random(), self.clock().random());
        let mut faults = Vec::new();
        for (id, keys) in written {
            let own = self.try_own_key(&id).await;
            faults.extend(refusal(&id, own)?);
            for key in keys {
                let mut cmd = redis::cmd("HDEL");
                cmd.arg(&key).arg(&field);
                let call = format!("HDEL {key}");
                let tried = self.connection().query::<u64>(&call, &cmd).await;
                faults.extend(refusal(&id, tried.map(drop))?);
            }
        }
        Ok(faults)
    }

    async fn try_own_key(&self, id: &SystemId) -> Result<()> {
        let key = self.context(id)?.shards[0].prefix.key(PROBE);
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(1).arg("EX").arg(OWN_KEY_TTL.as_secs());
        self.connection().query::<()>(&format!("SET {key}"), &set).await?;
        let mut del = redis::cmd("DEL");
        del.arg(&key);
        self.connection().query::<()>(&format!("DEL {key}"), &del).await
    }
}

/// The refusal of the server, if there is one. A key of another type than a hash is no refusal: the user may
/// write it.
fn refusal(id: &SystemId, tried: Result<()>) -> Result<Option<String>> {
    match tried {
        Ok(()) | Err(Error::Corrupt { .. }) => Ok(None),
        Err(Error::Unavailable { what, .. }) if is_refused(&what) => {
            Ok(Some(format!("{id}: {what}")))
        }
        Err(error) => Err(error),
    }
}

/// Whether the server answered that it does not accept writes.
fn is_refused(what: &str) -> bool {
    ["permission", "takes no writes"].iter().any(|words| what.contains(words))
}
