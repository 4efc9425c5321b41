//! Topics: what Kafka takes for the name of one, and which of them are away while Kafka is not.

use std::collections::HashSet;
use std::time::Duration;

use rdkafka::producer::Producer as _;
use tokio::time::Instant;

use super::Kafka;
use super::requests::Size;
use super::sending::Batch;
use crate::pauses::Round;
use crate::publisher::{Message, PublishError};

/// How long Kafka has to answer when it has acknowledged nothing, to tell a topic that is away from a Kafka that is.
pub(super) const ANSWER: Duration = Duration::from_secs(2);

/// How long what had no answer is left alone, if nothing is known of where it would have gone.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

/// The longest name of a topic.
const LONGEST_NAME: usize = 249;

impl Kafka {
    /// Why a message is not even sent now.
    pub(super) fn not_sent(&self, message: &Message, ends: &mut Round<'_>) -> Option<PublishError> {
        if !is_topic(&message.to) {
            return Some(
                PublishError::permanent(format!(
                    "{:?} is no name of a topic: letters, digits, '.', '_' and '-', {LONGEST_NAME} of them at most",
                    message.to
                ))
                .unasked(),
            );
        }
        if ends.nobody_is_away() {
            return None;
        }
        let entered = match self.part(message) {
            Some(part) => ends.enter(&[&message.to, &part]),
            None => ends.enter(&[&message.to]),
        };
        let reason = format!("the topic {:?} had no answer, and is left alone for a while", message.to);
        Some(PublishError::deferred(reason, entered.err()?).unasked())
    }

    /// Puts off what had no answer from its topic, if Kafka is there.
    pub(super) async fn put_off(&self, batch: &mut Batch<'_>, ends: &mut Round<'_>) {
        let messages = batch.messages;
        if !ends.nobody_is_away() {
            let is_answered = |result: &Option<Result<(), PublishError>>| match result {
                Some(Ok(())) => true,
                Some(Err(error)) => error.is_refusal(),
                None => false,
            };
            for (message, _) in messages.iter().zip(&batch.results).filter(|(_, result)| is_answered(result)) {
                ends.there(&message.to);
                self.part(message).into_iter().for_each(|part| ends.there(&part));
            }
        }
        let arrived = messages.iter().zip(&batch.results).filter(|(_, result)| matches!(result, Some(Ok(()))));
        let arrived: HashSet<&str> = arrived.map(|(message, _)| message.to.as_str()).collect();
        if batch.doubtful.is_empty() || (arrived.is_empty() && self.asked(ANSWER).await.is_err()) {
            return;
        }
        let doubtful = batch.doubtful.iter().map(|place| messages[*place].to.as_str());
        let in_part: HashSet<&str> = doubtful.filter(|topic| arrived.contains(topic)).collect();
        if !in_part.is_empty() {
            self.learn_partitions(in_part).await;
        }
        for place in std::mem::take(&mut batch.doubtful) {
            let message = &messages[place];
            let pause = match self.part(message) {
                _ if !arrived.contains(message.to.as_str()) => ends.away(&message.to),
                Some(part) => ends.away(&part),
                None => AGAIN,
            };
            if let Some(Err(error)) = batch.results[place].take() {
                let reason = format!("the topic {:?} is away, and kafka is not: {error}", message.to);
                batch.results[place] = Some(Err(PublishError::deferred(reason, pause)));
            }
        }
    }

    /// What a message shares with others of its topic that go where it goes: the partition, or the key while it is not known
    /// where that leads.
    fn part(&self, message: &Message) -> Option<String> {
        let (topic, key) = (&message.to, message.key.as_deref()?);
        Some(match self.0.partitions.of(topic, key) {
            Some(partition) => format!("{topic}\0{partition}"),
            None => format!("{topic}\0\0{key}"),
        })
    }

    /// Asks how many partitions topics have.
    async fn learn_partitions(&self, topics: HashSet<&str>) {
        let Ok(producer) = self.producer(Size::default()) else { return };
        let (topics, until) = (topics.into_iter().map(str::to_owned).collect::<Vec<_>>(), Instant::now() + ANSWER);
        let asked = tokio::task::spawn_blocking(move || {
            let count = |topic: String| {
                let left = until.checked_duration_since(Instant::now())?;
                let answer = producer.client().fetch_metadata(Some(&topic), left).ok()?;
                let partitions = answer.topics().iter().find(|known| known.name() == topic)?.partitions().len();
                Some((topic, u32::try_from(partitions).ok()?))
            };
            topics.into_iter().map_while(count).collect::<Vec<_>>()
        });
        asked.await.into_iter().flatten().for_each(|(topic, count)| self.0.partitions.learn(topic, count));
    }
}

