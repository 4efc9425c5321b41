//! How far the table was found to hold nothing to claim.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use posthaste_core::Timestamp;
use tokio::time::Instant;

/// How long claims go on from the mark before one looks at what is before it.
///
/// Rows can appear there: of transactions that commit late, with leases that ran out, released by other processes.
const LONGEST: Duration = Duration::from_millis(100);

/// Claims smaller than this look at everything. A backlog is not drained by them.
const SMALLEST: usize = 100;

/// A low-water mark: a moment before which all rows were leased or final when a claim last looked.
///
/// The index keeps entries of rows that are DONE until no open transaction may want to see them as they were. Without a
/// mark every claim of a long drain walks all those that the claims before it have left, and all that is in hand.
#[derive(Default)]
pub(super) struct Mark(Mutex<Option<Marked>>);

#[derive(Clone, Copy)]
struct Marked {
    at: Timestamp,
    until: Instant,
}

impl Mark {
    /// From where on a claim of that many rows has to look, unless from the beginning.
    pub(super) fn get(&self, limit: usize) -> Option<Timestamp> {
        let marked = (*self.0.lock().unwrap_or_else(PoisonError::into_inner))?;
        (limit >= SMALLEST && Instant::now() < marked.until).then_some(marked.at)
    }

    /// A claim that looked at everything from `from` on found enough, the last of them at `at`.
    pub(super) fn set(&self, from: Option<Timestamp>, at: Timestamp) {
        let mut marked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (from, marked.as_mut()) {
            (None, _) => *marked = Some(Marked { at, until: Instant::now() + LONGEST }),
            (Some(_), Some(marked)) => marked.at = marked.at.max(at),
            // It was cleared meanwhile.
            (Some(_), None) => {}
        }
    }

    /// There may be something to claim before the mark.
    pub(super) fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_moves_on_for_a_while_and_is_never_set_by_what_did_not_see_everything() {
        let at = Timestamp::from_micros;
        let mark = Mark::default();
        mark.set(Some(at(1)), at(2));
        assert_eq!(mark.get(SMALLEST), None);
        mark.set(None, at(3));
        assert_eq!((mark.get(SMALLEST), mark.get(SMALLEST - 1)), (Some(at(3)), None));
        tokio::time::advance(LONGEST / 2).await;
        mark.set(Some(at(3)), at(4));
        assert_eq!(mark.get(SMALLEST), Some(at(4)));
        tokio::time::advance(LONGEST / 2).await;
        assert_eq!(mark.get(SMALLEST), None);
        mark.set(None, at(5));
        mark.clear();
        assert_eq!(mark.get(SMALLEST), None);
    }
}
