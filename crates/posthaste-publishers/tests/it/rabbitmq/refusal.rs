//! Messages that the broker does not take, among others that it takes.

use std::collections::HashSet;

use posthaste_publishers::PublishErrorKind::{Outage, Permanent, Retryable};
use posthaste_publishers::rabbitmq::{QueueOptions, Rabbit, RabbitOptions};
use posthaste_publishers::{Headers, Message, PublishError, PublishErrorKind, Publisher};
use serde_json::json;

use super::server::{Server, ids, message, server, unique};

/// A connection, and a queue that is bound to an exchange of the same name for everything that begins with `yes`.
async fn shop(server: &Server, name: &str) -> Rabbit {
    server.make(&json!({
        "exchanges": {name: "topic"},
        "queues": {name: {}},
        "bindings": [[name, name, "yes.#"]],
    }));
    Rabbit::connect(RabbitOptions::new(&server.url)).await.unwrap()
}

fn kinds(results: &[Result<(), PublishError>]) -> Vec<Option<PublishErrorKind>> {
    results.iter().map(|result| result.as_ref().err().map(PublishError::kind)).collect()
}

/// Publishes them all at once. Those that are `bad` must be refused so, and alone: the others are there, in their order, and
/// repeated only where the broker has closed the channel.
async fn only_bad_ones_are_refused(
    rabbit: &Rabbit,
    server: &Server,
    queue: &str,
    messages: Vec<(Message, Option<PublishErrorKind>)>,
) -> Vec<String> {
    let (messages, expected): (Vec<_>, Vec<_>) = messages.into_iter().unzip();
    let sent: Vec<_> = messages.iter().map(|message| message.id.as_str().to_owned()).collect();
    let results = rabbit.publish(messages).await;
    assert_eq!(kinds(&results), expected, "{results:?}");
    let taken = ids(&server.take(queue));
    let mut seen = HashSet::new();
    let first_seen: Vec<_> = taken.into_iter().filter(|id| seen.insert(id.clone())).collect();
    let good: Vec<_> = sent.into_iter().zip(&expected).filter(|(_, bad)| bad.is_none()).map(|(id, _)| id).collect();
    assert_eq!(first_seen, good);
    results.into_iter().filter_map(Result::err).map(|error| error.to_string()).collect()
}

#[tokio::test]
async fn what_no_queue_gets_is_not_done_and_nobody_else_is_blamed() {
    let (server, name) = (server(), unique());
    let kept = shop(&server, &name).await;
    // Acknowledged sooner, many by one.
    let quick = Rabbit::connect(RabbitOptions::new(&server.url).persistent(false)).await.unwrap();
    for round in 0..20 {
        let rabbit = if round % 2 == 0 { &quick } else { &kept };
        let messages = (0..300).map(|place| match (place + round) % 7 {
            0 | 3 => (message(&name, &format!("no.{place}")), Some(Retryable)),
            _ => (message(&name, "yes"), None),
        });
        let errors = only_bad_ones_are_refused(rabbit, &server, &name, messages.collect()).await;
        assert!(errors.iter().all(|error| error.contains("NO_ROUTE") && error.contains("no.")), "{errors:?}");
    }
    let careless = Rabbit::connect(RabbitOptions::new(&server.url).mandatory(false)).await.unwrap();
    assert!(careless.publish(vec![message(&name, "no")]).await[0].is_ok());
}

#[tokio::test]
async fn a_missing_exchange_is_the_fault_of_those_alone_that_name_it() {
    let (server, name) = (server(), unique());
    let rabbit = shop(&server, &name).await;
    for every in [2, 31, 400] {
        let messages = (0..400).map(|place| match place % every == every / 2 {
            true => (message(&format!("{name}.missing.{}", place % 3), "yes"), Some(Retryable)),
            false => (message(&name, "yes"), None),
        });
        let errors = only_bad_ones_are_refused(&rabbit, &server, &name, messages.collect()).await;
        assert!(errors.iter().all(|error| error.contains("NOT_FOUND") && error.contains(".missing.")), "{errors:?}");
    }
    // As soon as it is there it is used.
    let late = format!("{name}.late");
    assert_eq!(kinds(&rabbit.publish(vec![message(&late, "yes")]).await), [Some(Retryable)]);
    server.make(&json!({"exchanges": {&late: "topic"}, "bindings": [[&name, &late, "yes"]]}));
    assert_eq!(kinds(&rabbit.publish(vec![message(&late, "yes")]).await), [None]);
}

#[tokio::test]
async fn a_closed_channel_does_not_touch_batches_beside_it() {
    let (server, name) = (server(), unique());
    let rabbit = shop(&server, &name).await;
    let bad = async {
        for _ in 0..20 {
            assert_eq!(kinds(&rabbit.publish(vec![message("nowhere", "yes")]).await), [Some(Retryable)]);
        }
    };
    let good = async {
        let mut sent = Vec::new();
        for _ in 0..20 {
            let messages: Vec<_> = (0..100).map(|_| message(&name, "yes")).collect();
            sent.extend(messages.iter().map(|message| message.id.as_str().to_owned()));
            assert!(rabbit.publish(messages).await.iter().all(Result::is_ok));
        }
        sent
    };
    let ((), sent) = tokio::join!(bad, good);
    assert_eq!(ids(&server.take(&name)), sent, "exactly once: nothing of it was in doubt");
}

