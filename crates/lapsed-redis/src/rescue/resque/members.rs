//! Where the members of a JSON object are in its text. A payload is put back byte for byte, so it is cut out and never written anew.

use std::ops::Range;

/// The members of the object that `text` is: names as they are written, and the bytes of their values. `None`: it is no object.
pub(super) fn members(text: &str) -> Option<Vec<(&str, Range<usize>)>> {
    let bytes = text.as_bytes();
    let (mut found, mut depth, mut at) = (Vec::new(), 0usize, 0usize);
    let (mut name, mut from): (Option<&str>, Option<usize>) = (None, None);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                let end = string_end(bytes, at)?;
                if depth == 1 && name.is_none() {
                    name = text.get(at + 1..end);
                }
                at = end;
            }
            b'{' | b'[' => depth += 1,
            b':' if depth == 1 && from.is_none() => from = Some(at + 1),
            b',' if depth == 1 => {
                found.push((name.take()?, trimmed(bytes, from.take()?..at)));
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    if let (Some(name), Some(from)) = (name, from) {
                        found.push((name, trimmed(bytes, from..at)));
                    }
                    return (bytes.first() == Some(&b'{')).then_some(found);
                }
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// The bytes of one member.
pub(super) fn member(text: &str, name: &str) -> Option<Range<usize>> {
    members(text)?.into_iter().find(|(found, _)| *found == name).map(|(_, range)| range)
}

/// Where the string that begins at `at` ends.
fn string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let mut at = at + 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

fn trimmed(bytes: &[u8], range: Range<usize>) -> Range<usize> {
    let (mut from, mut to) = (range.start, range.end);
    while from < to && bytes[from].is_ascii_whitespace() {
        from += 1;
    }
    while from < to && bytes[to - 1].is_ascii_whitespace() {
        to -= 1;
    }
    from..to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_cut_out_byte_for_byte() {
        let text = r#"{"run_at":"a,b}","payload": {"class":"A","args":[1.0,"\"}",{"payload":2}]} ,"queue":"q"}"#;
        let payload = &text[member(text, "payload").unwrap()];
        assert_eq!(payload, r#"{"class":"A","args":[1.0,"\"}",{"payload":2}]}"#);
        assert_eq!(&payload[member(payload, "args").unwrap()], r#"[1.0,"\"}",{"payload":2}]"#);
        assert_eq!(&text[member(text, "queue").unwrap()], r#""q""#);
        assert_eq!(member(text, "class"), None);
    }

    #[test]
    fn what_is_no_whole_object_has_no_members() {
        for text in ["", "[1]", "{\"a\":1", "{\"a", "}", "\"a\"", "{\"a\\"] {
            assert_eq!(members(text), None, "{text}");
        }
        assert_eq!(members("{}"), Some(Vec::new()));
    }
}
