//! One message as kombu's Redis transport keeps it: `[message, exchange, routing key]`.

use std::collections::BTreeSet;
use std::ops::Range;

use super::json;

/// What separates the parts of a binding, and a queue from its priority.
pub(super) const SEPARATOR: &str = "\u{6}\u{16}";

/// kombu's default for `priority_steps`, an option that no key has.
pub(super) const PRIORITY_STEPS: [u8; 4] = [0, 3, 6, 9];

/// What the look needs to know of a message that was delivered and not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub id: String,
    pub task: String,
    /// Whether it waits for a time, so that Celery before 5.7 says so only if it is asked for `scheduled`.
    pub has_eta: bool,
    pub exchange: String,
    pub routing_key: String,
    pub priority: u8,
}

/// The message, its exchange and its routing key.
fn parts(value: &str) -> Option<[Range<usize>; 3]> {
    json::elements(value, json::whole(value))?.try_into().ok()
}

impl Message {
    /// `None` for what is not a task of Celery: other users of kombu keep their messages in the same hash.
    pub fn read(value: &str) -> Option<Message> {
        let [message, exchange, routing_key] = parts(value)?;
        let headers = json::member(value, message.clone(), "headers")?;
        let header = |name| json::member(value, headers.clone(), name);
        let text = |name| json::string(value, header(name)?);
        let properties = json::member(value, message, "properties")?;
        Some(Message {
            id: text("id").filter(|id| !id.is_empty())?,
            task: text("task")?,
            has_eta: header("eta").is_some_and(|eta| &value[eta] != "null"),
            exchange: json::string(value, exchange)?,
            routing_key: json::string(value, routing_key)?,
            priority: json::member(value, properties, "priority")
                .and_then(|at| value[at].trim_matches('"').parse::<i64>().ok())
                .map_or(0, |number| number.clamp(0, 9) as u8),
        })
    }
}

/// The message as it is put on its queue again: marked as redelivered, as kombu does it, with a new delivery tag. Every other
/// byte stays.
pub(super) fn redelivered(value: &str, tag: &str) -> Option<String> {
    let [message, _, _] = parts(value)?;
    let headers = json::member(value, message.clone(), "headers")?;
    let properties = json::member(value, message.clone(), "properties")?;
    let mut edits = vec![
        set(value, headers, "redelivered", "true")?,
        set(value, properties.clone(), "delivery_tag", &format!("\"{tag}\""))?,
    ];
    if let Some(info) = json::member(value, properties, "delivery_info") {
        edits.extend(set(value, info, "redelivered", "true"));
    }
    edits.sort_by_key(|(place, _)| std::cmp::Reverse(place.start));
    let mut text = value.to_owned();
    for (place, new) in edits {
        text.replace_range(place, &new);
    }
    let grown = text.len() as i64 - value.len() as i64;
    let end = usize::try_from(message.end as i64 + grown).ok()?;
    text.get(message.start..end).map(str::to_owned)
}

/// What to write where, so that the object has that member: in place of its value, or at its end.
fn set(
    text: &str,
    object: Range<usize>,
    name: &str,
    value: &str,
) -> Option<(Range<usize>, String)> {
    let members = json::members(text, object.clone())?;
    if let Some((_, place)) = members.iter().rev().find(|(own, _)| own == name) {
        return Some((place.clone(), value.to_owned()));
    }
    let comma = if members.is_empty() { "" } else { ", " };
    Some((object.end - 1..object.end - 1, format!("{comma}\"{name}\": {value}")))
}

/// The queues that an exchange hands a routing key to, by the members of its binding.
pub(super) fn queues_for(bindings: &[String], routing_key: &str) -> BTreeSet<String> {
    let matching = bindings.iter().filter_map(|binding| {
        let mut parts = binding.splitn(3, SEPARATOR);
        let (key, pattern, queue) = (parts.next()?, parts.next()?, parts.next()?);
        let is_one = key == routing_key || (!pattern.is_empty() && is_match(key, routing_key));
        is_one.then(|| queue.to_owned())
    });
    matching.collect()
}

/// Whether a topic's pattern fits: `*` is one word, `#` one or more.
fn is_match(pattern: &str, routing_key: &str) -> bool {
    fn fits(pattern: &[&str], words: &[&str]) -> bool {
        match (pattern.split_first(), words.split_first()) {
            (None, None) => true,
            (Some((&"#", rest)), Some((_, more))) => fits(rest, more) || fits(pattern, more),
            (Some((one, rest)), Some((word, more))) => {
                (*one == "*" || one == word) && fits(rest, more)
            }
            _ => false,
        }
    }
    let (pattern, words): (Vec<&str>, Vec<&str>) =
        (pattern.split('.').collect(), routing_key.split('.').collect());
    fits(&pattern, &words)
}

/// The list of a queue that messages of a priority lie in.
pub(super) fn list_of(queue: &str, priority: u8, steps: &[u8]) -> String {
    match steps.iter().rev().find(|step| **step <= priority) {
        None | Some(0) => queue.to_owned(),
        Some(step) => format!("{queue}{SEPARATOR}{step}"),
    }
}

