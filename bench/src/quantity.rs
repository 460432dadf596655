//! Sizes as they are typed: `4096`, `64KiB`, `1M`, `1GiB`. All units are powers of two, as in `weft`.

/// Parses a size. For `clap`.
pub fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("{text:?} is not a size"))?;
    let shift = match unit.trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        _ => return Err(format!("{text:?}: a unit is KiB, MiB or GiB")),
    };
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0).ok_or_else(|| format!("{text:?} is zero or too large"))
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_are_parsed() {
        for (text, expected) in [("7", 7), ("4KiB", 4096), ("4k", 4096), ("1M", 1 << 20), ("2GiB", 2 << 30), ("8B", 8)]
        {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "0", "-1", "1TB", "x", "99999999999999999G"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
