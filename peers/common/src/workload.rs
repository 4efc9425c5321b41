//! What is measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::{Handled, Payload, Peer, WRITERS};

/// Events of one transaction of W100.
const MANY: usize = 100;

/// How long everybody writes before it counts: connections are opened and statements prepared. Posthaste does the same.
const LEAD_IN: Duration = Duration::from_millis(200);

/// Events of one transaction that fills the queue for D.
const FILL: usize = 1000;

/// How long D waits for the database after the handler has seen the last event.
const PATIENCE: Duration = Duration::from_secs(30);

/// W: a business row and one event in each transaction.
pub(crate) async fn write_one<P: Peer>(peer: &Arc<P>, seconds: u64) -> anyhow::Result<Value> {
    let peer = Arc::clone(peer);
    let write = move |index| {
        let peer = Arc::clone(&peer);
        async move {
            let mut tx = peer.begin().await?;
            peer.order(&mut tx).await?;
            peer.enqueue(&mut tx, vec![Payload::new(index)]).await?;
            peer.commit(tx).await
        }
    };
    let rate = repeat(write, seconds).await?;
    Ok(json!({ "workload": "W", "value": rate, "unit": "tx/s" }))
}

/// W100: a business row and many events in each transaction.
pub(crate) async fn write_many<P: Peer>(peer: &Arc<P>, seconds: u64) -> anyhow::Result<Value> {
    let peer = Arc::clone(peer);
    let write = move |index| {
        let peer = Arc::clone(&peer);
        async move {
            let mut tx = peer.begin().await?;
            peer.order(&mut tx).await?;
            peer.enqueue(&mut tx, (index * MANY..(index + 1) * MANY).map(Payload::new).collect()).await?;
            peer.commit(tx).await
        }
    };
    let rate = repeat(write, seconds).await? * MANY as f64;
    Ok(json!({ "workload": "W100", "value": rate, "unit": "events/s" }))
}

/// D: from the start of the worker to the last event that is done in the database.
pub(crate) async fn drain<P: Peer>(peer: &P, events: usize, url: &str) -> anyhow::Result<Value> {
    for first in (0..events).step_by(FILL) {
        enqueue(peer, first..events.min(first + FILL)).await?;
    }
    settle_down(url).await?;

    let handled = Arc::new(Handled::expect(events));
    let started_at = Instant::now();
    let done = async {
        handled.all().await?;
        let handled_at = Instant::now();
        while peer.unfinished(events).await? > 0 {
            ensure!(handled_at.elapsed() < PATIENCE, "{} events are not done", peer.unfinished(events).await?);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        anyhow::Ok(events as f64 / started_at.elapsed().as_secs_f64())
    };
    let rate = meanwhile(peer, &handled, done).await?;
    handled.check()?;
    Ok(json!({ "workload": "D", "value": rate, "unit": "events/s" }))
}

/// Does what the server would do a little later by itself, in the middle of a measurement or not. It knows then how large the
/// tables are, as it does in a service that has run for a while.
async fn settle_down(url: &str) -> anyhow::Result<()> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    let connection = tokio::spawn(connection);
    for statement in ["VACUUM ANALYZE", "CHECKPOINT"] {
        client.batch_execute(statement).await?;
    }
    drop(client);
    Ok(connection.await??)
}

/// L: from the end of a commit to the start of its handler, with one pool to write and others to work.
pub(crate) async fn latency<P: Peer>(worker: &P, writer: &Arc<P>, rate: u32, seconds: u64) -> anyhow::Result<Value> {
    // The first second is for the worker to come up, and does not count.
    let warm_up = usize::try_from(rate)?;
    let events = warm_up * usize::try_from(seconds + 1)?;
    let handled = Arc::new(Handled::expect(events));
    let write = {
        let (writer, handled) = (Arc::clone(writer), Arc::clone(&handled));
        async move {
            let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            for index in 0..events {
                ticks.tick().await;
                let mut tx = writer.begin().await?;
                writer.enqueue(&mut tx, vec![Payload::new(index)]).await?;
                writer.commit(tx).await?;
                handled.committed(index);
            }
            handled.all().await
        }
    };
    // A task, as what answers a request is in a service.
    let write = tokio::spawn(write);
    meanwhile(worker, &handled, async { write.await? }).await?;
    handled.check()?;
    let latencies = handled.latencies(warm_up);
    let quantile = |q: f64| latencies[((latencies.len() - 1) as f64 * q).round() as usize];
    Ok(json!({ "workload": "L", "p50_us": quantile(0.5), "p99_us": quantile(0.99) }))
}

/// Calls per second of so many writers, each a task; each call has a number of its own.
async fn repeat<F>(write: impl Fn(usize) -> F + Send + Sync + 'static, seconds: u64) -> anyhow::Result<f64>
where
    F: Future<Output = anyhow::Result<()>> + Send,
{
    let (begun, written, write) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(write));
    // It is no time at all until then.
    let started_at = Instant::now() + LEAD_IN;
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let (begun, written, write) = (Arc::clone(&begun), Arc::clone(&written), Arc::clone(&write));
        writers.spawn(async move {
            while started_at.elapsed() < Duration::from_secs(seconds) {
                write(begun.fetch_add(1, Ordering::Relaxed)).await?;
                written.fetch_add(usize::from(Instant::now() >= started_at), Ordering::Relaxed);
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = writers.join_next().await {
        ended??;
    }
    Ok(written.load(Ordering::Relaxed) as f64 / started_at.elapsed().as_secs_f64())
}

async fn enqueue<P: Peer>(peer: &P, indices: std::ops::Range<usize>) -> anyhow::Result<()> {
    let mut tx = peer.begin().await?;
    peer.enqueue(&mut tx, indices.map(Payload::new).collect()).await?;
    peer.commit(tx).await
}

/// Lets the peer work until the task is done.
async fn meanwhile<P: Peer, T>(
    peer: &P,
    handled: &Arc<Handled>,
    task: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let stop = CancellationToken::new();
    let mut work = std::pin::pin!(peer.work(Arc::clone(handled), stop.clone()));
    let result = tokio::select! {
        result = task => result?,
        ended = &mut work => {
            ended?;
            bail!("the worker ended by itself");
        }
    };
    stop.cancel();
    tokio::time::timeout(PATIENCE, work).await??;
    Ok(result)
}
