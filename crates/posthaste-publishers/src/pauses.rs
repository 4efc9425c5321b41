//! Ends of a connection that are away while the connection is not.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long an end is left alone at first.
const FIRST: Duration = Duration::from_secs(1);

/// How long it is left alone at most.
const LONGEST: Duration = Duration::from_secs(30);

/// How many ends are remembered.
const MOST: usize = 10_000;

/// Which ends of a connection are left alone, and until when: a topic without a leader, a queue that says nothing. What goes
/// to them is put off, so that nobody else waits with it, and the breaker of the connection stays closed.
#[derive(Default)]
pub(crate) struct Pauses(Mutex<HashMap<String, Pause>>);

#[derive(Clone, Copy)]
struct Pause {
    until: Instant,
    length: Duration,
}

impl Pauses {
    /// How much longer that end is left alone.
    pub(crate) fn left(&self, end: &str) -> Option<Duration> {
        let until = self.all().get(end)?.until;
        until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    /// The end is away. Says for how long it is left alone: each time twice as long.
    pub(crate) fn away(&self, end: &str) -> Duration {
        let now = Instant::now();
        let mut all = self.all();
        if all.len() >= MOST {
            all.retain(|_, pause| pause.until + LONGEST > now);
        }
        let length = match all.get(end) {
            // Of several batches that met it together, the first has said it.
            Some(pause) if pause.until > now => return pause.until - now,
            Some(pause) => (pause.length * 2).min(LONGEST),
            None => FIRST,
        };
        // Without room nothing is remembered: then it is asked again each time.
        if all.len() < MOST || all.contains_key(end) {
            all.insert(end.to_owned(), Pause { until: now + length, length });
        }
        length
    }

    /// Whether no end is away.
    pub(crate) fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    /// The end has taken something.
    pub(crate) fn there(&self, end: &str) {
        self.all().remove(end);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Pause>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_end_is_left_alone_for_longer_each_time_until_it_takes_something() {
        let pauses = Pauses::default();
        assert_eq!(pauses.left("a"), None);
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            let pause = Duration::from_secs(seconds);
            assert_eq!(pauses.away("a"), pause);
            assert_eq!((pauses.left("a"), pauses.left("b")), (Some(pause), None));
            tokio::time::sleep(pause / 2).await;
            assert_eq!(pauses.away("a"), pause / 2, "it is the same time");
            tokio::time::sleep(pause / 2).await;
            assert_eq!(pauses.left("a"), None);
        }
        pauses.there("a");
        assert_eq!(pauses.away("a"), FIRST);
    }

    #[tokio::test(start_paused = true)]
    async fn not_more_are_remembered_than_there_is_room_for() {
        let pauses = Pauses::default();
        for end in 0..=MOST {
            pauses.away(&end.to_string());
        }
        assert_eq!(pauses.all().len(), MOST);
        tokio::time::sleep(FIRST + LONGEST).await;
        pauses.away("another");
        assert_eq!(pauses.all().len(), 1);
    }
}
