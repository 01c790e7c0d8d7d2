//! What Sidekiq writes about a job: the entry of a thread, and the job itself.

use lapsed_core::Name;
use serde::Deserialize;
use serde_json::Value;

/// What a heartbeat showed of one thread.
#[derive(Deserialize)]
struct Entry {
    queue: String,
    payload: Value,
}

/// What matters of a job. Everything else of it is never decoded.
#[derive(Default, Deserialize)]
struct Head {
    #[serde(default)]
    jid: Value,
    #[serde(default)]
    retry_queue: Value,
}

/// A job, as far as it is known to lapsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenJob {
    /// Its `jid`; a digest of the job if it has none that can be a name.
    pub key: Name,
    pub jid: Option<String>,
    pub queue: Name,
    /// Where it goes after a failure, if that is another queue.
    pub retry_queue: Option<String>,
}

/// The SHA-1 of a text, in hexadecimal digits.
pub(super) fn sha1(text: &str) -> String {
    redis::Script::new(text).get_hash().to_owned()
}

/// `None` if it cannot be understood; then nothing is done with it.
pub(super) fn read_entry(text: &str) -> Option<SeenJob> {
    let entry: Entry = serde_json::from_str(text).ok()?;
    match entry.payload {
        Value::String(payload) => read_job(&payload, &entry.queue),
        // Sidekiq 6.0 and older: the decisive step refuses it and says why.
        Value::Object(job) => {
            let jid = job.get("jid").and_then(Value::as_str).map(str::to_owned);
            let key = Name::new(jid.as_deref().unwrap_or(&sha1(text))).ok()?;
            Some(SeenJob { key, jid, queue: Name::new(&entry.queue).ok()?, retry_queue: None })
        }
        _ => None,
    }
}

/// A job that waits on, or was taken from, the queue `queue`.
pub(super) fn read_job(payload: &str, queue: &str) -> Option<SeenJob> {
    let head: Head = serde_json::from_str(payload).unwrap_or_default();
    let text = |value: Value| value.as_str().map(str::to_owned);
    let (jid, retry_queue) = (text(head.jid), text(head.retry_queue));
    let key = jid.as_deref().and_then(|jid| Name::new(jid).ok());
    let key = key.or_else(|| Name::new(&sha1(payload)).ok())?;
    Some(SeenJob { key, jid, queue: Name::new(queue).ok()?, retry_queue })
}

/// The class of a job; of a job of ActiveJob the class that is wrapped.
pub(super) fn class_of(payload: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Class {
        class: String,
        wrapped: Option<String>,
    }
    let found: Class = serde_json::from_str(payload).ok()?;
    Some(found.wrapped.unwrap_or(found.class))
}

/// The class of the job in the entry of a thread.
pub(super) fn class_of_entry(entry: &str) -> Option<String> {
    let entry: Entry = serde_json::from_str(entry).ok()?;
    class_of(entry.payload.as_str()?)
}

/// The `jid` of a job, if `is_wanted` is true for it. A job is decoded only if some field of it, or of its arguments, looks
/// like a wanted one.
pub(super) fn jid_of(job: &[u8], is_wanted: impl Fn(&str) -> bool) -> Option<String> {
    let text = std::str::from_utf8(job).ok()?;
    let looks_wanted = text.split("\"jid\"").skip(1).any(|rest| {
        let value = rest.trim_start().trim_start_matches(':').trim_start();
        let value = value.strip_prefix('"').unwrap_or(value);
        value.split('"').next().is_some_and(&is_wanted)
    });
    if !looks_wanted {
        return None;
    }
    let head: Head = serde_json::from_str(text).ok()?;
    head.jid.as_str().filter(|jid| is_wanted(jid)).map(str::to_owned)
}

/// The `jid` in the entry of a thread, if `is_wanted` is true for it.
pub(super) fn jid_of_entry(entry: &[u8], is_wanted: impl Fn(&str) -> bool) -> Option<String> {
    let entry: Entry = serde_json::from_slice(entry).ok()?;
    match entry.payload {
        Value::String(payload) => jid_of(payload.as_bytes(), is_wanted),
        Value::Object(job) => {
            job.get("jid")?.as_str().filter(|jid| is_wanted(jid)).map(str::to_owned)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jid_among_the_arguments_is_not_the_jid_of_the_job() {
        let wanted = |jid: &str| jid == "a1";
        assert_eq!(jid_of(br#"{"args":[{"jid":"a1"}],"jid":"b2"}"#, wanted), None);
        assert_eq!(jid_of(br#"{"class":"J","jid" : "a1"}"#, wanted).as_deref(), Some("a1"));
        assert_eq!(jid_of(br#"{"class":"J"}"#, wanted), None);
        assert_eq!(jid_of(b"\xff", wanted), None);
    }

    #[test]
    fn the_class_of_a_job_is_the_one_that_was_wrapped() {
        assert_eq!(class_of(r#"{"class":"Job","args":[]}"#).as_deref(), Some("Job"));
        let wrapped = r#"{"class":"Sidekiq::ActiveJob::Wrapper","wrapped":"MailJob"}"#;
        assert_eq!(class_of(wrapped).as_deref(), Some("MailJob"));
        let entry = serde_json::json!({"queue": "q", "payload": wrapped}).to_string();
        assert_eq!(class_of_entry(&entry).as_deref(), Some("MailJob"));
        assert_eq!(class_of("binary"), None);
    }

    #[test]
    fn entries_are_read_whether_the_payload_is_a_text_or_decoded() {
        let new = read_entry(r#"{"queue":"q","payload":"{\"jid\":\"a1\"}","run_at":1}"#).unwrap();
        assert_eq!((new.key.as_str(), new.queue.as_str()), ("a1", "q"));
        let old = read_entry(r#"{"queue":"q","payload":{"jid":"a1"},"run_at":1}"#).unwrap();
        assert_eq!(old.jid.as_deref(), Some("a1"));
        assert_eq!(read_entry("{}"), None);
        let nameless = read_job(r#"{"class":"J"}"#, "q").unwrap();
        assert_eq!((nameless.jid, nameless.key.as_str().len()), (None, 40));
    }
}
