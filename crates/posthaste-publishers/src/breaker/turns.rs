//! When events come again that were put off: in groups, one after the other.

use std::time::Duration;

use tokio::time::Instant;

/// How many come together: one claim and one settlement are worth their round trips then.
const GROUP: usize = 1000;

/// How long after a group the next one comes. So a backlog costs the database no more than 2000 rows in a second, however long the
/// destination is away, and one of ten thousand is through five seconds after the first.
pub(crate) const STEP: Duration = Duration::from_millis(500);

/// How long after the first group the last one comes. What finds no place in between shares one: the destination may have come back
/// with the first.
const LONGEST: Duration = Duration::from_secs(120);

/// The group that was filled last.
#[derive(Debug, Default)]
pub(crate) struct Turns(Option<(Instant, usize)>);

impl Turns {
    /// When one more event comes: with the last group or behind it, if that is not before `earliest`, and otherwise at `first`.
    pub(crate) fn next(&mut self, earliest: Instant, first: Instant) -> Instant {
        let (at, taken) = match self.0 {
            Some((at, taken)) if at >= earliest && taken < GROUP => (at, taken),
            Some((at, _)) if at >= earliest && at + STEP <= earliest + LONGEST => (at + STEP, 0),
            _ => (first, 0),
        };
        self.0 = Some((at, taken + 1));
        at
    }

    /// From now on everything comes at once.
    pub(crate) fn forget(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_come_one_after_the_other_and_begin_again_when_there_are_too_many() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        let at: Vec<_> = (0..2500).map(|_| turns.next(now, now) - now).collect();
        let with = |pause: Duration| at.iter().filter(|at| **at == pause).count();
        assert_eq!([0, 1, 2].map(|step| with(step * STEP)), [1000, 1000, 500]);

        let rest: Vec<_> = (2500..400_000).map(|_| turns.next(now, now) - now).collect();
        assert!(rest.iter().all(|at| *at <= LONGEST), "{:?}", rest.iter().max());
        assert!(rest.iter().filter(|at| **at == Duration::ZERO).count() >= 1000, "nobody began again");
    }

    #[test]
    fn a_group_whose_moment_is_over_gets_no_more() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        assert_eq!(turns.next(now, now + STEP), now + STEP);
        assert_eq!(turns.next(now + STEP / 2, now + 9 * STEP), now + STEP, "joins those that wait");
        assert_eq!(turns.next(now + 2 * STEP, now + 3 * STEP), now + 3 * STEP);
        turns.forget();
        assert_eq!(turns.next(now, now), now);
    }
}
