//! DEAD rows that an operator works through in chunks.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use posthaste_core::store::{Filter, Redrive};
use sqlx::{Database, Encode, QueryBuilder, Type};

use crate::admin::push_filter;
use crate::dialect::Dialect;

/// How many numbers are read at once: 800 kB.
pub(crate) const AHEAD: usize = 100_000;

/// For how long they are gone by when no chunk has been asked for. Who begins later begins at the first row.
const KEPT: Duration = Duration::from_secs(10);

/// By number, in words that lead to no index. By the index on the numbers a database would walk over all that is done.
pub(crate) const BY_NUMBER: &str = " ORDER BY seq + 0 LIMIT ";

/// The numbers of DEAD rows that somebody is about to redrive or to discard.
///
/// Chunks go by number, because the events of a key are to become NEW in their order, whenever each of them has died. But no index has
/// what is DEAD by its number. So whoever looks for a chunk has to look at all that is DEAD, and does so for many chunks at once.
///
/// It only tells where to look: a row may have become another since, and the statement that changes it asks for everything again.
#[derive(Default)]
pub(crate) struct Ahead(Mutex<Option<Known>>);

struct Known {
    filter: Filter,
    numbers: VecDeque<i64>,
    /// Up to which number they were read.
    after: i64,
    /// Whether there were no more.
    is_all: bool,
    used_at: Instant,
}

impl Ahead {
    /// The next chunk. A call that fails or is dropped forgets what was read: the next one begins at the first row.
    pub(crate) fn pass(&self, wanted: &Redrive) -> Pass<'_> {
        // Rows that are named are found by their ids; and one statement for more than that is no worse than several.
        let is_ahead = wanted.ids.is_none() && (1..=AHEAD).contains(&wanted.chunk);
        let known = if is_ahead { self.known().take() } else { None };
        let known = known.filter(|known| known.used_at.elapsed() <= KEPT && known.filter == wanted.filter);
        let known = known.unwrap_or_else(|| Known {
            filter: wanted.filter.clone(),
            numbers: VecDeque::new(),
            after: i64::MIN,
            is_all: !is_ahead,
            used_at: Instant::now(),
        });
        Pass { ahead: self, chunk: wanted.chunk, known }
    }

    fn known(&self) -> MutexGuard<'_, Option<Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is to be done for one chunk, a step at a time, until a step has changed something or was the last.
pub(crate) struct Pass<'a> {
    ahead: &'a Ahead,
    chunk: usize,
    known: Known,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// To read the numbers behind this one.
    Read(i64),
    /// To change those of these rows that are still DEAD and fit.
    Numbered(Vec<i64>),
    /// To change whatever is DEAD and fits: what has died since, or was held by somebody. The last step.
    Rest,
}

impl Pass<'_> {
    pub(crate) fn step(&mut self) -> Step {
        let known = &mut self.known;
        if !known.numbers.is_empty() {
            let size = self.chunk.min(known.numbers.len());
            return Step::Numbered(known.numbers.drain(..size).collect());
        }
        if known.is_all { Step::Rest } else { Step::Read(known.after) }
    }

    /// Takes what was read.
    pub(crate) fn read(&mut self, numbers: Vec<i64>) {
        self.known.is_all = numbers.len() < AHEAD;
        self.known.after = numbers.last().copied().unwrap_or(self.known.after);
        self.known.numbers = numbers.into();
    }

    /// Leaves what is known for the next chunk.
    pub(crate) fn keep(mut self) {
        if !self.known.numbers.is_empty() || !self.known.is_all {
            self.known.used_at = Instant::now();
            *self.ahead.known() = Some(self.known);
        }
    }
}

/// Appends, to a query for the numbers of DEAD rows, that they fit and are behind that one.
pub(crate) fn push_read<DB>(query: &mut QueryBuilder<DB>, dialect: &Dialect, filter: &Filter, after: i64)
where
    DB: Database,
    for<'q> String: Encode<'q, DB> + Type<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB>,
{
    push_filter(query, dialect, filter, false);
    query.push(" AND seq + 0 > ").push_bind(after).push(BY_NUMBER).push(AHEAD);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(error: &str, chunk: usize) -> Redrive {
        let filter = Filter { error_contains: Some(error.to_owned()), ..Filter::default() };
        Redrive { chunk, ..Redrive::matching(filter) }
    }

    #[test]
    fn numbers_are_read_once_for_many_chunks() {
        let ahead = Ahead::default();
        let mut pass = ahead.pass(&wanted("a", 2));
        assert_eq!(pass.step(), Step::Read(i64::MIN));
        pass.read(vec![3, 5, 8, 9]);
        assert_eq!(pass.step(), Step::Numbered(vec![3, 5]));
        pass.keep();
        let mut pass = ahead.pass(&wanted("a", 1));
        assert_eq!(pass.step(), Step::Numbered(vec![8]));
        assert_eq!(pass.step(), Step::Numbered(vec![9]));
        pass.keep();
        assert!(ahead.known().is_none());
        let mut pass = ahead.pass(&wanted("a", 2));
        assert_eq!(pass.step(), Step::Read(i64::MIN));
        pass.read(Vec::new());
        assert_eq!(pass.step(), Step::Rest);
    }

    #[test]
    fn what_is_beyond_the_numbers_that_were_read_is_read_then() {
        let ahead = Ahead::default();
        let wanted = wanted("a", AHEAD);
        let most = i64::try_from(AHEAD).unwrap();
        let mut pass = ahead.pass(&wanted);
        pass.read((1..=most).collect());
        assert!(matches!(pass.step(), Step::Numbered(numbers) if numbers.len() == AHEAD));
        pass.keep();
        let mut pass = ahead.pass(&wanted);
        assert_eq!(pass.step(), Step::Read(most));
        pass.read(vec![most + 1]);
        assert_eq!(pass.step(), Step::Numbered(vec![most + 1]));
        assert_eq!(pass.step(), Step::Rest);
    }

    #[test]
    fn nothing_is_kept_of_another_filter_or_a_call_that_failed() {
        let ahead = Ahead::default();
        for other in [wanted("b", 1), wanted("a", 1)] {
            let mut pass = ahead.pass(&wanted("a", 1));
            assert_eq!(pass.step(), Step::Read(i64::MIN));
            pass.read(vec![1, 2]);
            pass.keep();
            // The second time it is the same filter, and goes on; it is not kept.
            let expected =
                if other.filter == wanted("a", 1).filter { Step::Numbered(vec![1]) } else { Step::Read(i64::MIN) };
            assert_eq!(ahead.pass(&other).step(), expected);
            assert_eq!(ahead.pass(&other).step(), Step::Read(i64::MIN));
        }
    }

    #[test]
    fn what_is_named_or_asked_for_at_once_is_not_read_before() {
        let ahead = Ahead::default();
        let mut pass = ahead.pass(&wanted("a", 1));
        pass.read(vec![1, 2]);
        pass.keep();
        for redrive in [Redrive::ids([]), wanted("a", 0), wanted("a", AHEAD + 1)] {
            let mut pass = ahead.pass(&redrive);
            assert_eq!(pass.step(), Step::Rest);
            pass.keep();
        }
        assert_eq!(ahead.pass(&wanted("a", 1)).step(), Step::Numbered(vec![1]));
    }
}
