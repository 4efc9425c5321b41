//! RabbitMQ, read back by pika.

mod outage;
mod refusal;
mod server;

use std::time::Duration;

use futures_util::FutureExt;
use posthaste_core::{Event, MemoryStore, Outbox};
use posthaste_publishers::rabbitmq::{ExchangeKind, ExchangeOptions, QueueOptions, Rabbit, RabbitOptions};
use posthaste_publishers::{PublishErrorKind, Publisher};
use posthaste_torture::proxy::Proxy;
use serde_json::{Value, json};

use crate::backlog::{self, EVENTS};
use crate::formats::{self, CARRIER, Carrier, Seen};

use server::{all_done, ids, message, server, unique, write};

#[tokio::test]
async fn every_property_arrives() {
    let (server, name) = (server(), unique());
    server.make(&json!({
        "exchanges": {&name: "topic"},
        "queues": {&name: {}},
        "bindings": [[&name, &name, "Order.#"]],
    }));
    let rabbit = Rabbit::connect(RabbitOptions::new(&server.url).app_id("shop")).await.unwrap();
    let outbox = Outbox::builder(MemoryStore::new())
        .listen("Order", "*", rabbit.exchange(&name).routing_key("{aggregate_type}.{event_type}.{headers.region}"))
        .start()
        .await
        .unwrap();
    let bytes = [0, 159, 146, 150, 255];
    let events = [
        Event::builder("OrderPlaced")
            .aggregate("Order", 42)
            .tenant_id("acme")
            .header("region", "eu")
            .json_text("{ \"a\": 1}"),
        Event::builder("OrderSent")
            .aggregate("Order", 42)
            .header("region", "ü")
            .bytes(bytes.to_vec())
            .content_type("image/png"),
    ];
    let ids = write(&outbox, events.map(|event| event.build().unwrap())).await;
    all_done(&outbox, 2).await;
    outbox.shutdown().await;

    let mut taken = server.take(&name);
    taken.sort_by_key(|message| message["message_id"].as_str().map(str::to_owned));
    assert_eq!(taken.len(), 2);
    let mut headers = taken[0]["headers"].take();
    let occurred_at = headers["occurred-at"].take();
    assert!(occurred_at.as_str().unwrap().parse::<jiff::Timestamp>().is_ok(), "{occurred_at}");
    assert_eq!(
        headers,
        json!({
            "event-id": ids[0].as_str(), "event-type": "OrderPlaced", "aggregate-type": "Order", "aggregate-id": "42",
            "tenant-id": "acme", "occurred-at": null, "region": "eu",
        })
    );
    assert_eq!(taken[1]["headers"]["region"], "ü");
    for (message, key, content_type, body) in [
        (&taken[0], "Order.OrderPlaced.eu", "application/json", &b"{ \"a\": 1}"[..]),
        (&taken[1], "Order.OrderSent.ü", "image/png", &bytes[..]),
    ] {
        assert_eq!(message["exchange"], name);
        assert_eq!(message["routing_key"], key);
        assert_eq!(message["content_type"], content_type);
        assert_eq!((&message["delivery_mode"], &message["app_id"]), (&json!(2), &json!("shop")));
        assert_eq!(server::body(message), body);
    }
    assert_eq!(taken[0]["message_id"], ids[0].as_str());
    rabbit.close().await;
}

#[tokio::test]
async fn every_format_is_read_back() {
    let (server, name) = (server(), unique());
    let options = RabbitOptions::new(&server.url).declare_queue(QueueOptions::new(&name));
    let rabbit = Rabbit::connect(options).await.unwrap();
    let carrier = Carrier { prefix: "cloudEvents:", ..CARRIER };
    let seen = |message: Value| {
        let (to, body) = (text(&message["routing_key"]).to_owned(), server::body(&message));
        let content_type = message["content_type"].as_str().map(str::to_owned);
        Seen { to, key: None, content_type, headers: formats::headers(&message["headers"]), body }
    };
    let read = async |_| server.take(&name).into_iter().map(seen).collect();
    formats::are_read_back(carrier, &name, || rabbit.queue(&name), read).await;
    rabbit.close().await;
}

#[tokio::test]
async fn a_backlog_goes_in_batches() {
    let (server, name) = (server(), unique());
    let proxy = Proxy::start(server.address()).await.unwrap();
    let options = RabbitOptions::new(format!("amqp://guest:guest@{}/%2f", proxy.addr()));
    let rabbit = Rabbit::connect(options.declare_queue(QueueOptions::new(&name))).await.unwrap();
    backlog::delivered(EVENTS, rabbit.queue(&name), Some(&proxy)).await.is_in_batches();
    assert_eq!(server.count(&name), EVENTS);
    rabbit.close().await;
}

#[tokio::test]
async fn batches_arrive_once_and_in_their_order() {
    let (server, name) = (server(), unique());
    let options = RabbitOptions::new(&server.url).declare_queue(QueueOptions::new(&name));
    let rabbit = Rabbit::connect(options).await.unwrap();
    let mut sent = Vec::new();
    for _ in 0..3 {
        let messages: Vec<_> = (0..500).map(|_| message("", &name)).collect();
        sent.extend(messages.iter().map(|message| message.id.as_str().to_owned()));
        let results = rabbit.publish(messages).await;
        assert_eq!(results.len(), 500);
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }
    assert_eq!(ids(&server.take(&name)), sent);
    rabbit.close().await;
}

