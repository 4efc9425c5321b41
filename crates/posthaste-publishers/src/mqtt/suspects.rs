//! Messages that were under way when a connection was lost.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use posthaste_core::EventId;

use crate::publisher::Message;

/// The most that are remembered. Beyond it all are forgotten: then they are found again, if they are to blame.
const MOST: usize = 10_000;

/// Messages that were under way when a connection was lost. One of them may be why: a broker can end the connection instead of
/// saying that it refuses a message.
#[derive(Debug, Default)]
pub(super) struct Suspects(Mutex<HashSet<EventId>>);

impl Suspects {
    fn ids(&self) -> MutexGuard<'_, HashSet<EventId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add<'a>(&self, ids: impl Iterator<Item = &'a EventId>) {
        let mut suspects = self.ids();
        for id in ids {
            if suspects.len() >= MOST {
                suspects.clear();
            }
            suspects.insert(id.clone());
        }
    }

    pub(super) fn has(&self, message: &Message) -> bool {
        self.ids().contains(&message.id)
    }

    /// The broker has taken it.
    pub(super) fn clear_of_suspicion(&self, message: &Message) {
        self.ids().remove(&message.id);
    }

    /// The batch in its order, in parts: each suspect alone.
    pub(super) fn parts<'a>(&self, messages: &'a [Message]) -> Vec<&'a [Message]> {
        let suspects = self.ids();
        if suspects.is_empty() {
            return vec![messages];
        }
        messages.chunk_by(|one, next| !suspects.contains(&one.id) && !suspects.contains(&next.id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: usize) -> Message {
        let id = EventId::new(id.to_string()).unwrap();
        let (content_type, headers, body) = ("text/plain".into(), Vec::new(), "x".into());
        Message { id, to: "a".into(), key: None, content_type, headers, body }
    }

    fn sizes(suspects: &Suspects, messages: &[Message]) -> Vec<usize> {
        suspects.parts(messages).into_iter().map(<[Message]>::len).collect()
    }

    #[test]
    fn each_suspect_is_a_part_of_its_own() {
        let (suspects, messages) = (Suspects::default(), (0..10).map(message).collect::<Vec<_>>());
        assert_eq!(sizes(&suspects, &messages), [10]);
        suspects.add([3, 4, 9].map(|n: usize| &messages[n].id).into_iter());
        assert_eq!(sizes(&suspects, &messages), [3, 1, 1, 4, 1]);
        suspects.clear_of_suspicion(&messages[4]);
        assert!(suspects.has(&messages[3]) && !suspects.has(&messages[4]));
        assert_eq!(sizes(&suspects, &messages), [3, 1, 5, 1]);
    }

    #[test]
    fn there_is_a_bound() {
        let suspects = Suspects::default();
        for id in 0..3 * MOST {
            suspects.add(std::iter::once(&EventId::new(id.to_string()).unwrap()));
        }
        assert!(suspects.ids().len() <= MOST);
    }
}