/// Whether Kafka takes that for the name of a topic.
fn is_topic(name: &str) -> bool {
    let allowed = |sign: u8| sign.is_ascii_alphanumeric() || matches!(sign, b'.' | b'_' | b'-');
    (1..=LONGEST_NAME).contains(&name.len()) && name != "." && name != ".." && name.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;

    use super::super::KafkaOptions;
    use super::*;
    use crate::publisher::{PublishErrorKind, Publisher};

    #[test]
    fn names_of_topics_are_as_kafka_has_them() {
        for good in ["orders", "shop.Order_1-x", "...", &"x".repeat(LONGEST_NAME)] {
            assert!(is_topic(good), "{good}");
        }
        for bad in ["", ".", "..", "a b", "a/b", "größe", "a\0", &"x".repeat(LONGEST_NAME + 1)] {
            assert!(!is_topic(bad), "{bad:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_partition_that_is_away_puts_off_its_own_keys_and_is_tried_with_a_few() {
        let mock = MockCluster::new(2).unwrap();
        mock.create_topic("orders", 4, 1).unwrap();
        // A partition without any leader makes their mock fall over.
        (0..4).for_each(|id| mock.partition_leader("orders", id, Some(if id == 1 { 2 } else { 1 })).unwrap());
        let options = KafkaOptions::new(mock.bootstrap_servers()).delivery_timeout(Duration::from_secs(1));
        let kafka = Kafka::connect(options).await.unwrap();
        let message = |key: usize| Message {
            id: posthaste_core::EventId::generate(),
            to: "orders".into(),
            key: Some(key.to_string().into()),
            content_type: "text/plain".into(),
            headers: crate::Headers::default(),
            body: "x".into(),
        };
        let batch = |keys: std::ops::Range<usize>| keys.map(message).collect::<Vec<_>>();
        // On a busy machine its brokers are not found in the first second.
        let begun_at = Instant::now();
        while kafka.publish(batch(0..200)).await.iter().any(Result::is_err) {
            assert!(begun_at.elapsed() < Duration::from_secs(60), "they are not found");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        kafka.0.partitions.learn("orders".to_owned(), 4);
        let is_away = |key: usize| kafka.0.partitions.of("orders", &key.to_string()) == Some(1);
        assert!((0..200).any(is_away), "no key leads there");

        mock.broker_down(2).unwrap();
        let begun_at = Instant::now();
        let put_off = loop {
            // The producer learns of it when it asks for the leaders next. On a busy machine others may be late as well, for once.
            let results = kafka.publish(batch(0..200)).await;
            assert!(begun_at.elapsed() < Duration::from_secs(60), "{results:?}");
            let is_alone = results.iter().enumerate().all(|(key, result)| result.is_ok() != is_away(key));
            match results.into_iter().find_map(Result::err) {
                Some(error) if is_alone && !error.is_unasked() => break error,
                Some(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                None => {}
            }
        };
        assert_eq!((put_off.kind(), put_off.is_unasked()), (PublishErrorKind::Deferred, false), "kafka has spoken");
        // Keys that were never tried are known to lead there, and nobody waits for them.
        let waiting = kafka.publish((200..600).filter(|key| is_away(*key)).map(message).collect()).await;
        assert!(waiting.iter().all(|result| result.as_ref().is_err_and(PublishError::is_unasked)), "{waiting:?}");

        let (asked, tried) = loop {
            let tried = kafka.publish((200..600).filter(|key| is_away(*key)).map(message).collect()).await;
            let asked = tried.iter().filter(|result| result.as_ref().is_err_and(|error| !error.is_unasked())).count();
            if asked > 0 {
                break (asked, tried);
            }
            assert!(begun_at.elapsed() < Duration::from_secs(90), "{tried:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        assert_eq!((asked, tried.iter().filter(|result| result.is_ok()).count()), (10, 0), "{tried:?}");

        mock.broker_up(2).unwrap();
        while kafka.publish(batch(0..200)).await.iter().any(Result::is_err) {
            assert!(begun_at.elapsed() < Duration::from_secs(120), "it is back");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
