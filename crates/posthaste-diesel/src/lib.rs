//! Events in the transactions of [diesel-async](diesel_async): written on its connections, stored if and only if its commit
//! happens, and delivered right after it.
//!
//! The outbox itself, which delivers, has a store of its own (`PgStore`, `SqliteStore`) with its own connections. What this crate
//! adds to it is [`OutboxExt`]:
//!
//! ```no_run
//! use diesel::prelude::*;
//! use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
//! # mod posthaste {
//! #     pub use posthaste_core::*;
//! #     pub use posthaste_sql::*;
//! #     pub mod diesel { pub use posthaste_diesel::*; }
//! # }
//! use posthaste::diesel::OutboxExt;
//! use posthaste::{Delivery, Event, Outbox, PgStore};
//!
//! diesel::table! {
//!     orders (id) {
//!         id -> Integer,
//!         total -> Integer,
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> anyhow::Result<()> {
//!     let url = "postgres://localhost/shop";
//!     let store = PgStore::connect(url).await?;
//!     store.migrate().await?;
//!     let outbox = Outbox::builder(store)
//!         .listen("Order", "OrderPlaced", |event: Delivery| async move { println!("delivering {}", event.id()) })
//!         .start()
//!         .await?;
//!
//!     let mut conn = AsyncPgConnection::establish(url).await?; // or one of a pool
//!     outbox
//!         .transaction_on(&mut conn, async |tx| {
//!             // `tx` is used as the connection is.
//!             let insert = diesel::insert_into(orders::table).values(orders::total.eq(1990)).returning(orders::id);
//!             let id: i32 = insert.get_result(tx).await?;
//!             tx.write(Event::builder("OrderPlaced").aggregate("Order", id).json_text(r#"{"total":1990}"#)).await?;
//!             anyhow::Ok(())
//!         })
//!         .await?; // both are stored, or neither; from here on it is delivered
//!
//!     outbox.shutdown().await;
//!     Ok(())
//! }
//! ```
//!
//! # Transactions that are yours
//!
//! Where [`transaction_on`](OutboxExt::transaction_on) does not fit, [`write_in`](OutboxExt::write_in) writes in any transaction
//! that diesel-async has open, and gives a [`Receipt`](posthaste_core::Receipt). Take it out of the closure, and call `dispatch`
//! when the commit is done:
//!
//! ```no_run
//! # use diesel_async::{AsyncConnection, AsyncPgConnection};
//! # use posthaste_core::{Event, Outbox};
//! # use posthaste_diesel::OutboxExt;
//! # async fn place(outbox: Outbox<posthaste_sql::PgStore>, mut conn: AsyncPgConnection) -> anyhow::Result<()> {
//! let receipt = conn
//!     .transaction(async |conn| {
//!         // Your own statements, on `conn`.
//!         let receipt = outbox.write_in(conn, Event::of_json("OrderPlaced", "{}")).await?;
//!         anyhow::Ok(receipt)
//!     })
//!     .await?;
//! receipt.dispatch();
//! # Ok(())
//! # }
//! ```
//!
//! On PostgreSQL, do not swallow the error of a statement there: the server has rolled back by then, but says yes to the COMMIT
//! that follows, and diesel-async passes that on. `transaction_on` asks before it commits, and does not take this for a commit.
//!
//! # Outside of a transaction
//!
//! A connection on which diesel-async has no transaction open is refused before anything is written. One of another database
//! than the store's does not compile:
//!
//! ```compile_fail,E0277
//! # use diesel_async::AsyncPgConnection;
//! # use posthaste_core::{Event, Outbox};
//! # use posthaste_diesel::OutboxExt;
//! # use posthaste_sql::SqliteStore;
//! async fn write(outbox: Outbox<SqliteStore>, mut conn: AsyncPgConnection) {
//!     let _ = outbox.write_in(&mut conn, Event::of_json("OrderPlaced", "{}")).await;
//! }
//! ```
//!
//! # Savepoints
//!
//! A transaction inside of another one, `tx.transaction(async |tx| …)`, is a savepoint, as always with diesel. Events written in it
//! are stored if it is kept. They are delivered after the commit as well, but by way of the table instead of memory: nobody says
//! whether the savepoint was rolled back. On PostgreSQL the same goes for what is written after a savepoint that was rolled back,
//! because diesel-async does not release it then.
//!
//! A savepoint that you set by a text, `SAVEPOINT mine`, is unknown to diesel-async. PostgreSQL tells of it. On SQLite a
//! `transaction_on` looks for its events right before the commit, if you had the connection after the first of them, and leaves
//! them to the poller if one is missing. A receipt from [`write_in`](OutboxExt::write_in) is not looked after like that there: if
//! you roll such a savepoint back, do not dispatch what was written in it.
//!
//! If a savepoint of diesel-async is cut off while it is set or ends, diesel-async loses count. Nothing is committed then, and no
//! transaction begins on that connection any more.
//!
//! # Pools
//!
//! What the pools of diesel-async hand out is a connection, too: `outbox.transaction_on(&mut pool.get().await?, …)`. The pools part
//! with a connection on which a transaction was cut off.
//!
//! # Features
//!
//! | feature | brings |
//! |---|---|
//! | `postgres` | `AsyncPgConnection`, with `PgStore` |
//! | `sqlite` | `SyncConnectionWrapper<SqliteConnection>`, with `SqliteStore` |
//!
//! Without either there is nothing in it.
//!
//! SQLite has one writer at a time. Set a `busy_timeout` on connections of diesel, as `SqliteStore` does on its own; without one a
//! transaction fails at once when somebody else writes. `transaction_on` begins as a writer there (`BEGIN IMMEDIATE`).
//!
//! SQLite rolls a transaction back by itself after some errors, such as those of `INSERT OR ROLLBACK` or of the disk, and diesel does
//! not always notice. What is written after that would be stored on its own, so it is refused. To find out, `BEGIN; ROLLBACK` goes
//! before an insert: it is refused inside of a transaction, and an instrumentation of diesel shows that as an error.

// Without a database there is nothing to write to.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod fault;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod insert;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod outbox;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod statement;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod store;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod transaction;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use outbox::{AsyncWork, ConnectionTo, OutboxExt};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use store::DieselStore;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use transaction::Transaction;
