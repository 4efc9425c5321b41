//! A transactional outbox: an event is stored in the same database transaction as the change it tells of, and delivered after
//! the commit, at least once, whatever is killed in between.
//!
//! This page is a tutorial, from the first event to the dead ones. The guide in the repository (`docs/guide`) has a chapter
//! for each section, and more: moving between databases, many nodes, testing, tuning, migrating from a table of your own.
//!
//! # An event and its listener
//!
//! Say what happened with a type of yours, say who is to hear of it, and write it in the transaction of the change:
//!
//! ```
//! use posthaste::{Event, Outbox, SqliteStore};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, Event)]
//! #[event(type = "OrderPlaced", aggregate = "Order", key = "id")]
//! struct OrderPlaced {
//!     id: i64,
//!     total: u32,
//! }
//!
//! #[tokio::main]
//! async fn main() -> anyhow::Result<()> {
//!     let store = SqliteStore::connect("sqlite::memory:").await?; // or SqliteStore::open("shop.db"), PgStore, MySqlStore
//!     store.migrate().await?;
//!     sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)").execute(store.pool()).await?;
//!
//!     let outbox = Outbox::builder(store)
//!         .on::<OrderPlaced>(|event, order| async move {
//!             println!("{}: order {}, {} cents", event.id(), order.id, order.total);
//!             anyhow::Ok(())
//!         })
//!         .start()
//!         .await?;
//!
//!     let mut tx = outbox.begin().await?;
//!     let order = sqlx::query("INSERT INTO orders (total) VALUES (1990)").execute(&mut *tx).await?;
//!     tx.write(OrderPlaced { id: order.last_insert_rowid(), total: 1990 }).await?;
//!     tx.commit().await?; // both are stored, or neither; from here on it is delivered
//!
//!     assert!(outbox.shutdown().await.is_clean());
//!     assert_eq!(outbox.admin().counts().await?.done, 1);
//!     Ok(())
//! }
//! ```
//!
//! [`Outbox::begin`] gives a [`Transaction`] that is used as a connection. If the transaction is yours, [`Outbox::write`] writes
//! into it and gives a [`Receipt`]: call [`dispatch`](Receipt::dispatch) after your commit. Without a type of your own,
//! [`Event::builder`] makes events from names, and [`listen`](OutboxBuilder::listen) receives them.
//!
//! # What a listener answers
//!
//! An error is tried again, with growing pauses, and the tenth is the last. What a listener knows better, it says:
//!
//! ```
//! use std::time::Duration;
//!
//! use posthaste::{Delivery, Event, Failure, Listener, MemoryStore, Outbox, Outcome, RetryPolicy, Status};
//!
//! async fn ship(event: Delivery) -> Result<Outcome, Failure> {
//!     match event.header("warehouse") {
//!         Some("closed") => Ok(Outcome::RetryAfter(Duration::from_secs(600))), // does not count as an attempt
//!         Some("burnt down") => Err(Failure::permanent("there is no such warehouse any more")), // DEAD at once
//!         _ => Ok(Outcome::Done),
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> anyhow::Result<()> {
//!     let patient = RetryPolicy::exponential(Duration::from_secs(1), Duration::from_secs(3600)).max_attempts(30);
//!     let outbox = Outbox::builder(MemoryStore::new())
//!         .listen("Parcel", "ParcelPacked", ship.with_retry(patient).with_time_limit(Duration::from_secs(5)))
//!         .start()
//!         .await?;
//!
//!     let parcel = Event::builder("ParcelPacked").aggregate("Parcel", 7).header("warehouse", "burnt down").json_text("{}");
//!     let mut tx = outbox.begin().await?;
//!     let id = tx.write(parcel).await?.expect("no hook took it away");
//!     tx.commit().await?;
//!     outbox.shutdown().await;
//!
//!     let row = outbox.admin().find(&id).await?.expect("it was written");
//!     assert_eq!(row.state.status, Status::Dead);
//!     assert_eq!(row.state.last_error.as_deref(), Some("there is no such warehouse any more"));
//!     Ok(())
//! }
//! ```
//!
//! A listener may be a closure, an async function, a struct ([`Listener`], or [`Handle`] for typed events), a
//! [`batch`](listener::batch), [`blocking`](listener::blocking) code, or several of these in a [`FanOut`]. It will get the same
//! event twice one day, when a process dies at the wrong moment; the id is the same each time.
//!
//! # What was given up
//!
//! [`Outbox::admin`] counts, finds, lists, redrives and purges:
//!
//! ```
//! use posthaste::store::{Filter, Page, Redrive};
//! use posthaste::{Delivery, Event, Failure, MemoryStore, Outbox, Status};
//!
//! # #[tokio::main]
//! # async fn main() -> anyhow::Result<()> {
//! # let outbox = Outbox::builder(MemoryStore::new())
//! #     .listen_all(|_: Delivery| async { Err::<(), _>(Failure::permanent("certificate expired")) })
//! #     .start()
//! #     .await?;
//! # let mut tx = outbox.begin().await?;
//! # tx.write(Event::of_json("OrderPlaced", "{}")).await?;
//! # tx.commit().await?;
//! # outbox.shutdown().await;
//! let dead = Filter { statuses: vec![Status::Dead], ..Filter::default() };
//! for row in outbox.admin().list(&dead, &Page::default()).await? {
//!     println!("{} after {} attempts: {:?}", row.id, row.state.attempts, row.state.last_error);
//! }
//!
//! // The cause is mended: deliver them again.
//! let expired = Filter { error_contains: Some("certificate".into()), ..Filter::default() };
//! let redriven = outbox.admin().redrive(&Redrive::matching(expired)).await?;
//! assert_eq!(redriven, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # What to set
//!
//! [`Options`] has every setting with its default and the reason for it, and is filled by code, TOML or the environment. The
//! defaults are meant to be used. What most services set is how long rows are kept:
//!
//! ```
//! use std::time::Duration;
//!
//! use posthaste::{Delivery, MemoryStore, Options, Outbox};
//!
//! # #[tokio::main]
//! # async fn main() -> anyhow::Result<()> {
//! let week = Some(Duration::from_secs(7 * 24 * 3600));
//! let options = Options { retention_done: week, ..Options::default() }.with_env("SHOP_OUTBOX_", std::env::vars())?;
//! let outbox = Outbox::builder(MemoryStore::new()).options(options).listen_all(|_: Delivery| async {}).start().await?;
//! # outbox.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! [`Outbox::many_nodes`] (the same as [`builder`](Outbox::builder)) shares its table with any number of processes,
//! [`Outbox::single_node`] is alone on it, and [`Outbox::writer_only`] leaves the delivery to others. End with
//! [`Outbox::shutdown`]: it delivers what is in memory, and gives back what the deadline cuts off.
//!
//! # What is promised
//!
//! An event is stored if and only if its transaction commits. A committed event is delivered until its listener has said
//! *done*, or is kept as DEAD with the reason. Killing any process at any moment loses nothing. An outcome is written only
//! while the lease under which it was reached still stands in the row. Not promised: exactly-once delivery, and an order
//! between events.
//!
//! # Features
//!
//! | feature | brings | default |
//! |---|---|---|
//! | `derive` | `#[derive(Event)]` for typed events | yes |
//! | `sqlite` | `SqliteStore` | yes |
//! | `postgres` | `PgStore`, `Partitions` | |
//! | `mysql` | `MySqlStore`, for MySQL and MariaDB | |
//! | `axum` | `axum`: one transaction per request | |
//! | `diesel` | `diesel`: events in transactions of diesel-async, with `postgres` or `sqlite` | |
//! | `tokio-postgres` | `tokio_postgres`, to write in transactions of tokio-postgres, and `postgres` | |
//! | `deadpool` | the same for clients of deadpool-postgres | |
//! | `tls` | encrypted connections to PostgreSQL, MariaDB and MySQL | |
//! | `metrics` | `metrics::FacadeMetrics`, which reports to the facade of that name | |
//! | `opentelemetry` | `opentelemetry::TraceContext`, with which a trace goes on from the request to the delivery | |
//! | `sea-orm` | `sea_orm`, which writes in transactions of SeaORM 2, on the databases whose features are on | |
//! | `publishers` | `publishers`: destinations beyond the process, of which lines of JSON need nothing else | |
//! | `kafka`, `kafka-tls` | Kafka, and with TLS and SCRAM | |
//! | `nats` | NATS JetStream | |
//! | `rabbitmq`, `rabbitmq-tls` | RabbitMQ, and over TLS | |
//! | `redis`, `redis-tls` | Redis Streams, and over TLS | |
//! | `mqtt`, `mqtt-tls` | MQTT 5, and over TLS | |
//! | `webhook` | signed requests over HTTP | |
//! | `testing` | `testing`, for tests of programs that use an outbox: for `dev-dependencies` | |
//!
//! [`MemoryStore`], for tests, is always there. What needs a feature says so in its first lines.

#[cfg(all(
    doctest,
    feature = "derive",
    feature = "mysql",
    feature = "opentelemetry",
    feature = "postgres",
    feature = "sqlite",
    feature = "testing"
))]
mod guide;

