//! The names of Sidekiq's keys.

/// Sidekiq's keys behind one prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Keys {
    /// Empty, or a namespace with its colon.
    pub prefix: String,
}

/// The working list of one process for one queue, as `reliable-fetch` names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WorkingList {
    pub queue: String,
    /// `HOST:PID:HEX`, or `HOST:PID` by old versions.
    pub id: String,
}

impl Keys {
    /// `namespace` with or without its colon; empty: none.
    pub fn new(namespace: &str) -> Keys {
        let colon = if namespace.is_empty() || namespace.ends_with(':') { "" } else { ":" };
        Keys { prefix: format!("{namespace}{colon}") }
    }

    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub fn queue(&self, name: &str) -> String {
        self.key(&format!("queue:{name}"))
    }

    /// The sign of life of a process with a reliable fetcher.
    pub fn heartbeat(&self, id: &str) -> String {
        self.key(&format!("reliable-fetcher-heartbeat-{}", id.replace(':', "-")))
    }

    pub fn working(&self, list: &WorkingList) -> String {
        self.key(&format!("working:queue:{}:{}", list.queue, list.id))
    }

    /// The process and the queue of a working list.
    pub fn read_working(&self, key: &str) -> Option<WorkingList> {
        let rest = key.strip_prefix(&self.prefix)?.strip_prefix("working:queue:")?;
        let parts: Vec<&str> = rest.split(':').collect();
        let is_pid = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
        let words = match &parts[..] {
            [_, .., _, pid, hex] if parts.len() > 3 && is_pid(pid) && is_hex(hex) => 3,
            [_, .., _, pid] if parts.len() > 2 && is_pid(pid) => 2,
            _ => return None,
        };
        let (queue, id) = parts.split_at(parts.len() - words);
        Some(WorkingList { queue: queue.join(":"), id: id.join(":") })
    }
}

/// `HOST:PID` of an identity: `reliable-fetch` draws a third part of its own.
pub(super) fn host_and_pid(id: &str) -> &str {
    let end = id.match_indices(':').nth(1).map_or(id.len(), |(at, _)| at);
    &id[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn working_lists_are_read_whatever_the_queue_is_called() {
        let keys = Keys::new("app");
        let read = |key: &str| keys.read_working(key).map(|list| (list.queue, list.id));
        let list = |queue: &str, id: &str| Some((queue.to_owned(), id.to_owned()));
        assert_eq!(read("app:working:queue:mails:vm:12:ab34"), list("mails", "vm:12:ab34"));
        assert_eq!(read("app:working:queue:a:b:vm:12:ab34"), list("a:b", "vm:12:ab34"));
        assert_eq!(read("app:working:queue:mails:vm:12"), list("mails", "vm:12"));
        assert_eq!(read("app:working:queue:mails"), None);
        assert_eq!(read("working:queue:mails:vm:12:ab34"), None);
        let found = WorkingList { queue: "a:b".to_owned(), id: "vm:12:ab34".to_owned() };
        assert_eq!(keys.read_working(&keys.working(&found)), Some(found));
        assert_eq!(host_and_pid("vm:12:ab34"), "vm:12");
        assert_eq!(keys.heartbeat("vm:1:a"), "app:reliable-fetcher-heartbeat-vm-1-a");
    }
}
