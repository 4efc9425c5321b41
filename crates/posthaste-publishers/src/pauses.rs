//! Ends of a connection that are away while the connection is not.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::breaker::turns::{self, Turns};

/// How long an end is left alone at first.
const FIRST: Duration = Duration::from_secs(1);

/// How long it is left alone at most.
const LONGEST: Duration = Duration::from_secs(30);

/// With how many messages it is tried whether an end is back.
const FEW: usize = 10;

/// How many ends are remembered.
const MOST: usize = 10_000;

/// Which ends of a connection are left alone, and until when: a topic without a leader, a queue that says nothing. What goes
/// to them is put off, so that nobody else waits with it, and the breaker of the connection stays closed. After a pause one batch
/// tries an end with a few messages, and what else goes there waits for how that goes.
#[derive(Default)]
pub(crate) struct Pauses(Mutex<HashMap<String, Pause>>);

struct Pause {
    /// Nothing while somebody tries the end.
    until: Option<Instant>,
    length: Duration,
    /// How often in a row it was away.
    times: u32,
    turns: Turns,
}

impl Pause {
    /// How long one more message waits, if the end is left alone. Many come again in groups.
    fn wait(&mut self, now: Instant) -> Option<Duration> {
        let (earliest, first) = match self.until {
            Some(until) if until > now => (until, until),
            Some(_) => return None,
            // How it went will be known soon, but not at once.
            None => (now + turns::STEP / 2, now + turns::STEP),
        };
        Some(self.turns.next(earliest, first).saturating_duration_since(now))
    }
}

impl Pauses {
    /// A batch asks where it may send, and tells how it went.
    pub(crate) fn round(&self) -> Round<'_> {
        Round { pauses: self, tries: HashMap::new() }
    }

    fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Pause>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a batch knows of ends. Those that it tried and tells nothing of are tried by another, a little later.
pub(crate) struct Round<'a> {
    pauses: &'a Pauses,
    /// The ends that this batch tries, and with how many messages.
    tries: HashMap<String, usize>,
}