#[tokio::test]
async fn a_queue_is_reached_by_its_name_and_a_fanout_without_a_key() {
    let (server, name) = (server(), unique());
    let options = RabbitOptions::new(&server.url)
        .declare_exchange(ExchangeOptions::new(&name, ExchangeKind::Fanout))
        .declare_queue(QueueOptions::quorum(&name))
        .bind(&name, &name, "");
    let rabbit = Rabbit::connect(options.clone()).await.unwrap();
    let outbox = Outbox::builder(MemoryStore::new())
        .listen("Queue", "*", rabbit.queue(&name))
        .listen("Fanout", "*", rabbit.exchange(&name).no_routing_key())
        .start()
        .await
        .unwrap();
    let event = |aggregate: &str| Event::builder("E").aggregate(aggregate, 1).json_text("{}").build().unwrap();
    write(&outbox, [event("Queue"), event("Fanout")]).await;
    all_done(&outbox, 2).await;
    outbox.shutdown().await;
    let mut from: Vec<_> =
        server.take(&name).iter().map(|message| message["exchange"].as_str().unwrap().to_owned()).collect();
    from.sort();
    assert_eq!(from, ["", &name]);
    rabbit.check().await.unwrap();

    // The same declarations again do no harm; others are refused, by name.
    Rabbit::connect(options).await.unwrap().close().await;
    let other = RabbitOptions::new(&server.url).declare_queue(QueueOptions::new(&name).argument("x-max-length", 5));
    let refused = Rabbit::connect(other).await.unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("cannot declare the queue") && text.contains(&name) && text.contains("PRECONDITION_FAILED"),
        "{text}"
    );
    rabbit.close().await;
}

#[tokio::test]
async fn a_wrong_template_is_shown_as_it_was_written() {
    let rabbit = Rabbit::connect(RabbitOptions::new("amqp://127.0.0.1:1").lazy(true)).await.unwrap();
    for destination in [
        rabbit.exchange("shop").routing_key("{color}"),
        rabbit.exchange("{color}").routing_key("x"),
        rabbit.queue("{color}"),
    ] {
        let refused = Outbox::builder(MemoryStore::new()).listen("Order", "*", destination).start().await.unwrap_err();
        let text = format!("{:#}", anyhow::Error::from(refused));
        assert!(text.contains("the template \"{color}\" has the place {color}"), "{text}");
    }
}

#[tokio::test]
async fn closing_waits_for_what_is_on_its_way_and_ends_everything() {
    let (server, name) = (server(), unique());
    let options = RabbitOptions::new(&server.url).declare_queue(QueueOptions::new(&name));
    let rabbit = Rabbit::connect(options).await.unwrap();
    let mut publishing = std::pin::pin!(rabbit.publish((0..500).map(|_| message("", &name)).collect()));
    // Whatever it waits for now, it has begun.
    assert!(publishing.as_mut().now_or_never().is_none());
    let closing = tokio::time::timeout(Duration::from_secs(12), rabbit.close());
    let (results, closed) = futures_util::future::join(publishing, closing).await;
    closed.unwrap();
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(server.take(&name).len(), 500);
    let after = rabbit.publish(vec![message("", &name)]).await.remove(0).unwrap_err();
    assert_eq!(after.kind(), PublishErrorKind::Outage);
    assert!(rabbit.check().await.unwrap_err().to_string().contains("closed by this program"));
}

#[test]
fn options_are_read_from_a_file_and_keep_their_secret() {
    let text = r#"
        url = "amqp://shop:secret@broker/%2f"
        app_id = "shop"
        confirm_timeout = "2s"
        exchanges = [{ name = "shop", kind = "direct", arguments = { alternate-exchange = "rest" } }]
        queues = [{ name = "billing", arguments = { x-max-length = 10, x-single-active-consumer = true } }]
        bindings = [{ queue = "billing", exchange = "shop", routing_key = "Order" }]
    "#;
    let options: RabbitOptions = toml::from_str(text).unwrap();
    let shown = format!("{options:?}");
    assert!(shown.contains("billing") && shown.contains("Direct") && !shown.contains("secret"), "{shown}");
    let unknown = toml::from_str::<RabbitOptions>("url = 'amqp://x'\nmandatroy = true").unwrap_err();
    assert!(unknown.to_string().contains("mandatroy"), "{unknown}");
}

#[tokio::test]
async fn options_without_effect_are_refused() {
    let options = RabbitOptions::new("amqp://127.0.0.1:1").lazy(true);
    for (wrong, said) in
        [(options.clone().ca_file("/ca.pem"), "amqps://"), (options.clone().app_id("x".repeat(256)), "app_id")]
    {
        let refused = Rabbit::connect(wrong).await.unwrap_err();
        assert_eq!(refused.kind(), PublishErrorKind::Permanent);
        assert!(refused.to_string().contains(said), "{refused}");
    }
    Rabbit::connect(options.app_id("x".repeat(255))).await.unwrap();
}

#[cfg(feature = "rabbitmq-tls")]
#[tokio::test]
async fn tls_is_spoken_with_who_can_prove_it() {
    let (server, name) = (server(), unique());
    let (url, ca) =
        (server::variable("POSTHASTE_TEST_RABBITMQ_TLS_URL"), server::variable("POSTHASTE_TEST_RABBITMQ_TLS_CA"));
    let options = RabbitOptions::new(&url).declare_queue(QueueOptions::new(&name));
    let refused = Rabbit::connect(options.clone()).await.unwrap_err();
    assert!(refused.to_string().contains("certificate"), "{refused}");
    let rabbit = Rabbit::connect(options.ca_file(ca)).await.unwrap();
    assert!(rabbit.publish(vec![message("", &name)]).await[0].is_ok());
    assert_eq!(server.take(&name).len(), 1);
    rabbit.close().await;
}

/// For those who only look at the first of something.
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
