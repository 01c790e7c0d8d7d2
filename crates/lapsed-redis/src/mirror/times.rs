//! Times as applications write them: ISO 8601 with a zone.
//!
//! Reads exactly what `time_of` of the scripts reads: who is fresh must not depend on which of the two looked.

/// Milliseconds of a day.
const DAY_MS: i64 = 86_400_000;

/// Reads times. The last day is cached, because most times are of the same day.
#[derive(Default)]
pub(super) struct Times {
    day: Option<([u8; 10], i64)>,
}

impl Times {
    /// Milliseconds since 1970; `None` if it cannot be read.
    pub fn read(&mut self, text: &[u8]) -> Option<i64> {
        let (date, rest) = text.split_first_chunk::<10>()?;
        let (hours, minutes, seconds) = clock(rest)?;
        if hours > 23 || minutes > 59 || seconds > 60 {
            return None;
        }
        let (fraction_ms, zone) = fraction(&rest[9..])?;
        let offset_ms = zone_of(zone)? * 60_000;
        let ms = (hours * 3_600 + minutes * 60 + seconds) * 1_000 + fraction_ms;
        Some(self.midnight(date)? + ms - offset_ms)
    }

    fn midnight(&mut self, date: &[u8; 10]) -> Option<i64> {
        match &self.day {
            Some((day, ms)) if day == date => Some(*ms),
            _ => {
                let ms = days(date)? * DAY_MS;
                self.day = Some((*date, ms));
                Some(ms)
            }
        }
    }
}

/// Reads a number that consists of digits only.
fn digits(text: &[u8]) -> Option<i64> {
    text.iter().try_fold(0, |number, byte| {
        byte.is_ascii_digit().then(|| number * 10 + i64::from(byte - b'0'))
    })
}

/// Hours, minutes and seconds of `T10:00:00`, or with a space in front.
fn clock(rest: &[u8]) -> Option<(i64, i64, i64)> {
    let [b'T' | b' ', h, o, b':', m, i, b':', s, e, ..] = rest else { return None };
    Some((digits(&[*h, *o])?, digits(&[*m, *i])?, digits(&[*s, *e])?))
}

/// Reads a fraction such as `.123` in milliseconds, and returns the rest of the text.
fn fraction(rest: &[u8]) -> Option<(i64, &[u8])> {
    let Some(rest) = rest.strip_prefix(b".") else { return Some((0, rest)) };
    if let [a, b, c, b'Z'] = rest {
        return Some((digits(&[*a, *b, *c])?, b"Z"));
    }
    let end = rest.iter().position(|byte| !byte.is_ascii_digit()).filter(|end| *end > 0)?;
    let part: f64 = format!("0.{}", std::str::from_utf8(&rest[..end]).ok()?).parse().ok()?;
    // A little more, because 0.57 in binary is below 0.57.
    Some(((part * 1_000.0 + 0.000_1).floor() as i64, &rest[end..]))
}

/// Reads a time zone, in minutes east of Greenwich.
fn zone_of(zone: &[u8]) -> Option<i64> {
    let (sign, rest) = match zone {
        b"Z" => return Some(0),
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let [h, o, m, i] = match rest {
        [h, o, b':', m, i] | [h, o, m, i] => [*h, *o, *m, *i],
        _ => return None,
    };
    Some(sign * (digits(&[h, o])? * 60 + digits(&[m, i])?))
}

/// The days from 1970 to a date; `None` if there is no such date.
fn days(date: &[u8; 10]) -> Option<i64> {
    let [y, e, a, r, b'-', m, o, b'-', d, n] = *date else { return None };
    let (year, month, day) = (digits(&[y, e, a, r])?, digits(&[m, o])?, digits(&[d, n])?);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=last).contains(&day) {
        return None;
    }
    // Years that begin in March end with the day that not all of them have.
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * month + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_every_common_form() {
        let mut times = Times::default();
        for (text, ms) in [
            ("1970-01-01T00:00:00.000Z", 0),
            ("1969-12-31T23:59:59.999Z", -1),
            ("2000-02-29T23:59:59.999Z", 951_868_799_999),
            ("2000-03-01T00:00:00.000Z", 951_868_800_000),
            ("2024-12-31T12:00:00Z", 1_735_646_400_000),
            ("2016-12-31T23:59:60Z", 1_483_228_800_000),
            ("2001-09-09T01:46:40.57Z", 1_000_000_000_570),
            ("2001-09-09T01:46:40.123456+00:00", 1_000_000_000_123),
            ("2001-09-09T03:46:40.570+02:00", 1_000_000_000_570),
            ("2001-09-08 20:16:40-0530", 1_000_000_000_000),
        ] {
            assert_eq!(times.read(text.as_bytes()), Some(ms), "{text}");
        }
    }

    #[test]
    fn texts_that_are_not_times_are_refused() {
        let mut times = Times::default();
        for text in [
            "",
            "0",
            "1735646400000",
            "2023-02-29T00:00:00.000Z",
            "1900-02-29T00:00:00.000Z",
            "2024-13-01T00:00:00.000Z",
            "2024-00-01T00:00:00.000Z",
            "2024-04-31T00:00:00.000Z",
            "2024-01-01T24:00:00.000Z",
            "2024-01-01T00:60:00.000Z",
            "2024-01-01T00:00:61.000Z",
            "2024-01-01T00:00:00.Z",
            "2024-01-01T00:00:00.000",
            "2024-01-01T00:00:00",
            "2024-01-01T00:00:00.000+2:00",
            "2024-01-01T00:00:00.000*02:00",
            "2024-01-01",
            "2024-01-01T00:00:00.000Zoo",
            "+024-01-01T00:00:00.000Z",
            "\u{0}\u{ff}",
        ] {
            assert_eq!(times.read(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut last = days(b"1899-12-31").unwrap();
        for year in 1900..2101 {
            for month in 1..=12 {
                for day in 1..=31 {
                    let text = format!("{year:04}-{month:02}-{day:02}");
                    let date = text.as_bytes().try_into().unwrap();
                    if let Some(at) = days(date) {
                        assert_eq!(at, last + 1, "{text}");
                        last = at;
                    }
                }
            }
        }
        assert_eq!(last, 47_846, "the 31st of December 2100");
    }
}
