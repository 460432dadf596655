//! Points in time as text: `2026-11-21 03:38:45`, in UTC everywhere, so that machines of several sites say the same.

use weft_protocol::Timestamp;

/// Date and time, to the second: for people.
pub fn date_time(time: Timestamp) -> String {
    let (seconds, _) = time.parts();
    let (year, month, day) = civil_date(seconds.div_euclid(86_400));
    let second = seconds.rem_euclid(86_400);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// Date and time as RFC 3339, with all that is known: for scripts.
pub fn rfc3339(time: Timestamp) -> String {
    let (_, nanoseconds) = time.parts();
    format!("{}.{nanoseconds:09}Z", date_time(time).replace(' ', "T"))
}

/// Year, month, day of a day counted from 1970-01-01. (Gregorian cycles of 400 years begin on a first of March; see
/// "chrono-compatible low-level date algorithms", H. Hinnant.)
fn civil_date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_with_all_their_oddities() {
        let cases = [
            (0, "1970-01-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_709_251_199, "2024-02-29 23:59:59"),
            (1_795_232_325, "2026-11-21 03:38:45"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ];
        for (seconds, text) in cases {
            assert_eq!(date_time(Timestamp::from_parts(seconds, 999)), text);
        }
        assert_eq!(rfc3339(Timestamp::from_parts(0, 7)), "1970-01-01T00:00:00.000000007Z");
    }
}
