//! How large requests are: smaller ones for what a broker refused together.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::ClientConfig;
use tokio::time::Instant;

/// How many sizes there are.
pub(super) const SIZES: usize = 5;

/// Each size is so much smaller than the one before.
const STEP: usize = 4;

/// What librdkafka puts into a request, unless it is told otherwise.
const BYTES: usize = 1_000_000;
const MESSAGES: usize = 10_000;

/// After how long a topic gets requests of the next larger size again: its limit may be another, or few messages were so large.
const LARGER_AFTER: Duration = Duration::from_secs(600);

/// For how many topics it is remembered that they take small requests only.
const MOST: usize = 10_000;

/// A size of requests, from what is usual down to one message in each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Size(usize);

impl Size {
    pub(super) fn index(self) -> usize {
        self.0
    }

    /// The next smaller one for a message of so many bytes, unless it was alone in its request already.
    pub(super) fn smaller(self, config: &ClientConfig, message: usize) -> Option<Self> {
        let alone = self.0 + 1 == SIZES || message >= self.bytes(config);
        (!alone).then_some(Self(self.0 + 1))
    }

    /// Tells librdkafka.
    pub(super) fn set(self, config: &mut ClientConfig) {
        if self == Self::default() {
            return;
        }
        let messages = match self.0 + 1 {
            SIZES => 1,
            _ => (number(config, "batch.num.messages", MESSAGES) / STEP.pow(self.power())).max(1),
        };
        let bytes = self.bytes(config);
        config.set("batch.size", bytes.to_string()).set("batch.num.messages", messages.to_string());
        // One on its way at a time: a refusal leaves a gap in the sequence that those behind it would fall into.
        config.set("max.in.flight", "1");
    }

    fn bytes(self, config: &ClientConfig) -> usize {
        (number(config, "batch.size", BYTES) / STEP.pow(self.power())).max(1)
    }

    fn power(self) -> u32 {
        u32::try_from(self.0).expect("there are few sizes")
    }
}

fn number(config: &ClientConfig, property: &str, otherwise: usize) -> usize {
    config.get(property).and_then(|value| value.trim().parse().ok()).unwrap_or(otherwise)
}

/// Which topics take smaller requests only, and since when.
#[derive(Default)]
pub(super) struct Sizes(Mutex<HashMap<String, (Size, Instant)>>);

impl Sizes {
    pub(super) fn of(&self, topic: &str) -> Size {
        let mut all = self.all();
        let Some((size, since)) = all.get_mut(topic) else { return Size::default() };
        if since.elapsed() < LARGER_AFTER {
            return *size;
        }
        (*size, *since) = (Size(size.0.saturating_sub(1)), Instant::now());
        let size = *size;
        if size == Size::default() {
            all.remove(topic);
        }
        size
    }

    /// The topic took such requests, and no larger ones.
    pub(super) fn at_most(&self, topic: &str, size: Size) {
        let mut all = self.all();
        if all.len() < MOST || all.contains_key(topic) {
            let (known, since) = all.entry(topic.to_owned()).or_insert((size, Instant::now()));
            (*known, *since) = ((*known).max(size), Instant::now());
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, (Size, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(size: Size, property: &str) -> Option<usize> {
        let mut config = ClientConfig::new();
        size.set(&mut config);
        config.get(property).map(|value| value.parse().unwrap())
    }

    #[test]
    fn sizes_go_down_to_one_message() {
        let (config, mut size) = (ClientConfig::new(), Size::default());
        assert_eq!((told(size, "batch.size"), told(size, "max.in.flight")), (None, None));
        let mut told_of = Vec::new();
        while let Some(smaller) = size.smaller(&config, 10) {
            size = smaller;
            told_of.push((told(size, "batch.size").unwrap(), told(size, "batch.num.messages").unwrap()));
        }
        assert_eq!(told_of, [(250_000, 2_500), (62_500, 625), (15_625, 156), (3_906, 1)]);
        assert_eq!(told(size, "max.in.flight"), Some(1));
    }

    #[test]
    fn what_was_alone_in_its_request_is_not_tried_in_a_smaller_one() {
        let mut config = ClientConfig::new();
        assert_eq!(Size::default().smaller(&config, BYTES), None);
        assert!(Size::default().smaller(&config, BYTES - 1).is_some());
        config.set("batch.size", "1000");
        assert_eq!(Size::default().smaller(&config, 1000), None);
    }

    #[test]
    fn a_topic_keeps_the_smallest() {
        let sizes = Sizes::default();
        sizes.at_most("a", Size(2));
        sizes.at_most("a", Size(1));
        assert_eq!((sizes.of("a"), sizes.of("b")), (Size(2), Size(0)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_topic_gets_larger_requests_again_after_a_while() {
        let sizes = Sizes::default();
        sizes.at_most("a", Size(2));
        tokio::time::sleep(LARGER_AFTER / 2).await;
        sizes.at_most("a", Size(2));
        for (after, size) in [(LARGER_AFTER / 2, 2), (LARGER_AFTER / 2, 1), (LARGER_AFTER / 2, 1), (LARGER_AFTER, 0)] {
            tokio::time::sleep(after).await;
            assert_eq!(sizes.of("a"), Size(size));
        }
        assert!(sizes.all().is_empty());
    }
}
