//! Sizes and times, as they are typed and as they are printed.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes: `4096`, `64KiB`, `1.5G`, `2GB`.
///
/// `KiB MiB GiB TiB PiB` and the bare letters are powers of 1024, `KB MB GB TB PB` of 1000.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ByteSize(pub u64);

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || format!("\"{text}\" is not a size: write 4096, 64KiB, 1.5GiB or 2GB");
        let (number, unit) = split_number(text);
        let factor = byte_factor(unit).ok_or_else(refuse)?;
        match scaled(number, factor).ok_or_else(refuse)? {
            bytes if bytes <= u128::from(i64::MAX as u64) => Ok(Self(u64::try_from(bytes).map_err(|_| refuse())?)),
            _ => Err(format!("\"{text}\" is more than a file can have")),
        }
    }
}

/// A span of time: `30s`, `500ms`, `2m`, `1.5h`, or a number of seconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || format!("\"{text}\" is not a time: write 500ms, 30s, 2m or 1h");
        let (number, unit) = split_number(text);
        let factor: u64 = match unit {
            "us" => 1_000,
            "ms" => 1_000_000,
            "" | "s" => 1_000_000_000,
            "m" | "min" => 60 * 1_000_000_000,
            "h" => 3600 * 1_000_000_000,
            "d" => 24 * 3600 * 1_000_000_000,
            _ => return Err(refuse()),
        };
        let nanoseconds = scaled(number, factor).and_then(|value| u64::try_from(value).ok()).ok_or_else(refuse)?;
        Ok(Self(Duration::from_nanos(nanoseconds)))
    }
}

/// How long calls wait for a node that does not answer: a [`Span`], or `off`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Soft(pub Option<Duration>);

impl FromStr for Soft {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        let Span(time) = text.parse().map_err(|error| format!("{error}; or off"))?;
        // Below that a node that is merely busy would count as hung.
        if time < Duration::from_secs(1) {
            Err(format!("\"{text}\" is less than a second"))
        } else {
            Ok(Self(Some(time)))
        }
    }
}

impl fmt::Display for Soft {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => formatter.write_str("off"),
            Some(time) => write!(formatter, "{}ms", time.as_millis()),
        }
    }
}

/// Number and unit of a typed quantity.
fn split_number(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

fn byte_factor(unit: &str) -> Option<u64> {
    let lower = unit.to_ascii_lowercase();
    let (letter, base) = match lower.as_str() {
        "" | "b" => return Some(1),
        "k" | "m" | "g" | "t" | "p" => (lower.as_str(), 1024_u64),
        _ => match (lower.strip_suffix("ib"), lower.strip_suffix('b')) {
            (Some(letter), _) => (letter, 1024),
            (None, Some(letter)) => (letter, 1000),
            (None, None) => return None,
        },
    };
    let exponent = ["k", "m", "g", "t", "p"].iter().position(|known| *known == letter)?;
    base.checked_pow(u32::try_from(exponent).ok()? + 1)
}

/// `number * factor`, exact in the digits that matter, without floating point.
fn scaled(number: &str, factor: u64) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || whole.len() > 20 || fraction.len() > 12 || fraction.contains('.') {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let divisor = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    Some(digits.checked_mul(u128::from(factor))? / divisor)
}

/// Bytes for people, three digits: `745 GiB`, `1.5 MiB`, `12 B`.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would be printed as "1024".
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value < 9.95 { 1 } else { 0 };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A time span for people: `85 ms`, `3.2 s`, `4m10s`, `2h05m`, `3d04h`.
pub fn span_text(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{} ms", span.as_millis()),
        1..=9 => format!("{:.1} s", span.as_secs_f64()),
        10..=59 => format!("{seconds} s"),
        60..=3599 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..=86_399 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_typed() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("12B", 12),
            ("64KiB", 64 << 10),
            ("64k", 64 << 10),
            ("4MiB", 4 << 20),
            ("4 MiB", 4 << 20),
            ("1.5G", 3 << 29),
            ("2GB", 2_000_000_000),
            ("0.001kb", 1),
            ("8P", 8 << 50),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for bad in ["", "x", "4Mib2", "-1", "1..5M", ".5M", "1e3", "9000P", "4 X", "99999999999999999999999"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn times_as_typed() {
        let cases = [("30s", 30_000), ("30", 30_000), ("500ms", 500), ("2m", 120_000), ("1.5h", 5_400_000)];
        for (text, milliseconds) in cases {
            assert_eq!(text.parse(), Ok(Span(Duration::from_millis(milliseconds))), "{text}");
        }
        for bad in ["", "s", "-3s", "3 weeks", "1e9h"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }

    #[test]
    fn bytes_for_people() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (10 << 10, "10 KiB"),
            (1023 << 10, "1.0 MiB"),
            (3 << 29, "1.5 GiB"),
            (745 << 30, "745 GiB"),
            (u64::MAX, "16 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(bytes_text(bytes), text);
        }
    }

    #[test]
    fn times_for_people() {
        let cases = [
            (85, "85 ms"),
            (3200, "3.2 s"),
            (59_900, "59 s"),
            (250_000, "4m10s"),
            (7_500_000, "2h05m"),
            (273_600_000, "3d04h"),
        ];
        for (milliseconds, text) in cases {
            assert_eq!(span_text(Duration::from_millis(milliseconds)), text);
        }
    }
}
