//! How fast the publisher for Redis Streams is, beside a loop around the bare client that sends the same.
//!
//! `cargo run --release -p posthaste-publishers --features redis --example redis_rate -- redis://127.0.0.1:6379`
//!
//! Uses the key `posthaste-rate`, and deletes it.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use posthaste_core::EventId;
use posthaste_publishers::redis::{Redis, RedisOptions};
use posthaste_publishers::{Message, Publisher};
use redis::AsyncTypedCommands as _;
use redis::aio::MultiplexedConnection;

const MESSAGES: usize = 200_000;
const BATCH: usize = 500;
/// As many batches at once as an outbox has workers.
const AT_ONCE: usize = 4;
const ROUNDS: usize = 5;
const STREAM: &str = "posthaste-rate";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args().nth(1).context("give the address of a server, such as redis://127.0.0.1:6379")?;
    let mut bare = redis::Client::open(url.as_str())?.get_multiplexed_async_connection().await?;
    let publisher = Redis::connect(RedisOptions::new(&url)).await?;

    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        bare.del(STREAM).await?;
        let ours = rate(measured(|numbers| with_publisher(publisher.clone(), numbers)).await?);
        bare.del(STREAM).await?;
        let theirs = rate(measured(|numbers| with_client(bare.clone(), numbers)).await?);
        println!("publisher {ours:.0}/s, bare client {theirs:.0}/s, ratio {:.2}", ours / theirs);
        ratios.push(ours / theirs);
    }
    bare.del(STREAM).await?;
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.2}", ratios[ROUNDS / 2]);
    Ok(())
}

fn rate(took: Duration) -> f64 {
    MESSAGES as f64 / took.as_secs_f64()
}

/// How long it takes to send all, so many batches at once.
async fn measured<F>(send: impl Fn(Vec<Vec<Message>>) -> F) -> anyhow::Result<Duration>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let batch = |batch: usize| (batch * BATCH..(batch + 1) * BATCH).map(message).collect::<Vec<_>>();
    let mut shares = (0..AT_ONCE).map(|worker| (worker..MESSAGES / BATCH).step_by(AT_ONCE).map(batch).collect());
    let shares: Vec<Vec<Vec<Message>>> = shares.by_ref().collect();
    let begun = Instant::now();
    let workers: Vec<_> = shares.into_iter().map(|share| tokio::spawn(send(share))).collect();
    for worker in workers {
        worker.await??;
    }
    Ok(begun.elapsed())
}

async fn with_publisher(redis: Redis, batches: Vec<Vec<Message>>) -> anyhow::Result<()> {
    for batch in batches {
        redis.publish(batch).await.into_iter().collect::<Result<Vec<()>, _>>()?;
    }
    Ok(())
}

async fn with_client(mut connection: MultiplexedConnection, batches: Vec<Vec<Message>>) -> anyhow::Result<()> {
    for batch in batches {
        let mut pipeline = redis::pipe();
        for message in &batch {
            let command = pipeline.cmd("XADD").arg(STREAM).arg("*");
            for (name, value) in &message.headers {
                command.arg(name.as_ref()).arg(value);
            }
            command.arg("content-type").arg(message.content_type.as_ref()).arg("payload").arg(&message.body[..]);
        }
        let _ids: Vec<String> = pipeline.query_async(&mut connection).await?;
    }
    Ok(())
}

/// About what an event looks like.
fn message(n: usize) -> Message {
    let id = format!("01J0000000000000000{n:07}");
    let headers = [
        ("event-id", id.as_str()),
        ("event-type", "OrderPlaced"),
        ("aggregate-type", "Order"),
        ("aggregate-id", "42"),
        ("occurred-at", "2026-01-01T00:00:00Z"),
    ];
    Message {
        id: EventId::from_row(&id),
        to: STREAM.to_owned(),
        key: None,
        content_type: "application/json".into(),
        headers: headers.into_iter().map(|(name, value)| (name.into(), value.to_owned())).collect(),
        body: vec![b'x'; 200].into(),
    }
}
