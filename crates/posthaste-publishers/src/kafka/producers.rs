//! The producers that a connection keeps: one for each size of requests.

use std::sync::{MutexGuard, PoisonError};

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::Producer as _;
use tracing::{info, warn};

use super::producer::Producer;
use super::requests::{SIZES, Size};
use super::{Error, Kafka};
use crate::publisher::{PublishError, Publisher};

/// The producers of a connection, until it is closed.
#[derive(Default)]
pub(super) struct Producers {
    /// One for each size of requests, once it was needed; and those that leave no gaps.
    by_size: [Option<Producer>; SIZES],
    gapless: [Option<Producer>; SIZES],
    closed: bool,
    /// A topic that took something, and is there.
    pub(super) known_topic: Option<String>,
}

impl Producers {
    /// Makes no more of them, and gives those that there are.
    pub(super) fn close(&mut self) -> Vec<Producer> {
        self.closed = true;
        let all = [std::mem::take(&mut self.by_size), std::mem::take(&mut self.gapless)];
        all.into_iter().flatten().flatten().collect()
    }

    fn all(&mut self, gapless: bool) -> &mut [Option<Producer>; SIZES] {
        if gapless { &mut self.gapless } else { &mut self.by_size }
    }
}

impl Kafka {
    pub(super) fn producers(&self) -> MutexGuard<'_, Producers> {
        self.0.producers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The producer, or another if it has had a fatal error, after which it takes nothing any more.
    pub(super) fn producer(&self, size: Size) -> Result<Producer, KafkaError> {
        self.producer_of(size, false)
    }

    pub(super) fn producer_of(&self, size: Size, gapless: bool) -> Result<Producer, KafkaError> {
        let mut producers = self.producers();
        if producers.closed {
            return Err(KafkaError::Canceled);
        }
        let place = &mut producers.all(gapless)[size.index()];
        if let Some(producer) = place {
            match producer.client().fatal_error() {
                None => return Ok(producer.clone()),
                Some((RDKafkaErrorCode::GaplessGuarantee, reason)) => {
                    info!(
                        destination = self.name(),
                        reason, "kafka's producer leaves no gap in the order; making another"
                    );
                }
                Some((code, reason)) => {
                    warn!(destination = self.name(), %code, reason, "fatal error of kafka's producer; making another");
                }
            }
        }
        let mut config = self.0.config.clone();
        size.set(&mut config);
        if gapless {
            config.set("enable.gapless.guarantee", "true");
            // What times out one by one leaves gaps all the same. So nothing does, and all of it is given up together.
            config.set("message.timeout.ms", "0");
        }
        let producer = Producer::new(&config)?;
        *place = Some(producer.clone());
        Ok(producer)
    }

    /// Lets the next batch have another producer, if this is still the one.
    ///
    /// After a timeout a producer goes on with the next epoch of its id, which it does not announce. Not every broker that
    /// speaks the protocol bears that; another producer begins with an id of its own.
    pub(super) fn retire(&self, size: Size, producer: &Producer) {
        let mut producers = self.producers();
        for gapless in [false, true] {
            producers.all(gapless)[size.index()].take_if(|current| current.is(producer));
        }
    }
}

pub(super) fn no_producer(error: KafkaError) -> PublishError {
    match error {
        KafkaError::Canceled => PublishError::outage("the connection to kafka was closed"),
        error => match Error::client(error) {
            Error::Client(error) => PublishError::outage(error),
            other => PublishError::outage(other),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rdkafka::mocking::MockCluster;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

    use super::super::KafkaOptions;
    use super::*;
    use crate::publisher::{Message, PublishErrorKind};

    #[tokio::test(flavor = "multi_thread")]
    async fn the_producer_that_had_no_answer_is_replaced_and_no_other() {
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic("orders", 1, 1).unwrap();
        let options = KafkaOptions::new(mock.bootstrap_servers()).delivery_timeout(Duration::from_secs(3));
        let kafka = Kafka::connect(options).await.unwrap();
        let first = kafka.producer(Size::default()).unwrap();
        let message = || Message {
            id: posthaste_core::EventId::generate(),
            to: "orders".into(),
            key: None,
            content_type: "text/plain".into(),
            headers: crate::Headers::default(),
            body: "x".into(),
        };
        // Once it has found its broker, the first one has its answer at once, however busy the machine is.
        kafka.publish(vec![message()]).await.remove(0).unwrap();
        let mut errors = vec![RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT; 1_000];
        errors[0] = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
        mock.request_errors(RDKafkaApiKey::Produce, &errors);
        let result = kafka.publish(vec![message()]).await.remove(0);
        assert_eq!(result.unwrap_err().kind(), PublishErrorKind::Deferred);
        let producers = kafka.producers();
        assert!(producers.by_size[0].as_ref().is_some_and(|current| current.is(&first)));
        assert!(producers.by_size[1..].iter().all(Option::is_none));
    }
}
