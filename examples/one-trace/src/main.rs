//! One trace across a crash: a process takes an order, commits it with its event, and dies before the event is delivered. The
//! next process delivers it, in the trace of the request.

mod print;

use std::path::Path;
use std::process::{self, Command};

use opentelemetry::trace::{FutureExt, TraceContextExt, Tracer};
use opentelemetry::{Context, global};
use opentelemetry_sdk::trace::SdkTracerProvider;
use posthaste::opentelemetry::TraceContext;
use posthaste::{Event, Listener, Outbox, SqliteStore, listener};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", aggregate = "Order", key = "id")]
struct OrderPlaced {
    id: i64,
    total: i64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // As in any program that makes spans, but for the exporter, which prints instead of sending to a collector.
    global::set_tracer_provider(SdkTracerProvider::builder().with_simple_exporter(print::Printed).build());

    if let Some(database) = std::env::args_os().nth(1) {
        return take_an_order_and_die(database.as_ref()).await;
    }
    let directory = tempfile::tempdir()?;
    let database = directory.path().join("shop.db");
    let first = Command::new(std::env::current_exe()?).arg(&database).status()?;
    anyhow::ensure!(!first.success(), "it was to die");
    println!("the first process died: {first}");
    deliver_what_is_left(&database).await
}

/// The outbox of both processes. The two lines of the trace are all that tracing asks for.
async fn outbox(database: &Path, mailer: impl Listener) -> anyhow::Result<Outbox<SqliteStore>> {
    let store = SqliteStore::open(database).await?;
    store.migrate().await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)")
        .execute(store.pool())
        .await?;
    let trace = TraceContext::new();
    let outbox = Outbox::single_node(store)
        .hook(trace.clone()) // keeps the context with the event
        .instrument(trace) // and goes on from it around the listener
        .listen_for::<OrderPlaced>(mailer)
        .start()
        .await?;
    Ok(outbox)
}

/// The first process. Its mail server does not answer, so the event is still in its hands when it dies.
async fn take_an_order_and_die(database: &Path) -> anyhow::Result<()> {
    let outbox = outbox(database, listener::typed(|_event, _: OrderPlaced| std::future::pending::<()>())).await?;
    let request = Context::current_with_span(global::tracer("shop").start("POST /orders"));
    place_an_order(&outbox).with_context(request.clone()).await?;
    request.span().end();
    process::abort();
}

async fn place_an_order(outbox: &Outbox<SqliteStore>) -> anyhow::Result<()> {
    let mut tx = outbox.begin().await?;
    let order = sqlx::query("INSERT INTO orders (total) VALUES (1990)").execute(&mut *tx).await?;
    tx.write(OrderPlaced { id: order.last_insert_rowid(), total: 1990 }).await?;
    tx.commit().await?;
    Ok(())
}

/// The second process. It knows of the request only what is kept with the event.
async fn deliver_what_is_left(database: &Path) -> anyhow::Result<()> {
    let (mailed, mut mails) = mpsc::channel(1);
    let mailer = listener::typed(move |_event, order: OrderPlaced| {
        let mailed = mailed.clone();
        async move {
            // Spans made here are below that of the delivery, and requests sent would carry it on.
            global::tracer("mailer")
                .in_span("send mail", |_| println!("order {} confirmed, total {}", order.id, order.total));
            mailed.send(()).await
        }
    });
    let outbox = outbox(database, mailer).await?;
    mails.recv().await;
    outbox.shutdown().await;
    Ok(())
}
