//! Since when there is work, so that old partitions are not asked each time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use posthaste_core::Timestamp;
use tokio::time::Instant;

/// How long claims look at young partitions only, before one looks at all of them.
const LONGEST: Duration = Duration::from_millis(100);

/// Claims smaller than this look at everything. A backlog is not drained by them.
const SMALLEST: usize = 100;

/// How long it is remembered at least how old the rows were that were claimed. Rows that are in hand for longer are found
/// all the same.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Moments since when the rows were inserted that are worked on. PostgreSQL then plans for a few partitions instead of all,
/// which takes a tenth of the time. They save time and nothing else: what is not found there is looked for everywhere.
pub(in super::super) struct Since {
    /// Each moment is put back by this much, the length of a partition. Then it is before all rows of the partition it is in,
    /// and the planner does not take the condition for one that leaves few of them.
    length: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The oldest of this minute, and when that began, and the oldest of the minute before.
    current: Option<(Timestamp, Instant)>,
    previous: Option<Timestamp>,
    /// Since when there was something to claim when all partitions were looked at, and until when that counts.
    drained: Option<(Timestamp, Instant)>,
}

impl Since {
    pub(in super::super) fn new(length: Duration) -> Self {
        Self { length, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rows were claimed that were inserted since then, or it is then by the clock of the server.
    pub(in super::super) fn worked_on(&self, oldest: Timestamp) {
        let (mut state, now) = (self.state(), Instant::now());
        match &mut state.current {
            Some((current, since)) if now < *since + REMEMBERED => *current = oldest.min(*current),
            current => {
                let before = current.replace((oldest, now)).map(|(before, _)| before);
                state.previous = before;
            }
        }
    }

    /// Since when rows may have been inserted that are settled, if it is known.
    pub(in super::super) fn settled(&self) -> Option<Timestamp> {
        let state = self.state();
        let (current, _) = state.current?;
        Some(state.previous.map_or(current, |previous| previous.min(current)) - self.length)
    }

    /// A claim of rows since `from` found some, the oldest inserted then, and maybe as many as it wanted.
    pub(in super::super) fn taken(&self, from: Option<Timestamp>, oldest: Option<Timestamp>, full: bool) {
        if let Some(oldest) = oldest {
            self.worked_on(oldest);
        }
        match (oldest, from) {
            (Some(oldest), None) if full => self.state().drained = Some((oldest, Instant::now() + LONGEST)),
            (Some(_), Some(_)) if full => {}
            _ => self.state().drained = None,
        }
    }

    /// Since when rows were inserted that a claim of that many has to look at, unless at all of them.
    pub(in super::super) fn claimed(&self, limit: usize) -> Option<Timestamp> {
        let (oldest, until) = self.state().drained?;
        (limit >= SMALLEST && Instant::now() < until).then(|| oldest - self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    #[tokio::test(start_paused = true)]
    async fn old_rows_are_remembered_for_a_while() {
        let since = Since::new(Duration::from_secs(10));
        assert_eq!(since.settled(), None);
        since.worked_on(at(500));
        assert_eq!(since.settled(), Some(at(490)));
        since.worked_on(at(400));
        since.worked_on(at(600));
        assert_eq!(since.settled(), Some(at(390)));
        tokio::time::advance(REMEMBERED).await;
        since.worked_on(at(700));
        assert_eq!(since.settled(), Some(at(390)), "the minute before counts, too");
        tokio::time::advance(REMEMBERED).await;
        since.worked_on(at(800));
        assert_eq!(since.settled(), Some(at(690)));
    }

    #[tokio::test(start_paused = true)]
    async fn drains_look_at_everything_now_and_then() {
        let since = Since::new(Duration::from_secs(10));
        since.taken(None, Some(at(500)), true);
        assert_eq!((since.claimed(SMALLEST), since.claimed(SMALLEST - 1)), (Some(at(490)), None));
        since.taken(Some(at(490)), Some(at(600)), true);
        assert_eq!(since.claimed(SMALLEST), Some(at(490)));
        tokio::time::advance(LONGEST).await;
        assert_eq!(since.claimed(SMALLEST), None);
        since.taken(None, Some(at(500)), true);
        since.taken(Some(at(490)), Some(at(600)), false);
        assert_eq!(since.claimed(SMALLEST), None);
    }
}
