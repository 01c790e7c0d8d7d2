//! Finds the parts of a JSON text without reading or writing it anew.
//!
//! Messages and answers of Celery are looked at and cut as text: a JSON library would refuse what Python writes (`NaN`,
//! `1e400`) and would write numbers, escapes and order in another way. A text that is not JSON is answered with `None`, or its
//! parts are found as far as brackets and quotes tell; nothing is judged by more than that.

use std::ops::Range;

/// The members of an object, in their order: the name, and where the value is.
pub(super) fn members(text: &str, object: Range<usize>) -> Option<Vec<(String, Range<usize>)>> {
    let mut scanner = Scanner::within(text, object, b'{', b'}')?;
    let mut all = Vec::new();
    while !scanner.is_over()? {
        let name = scanner.value()?;
        scanner.skip_one(b':')?;
        all.push((string(text, name)?, scanner.value()?));
    }
    Some(all)
}

/// The elements of an array, in their order.
pub(super) fn elements(text: &str, array: Range<usize>) -> Option<Vec<Range<usize>>> {
    let mut scanner = Scanner::within(text, array, b'[', b']')?;
    let mut all = Vec::new();
    while !scanner.is_over()? {
        all.push(scanner.value()?);
    }
    Some(all)
}

/// The text that a string stands for.
pub(super) fn string(text: &str, value: Range<usize>) -> Option<String> {
    serde_json::from_str(text.get(value)?).ok()
}

/// The value of a member; of several with one name the last counts, as in Python.
pub(super) fn member(text: &str, object: Range<usize>, name: &str) -> Option<Range<usize>> {
    let found = members(text, object)?.into_iter().rev().find(|(own, _)| own == name);
    found.map(|(_, value)| value)
}

/// Where the whole text is, without the spaces around it.
pub(super) fn whole(text: &str) -> Range<usize> {
    let start = text.len() - text.trim_start().len();
    start..start.max(text.trim_end().len())
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
    is_first: bool,
}

impl Scanner<'_> {
    /// Between the brackets of an object or an array.
    fn within(text: &str, part: Range<usize>, open: u8, close: u8) -> Option<Scanner<'_>> {
        let bytes = text.as_bytes();
        let inner = bytes.get(part.clone())?;
        let is_one = inner.len() >= 2 && inner[0] == open && inner[inner.len() - 1] == close;
        is_one.then(|| Scanner { bytes, at: part.start + 1, end: part.end - 1, is_first: true })
    }

    fn skip_spaces(&mut self) {
        while self.at < self.end && self.bytes[self.at].is_ascii_whitespace() {
            self.at += 1;
        }
    }

    /// Whether there is no other part. Goes beyond the comma if there is one.
    fn is_over(&mut self) -> Option<bool> {
        self.skip_spaces();
        if self.at == self.end {
            return Some(true);
        }
        if !std::mem::take(&mut self.is_first) {
            self.skip_one(b',')?;
        }
        Some(false)
    }

    fn skip_one(&mut self, wanted: u8) -> Option<()> {
        self.skip_spaces();
        let is_there = self.at < self.end && self.bytes[self.at] == wanted;
        self.at += usize::from(is_there);
        is_there.then_some(())
    }

    /// Goes beyond one value.
    fn value(&mut self) -> Option<Range<usize>> {
        self.skip_spaces();
        let (start, mut depth) = (self.at, 0_usize);
        while self.at < self.end {
            match self.bytes[self.at] {
                b'"' => self.skip_string()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                b',' | b':' if depth == 0 => break,
                c if depth == 0 && c.is_ascii_whitespace() => break,
                _ => {
                    self.at += 1;
                    continue;
                }
            }
            if depth == 0 {
                break;
            }
        }
        (depth == 0 && self.at > start).then_some(start..self.at)
    }

    fn skip_string(&mut self) -> Option<()> {
        self.at += 1;
        while self.at < self.end {
            match self.bytes[self.at] {
                b'\\' => self.at += 2,
                b'"' => {
                    self.at += 1;
                    return Some(());
                }
                _ => self.at += 1,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found_whatever_they_contain() {
        let text =
            r#" {"a": [1, {"b": "]},\""}], "n": NaN, "big":12345678901234567890123 , "":"x"} "#;
        let found = members(text, whole(text)).unwrap();
        let parts: Vec<(&str, &str)> =
            found.iter().map(|(name, value)| (name.as_str(), &text[value.clone()])).collect();
        let expected = [
            ("a", r#"[1, {"b": "]},\""}]"#),
            ("n", "NaN"),
            ("big", "12345678901234567890123"),
            ("", r#""x""#),
        ];
        assert_eq!(parts, expected);
        let list = elements(text, found[0].1.clone()).unwrap();
        assert_eq!(list.iter().map(|one| &text[one.clone()]).collect::<Vec<_>>()[0], "1");
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for text in ["", "{", "[]", "{\"a\" 1}", "{\"a\":1 \"b\":2}", "{\"a\":}", "{]}"] {
            assert!(members(text, whole(text)).is_none(), "{text}");
        }
    }
}