pub use posthaste_core::{
    dispatcher, event, hook, inflight, instrument, interceptor, listener, memory, metrics, options, order, outbox,
    poller, registry, retry, signal, store, time, wake,
};

#[cfg(feature = "diesel")]
pub use posthaste_diesel as diesel;
#[cfg(feature = "opentelemetry")]
pub use posthaste_opentelemetry as opentelemetry;
#[cfg(feature = "publishers")]
pub use posthaste_publishers as publishers;
#[cfg(feature = "sea-orm")]
pub use posthaste_sea_orm as sea_orm;

#[cfg(feature = "testing")]
pub mod testing;

#[cfg(feature = "axum")]
pub use posthaste_axum as axum;
#[cfg(feature = "tokio-postgres")]
pub use posthaste_tokio_postgres as tokio_postgres;

pub use posthaste_core::{
    AggregateType, BatchListener, Closed, CommitError, Current, Delivery, Dispatcher, Event, EventBuilder, EventId,
    EventType, Failure, FanOut, Handle, Instrument, Interceptor, IntoEvent, Listener, MemoryStore, Metrics,
    NoTransaction, OnDead, Options, Ordered, Outbox, OutboxBuilder, Outcome, Poller, Receipt, Registry, RetryPolicy,
    Savepoint, Status, Timestamp, Transaction, TransactionError, TypedEvent, Verdict, WriteError, WriteHook,
};

// The derive beside the type of the same name, as with serde's traits: one import brings both.
#[cfg(feature = "derive")]
pub use posthaste_macros::Event;

#[cfg(feature = "mysql")]
pub use posthaste_sql::{MySqlStore, MySqlTx};
#[cfg(feature = "postgres")]
pub use posthaste_sql::{Partitions, PgStore};
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite", feature = "testing"))]
pub use posthaste_sql::{Scheme, TableName, detect};
#[cfg(feature = "sqlite")]
pub use posthaste_sql::{SqliteStore, SqliteTx};
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use posthaste_sql::{check_url, driver};
