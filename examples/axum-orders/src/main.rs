//! A small service with axum: orders are placed and cancelled over HTTP, and customers are notified of both.
//!
//! Each request has a transaction, in which the order and its event are stored together; it is committed when the response is
//! a success. The events are delivered to a listener that fills the table of notifications.

mod database;
mod notifications;
mod orders;

use anyhow::Context;
use axum::Router;
use axum::routing::{get, post};
use posthaste::axum::TxLayer;
use posthaste::{Outbox, PgStore, Scheme, SqliteStore, detect};
use tokio::net::TcpListener;

use database::Database;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let url = std::env::var("DATABASE_URL").unwrap_or_else(|_| "sqlite:orders.db".to_owned());
    let address = std::env::var("ADDRESS").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    match detect(&url)? {
        Scheme::Postgres => run(PgStore::connect(&url).await?, &address).await,
        Scheme::Sqlite => run(SqliteStore::connect(&url).await?, &address).await,
        other => anyhow::bail!("DATABASE_URL is for {other:?}; this example is for PostgreSQL and SQLite"),
    }
}

async fn run<D: Database>(database: D, address: &str) -> anyhow::Result<()> {
    database.migrate().await?;
    let outbox = notifications::listeners(Outbox::builder(database.clone()), &database).start().await?;
    let app = Router::new()
        .route("/orders", get(orders::list::<D>).post(orders::place::<D>))
        .route("/orders/{id}/cancel", post(orders::cancel::<D>))
        .route("/notifications", get(notifications::list::<D>))
        .layer(TxLayer::new(outbox.clone()))
        .with_state(database);

    let listener = TcpListener::bind(address).await.with_context(|| format!("ADDRESS {address}"))?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).with_graceful_shutdown(told_to_end()).await?;

    // The server first, for its last requests still write; then the events that they wrote.
    let closed = outbox.shutdown().await;
    println!("ended {}", if closed.is_clean() { "with nothing in hand" } else { "in the middle of deliveries" });
    Ok(())
}

/// Ctrl-C, or what stops a service.
async fn told_to_end() {
    let interrupted = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};

        let mut terminated = signal(SignalKind::terminate()).expect("signals can be listened for");
        tokio::select! {
            _ = interrupted => {}
            _ = terminated.recv() => {}
        }
    }
    #[cfg(not(unix))]
    interrupted.await.expect("signals can be listened for");
}
