//! The processes of a run.

mod deliver;
mod producer;
#[cfg(feature = "brokers")]
mod publish;
mod relay;
mod sink;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use posthaste_core::{Ordered, Outbox, OutboxBuilder};
use posthaste_sql::{MySqlStore, PgStore, SqliteStore};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

use crate::config::{Config, Kind, Role};
use crate::database::Database;
use crate::history::Recorder;
use crate::watched::Watched;

use deliver::Way;
pub(crate) use producer::{KEYS, event, is_poison, plan};

/// Everything in hand was delivered and settled.
const DRAINED: u8 = 0;
/// Some of it was given back for others.
const RELEASED: u8 = 3;
/// Some of it could not even be given back, and waits for its leases to run out.
const ABANDONED: u8 = 4;

/// Whether a process that was asked to end may end like this.
pub(crate) fn is_orderly(status: i32) -> bool {
    [DRAINED, RELEASED, ABANDONED].map(i32::from).contains(&status)
}

/// Plays a role until the end.
pub(crate) async fn play(config: &str) -> anyhow::Result<ExitCode> {
    let config: Config = serde_json::from_str(config).context("the configuration of a process of a run")?;
    std::thread::spawn(end_with_the_run);
    // Wherever something panics, the run is to hear of it.
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        std::process::abort();
    }));
    match (config.role, config.database) {
        (Role::Sink, _) => sink::run(&config).await,
        (_, Kind::Sqlite) => deliver_or_produce::<SqliteStore>(config).await,
        (_, Kind::Postgres) => deliver_or_produce::<PgStore>(config).await,
        (_, Kind::Mariadb) => deliver_or_produce::<MySqlStore>(config).await,
    }
}

async fn deliver_or_produce<D: Database>(config: Config) -> anyhow::Result<ExitCode> {
    let recorder = Arc::new(config.recorder()?);
    let store = loop {
        // The database may be down at this moment.
        match D::open(&config.url, config.connections).await {
            Ok(store) => break store,
            Err(error) => tracing::info!(%error, "the database cannot be opened yet"),
        }
        sleep(Duration::from_millis(200)).await;
    };
    match config.role {
        Role::Producer => producer::run(config, store, recorder).await,
        _ => relay::run(config, store, recorder).await,
    }
}

/// Whoever started this process holds the other end of its standard input, and closes it by dying.
fn end_with_the_run() {
    // Whether it ends in order or with an error is the same.
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    std::process::exit(i32::from(DRAINED));
}

/// An outbox, and the way by which it delivers.
async fn start<D: Database>(
    config: &Config,
    store: &D,
    recorder: &Arc<Recorder>,
    builder: fn(Watched<D>) -> OutboxBuilder<Watched<D>>,
) -> anyhow::Result<(Outbox<Watched<D>>, Way)> {
    let way = Way::open(config, recorder).await?;
    loop {
        let store = Watched::new(store.clone(), Arc::clone(recorder), config.sabotage);
        let mut builder = way.listen(builder(store).options(config.options()));
        if config.ordered {
            builder = builder.ordered(Ordered::all()).on_dead(config.on_dead.into());
        }
        match builder.start().await {
            Ok(outbox) => return Ok((outbox, way)),
            Err(error) => tracing::info!(%error, "the outbox cannot start yet"),
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// Closes the outbox, at once if the process is asked to end a second time, and then its way.
async fn close<D: Database>(outbox: &Outbox<Watched<D>>, way: &Way, asked_to_end: &mut Signal) -> ExitCode {
    let closed = tokio::select! {
        closed = outbox.shutdown() => closed,
        _ = asked_to_end.recv() => outbox.shutdown_now().await,
    };
    way.close().await;
    ExitCode::from(match (closed.released, closed.abandoned) {
        (0, 0) => DRAINED,
        (_, 0) => RELEASED,
        _ => ABANDONED,
    })
}

fn asked_to_end() -> anyhow::Result<Signal> {
    Ok(signal(SignalKind::terminate())?)
}
