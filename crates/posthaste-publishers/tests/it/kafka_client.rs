//! Kafka without a broker: what is known before there is one, and librdkafka's own mock for what the broker of the other tests never
//! says: that somebody is not authorised for a topic, that a request is too large, that a partition has no leader or too few replicas
//! (also in `src/kafka`). Nobody but the mock has said these to this code.

use std::time::Duration;

use posthaste_core::{Event, MemoryStore, Options, Outbox};
use posthaste_publishers::kafka::{Compression, Error, Kafka, KafkaOptions};
use posthaste_publishers::{BreakerState, Message, PublishErrorKind, Publisher};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use tokio::time::Instant;

use crate::kafka::{PATIENCE, assert_all_arrived, failures, kinds, message, numbered, until, write};

const DEFERRED: Option<PublishErrorKind> = Some(PublishErrorKind::Deferred);

/// A cluster that answers with these errors first, which the broker of the other tests never does.
async fn mocked(errors: &[RDKafkaRespErr]) -> (MockCluster<'static, DefaultProducerContext>, Kafka) {
    let mock = MockCluster::new(1).unwrap();
    mock.create_topic("orders", 1, 1).unwrap();
    let kafka = Kafka::connect(KafkaOptions::new(mock.bootstrap_servers())).await.unwrap();
    mock.request_errors(RDKafkaApiKey::Produce, errors);
    (mock, kafka)
}

/// A cluster in which one topic has no leader.
async fn leaderless(timeout: Duration) -> (MockCluster<'static, DefaultProducerContext>, Kafka) {
    let mock = MockCluster::new(1).unwrap();
    mock.create_topic("orders", 1, 1).unwrap();
    mock.create_topic("leaderless", 1, 1).unwrap();
    mock.partition_leader("leaderless", 0, None).unwrap();
    let options = KafkaOptions::new(mock.bootstrap_servers()).delivery_timeout(timeout);
    let kafka = Kafka::connect(options).await.unwrap();
    (mock, kafka)
}

/// What the mock has stored, as its own client reads it.
fn stored(mock: &MockCluster<'_, DefaultProducerContext>, topic: &str) -> Vec<String> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", mock.bootstrap_servers())
        .set("group.id", "reader")
        .set("enable.partition.eof", "true")
        .create()
        .unwrap();
    let mut from = TopicPartitionList::new();
    from.add_partition_offset(topic, 0, Offset::Beginning).unwrap();
    consumer.assign(&from).unwrap();
    let mut bodies = Vec::new();
    loop {
        match consumer.poll(PATIENCE).expect("there is an end") {
            Ok(record) => bodies.push(String::from_utf8(record.payload().unwrap().to_vec()).unwrap()),
            Err(KafkaError::PartitionEOF(_)) => return bodies,
            Err(error) => panic!("{error}"),
        }
    }
}

fn texts(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|number| number.to_string()).collect()
}

async fn in_order(kafka: &Kafka, messages: Vec<Message>) -> Vec<Option<PublishErrorKind>> {
    let noted = posthaste_publishers::Results::new(messages.len(), Instant::now() + PATIENCE).in_order();
    kafka.publish_into(messages, &noted).await;
    kinds(&noted.into_noted().into_iter().map(Option::unwrap).collect::<Vec<_>>())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kafka_that_is_not_there_is_told_at_the_start_or_counts_as_an_outage() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let options = KafkaOptions::new(&nobody).connect_timeout(Duration::from_secs(1));
    let error = Kafka::connect(options.clone()).await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { brokers, .. } if *brokers == nobody), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");

    let lazy = Kafka::connect(options.lazy(true).delivery_timeout(Duration::from_secs(1))).await.unwrap();
    let begun_at = Instant::now();
    let results = lazy.publish(numbered("orders", 2, 0..10)).await;
    assert_eq!(kinds(&results), [Some(PublishErrorKind::Outage); 10]);
    let reason = results[0].as_ref().unwrap_err().to_string();
    assert!(reason.contains("refused"), "{reason}");
    assert!(begun_at.elapsed() < Duration::from_secs(6), "{:?}", begun_at.elapsed());
}

