//! One transaction per request: the Posthaste transactional outbox in [axum](https://docs.rs/axum).
//!
//! [`TxLayer`] goes around the routes, and a handler that takes a [`Tx`] has the transaction of its request. It is begun when
//! the first one asks for it. A response of 2xx or 3xx commits it, every other one rolls it back, and so do a panic, a client
//! that goes away, and an extractor that refuses the request. The response is sent after the commit, and events are delivered
//! from there on: when the client has its answer, the row and the event are stored, or neither is.
//!
//! ```no_run
//! use axum::extract::{Path, State};
//! use axum::http::StatusCode;
//! use axum::routing::{get, post};
//! use axum::{Json, Router};
//! use posthaste_axum::{Tx, TxLayer}; // `posthaste::axum`, with the feature `axum`
//! # extern crate posthaste_core as posthaste;
//! use posthaste::{Delivery, Event, Outbox};
//! use posthaste_sql::SqliteStore;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let store = SqliteStore::open("shop.db").await?;
//!     store.migrate().await?;
//!     sqlx::query("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)")
//!         .execute(store.pool())
//!         .await?;
//!     let outbox = Outbox::builder(store.clone())
//!         .listen("Order", "OrderPlaced", |event: Delivery| async move { println!("delivering {}", event.id()) })
//!         .start()
//!         .await?;
//!
//!     let app = Router::new()
//!         .route("/orders/{total}", post(place))
//!         .route("/orders", get(count)) // takes no `Tx`, so none is begun
//!         .layer(TxLayer::new(outbox.clone()))
//!         .with_state(store);
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//!     axum::serve(listener, app).with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) }).await?;
//!     outbox.shutdown().await; // after the server, which still writes
//!     Ok(())
//! }
//!
//! async fn place(mut tx: Tx<SqliteStore>, Path(total): Path<i64>) -> Result<(StatusCode, String), StatusCode> {
//!     let failed = |_: sqlx::Error| StatusCode::INTERNAL_SERVER_ERROR; // rolls back
//!     let order = sqlx::query("INSERT INTO orders (total) VALUES (?)").bind(total).execute(&mut **tx).await.map_err(failed)?;
//!     let id = order.last_insert_rowid();
//!     let event = Event::builder("OrderPlaced").aggregate("Order", id).json(&total);
//!     tx.write(event).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
//!     Ok((StatusCode::CREATED, id.to_string()))
//! }
//!
//! async fn count(State(store): State<SqliteStore>) -> Result<Json<i64>, StatusCode> {
//!     let count = sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(store.pool()).await;
//!     count.map(Json).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
//! }
//! ```
//!
//! # When it fails
//!
//! A transaction that cannot be begun or committed makes the response: 503 with `Retry-After` where the same request may
//! succeed a little later, 500 otherwise, with a short text that tells nothing of the database. What the database said is
//! logged. [`TxLayer::on_error`] makes another response of it; [`Error`] lists what there is.
//!
//! # Where the layer goes
//!
//! [`Router::layer`](https://docs.rs/axum/0.8/axum/struct.Router.html#method.layer) concerns the routes that were added before
//! it, and what is added after it is around it. So middleware that uses the transaction is added before this layer, and drops
//! its [`Tx`] before it calls the handler. A limit of time may be on either side: what it cuts off is rolled back. What is
//! around this layer should leave the status alone, for it is too late to roll back there.
//!
//! [`AmbientTxLayer`] is the other way: the handler, and everything it calls, has the transaction without being handed it.

mod ambient;
mod error;
mod layer;
mod slot;
mod tx;

pub use ambient::{AmbientTx, AmbientTxLayer};
pub use error::{Error, Rejection};
pub use layer::{TxLayer, TxService};
pub use tx::{LazyTx, Tx};
