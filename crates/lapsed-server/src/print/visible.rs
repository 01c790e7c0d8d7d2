//! Escapes what a terminal would obey instead of showing it: control characters (C0, DEL and C1),
//! bidirectional controls, which reorder the text around them, and the separators of lines and
//! paragraphs. Printable text is left as it is, also backslashes: `--json` is the exact form.

use std::borrow::Cow;
use std::fmt::Write;

/// `text` with every hidden character escaped, newlines included, such as `\n`, `\x1b` or
/// `\u{202e}`.
pub fn visible(text: &str) -> Cow<'_, str> {
    escape(text, is_hidden)
}

/// `text` with its newlines kept, and every other hidden character escaped.
pub fn visible_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| c != '\n' && is_hidden(c))
}

fn is_hidden(c: char) -> bool {
    let is_separator_or_bidi = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    c.is_control() || is_separator_or_bidi
}

fn escape(text: &str, hide: impl Fn(char) -> bool) -> Cow<'_, str> {
    let Some(first) = text.find(&hide) else { return Cow::Borrowed(text) };
    let (plain, rest) = text.split_at(first);
    let mut out = plain.to_owned();
    for c in rest.chars() {
        match c {
            c if !hide(c) => out.push(c),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_ascii() => {
                write!(out, "\\x{:02x}", u32::from(c)).expect("a String takes every text");
            }
            c => write!(out, "\\u{{{:x}}}", u32::from(c)).expect("a String takes every text"),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_and_bidirectional_controls_are_escaped_and_the_rest_is_kept() {
        assert!(matches!(visible("plain é 日本 \\x1b 👩\u{200d}🚀"), Cow::Borrowed(_)));
        assert_eq!(visible("a\x1b[31m\r\n\tb\x7f\0"), "a\\x1b[31m\\r\\n\\tb\\x7f\\x00");
        assert_eq!(visible("\u{9b}2J\u{85}"), "\\u{9b}2J\\u{85}");
        for c in (0x202a..=0x202e).chain(0x2066..=0x2069).chain([0x200e, 0x200f, 0x61c, 0x2028]) {
            let c = char::from_u32(c).unwrap();
            assert_eq!(visible(&format!("x{c}y")), format!("x\\u{{{:x}}}y", u32::from(c)));
        }
        assert_eq!(visible_lines("a\nb\x1b\r\n"), "a\nb\\x1b\\r\n");
    }
}
