//! Durations and sizes as people write them: `90s`, `5m`, `250ms`; `256MiB`.

use std::fmt;
use std::time::Duration;

use jiff::fmt::friendly::{Spacing, SpanPrinter};
use jiff::{RoundMode, SignedDuration, SpanRelativeTo, SpanRound, Unit};
pub use lapsed::stores::embedded::parse_size;
use serde::de::{self, Deserialize, Deserializer, Visitor};

/// The longest duration. A longer one is surely a mistake, and adding this one to a clock never
/// overflows.
pub const SPAN_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// A duration above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

/// A duration above zero, or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Every(pub Option<Duration>);

/// A time limit; zero means that there is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub Duration);

/// A number of bytes above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub usize);

/// Parses `90s`, `5m`, `1h 30m`, or an ISO 8601 duration. A day has 24 hours. The error says what
/// is wrong, not where.
pub fn parse_span(text: &str) -> Result<Duration, String> {
    let garbage =
        || format!("{text:?} is not a duration; write it like `250ms`, `90s`, `5m`, `2h`");
    let text = text.trim();
    if text.starts_with('-') {
        return Err(format!("the duration {text:?} is negative; it must be longer than 0"));
    }
    if !text.is_empty() && text.chars().all(|c| c.is_ascii_digit()) {
        return Err(format!("{text:?} needs a unit, for example `{text}s`"));
    }
    let parse = |text: &str| {
        let span: jiff::Span = text.parse()?;
        span.to_duration(SpanRelativeTo::days_are_24_hours())
    };
    bounded_span(text, in_any_order(text, parse).ok_or_else(garbage)?)
}

/// Parses a duration whose units are in any order. jiff requires each unit once, the largest first;
/// here the parts of `30s 2m` are added up.
fn in_any_order(
    text: &str,
    parse: impl Fn(&str) -> Result<SignedDuration, jiff::Error>,
) -> Option<SignedDuration> {
    if let Ok(span) = parse(text) {
        return Some(span);
    }
    let (mut total, mut rest) = (SignedDuration::ZERO, text);
    while !rest.is_empty() {
        let unit = rest.find(char::is_alphabetic)?;
        let next = rest[unit..].find(|c: char| c.is_ascii_digit() || c == '.');
        let (part, after) = rest.split_at(next.map_or(rest.len(), |next| unit + next));
        let part = parse(part.trim()).ok().filter(|part| !part.is_negative())?;
        total = total.checked_add(part)?;
        rest = after;
    }
    (!total.is_zero()).then_some(total)
}

fn bounded_span(text: &str, span: SignedDuration) -> Result<Duration, String> {
    let span = Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(0));
    if span.is_zero() {
        return Err(format!("the duration {text:?} must be longer than 0"));
    }
    if span > SPAN_MAX {
        return Err(format!("the duration {text:?} is longer than ten years"));
    }
    Ok(span)
}

/// Parses a duration as Go programs write it in their environment: `30s`, `1m30s`, `1.5h`, `500ms`;
/// a number without a unit is in seconds. Unlike in the configuration, there are no days.
pub fn parse_go_span(text: &str) -> Result<Duration, String> {
    let garbage = || {
        format!("{text:?} is not a duration; write it like `30s`, `1m30s`, `500ms`, or as seconds")
    };
    let whole = text.trim().trim_start_matches('+');
    let is_bare = whole.chars().all(|c| c.is_ascii_digit() || c == '.');
    let span = match whole.parse::<f64>() {
        Ok(seconds) if is_bare => SignedDuration::try_from_secs_f64(seconds).ok(),
        _ => in_any_order(whole, str::parse),
    };
    let span = span.filter(|span| !span.is_negative()).ok_or_else(garbage)?;
    bounded_span(text, span)
}

/// Formats a duration as the configuration would write it, with a resolution of milliseconds.
pub fn show_span(span: Duration) -> String {
    const PRINTER: SpanPrinter = SpanPrinter::new().spacing(Spacing::None);
    let to_days = SpanRound::new()
        .largest(Unit::Day)
        .smallest(Unit::Millisecond)
        .mode(RoundMode::Trunc)
        .days_are_24_hours();
    let span = jiff::Span::try_from(span).and_then(|span| span.round(to_days));
    span.map_or_else(|_| format!("{}s", SPAN_MAX.as_secs()), |span| PRINTER.span_to_string(&span))
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SpanVisitor)
    }
}

