//! Moments at which something was read, since when not enough time has passed.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use posthaste_core::store::Writer;
use tokio::time::Instant;

/// How long it takes at most from taking a number to having a row with it.
const UNTIL_INSERTED: Duration = Duration::from_millis(100);

/// Reads within this time count as one.
const AT_ONCE: Duration = Duration::from_millis(25);

/// A number is taken before there is a row with it, and meanwhile nobody sees it. So whoever reads a row has to expect lower
/// numbers for a while. As long as that lasts, the moment of the read stands for the writers of them.
#[derive(Default)]
pub(super) struct Moments(Mutex<State>);

#[derive(Default)]
struct State {
    last: u64,
    /// Each with when it began.
    recent: VecDeque<(Instant, u64)>,
}

impl Moments {
    /// A row was read that was not known before.
    pub(super) fn read(&self, at: Instant) {
        let state = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.recent.back().is_none_or(|(began, _)| at > *began + AT_ONCE) {
            state.last += 1;
            state.recent.push_back((at, state.last));
        }
    }

    /// The writers that may be, at that moment.
    pub(super) fn open(&self, at: Instant) -> Vec<Writer> {
        let state = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while state.recent.front().is_some_and(|(began, _)| at > *began + AT_ONCE + UNTIL_INSERTED) {
            state.recent.pop_front();
        }
        state.recent.iter().map(|(_, number)| Writer(format!("moment {number}").into())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_lasts_for_a_tenth_of_a_second_after_the_last_read_in_it() {
        let (moments, start) = (Moments::default(), Instant::now());
        let after = |millis| start + Duration::from_millis(millis);
        assert_eq!(moments.open(start), []);
        moments.read(start);
        moments.read(after(25));
        let first = moments.open(after(25));
        assert_eq!(first.len(), 1);
        moments.read(after(50));
        let both = moments.open(after(125));
        assert_eq!((both.len(), &both[0]), (2, &first[0]));
        assert_eq!(moments.open(after(126)), both[1..]);
        assert_eq!(moments.open(after(176)), []);
    }
}