#[tokio::test]
async fn what_is_too_large_for_the_broker_is_dead_and_alone() {
    let (server, name) = (server(), unique());
    let rabbit = shop(&server, &name).await;
    let messages = (0..60).map(|place| match place {
        17 | 40 => (Message { body: vec![b'x'; 1_000_001].into(), ..message(&name, "yes") }, Some(Permanent)),
        18 => (Message { body: vec![b'x'; 1_000_000].into(), ..message(&name, "yes") }, None),
        _ => (message(&name, "yes"), None),
    });
    let errors = only_bad_ones_are_refused(&rabbit, &server, &name, messages.collect()).await;
    assert!(errors.iter().all(|error| error.contains("larger than")), "{errors:?}");
}

#[tokio::test]
async fn what_the_protocol_has_no_room_for_is_never_sent() {
    let (server, name) = (server(), unique());
    let rabbit = shop(&server, &name).await;
    let long = "x".repeat(256);
    let header = |name: &str, value: String| Headers::from([(name.to_owned(), value)]);
    let messages = vec![
        (message(&name, "yes"), None),
        (message(&name, &long), Some(Permanent)),
        (message(&long, "yes"), Some(Permanent)),
        (Message { content_type: long.clone().into(), ..message(&name, "yes") }, Some(Permanent)),
        (Message { headers: header(&long, "x".into()), ..message(&name, "yes") }, Some(Permanent)),
        (Message { headers: header("big", "x".repeat(200_000)), ..message(&name, "yes") }, Some(Permanent)),
        (Message { headers: header("big", "x".repeat(131_072 - 400)), ..message(&name, "yes") }, None),
        (message(&name, &format!("yes.{}", &long[..251])), None),
    ];
    only_bad_ones_are_refused(&rabbit, &server, &name, messages).await;
}

#[tokio::test]
async fn who_may_not_write_there_is_refused_and_others_are_not() {
    let (server, name) = (server(), unique());
    let open = format!("open.{name}");
    server.make(&json!({
        "exchanges": {&open: "topic", &name: "topic"},
        "queues": {&name: {}},
        "bindings": [[&name, &open, "#"]],
    }));
    let rabbit = Rabbit::connect(RabbitOptions::new(server.url_of("limited", "limited"))).await.unwrap();
    let messages = (0..40).map(|place| match place % 5 {
        3 => (message(&name, "yes"), Some(Retryable)),
        _ => (message(&open, "yes"), None),
    });
    let errors = only_bad_ones_are_refused(&rabbit, &server, &name, messages.collect()).await;
    assert!(errors.iter().all(|error| error.contains("ACCESS_REFUSED")), "{errors:?}");

    let stranger = RabbitOptions::new(server.url_of("limited", "wrong"));
    let refused = Rabbit::connect(stranger.clone()).await.unwrap_err();
    assert!(refused.to_string().contains("ACCESS_REFUSED"), "{refused}");
    assert_eq!(refused.kind(), Permanent);
    let lazy = Rabbit::connect(stranger.lazy(true)).await.unwrap();
    // Once messages are on their way it is an outage: somebody may change the password back.
    assert_eq!(kinds(&lazy.publish(vec![message(&open, "yes")]).await), [Some(Outage)]);
    assert_eq!(lazy.check().await.unwrap_err().kind(), Permanent);
    let nowhere = RabbitOptions::new(server.url.replacen("%2f", "nowhere", 1));
    assert_eq!(Rabbit::connect(nowhere).await.unwrap_err().kind(), Permanent);
}

#[tokio::test]
async fn a_queue_that_is_another_than_declared_is_said_at_the_start() {
    let (server, name) = (server(), unique());
    server.make(&json!({"exchanges": {}, "queues": {&name: {}}, "bindings": []}));
    let options = RabbitOptions::new(&server.url).declare_queue(QueueOptions::new(&name).argument("x-max-length", 7));
    let refused = Rabbit::connect(options.clone()).await.unwrap_err();
    assert!(refused.to_string().contains("PRECONDITION_FAILED") && refused.kind() == Permanent, "{refused:?}");
    let lazy = Rabbit::connect(options.lazy(true)).await.unwrap();
    assert_eq!(lazy.check().await.unwrap_err().kind(), Permanent);
    assert_eq!(kinds(&lazy.publish(vec![message("", &name)]).await), [Some(Outage)]);
    assert_eq!(server.count(&name), 0);
}

#[tokio::test]
async fn a_full_queue_refuses_what_it_does_not_keep() {
    let (server, name) = (server(), unique());
    let queue = QueueOptions::new(&name).argument("x-max-length", 3).argument("x-overflow", "reject-publish");
    let rabbit = Rabbit::connect(RabbitOptions::new(&server.url).declare_queue(queue)).await.unwrap();
    let messages: Vec<_> = (0..10).map(|_| message("", &name)).collect();
    let sent: Vec<_> = messages.iter().map(|message| message.id.as_str().to_owned()).collect();
    let results = rabbit.publish(messages).await;
    let taken = ids(&server.take(&name));
    let done: Vec<_> = sent.into_iter().zip(&results).filter(|(_, result)| result.is_ok()).map(|(id, _)| id).collect();
    assert_eq!(taken, done);
    assert!(!taken.is_empty() && taken.len() < 10, "{results:?}");
    for error in results.into_iter().filter_map(Result::err) {
        assert_eq!(error.kind(), Retryable);
        assert!(error.to_string().contains("nack"), "{error}");
    }
}
