//! For tests of programs that use an outbox.
//!
//! ```sh
//! cargo add --dev posthaste --path ../posthaste/crates/posthaste --features testing
//! ```
//!
//! Say a shop places orders, each with an event, and a listener mails the customer:
//!
//! ```
//! use posthaste::store::Store;
//! use posthaste::{Event, Outbox, OutboxBuilder};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, Event)]
//! #[event(type = "OrderPlaced", aggregate = "Order", key = "id")]
//! struct OrderPlaced {
//!     id: u64,
//!     total: u32,
//! }
//!
//! async fn place<S: Store>(outbox: &Outbox<S>, id: u64, total: u32) -> anyhow::Result<()> {
//!     let mut tx = outbox.begin().await?;
//!     tx.write(OrderPlaced { id, total }).await?;
//!     anyhow::ensure!(total > 0, "an order of nothing"); // rolls back
//!     tx.commit().await?;
//!     Ok(())
//! }
//!
//! fn listeners<S: Store>(outbox: OutboxBuilder<S>) -> OutboxBuilder<S> {
//!     outbox.on::<OrderPlaced>(|_event, order| async move { println!("order {} placed", order.id) })
//! }
//! ```
//!
//! # What is written
//!
//! The first test needs no database and no listener, only something to write to, and then a look at it:
//!
//! ```
//! # use posthaste::store::Store;
//! # use posthaste::{Event, Outbox};
//! # #[derive(serde::Serialize, serde::Deserialize, Event)]
//! # #[event(type = "OrderPlaced", aggregate = "Order", key = "id")]
//! # struct OrderPlaced { id: u64, total: u32 }
//! # async fn place<S: Store>(outbox: &Outbox<S>, id: u64, total: u32) -> anyhow::Result<()> {
//! #     let mut tx = outbox.begin().await?;
//! #     tx.write(OrderPlaced { id, total }).await?;
//! #     anyhow::ensure!(total > 0, "an order of nothing");
//! #     tx.commit().await?;
//! #     Ok(())
//! # }
//! use posthaste::testing;
//!
//! // #[tokio::test]
//! # #[tokio::main(flavor = "current_thread")]
//! async fn main() {
//!     let outbox = testing::writer().await;
//!
//!     place(&outbox, 1, 0).await.unwrap_err();
//!     outbox.assert_nothing_written().await;
//!
//!     place(&outbox, 2, 3).await.unwrap();
//!     outbox.assert_written::<OrderPlaced>(|order| order.total == 3).await;
//! }
//! ```
//!
//! An assertion that fails tells what is in the table instead:
//!
//! ```text
//! OrderPlaced with a payload that fits the condition given was not written; the table holds 1 event:
//!   01M6RB8WHRVK6F2SH2Y9GXJZC1 OrderPlaced of Order 2, NEW
//!     {"id":2,"total":4}
//! asked at tests/it/orders.rs:14:12
//! ```
//!
//! Events without a type of their own are described by a [`Wanted`].
//!
//! # What is delivered
//!
//! [`outbox`] delivers to listeners: those of the program, or a [`Recorder`] in their place, which can be told to fail.
//! [`drain_now`](TestOutbox::drain_now) returns when nothing is due any more, and
//! [`wait_delivered`](TestOutbox::wait_delivered) when a certain event is done. The clock of the memory store is
//! tokio's: in paused time the retry in an hour costs nothing, and [`advance`](TestOutbox::advance) says when it comes.
//!
//! ```
//! # use posthaste::Event;
//! # #[derive(serde::Serialize, serde::Deserialize, Event)]
//! # #[event(type = "OrderPlaced", aggregate = "Order", key = "id")]
//! # struct OrderPlaced { id: u64, total: u32 }
//! use std::time::Duration;
//!
//! use posthaste::testing::{self, Recorder};
//!
//! // #[tokio::test(start_paused = true)]
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! async fn main() -> anyhow::Result<()> {
//!     let mailer = Recorder::new();
//!     let outbox = testing::outbox().listen_for::<OrderPlaced>(mailer.clone()).start_test().await;
//!
//!     mailer.fail_next(1);
//!     let mut tx = outbox.begin().await?;
//!     tx.write(OrderPlaced { id: 2, total: 3 }).await?;
//!     tx.commit().await?;
//!     assert_eq!(outbox.drain_now().await.retry, 1);
//!
//!     // The first retry comes after 200 ms, exactly: outboxes for tests do not spread them.
//!     outbox.advance(Duration::from_millis(200)).await;
//!     assert_eq!(outbox.drain_now().await.done, 1);
//!     assert_eq!(mailer.deliveries()[1].attempt(), 2);
//!     Ok(())
//! }
//! ```
//!
//! # On a database
//!
//! Code with statements of its own needs its database. `testing::sqlite()` is one in a file of its own, which goes with
//! the test:
//!
//! ```
//! # #[cfg(feature = "sqlite")]
//! # mod sqlite {
//! use posthaste::testing::{self, Recorder, Wanted};
//! use posthaste::Event;
//!
//! // #[tokio::test]
//! # #[tokio::main(flavor = "current_thread")]
//! # pub
//! async fn main() -> anyhow::Result<()> {
//!     let store = testing::sqlite().await;
//!     sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)").execute(store.pool()).await?;
//!     let outbox = testing::outbox_on(store).listen_all(Recorder::new()).start_test().await;
//!
//!     let mut tx = outbox.begin().await?;
//!     let order = sqlx::query("INSERT INTO orders (total) VALUES (3)").execute(&mut *tx).await?;
//!     tx.write(Event::builder("OrderPlaced").aggregate("Order", order.last_insert_rowid()).json_text("{}")).await?;
//!     tx.commit().await?;
//!     outbox.wait_delivered(Wanted::event("OrderPlaced").aggregate("Order", 1)).await;
//!     Ok(())
//! }
//! # }
//! # #[cfg(feature = "sqlite")]
//! # sqlite::main().unwrap();
//! ```
//!
//! Any other store is handed to [`outbox_on`], for instance a `PgStore` on a database that the test has made. An outbox
//! that the program has started itself becomes a [`TestOutbox`] with `from`, and where the program keeps its outbox to
//! itself, [`TestOutbox::over`] looks at its table.
//!
//! What a test can ask is the same on every store. Only time passes in another way: beside a database, and with
//! listeners that do I/O of their own, tokio's clock should not be paused, since it would run ahead whenever somebody waits
//! for an answer. [`advance`](TestOutbox::advance) makes the rows of a database older, while the clocks go on.
//!
//! # When things go wrong
//!
//! [`Faulty`] is a store around another that fails, waits or loses an answer when [`Faults`] says so: the way to see what
//! a program does when it cannot know whether a commit happened.

pub use posthaste_core::testing::{
    Call, Fault, Faults, Faulty, Gate, PassTime, Recorder, TestOutbox, Wanted, outbox, outbox_on, within, writer,
};

#[cfg(feature = "sqlite")]
pub use posthaste_sql::testing::sqlite;
