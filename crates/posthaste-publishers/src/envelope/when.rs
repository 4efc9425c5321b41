//! When an event happened, as text.

use posthaste_core::Event;
use posthaste_core::time::Timestamp;

/// The longest text of the moments that are written here.
const LONGEST: usize = "9998-12-31T23:59:59.999999Z".len();

/// From this moment on, the beginning of the year 9999, and before 1970 somebody else writes it: nearly nothing happened then.
const LATER: i64 = 253_370_764_800_000_000;

/// When an event happened, in RFC 3339, as a [`Timestamp`] is shown.
pub(super) enum When {
    Short { text: [u8; LONGEST], len: usize },
    Long(String),
}

impl When {
    /// When it happened, unless that is in no year of RFC 3339.
    pub(super) fn of(event: &Event) -> Option<Self> {
        Self::at(event.occurred_at())
    }

    fn at(moment: Timestamp) -> Option<Self> {
        let micros = moment.as_micros();
        if (0..LATER).contains(&micros) {
            return Some(Self::written(micros.unsigned_abs()));
        }
        let text = moment.to_string();
        let is_one = text.starts_with(|first: char| first.is_ascii_digit()) && text.ends_with('Z');
        is_one.then_some(Self::Long(text))
    }

    /// So many microseconds after 1970.
    fn written(micros: u64) -> Self {
        let (seconds, mut fraction) = (micros / 1_000_000, micros % 1_000_000);
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        let (year, month, day) = date(days);
        let mut text = *b"0000-00-00T00:00:00.000000Z";
        let mut put = |end: usize, digits: usize, mut number: u64| {
            for digit in text[end - digits..end].iter_mut().rev() {
                *digit = b'0' + (number % 10) as u8;
                number /= 10;
            }
        };
        for (end, digits, number) in [(4, 4, year), (7, 2, month), (10, 2, day)] {
            put(end, digits, number);
        }
        for (end, number) in [(13, second / 3600), (16, second / 60 % 60), (19, second % 60)] {
            put(end, 2, number);
        }
        put(26, 6, fraction);
        // Without zeros at the end, and without a full stop in front of nothing.
        let mut len = if fraction == 0 { 19 } else { 26 };
        while fraction != 0 && fraction % 10 == 0 {
            fraction /= 10;
            len -= 1;
        }
        text[len] = b'Z';
        Self::Short { text, len: len + 1 }
    }

    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Short { text, len } => std::str::from_utf8(&text[..*len]).expect("it is made of digits"),
            Self::Long(text) => text,
        }
    }
}

/// Year, month and day, so many days after 1970: counted from a first of March, on which years of 400 years begin, so that what is
/// of another length is at the end.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let since_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * since_march + 2) / 5 + 1;
    let month = if since_march < 10 { since_march + 3 } else { since_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As it was written before there was something quicker.
    #[track_caller]
    fn is_as_shown(micros: i64) {
        let moment = Timestamp::from_micros(micros);
        let text = moment.to_string();
        let shown = Some(text).filter(|text| text.starts_with(|c: char| c.is_ascii_digit()) && text.ends_with('Z'));
        assert_eq!(When::at(moment).as_ref().map(When::as_str), shown.as_deref(), "{micros}");
    }

    #[test]
    fn days_of_all_years_are_written_as_they_are_shown() {
        const DAY: i64 = 86_400_000_000;
        // Every day of some centuries, and some of all years.
        for day in (-800_000_i64..3_000_000).step_by(13).chain(-10_000..60_000) {
            // Another time each day, and its edges.
            let within = day.unsigned_abs().wrapping_mul(0x9E37_79B9_7F4A_7C15) % DAY.unsigned_abs();
            [within.cast_signed(), -1, 0].iter().for_each(|within| is_as_shown(day * DAY + within));
        }
    }

    #[test]
    fn whatever_the_fraction_and_the_edge_are_it_is_written_as_it_is_shown() {
        for fraction in (0..1_000_000).step_by(10).chain([1, 12, 123, 999_999, 100_001]) {
            is_as_shown(1_770_000_000_000_000 + fraction);
        }
        for edge in [i64::MIN, -1, 0, 1, LATER - 1, LATER, LATER + 1, 253_402_207_200_999_999, 253_402_207_201_000_000]
        {
            is_as_shown(edge);
        }
        is_as_shown(i64::MAX);
        assert_eq!(date(LATER.unsigned_abs() / 86_400_000_000), (9999, 1, 1));
    }

    #[test]
    fn any_moment_is_written_as_it_is_shown() {
        let mut random = fastrand::Rng::with_seed(42);
        for _ in 0..200_000 {
            is_as_shown(random.i64(-70_000_000_000_000_000..260_000_000_000_000_000));
        }
    }
}
