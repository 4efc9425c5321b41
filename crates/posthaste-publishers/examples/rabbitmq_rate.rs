//! How many messages a second the publisher for RabbitMQ brings over, beside a bare loop of its client, in turns.
//!
//! ```sh
//! eval "$(scripts/brokers/rabbitmq start DIR)"
//! cargo run --release -p posthaste-publishers --features rabbitmq --example rabbitmq_rate
//! ```

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueuePurgeOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use posthaste_core::EventId;
use posthaste_publishers::rabbitmq::{QueueOptions, Rabbit, RabbitOptions};
use posthaste_publishers::{Message, Publisher};

const QUEUE: &str = "posthaste.rate";
const ROUNDS: usize = 7;
const BATCHES: usize = 40;
const BATCH: usize = 500;
const BODY: usize = 256;

#[tokio::main]
async fn main() -> Result<()> {
    let url =
        std::env::var("POSTHASTE_TEST_RABBITMQ_URL").context("start a broker: scripts/brokers/rabbitmq start DIR")?;
    let rabbit = Rabbit::connect(RabbitOptions::new(&url).declare_queue(QueueOptions::new(QUEUE))).await?;
    let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;

    let mut ratios = Vec::new();
    for round in 0..=ROUNDS {
        let bare = bare(&channel).await?;
        let ours = ours(&rabbit).await?;
        channel.queue_purge(QUEUE.into(), QueuePurgeOptions::default()).await?;
        // The first is for warming up.
        if round > 0 {
            println!("client {bare:>8.0}/s   publisher {ours:>8.0}/s   ratio {:.2}", ours / bare);
            ratios.push(ours / bare);
        }
    }
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.2}, {BATCH} messages of {BODY} bytes at once, persistent", ratios[ROUNDS / 2]);
    rabbit.close().await;
    Ok(())
}

/// What somebody would write who has only the client: send a batch, wait for all its confirmations.
async fn bare(channel: &Channel) -> Result<f64> {
    let body = vec![b'x'; BODY];
    let begun = Instant::now();
    for _ in 0..BATCHES {
        let mut confirms = Vec::with_capacity(BATCH);
        for _ in 0..BATCH {
            let mut headers = FieldTable::default();
            for (name, value) in headers_of_an_event() {
                headers.insert(ShortString::try_new(name)?, AMQPValue::LongString(value.into()));
            }
            let properties = BasicProperties::default()
                .with_message_id(ShortString::try_new(EventId::generate().as_str())?)
                .with_content_type("application/json".into())
                .with_headers(headers)
                .with_delivery_mode(2);
            let options = BasicPublishOptions { mandatory: true, immediate: false };
            confirms.push(channel.basic_publish("".into(), QUEUE.into(), options, &body, properties).await?);
        }
        for confirm in confirms {
            let confirmation = confirm.await?;
            ensure!(confirmation.is_ack() && confirmation.take_message().is_none(), "a message was not taken");
        }
    }
    Ok((BATCHES * BATCH) as f64 / begun.elapsed().as_secs_f64())
}

async fn ours(rabbit: &Rabbit) -> Result<f64> {
    let body = Bytes::from(vec![b'x'; BODY]);
    let begun = Instant::now();
    for _ in 0..BATCHES {
        let messages = (0..BATCH).map(|_| Message {
            id: EventId::generate(),
            to: format!("\0{QUEUE}"),
            key: None,
            content_type: "application/json".into(),
            headers: headers_of_an_event().map(|(name, value)| (name.into(), value)).into(),
            body: body.clone(),
        });
        for result in rabbit.publish(messages.collect()).await {
            result?;
        }
    }
    Ok((BATCHES * BATCH) as f64 / begun.elapsed().as_secs_f64())
}

fn headers_of_an_event() -> [(&'static str, String); 5] {
    [
        ("event-id", "01JD8M3X5V7Q9R2T4W6Y8Z0B1C".to_owned()),
        ("event-type", "OrderPlaced".to_owned()),
        ("aggregate-type", "Order".to_owned()),
        ("aggregate-id", "4711".to_owned()),
        ("occurred-at", "2026-11-16T03:30:00.123456Z".to_owned()),
    ]
}
