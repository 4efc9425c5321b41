//! Looking, in the message of a commit, for events that its user may have undone by statements of his own.

use std::collections::HashSet;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
use posthaste_core::EventId;
use sqlx::{Database, Decode, Either, Row, Type};
use tokio::time::Instant;

/// How long nobody looks after a server has refused it. Somebody may grant it at any time.
const REFUSED: Duration = Duration::from_secs(30);

/// When a server last said that this user may not read the table. Each time it would cost a turn, and a line in its log.
#[derive(Clone, Default)]
pub(crate) struct Looks(Arc<Mutex<Option<Instant>>>);

impl Looks {
    pub(crate) fn are_refused(&self) -> bool {
        let at = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        at.is_some_and(|at| at.elapsed() < REFUSED)
    }

    pub(crate) fn refused(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

/// What a message of several statements answers.
type Answers<'a, DB> = BoxStream<'a, Result<Either<<DB as Database>::QueryResult, <DB as Database>::Row>, sqlx::Error>>;

/// What came of a message of several statements, one of which looks.
pub(crate) struct Looked {
    /// The ids that were there.
    there: HashSet<String>,
    /// How many of the statements were carried out.
    pub(crate) statements: usize,
    /// What became of the last one.
    pub(crate) ended: Result<(), sqlx::Error>,
}

impl Looked {
    /// Waits for the end of a message.
    pub(crate) async fn after<DB>(mut answers: Answers<'_, DB>) -> Self
    where
        DB: Database,
        usize: sqlx::ColumnIndex<DB::Row>,
        String: for<'r> Decode<'r, DB> + Type<DB>,
    {
        let mut looked = Self { there: HashSet::new(), statements: 0, ended: Ok(()) };
        loop {
            match answers.try_next().await {
                Ok(Some(Either::Left(_))) => looked.statements += 1,
                // One that cannot be read is as good as one that is not there.
                Ok(Some(Either::Right(row))) => looked.there.extend(row.try_get(0).ok()),
                Ok(None) => return looked,
                Err(error) => {
                    looked.ended = Err(error);
                    return looked;
                }
            }
        }
    }

    /// Those of the events that were not there.
    pub(crate) fn missing(&self, mut events: Vec<EventId>) -> Vec<EventId> {
        events.retain(|event| !self.there.contains(event.as_str()));
        events
    }
}

/// Texts as literals, each between these two. A message of several statements has no place for parameters; digits need no quoting,
/// whatever the settings of the session.
pub(crate) fn literals(texts: &[EventId], before: &str, after: &str) -> String {
    let mut literals = String::with_capacity(texts.len() * (before.len() + after.len() + 2 * 26));
    for text in texts {
        literals.push_str(if literals.is_empty() { "" } else { ", " });
        literals.push_str(before);
        for byte in text.as_str().bytes() {
            write!(literals, "{byte:02x}").expect("a string has room");
        }
        literals.push_str(after);
    }
    literals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_in_an_id_is_digits_in_a_statement() {
        let ids = ["a", "'); DROP TABLE x; --", "ü\\"].map(EventId::from_row);
        let expected = "<61>, <27293b2044524f50205441424c4520783b202d2d>, <c3bc5c>";
        assert_eq!(literals(&ids, "<", ">"), expected);
        assert_eq!(literals(&[], "<", ">"), "");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_remembered_for_a_while() {
        let looks = Looks::default();
        assert!(!looks.are_refused());
        looks.refused();
        assert!(looks.clone().are_refused());
        tokio::time::advance(REFUSED).await;
        assert!(!looks.are_refused());
    }
}
