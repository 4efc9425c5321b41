//! How fast the publisher for NATS JetStream is, beside a loop around the bare client that sends the same.
//!
//! `cargo run --release -p posthaste-publishers --features nats --example nats_rate -- nats://127.0.0.1:4222`
//!
//! Makes the stream `posthaste-rate` anew, and leaves it empty.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use async_nats::jetstream::{self, message::PublishMessage, stream};
use posthaste_core::EventId;
use posthaste_publishers::nats::{Nats, NatsOptions};
use posthaste_publishers::{Message, Publisher};

const MESSAGES: usize = 100_000;
const BATCH: usize = 500;
/// As many batches at once as an outbox has workers.
const AT_ONCE: usize = 4;
const ROUNDS: usize = 5;
const SUBJECT: &str = "posthaste-rate.x";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args().nth(1).context("give the address of a server, such as nats://127.0.0.1:4222")?;
    let bare = jetstream::new(async_nats::connect(&url).await?);
    bare.delete_stream("posthaste-rate").await.ok();
    let subjects = vec!["posthaste-rate.>".to_owned()];
    let config = stream::Config { name: "posthaste-rate".to_owned(), subjects, ..Default::default() };
    let stream = bare.create_stream(config).await?;
    let nats = Nats::connect(NatsOptions::new(&url)).await?;

    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        let publisher = rate(with_publisher(&nats, round).await?);
        stream.purge().await?;
        let client = rate(with_client(&bare, round).await?);
        stream.purge().await?;
        println!("publisher {publisher:.0}/s, bare client {client:.0}/s, ratio {:.2}", publisher / client);
        ratios.push(publisher / client);
    }
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.2}", ratios[ROUNDS / 2]);
    Ok(())
}

fn rate(took: Duration) -> f64 {
    MESSAGES as f64 / took.as_secs_f64()
}

async fn with_publisher(nats: &Nats, round: usize) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let workers = (0..AT_ONCE).map(|worker| {
        let nats = nats.clone();
        tokio::spawn(async move {
            for batch in (worker..MESSAGES / BATCH).step_by(AT_ONCE) {
                let messages =
                    (batch * BATCH..(batch + 1) * BATCH).map(|n| message(&format!("p{round}-{n}"))).collect();
                nats.publish(messages).await.into_iter().collect::<Result<Vec<()>, _>>()?;
            }
            anyhow::Ok(())
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await??;
    }
    Ok(begun.elapsed())
}

async fn with_client(jetstream: &jetstream::Context, round: usize) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let mut in_flight = VecDeque::new();
    for n in 0..MESSAGES {
        if in_flight.len() == BATCH * AT_ONCE
            && let Some(oldest) = in_flight.pop_front()
        {
            IntoFuture::into_future(oldest).await?;
        }
        let Message { id, content_type, headers, body, .. } = message(&format!("c{round}-{n}"));
        let mut publish = PublishMessage::build().payload(body).message_id(id.as_str());
        for (name, value) in headers {
            publish = publish.header(name.as_ref(), value.as_str());
        }
        publish = publish.header("content-type", content_type.as_ref());
        in_flight.push_back(jetstream.send_publish(SUBJECT, publish).await?);
    }
    for pending in in_flight {
        pending.await?;
    }
    Ok(begun.elapsed())
}

/// About what an event looks like.
fn message(id: &str) -> Message {
    let headers = [
        ("event-id", id),
        ("event-type", "OrderPlaced"),
        ("aggregate-type", "Order"),
        ("aggregate-id", "42"),
        ("occurred-at", "2026-01-01T00:00:00Z"),
    ];
    Message {
        id: EventId::from_row(id),
        to: SUBJECT.to_owned(),
        key: None,
        content_type: "application/json".into(),
        headers: headers.into_iter().map(|(name, value)| (name.into(), value.to_owned())).collect(),
        body: vec![b'x'; 200].into(),
    }
}