/// All lists of a queue.
pub(super) fn lists_of(queue: &str, steps: &[u8]) -> Vec<String> {
    steps.iter().map(|step| list_of(queue, *step, steps)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VALUE: &str = r#"[{"body": "W10=", "content-type": "application/json", "headers": {"lang": "py", "task": "job", "id": "j\u00e9", "eta": null, "n": 12345678901234567890123, "x": NaN}, "properties": {"delivery_info": {"exchange": "", "routing_key": "celery"}, "priority": 7, "delivery_tag": "old"}}, "post", "mail"]"#;

    #[test]
    fn a_message_is_read() {
        let message = Message::read(VALUE).unwrap();
        let expected = Message {
            id: "jé".to_owned(),
            task: "job".to_owned(),
            has_eta: false,
            exchange: "post".to_owned(),
            routing_key: "mail".to_owned(),
            priority: 7,
        };
        assert_eq!(message, expected);
        assert_eq!(Message::read(r#"[{"headers": {}, "properties": {}}, "", "q"]"#), None);
        assert_eq!(Message::read("not JSON"), None);
    }

    #[test]
    fn only_the_marks_and_the_tag_change() {
        let text = redelivered(VALUE, "new").unwrap();
        let expected = VALUE
            .strip_prefix('[')
            .unwrap()
            .strip_suffix(r#", "post", "mail"]"#)
            .unwrap()
            .replace(r#""x": NaN}"#, r#""x": NaN, "redelivered": true}"#)
            .replace(r#""celery"}"#, r#""celery", "redelivered": true}"#)
            .replace(r#""old""#, r#""new""#);
        assert_eq!(text, expected);
        let twice = redelivered(&format!("[{text}, \"\", \"q\"]"), "new").unwrap();
        assert_eq!(twice, text, "what is marked stays marked");
    }

    #[test]
    fn queues_are_found_as_kombu_finds_them() {
        let bind = |key: &str, pattern: &str, queue: &str| [key, pattern, queue].join(SEPARATOR);
        let direct = [bind("mail", "", "mails"), bind("other", "", "others")];
        assert_eq!(queues_for(&direct, "mail"), BTreeSet::from(["mails".to_owned()]));
        assert!(queues_for(&direct, "none").is_empty());
        let topic = [bind("a.*", "^a\\.[^\\.]+$", "one"), bind("a.#", "^a\\..*?$", "many")];
        assert_eq!(queues_for(&topic, "a.b.c"), BTreeSet::from(["many".to_owned()]));
        assert_eq!(queues_for(&topic, "a.b").len(), 2);
        assert_eq!(list_of("q", 2, &PRIORITY_STEPS), "q");
        assert_eq!(list_of("q", 5, &PRIORITY_STEPS), format!("q{SEPARATOR}3"));
        assert_eq!(list_of("q", 9, &PRIORITY_STEPS), format!("q{SEPARATOR}9"));
        assert_eq!(list_of("q", 7, &[0, 5, 9]), format!("q{SEPARATOR}5"));
    }

    fn json_value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(serde_json::Value::from),
            any::<i64>().prop_map(serde_json::Value::from),
            any::<f64>().prop_map(serde_json::Value::from),
            any::<String>().prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(3, 24, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(serde_json::Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..5)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in r#"[\[\]{}",:\\ aé0]{0,40}"#, inner in r#"[\[\]{}",:\\ aé0]{0,20}"#) {
            let framed = format!(r#"[{{"headers": {inner}, "properties": {text}}}, "", "q"]"#);
            for value in [text.as_str(), &inner, &framed] {
                let _ = Message::read(value);
                let _ = redelivered(value, "new");
            }
        }

        #[test]
        fn trap_f7_every_other_byte_of_a_message_stays(
            body in any::<String>(),
            header in json_value(),
            property in json_value(),
            is_pretty in any::<bool>(),
        ) {
            let value = serde_json::json!([{
                "body": body,
                "headers": {"task": "job", "id": "j1", "more": header},
                "properties": {"delivery_tag": "the old tag", "delivery_info": {}, "more": property},
            }, "", "q"]);
            let text = match is_pretty {
                true => serde_json::to_string_pretty(&value).unwrap(),
                false => value.to_string(),
            };
            prop_assert!(Message::read(&text).is_some());
            let new = redelivered(&text, "the new tag").unwrap();
            let [message, _, _] = parts(&text).unwrap();
            // Taking the edits back leaves the text as it was.
            let tag = json::member(&new, json::whole(&new), "properties")
                .and_then(|at| json::member(&new, at, "delivery_tag")).unwrap();
            let mut back = new.clone();
            let mut edits = vec![(tag, "\"the old tag\"")];
            let headers = json::member(&new, json::whole(&new), "headers").unwrap();
            let info = json::member(&new, json::whole(&new), "properties")
                .and_then(|at| json::member(&new, at, "delivery_info")).unwrap();
            for (object, mark) in [(headers, ", \"redelivered\": true"), (info, "\"redelivered\": true")] {
                let end = object.end - 1;
                edits.push((end - mark.len()..end, ""));
            }
            edits.sort_by_key(|(place, _)| std::cmp::Reverse(place.start));
            for (place, old) in edits {
                back.replace_range(place, old);
            }
            prop_assert_eq!(back, &text[message]);
        }
    }
}
