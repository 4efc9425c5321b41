//! Numbers for people to read.

use std::time::Duration;

/// A count, as in `1,234,567`.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count with its noun, as in `1 event` and `2 events`.
pub(super) fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

/// A length of time, in the unit that gives it one to three digits before the point, as in `830 µs` and `1.42 ms`.
pub(super) fn length(time: Duration) -> String {
    let nanos = time.as_nanos() as f64;
    // What would be rounded up to four digits belongs to the next unit.
    for (unit, size) in [("ns", 1.0), ("µs", 1e3), ("ms", 1e6)] {
        if nanos < 999.5 * size {
            return format!("{} {unit}", three_digits(nanos / size));
        }
    }
    format!("{} s", three_digits(nanos / 1e9))
}

/// A length of time on the clock of the demo, as in `1.4 s`.
pub(super) fn clock(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// How many per second, as in `1,998/s`.
pub(super) fn rate(number: u64, time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let per_second = if seconds > 0.0 { (number as f64 / seconds).round() } else { 0.0 };
    format!("{}/s", count(per_second as u64))
}

fn three_digits(number: f64) -> String {
    if number >= 99.95 || number.fract() == 0.0 {
        format!("{number:.0}")
    } else if number >= 9.995 {
        format!("{number:.1}")
    } else {
        format!("{number:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped() {
        let shown: Vec<_> = [0, 7, 999, 1000, 12_345, 1_234_567].into_iter().map(count).collect();
        assert_eq!(shown, ["0", "7", "999", "1,000", "12,345", "1,234,567"]);
        assert_eq!(counted(1, "event"), "1 event");
        assert_eq!(counted(1200, "event"), "1,200 events");
    }

    #[test]
    fn lengths_have_three_digits_and_the_right_unit() {
        let nanos = [0, 42, 999, 1_000, 1_234, 56_789, 830_000, 999_600, 1_420_000, 99_960_000, 2_500_000_000];
        let shown: Vec<_> = nanos.into_iter().map(Duration::from_nanos).map(length).collect();
        let expected = [
            "0 ns", "42 ns", "999 ns", "1 µs", "1.23 µs", "56.8 µs", "830 µs", "1.00 ms", "1.42 ms", "100 ms", "2.50 s",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn rates_are_per_second_and_survive_no_time_at_all() {
        assert_eq!(rate(3000, Duration::from_millis(1500)), "2,000/s");
        assert_eq!(rate(3000, Duration::ZERO), "0/s");
    }
}