struct SpanVisitor;

impl Visitor<'_> for SpanVisitor {
    type Value = Span;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration in quotes, for example \"90s\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
        parse_span(text).map(Span).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Span, E> {
        Err(E::custom(format!("{number} needs a unit and quotes, for example \"{number}s\"")))
    }
}

impl<'de> Deserialize<'de> for Every {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EveryVisitor)
    }
}

struct EveryVisitor;

impl Visitor<'_> for EveryVisitor {
    type Value = Every;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration in quotes, for example \"7d\", or \"off\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Every, E> {
        match text {
            "off" => Ok(Every(None)),
            _ => parse_span(text)
                .map(|span| Every(Some(span)))
                .map_err(|what| E::custom(format!("{what}; or `off` for never"))),
        }
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Every, E> {
        SpanVisitor.visit_i64(number).map(|span| Every(Some(span.0)))
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LimitVisitor)
    }
}

struct LimitVisitor;

impl Visitor<'_> for LimitVisitor {
    type Value = Limit;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration in quotes, for example \"7d\", or \"0s\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Limit, E> {
        match text {
            "0" | "0s" => Ok(Limit(Duration::ZERO)),
            _ => parse_span(text)
                .map(Limit)
                .map_err(|what| E::custom(format!("{what}; or `0s` for no limit"))),
        }
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Limit, E> {
        match number {
            0 => Ok(Limit(Duration::ZERO)),
            _ => SpanVisitor.visit_i64(number).map(|span| Limit(span.0)),
        }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size, for example \"1MiB\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
        parse_size(text).map(Size).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Size, E> {
        match usize::try_from(number) {
            Ok(bytes) if bytes > 0 => Ok(Size(bytes)),
            _ => Err(E::custom(format!("the size {number} must be above 0"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_shown_alike() {
        for (text, ms) in [
            ("250ms", 250),
            ("90s", 90_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("1h30m", 5_400_000),
            ("2h 30m", 9_000_000),
            (" 5 m ", 300_000),
            ("1d 1ms", 86_400_001),
            ("30s 2m", 150_000),
            ("1h1h", 7_200_000),
        ] {
            assert_eq!(parse_span(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for (ms, text) in [
            (0, "0s"),
            (90_000, "1m30s"),
            (250, "250ms"),
            (1_500, "1s500ms"),
            (93_784_005, "1d2h3m4s5ms"),
            (315_360_000_000, "3650d"),
        ] {
            assert_eq!(show_span(Duration::from_millis(ms)), text);
        }
        assert_eq!(show_span(Duration::from_micros(1_999)), "1ms");
        assert_eq!(parse_span("1m30s"), Ok(Duration::from_secs(90)));
        for bad in [
            "",
            "0s",
            "-5s",
            "5",
            "s",
            "5 parsecs",
            "99999999999999999999s",
            "9999999d",
            "1us",
            "5s ago",
            "1y",
        ] {
            assert!(parse_span(bad).is_err(), "{bad}");
        }
        assert!(parse_span("60").unwrap_err().contains("60s"));
    }

    #[test]
    fn durations_of_go_are_read_too() {
        for (text, ms) in [
            ("30s", 30_000),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("1.5h", 5_400_000),
            ("30", 30_000),
            ("0.25", 250),
            ("1h0m0s", 3_600_000),
            (" 2m ", 120_000),
            ("1500us", 1),
        ] {
            assert_eq!(parse_go_span(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "0", "0s", "-5s", "s", "5 parsecs", "1.2.3s", "1e9", "1d", "1m30", "9e99h"]
        {
            assert!(parse_go_span(bad).is_err(), "{bad}");
        }
        assert!(parse_go_span("99999999999999999999h").is_err());
    }

    #[test]
    fn sizes_know_both_kinds_of_kilo() {
        assert_eq!(parse_size("1MiB"), Ok(1 << 20));
        assert_eq!(parse_size("1MB"), Ok(1_000_000));
        assert_eq!(parse_size("77"), Ok(77));
        assert_eq!(parse_size(" 2 gib "), Ok(2 << 30));
        for bad in ["", "0", "MiB", "1 potato", "-1", "99999999999GiB", "99999999999999999999"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
