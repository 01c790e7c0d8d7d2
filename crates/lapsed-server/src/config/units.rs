//! Durations and sizes as people write them: `90s`, `5m`, `250ms`; `256MiB`.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// Longer than this is surely a slip of the pen, and adding it to a clock must never overflow.
pub const SPAN_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// A duration above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

/// A duration above zero, or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Every(pub Option<Duration>);

/// A duration; zero where there is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub Duration);

/// A number of bytes above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub usize);

const SPAN_UNITS: &[(&str, u64)] =
    &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

const SIZE_UNITS: &[(&str, u64)] = &[
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
];

/// Reads `90s`, `5m`, `1h30m`. The error says what is wrong, not where.
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
    if text.is_empty() {
        return Err(garbage());
    }
    let mut rest = text;
    let mut total_ms: u64 = 0;
    while !rest.is_empty() {
        let (number, after) = split_number(rest).ok_or_else(garbage)?;
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        let unit = unit.trim();
        let (_, factor) = SPAN_UNITS.iter().find(|(u, _)| *u == unit).ok_or_else(garbage)?;
        let part = number.checked_mul(*factor).ok_or_else(garbage)?;
        total_ms = total_ms.checked_add(part).ok_or_else(garbage)?;
        rest = next;
    }
    bounded_span(text, total_ms)
}

fn bounded_span(text: &str, total_ms: u64) -> Result<Duration, String> {
    let span = Duration::from_millis(total_ms);
    if span.is_zero() {
        return Err(format!("the duration {text:?} must be longer than 0"));
    }
    if span > SPAN_MAX {
        return Err(format!("the duration {text:?} is longer than ten years"));
    }
    Ok(span)
}

/// Reads a duration as Go programs write it in their environment: `30s`, `1m30s`, `1.5h`, `500ms`;
/// a bare number is seconds.
pub fn parse_go_span(text: &str) -> Result<Duration, String> {
    let garbage = || {
        format!("{text:?} is not a duration; write it like `30s`, `1m30s`, `500ms`, or as seconds")
    };
    let whole = text.trim().trim_start_matches('+');
    let mut rest = whole;
    if rest.is_empty() || rest.starts_with('-') {
        return Err(garbage());
    }
    let mut total_ms = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest[..end].parse().map_err(|_| garbage())?;
        let after = &rest[end..];
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let factor = match &after[..end] {
            "" if rest == whole => 1e3,
            unit => go_unit_ms(unit).ok_or_else(garbage)?,
        };
        total_ms += number * factor;
        rest = &after[end..];
    }
    bounded_span(text, total_ms as u64)
}

fn go_unit_ms(unit: &str) -> Option<f64> {
    match unit {
        "ns" => Some(1e-6),
        "us" | "µs" | "μs" => Some(1e-3),
        "ms" => Some(1.0),
        "s" => Some(1e3),
        "m" => Some(60e3),
        "h" => Some(3_600e3),
        _ => None,
    }
}

/// Reads `1048576`, `512KiB`, `1MB`.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let garbage = || format!("{text:?} is not a size; write it like `512KiB` or `1MiB`");
    let (number, unit) = split_number(text.trim()).ok_or_else(garbage)?;
    let unit = unit.trim().to_ascii_lowercase();
    let factor = match SIZE_UNITS.iter().find(|(u, _)| *u == unit) {
        Some((_, factor)) => *factor,
        None if unit.is_empty() => 1,
        None => return Err(garbage()),
    };
    let bytes = number.checked_mul(factor).ok_or_else(garbage)?;
    match usize::try_from(bytes) {
        Ok(0) => Err(format!("the size {text:?} must be above 0")),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(garbage()),
    }
}

fn split_number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number = text[..end].parse().ok()?;
    Some((number, &text[end..]))
}

/// A duration as it would be written in the configuration.
pub fn show_span(span: Duration) -> String {
    let mut ms = span.as_millis() as u64;
    if ms == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, factor) in SPAN_UNITS.iter().rev() {
        if ms >= *factor {
            text.push_str(&format!("{}{unit}", ms / factor));
            ms %= factor;
        }
    }
    text
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
        ] {
            assert_eq!(parse_span(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(show_span(Duration::from_millis(90_000)), "1m30s");
        assert_eq!(parse_span("1m30s"), Ok(Duration::from_secs(90)));
        for bad in ["", "0s", "-5s", "5", "s", "5 parsecs", "99999999999999999999s", "9999999d"] {
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
        for bad in ["", "0", "MiB", "1 potato", "-1"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
