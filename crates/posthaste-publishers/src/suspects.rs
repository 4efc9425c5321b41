//! Messages that may be why a connection was lost, or why nothing was heard on it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use posthaste_core::EventId;

use crate::publisher::Message;

/// The most that are remembered. Beyond it all are forgotten: then they are found again, if they are to blame.
const MOST: usize = 10_000;

/// Messages that were under way when a connection was lost or fell silent. One of them may be why: a server can end the connection
/// instead of saying that it refuses a message, and a body can be too large to get through in time. So each is sent alone from
/// then on. What was silent alone comes last in its batch, and is to blame if others have got through since.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    all: Mutex<HashMap<EventId, Suspicion>>,
    /// How many messages were acknowledged.
    acknowledged: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Suspicion {
    /// Nothing was heard of it when it was alone.
    is_silent: bool,
    /// How many messages had been acknowledged when it was suspected, or last to blame.
    acknowledged: u64,
}

impl Suspects {
    fn all(&self) -> MutexGuard<'_, HashMap<EventId, Suspicion>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many messages were acknowledged.
    pub(crate) fn acknowledged(&self, messages: usize) {
        self.acknowledged.fetch_add(messages as u64, Ordering::Relaxed);
    }

    pub(crate) fn add<'a>(&self, ids: impl Iterator<Item = &'a EventId>) {
        let (mut all, acknowledged) = (self.all(), self.acknowledged.load(Ordering::Relaxed));
        for id in ids {
            if all.len() >= MOST {
                all.clear();
            }
            all.entry(id.clone()).or_insert(Suspicion { is_silent: false, acknowledged });
        }
    }

    pub(crate) fn has(&self, message: &Message) -> bool {
        self.all().contains_key(&message.id)
    }

    /// It was sent alone, and nothing was heard.
    pub(crate) fn was_silent(&self, message: &Message) {
        self.add(std::iter::once(&message.id));
        if let Some(suspicion) = self.all().get_mut(&message.id) {
            suspicion.is_silent = true;
        }
    }

    /// Whether others have got through since it was suspected. Asked again, they have to have done so since.
    pub(crate) fn is_to_blame(&self, message: &Message) -> bool {
        let (mut all, acknowledged) = (self.all(), self.acknowledged.load(Ordering::Relaxed));
        let Some(suspicion) = all.get_mut(&message.id) else { return false };
        std::mem::replace(&mut suspicion.acknowledged, acknowledged) < acknowledged
    }

    /// The server has taken these, or has said why not.
    pub(crate) fn clear_of_suspicion(&self, messages: &[Message]) {
        let mut all = self.all();
        if !all.is_empty() {
            for message in messages {
                all.remove(&message.id);
            }
        }
    }

    /// The batch with those at its end that were silent alone, so that nobody waits behind them, and the place that each had.
    pub(crate) fn silent_last(&self, messages: Vec<Message>) -> (Vec<Message>, Vec<usize>) {
        let all = self.all();
        let is_silent = |message: &Message| all.get(&message.id).is_some_and(|suspicion| suspicion.is_silent);
        if all.is_empty() || !messages.iter().any(is_silent) {
            let places = (0..messages.len()).collect();
            return (messages, places);
        }
        let mut placed: Vec<_> = messages.into_iter().zip(0..).collect();
        placed.sort_by_key(|(message, _)| is_silent(message));
        placed.into_iter().unzip()
    }

    /// The batch in its order, in parts: each suspect alone.
    #[cfg(feature = "mqtt")]
    pub(crate) fn parts<'a>(&self, messages: &'a [Message]) -> Vec<&'a [Message]> {
        let all = self.all();
        if all.is_empty() {
            return vec![messages];
        }
        messages.chunk_by(|one, next| !all.contains_key(&one.id) && !all.contains_key(&next.id)).collect()
    }
}

/// What became of messages, in the order of their places.
pub(crate) fn in_place<T>(places: Vec<usize>, results: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut placed: Vec<_> = places.into_iter().zip(results).collect();
    placed.sort_by_key(|(place, _)| *place);
    placed.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: usize) -> Message {
        let id = EventId::new(id.to_string()).unwrap();
        let (content_type, headers, body) = ("text/plain".into(), crate::Headers::default(), "x".into());
        Message { id, to: "a".into(), key: None, content_type, headers, body }
    }

    #[test]
    #[cfg(feature = "mqtt")]
    fn each_suspect_is_a_part_of_its_own() {
        fn sizes(suspects: &Suspects, messages: &[Message]) -> Vec<usize> {
            suspects.parts(messages).into_iter().map(<[Message]>::len).collect()
        }
        let (suspects, messages) = (Suspects::default(), (0..10).map(message).collect::<Vec<_>>());
        assert_eq!(sizes(&suspects, &messages), [10]);
        suspects.add([3, 4, 9].map(|n: usize| &messages[n].id).into_iter());
        assert_eq!(sizes(&suspects, &messages), [3, 1, 1, 4, 1]);
        suspects.clear_of_suspicion(&messages[4..5]);
        assert!(suspects.has(&messages[3]) && !suspects.has(&messages[4]));
        assert_eq!(sizes(&suspects, &messages), [3, 1, 5, 1]);
    }

    #[test]
    fn who_was_silent_alone_is_to_blame_if_others_get_through() {
        let (suspects, [one, other]) = (Suspects::default(), [0, 1].map(message));
        suspects.acknowledged(5);
        suspects.was_silent(&one);
        assert!(!suspects.is_to_blame(&one), "nobody gets through");
        suspects.acknowledged(1);
        assert!(suspects.is_to_blame(&one) && !suspects.is_to_blame(&other));
        assert!(!suspects.is_to_blame(&one), "nobody has got through since");
        suspects.acknowledged(1);
        assert!(suspects.is_to_blame(&one));
    }

    #[test]
    fn who_was_silent_comes_last() {
        let (suspects, messages) = (Suspects::default(), (0..5).map(message).collect::<Vec<_>>());
        suspects.add([0, 4].map(|n: usize| &messages[n].id).into_iter());
        assert_eq!(suspects.silent_last(messages.clone()).1, [0, 1, 2, 3, 4]);
        [1, 2].iter().for_each(|n: &usize| suspects.was_silent(&messages[*n]));
        let (sent, places) = suspects.silent_last(messages.clone());
        assert_eq!(places, [0, 3, 4, 1, 2]);
        assert!(sent.iter().zip(&places).all(|(message, place)| message.id == messages[*place].id));
        let back = in_place(places, sent);
        assert!(back.iter().zip(&messages).all(|(message, other)| message.id == other.id));
    }

    #[test]
    fn there_is_a_bound() {
        let suspects = Suspects::default();
        for id in 0..3 * MOST {
            suspects.add(std::iter::once(&EventId::new(id.to_string()).unwrap()));
        }
        assert!(suspects.all().len() <= MOST);
    }
}