#[tokio::test]
async fn a_property_that_breaks_a_promise_and_one_that_is_unknown_are_refused() {
    let error = Kafka::connect(KafkaOptions::new("127.0.0.1:1").property("acks", "1")).await.unwrap_err();
    assert!(matches!(&error, Error::Property { property, .. } if property == "acks"), "{error}");
    let error = Kafka::connect(KafkaOptions::new("127.0.0.1:1").property("lingerms", "1")).await.unwrap_err();
    assert!(matches!(&error, Error::Client(source) if source.to_string().contains("lingerms")), "{error:?}");
    for (property, value) in [("sasl.pasword", "hunter2"), ("ssl.endpoint.identification.algorithm", "hunter2")] {
        let error = Kafka::connect(KafkaOptions::new("127.0.0.1:1").property(property, value)).await.unwrap_err();
        let shown = format!("{error:?}");
        let text = format!("{shown} {:#}", anyhow::Error::from(error));
        assert!(text.contains(property) && !text.contains(value), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_authorised_for_a_topic_is_told_so_and_may_be_later() {
    let (_mock, kafka) = mocked(&[RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED]).await;
    let results = kafka.publish(numbered("orders", 1, 0..1)).await;
    assert_eq!(kinds(&results), [Some(PublishErrorKind::Retryable)], "{results:?}");
    let reason = results[0].as_ref().unwrap_err().to_string();
    assert!(reason.contains("allow this user to write to the topic"), "{reason}");
    // The client remembers it for a while.
    let give_up_at = Instant::now() + PATIENCE;
    while kinds(&kafka.publish(numbered("orders", 1, 0..1)).await) != [None] {
        assert!(Instant::now() < give_up_at, "nobody refuses it any more");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_without_a_leader_or_enough_replicas_is_put_off_and_tried_again() {
    for code in
        [RDKafkaRespErr::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE, RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS]
    {
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic("orders", 1, 1).unwrap();
        let options = KafkaOptions::new(mock.bootstrap_servers()).delivery_timeout(Duration::from_secs(3));
        let kafka = Kafka::connect(options).await.unwrap();
        let give_up_at = Instant::now() + PATIENCE;
        let until_taken = async || {
            while kinds(&kafka.publish(numbered("orders", 1, 0..1)).await) != [None] {
                assert!(Instant::now() < give_up_at, "{code:?}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        // Its broker is known from here on, however busy the machine is.
        until_taken().await;
        mock.request_errors(RDKafkaApiKey::Produce, &vec![code; 10_000]);
        let results = kafka.publish(numbered("orders", 1, 0..1)).await;
        assert_eq!(kinds(&results), [DEFERRED], "{code:?}: {results:?}");
        mock.clear_request_errors(RDKafkaApiKey::Produce);
        until_taken().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_too_large_kills_no_message_that_is_not() {
    let too_large = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    // The request with all of them, whatever its size may be, and then one of the messages alone.
    let fine = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR;
    let (_mock, kafka) = mocked(&[too_large, too_large, too_large, too_large, fine, too_large]).await;
    let results = kafka.publish(numbered("orders", 1, 0..4)).await;
    assert_eq!(kinds(&results), [None, Some(PublishErrorKind::Permanent), None, None]);
    let reason = results[1].as_ref().unwrap_err().to_string();
    assert!(reason.contains("max.message.bytes"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_refused_together_while_it_is_closed_is_not_dead() {
    let mock = MockCluster::new(1).unwrap();
    mock.create_topic("orders", 1, 1).unwrap();
    let slow = KafkaOptions::new(mock.bootstrap_servers()).property("linger.ms", "500");
    let kafka = Kafka::connect(slow).await.unwrap();
    mock.request_errors(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE]);
    let publishing = kafka.publish(numbered("orders", 1, 0..10));
    let (results, ()) = futures_util::future::join(publishing, kafka.close()).await;
    assert_eq!(kinds(&results), [Some(PublishErrorKind::Outage); 10]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_refused_together_does_not_go_alone_one_after_the_other() {
    let (mock, kafka) = mocked(&[RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE]).await;
    mock.broker_round_trip_time(1, Duration::from_millis(50)).unwrap();
    let begun_at = Instant::now();
    assert_all_arrived(&kafka.publish(numbered("orders", 1, 0..500)).await);
    assert!(begun_at.elapsed() < Duration::from_secs(10), "{:?}", begun_at.elapsed());
    assert_all_arrived(&kafka.publish(numbered("orders", 1, 500..1_000)).await);
    assert_eq!(stored(&mock, "orders"), texts(0..1_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_compressed_by_snappy_is_read_back() {
    let mock = MockCluster::new(1).unwrap();
    mock.create_topic("orders", 1, 1).unwrap();
    let options = KafkaOptions::new(mock.bootstrap_servers()).compression(Compression::Snappy);
    let kafka = Kafka::connect(options).await.unwrap();
    assert_all_arrived(&kafka.publish(numbered("orders", 3, 0..500)).await);
    assert_eq!(stored(&mock, "orders"), texts(0..500));
}

#[tokio::test(flavor = "multi_thread")]
async fn in_order_a_refusal_leaves_no_gap() {
    let mock = MockCluster::new(1).unwrap();
    mock.create_topic("orders", 1, 1).unwrap();
    // One message in each request, and several of them on their way.
    let options = KafkaOptions::new(mock.bootstrap_servers()).property("batch.num.messages", "1");
    let kafka = Kafka::connect(options).await.unwrap();
    let (fine, refused) =
        (RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR, RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED);
    // Their mock takes what comes behind a gap, unlike a broker, so that all that is on its way is refused.
    let errors: Vec<_> = [fine; 3].into_iter().chain([refused; 5]).collect();
    mock.request_errors(RDKafkaApiKey::Produce, &errors);
    let batch = numbered("orders", 1, 0..40);
    let said = in_order(&kafka, batch.clone()).await;
    assert_eq!(said[..4], [None, None, None, Some(PublishErrorKind::Retryable)]);
    assert_eq!(said[4..], [DEFERRED; 36]);
    assert_eq!(stored(&mock, "orders"), texts(0..3));
    // With another producer it goes on.
    mock.clear_request_errors(RDKafkaApiKey::Produce);
    assert_eq!(in_order(&kafka, batch[3..].to_vec()).await, [None; 37]);
    assert_eq!(stored(&mock, "orders"), texts(0..40));
}

#[tokio::test(flavor = "multi_thread")]
async fn in_order_what_is_refused_together_comes_again_with_fewer() {
    let too_large = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    let (mock, kafka) = mocked(&[too_large, too_large]).await;
    let mut left = numbered("orders", 1, 0..50);
    let mut rounds = 0;
    while !left.is_empty() {
        rounds += 1;
        let said = in_order(&kafka, left.clone()).await;
        let through = said.iter().take_while(|said| said.is_none()).count();
        assert!(said[through..].iter().all(|said| *said == DEFERRED), "{said:?}");
        left.drain(..through);
        assert!(rounds < 20, "{} are left", left.len());
    }
    assert!(rounds > 1, "nothing was refused");
    assert_eq!(stored(&mock, "orders"), texts(0..50));
}

#[tokio::test(flavor = "multi_thread")]
async fn in_order_what_goes_to_another_topic_waits_for_what_is_before_it() {
    let (mock, kafka) = leaderless(Duration::from_secs(4)).await;
    let batch = vec![
        message("orders", "a", "0"),
        message("leaderless", "a", "1"),
        message("orders", "a", "2"),
        message("orders", "b", "3"),
    ];
    assert_eq!(in_order(&kafka, batch).await, [None, DEFERRED, DEFERRED, None]);
    let mut taken = stored(&mock, "orders");
    taken.sort();
    assert_eq!(taken, ["0", "3"]);
    // It is left alone for a while, and so is what is behind it.
    let batch = vec![message("leaderless", "a", "1"), message("orders", "a", "2"), message("orders", "b", "4")];
    assert_eq!(in_order(&kafka, batch).await, [DEFERRED, DEFERRED, None]);
}

#[tokio::test(flavor = "multi_thread")]
async fn in_order_events_of_one_key_do_not_wait_for_each_other() {
    let (mock, kafka) = mocked(&[]).await;
    mock.broker_round_trip_time(1, Duration::from_millis(50)).unwrap();
    let begun_at = Instant::now();
    assert_eq!(in_order(&kafka, numbered("orders", 1, 0..500)).await, [None; 500]);
    // One after the other they would take 25 s.
    assert!(begun_at.elapsed() < Duration::from_secs(10), "{:?}", begun_at.elapsed());
    assert_eq!(stored(&mock, "orders"), texts(0..500));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_without_a_leader_puts_off_its_own_messages_and_no_others() {
    let (mock, kafka) = leaderless(Duration::from_secs(4)).await;
    let batch = vec![message("orders", "a", "0"), message("leaderless", "a", "1"), message("orders", "a", "2")];
    assert_eq!(kinds(&kafka.publish(batch).await), [None, Some(PublishErrorKind::Deferred), None]);
    // It is left alone for a while, and does not hold up the others.
    let begun_at = Instant::now();
    let batch = vec![message("leaderless", "a", "3"), message("orders", "a", "4")];
    let results = kafka.publish(batch).await;
    assert_eq!(kinds(&results), [Some(PublishErrorKind::Deferred), None]);
    assert!(begun_at.elapsed() < Duration::from_secs(3), "{:?}", begun_at.elapsed());
    mock.partition_leader("leaderless", 0, Some(1)).unwrap();
    let give_up_at = Instant::now() + PATIENCE;
    while kinds(&kafka.publish(vec![message("leaderless", "a", "5")]).await) != [None] {
        assert!(Instant::now() < give_up_at, "it has a leader");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_without_a_leader_opens_no_breaker_and_uses_up_no_attempt() {
    let (mock, kafka) = leaderless(Duration::from_secs(1)).await;
    let outbox = Outbox::builder(MemoryStore::new())
        .listen("Order", "*", kafka.topic("orders"))
        .listen("Bill", "*", kafka.topic("leaderless"))
        .options(Options { retry_attempts: 1, ..Options::default() })
        .start()
        .await
        .unwrap();
    let event = |aggregate: &str| Event::builder("Placed").aggregate(aggregate, 1).json_text("{}").build().unwrap();
    write(&outbox, [event("Bill")]).await;
    for round in 1..=5 {
        write(&outbox, [event("Order")]).await;
        until(&outbox, "the others done", |counts| counts.done == round).await;
        for _ in 0..100 {
            assert_eq!(kafka.breaker().state(), BreakerState::Closed);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    mock.partition_leader("leaderless", 0, Some(1)).unwrap();
    until(&outbox, "all done", |counts| counts.done == 6).await;
    assert_eq!(failures(&outbox).await, Vec::<String>::new());
    outbox.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_we_may_not_write_to_is_retryable() {
    let (_mock, kafka) = mocked(&[RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED]).await;
    let results = kafka.publish(numbered("orders", 1, 0..2)).await;
    assert_eq!(kinds(&results), [Some(PublishErrorKind::Retryable); 2]);
    assert!(results[0].as_ref().unwrap_err().to_string().contains("allow this user to write"));
    // Somebody has allowed it.
    let give_up_at = Instant::now() + PATIENCE;
    while kinds(&kafka.publish(numbered("orders", 1, 2..4)).await) != [None; 2] {
        assert!(Instant::now() < give_up_at, "the client never asks again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_fatal_error_there_is_another_producer() {
    let (_mock, kafka) = mocked(&[RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER]).await;
    let results = kafka.publish(numbered("orders", 1, 0..2)).await;
    assert_eq!(kinds(&results), [Some(PublishErrorKind::Outage); 2]);
    let reason = results[0].as_ref().unwrap_err().to_string();
    assert!(reason.contains("sequence desynchronization"), "{reason}");
    assert_all_arrived(&kafka.publish(numbered("orders", 1, 2..4)).await);
}