impl Round<'_> {
    /// Whether no end is away.
    pub(crate) fn nobody_is_away(&self) -> bool {
        self.pauses.is_empty()
    }

    /// Whether a message may be sent to where all these ends are on the way, and if not, for how long it waits.
    pub(crate) fn enter(&mut self, ends: &[&str]) -> Result<(), Duration> {
        let (mut all, now) = (self.pauses.all(), Instant::now());
        if all.is_empty() {
            return Ok(());
        }
        for end in ends {
            let tried_by_us = self.tries.get(*end).is_some_and(|tries| *tries < FEW);
            if let Some(pause) = all.get_mut(*end)
                && !(pause.until.is_none() && tried_by_us)
                && let Some(wait) = pause.wait(now)
            {
                return Err(wait);
            }
        }
        for end in ends {
            if let Some(pause) = all.get_mut(*end) {
                pause.until = None;
                *self.tries.entry((*end).to_owned()).or_default() += 1;
            }
        }
        Ok(())
    }

    /// The end is away. Says for how long a message waits: each time the end is left alone for twice as long.
    pub(crate) fn away(&mut self, end: &str) -> Duration {
        let (mut all, now) = (self.pauses.all(), Instant::now());
        if all.len() >= MOST {
            all.retain(|_, pause| pause.until.is_none_or(|until| until + LONGEST > now));
        }
        let tried = self.tries.remove(end).is_some();
        if let Some(pause) = all.get_mut(end) {
            // Of several batches that met it together the first has said it; or somebody tries it now.
            if let Some(wait) = pause.wait(now).filter(|_| !tried) {
                return wait;
            }
            pause.length = (pause.length * 2).min(LONGEST);
            pause.times = pause.times.saturating_add(1);
            pause.until = Some(now + pause.length);
            return pause.wait(now).unwrap_or(pause.length);
        }
        // Without room nothing is remembered: then it is asked again each time.
        if all.len() < MOST {
            let mut pause = Pause { until: Some(now + FIRST), length: FIRST, times: 1, turns: Turns::default() };
            pause.wait(now);
            all.insert(end.to_owned(), pause);
        }
        FIRST
    }

    /// How often in a row the end was away, each time after a pause.
    #[cfg(feature = "nats")]
    pub(crate) fn times_away(&self, end: &str) -> u32 {
        self.pauses.all().get(end).map_or(0, |pause| pause.times)
    }

    /// The end has taken something, or has said why not.
    pub(crate) fn there(&mut self, end: &str) {
        self.tries.remove(end);
        self.pauses.all().remove(end);
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        if self.tries.is_empty() {
            return;
        }
        let (mut all, until) = (self.pauses.all(), Instant::now() + FIRST);
        for end in self.tries.keys() {
            if let Some(pause) = all.get_mut(end) {
                pause.until.get_or_insert(until);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_end_is_left_alone_for_longer_each_time_until_it_takes_something() {
        let pauses = Pauses::default();
        assert_eq!(pauses.round().enter(&["a"]), Ok(()));
        let mut round = pauses.round();
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            let pause = Duration::from_secs(seconds);
            assert_eq!(round.away("a"), pause);
            assert_eq!((round.enter(&["a"]), round.enter(&["b"])), (Err(pause), Ok(())));
            tokio::time::sleep(pause / 2).await;
            assert_eq!(pauses.round().away("a"), pause / 2, "it is the same time");
            tokio::time::sleep(pause / 2).await;
            round = pauses.round();
            assert_eq!(round.enter(&["a"]), Ok(()));
        }
        round.there("a");
        assert_eq!(round.away("a"), FIRST);
    }

    #[cfg(feature = "nats")]
    #[tokio::test(start_paused = true)]
    async fn it_is_known_how_often_in_a_row_an_end_was_away() {
        let pauses = Pauses::default();
        assert_eq!(pauses.round().times_away("a"), 0);
        for times in 1..20 {
            let mut round = pauses.round();
            assert_eq!(round.enter(&["a"]), Ok(()));
            // However many messages meet it.
            for _ in 0..3 {
                round.away("a");
            }
            assert_eq!(round.times_away("a"), times);
            tokio::time::sleep(LONGEST).await;
        }
        pauses.round().there("a");
        assert_eq!(pauses.round().times_away("a"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn one_batch_tries_an_end_with_a_few_and_the_others_wait_for_it() {
        let pauses = Pauses::default();
        pauses.round().away("a");
        tokio::time::sleep(FIRST).await;
        let (mut one, mut other) = (pauses.round(), pauses.round());
        let sent = (0..100).filter(|_| one.enter(&["a"]).is_ok()).count();
        assert_eq!((sent, other.enter(&["a"])), (FEW, Err(turns::STEP)));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(other.enter(&["a"]), Err(turns::STEP), "however long it takes");
        assert_eq!(other.away("a"), turns::STEP, "old news");
        one.there("a");
        assert_eq!((0..100).filter(|_| other.enter(&["a"]).is_ok()).count(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn who_tried_and_tells_nothing_lets_another_try() {
        let pauses = Pauses::default();
        pauses.round().away("a");
        tokio::time::sleep(FIRST).await;
        let mut dropped = pauses.round();
        assert_eq!(dropped.enter(&["a"]), Ok(()));
        drop(dropped);
        let mut next = pauses.round();
        assert_eq!(next.enter(&["a"]), Err(FIRST));
        tokio::time::sleep(FIRST).await;
        assert_eq!(next.enter(&["a"]), Ok(()));
        assert_eq!(next.away("a"), 2 * FIRST, "as long as it would have been");
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_behind_one_that_is_left_alone_is_not_tried() {
        let pauses = Pauses::default();
        pauses.round().away("inner");
        tokio::time::sleep(FIRST).await;
        pauses.round().away("outer");
        assert_eq!(pauses.round().enter(&["inner", "outer"]), Err(FIRST));
        let mut other = pauses.round();
        assert_eq!(other.enter(&["inner"]), Ok(()), "nobody is trying it");
    }

    #[tokio::test(start_paused = true)]
    async fn many_come_again_in_groups() {
        let pauses = Pauses::default();
        let mut round = pauses.round();
        let waits: Vec<_> = (0..2500).map(|_| round.away("a")).collect();
        let at = |groups: u32| FIRST + groups * turns::STEP;
        assert_eq!([waits[0], waits[999], waits[1000], waits[2499]], [at(0), at(0), at(1), at(2)]);
    }

    #[tokio::test(start_paused = true)]
    async fn not_more_are_remembered_than_there_is_room_for() {
        let pauses = Pauses::default();
        let mut round = pauses.round();
        for end in 0..=MOST {
            round.away(&end.to_string());
        }
        assert_eq!(pauses.all().len(), MOST);
        tokio::time::sleep(FIRST + LONGEST).await;
        round.away("another");
        assert_eq!(pauses.all().len(), 1);
    }
}
