//! Events of a Posthaste outbox, written in transactions of [SeaORM](sea_orm) 2.
//!
//! The outbox delivers as it always does, through its store on sqlx, which can share SeaORM's pool. This crate writes: in the
//! transaction in which the entities are saved, whoever began it.
//!
//! ```no_run
//! # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; pub use posthaste_sea_orm as sea_orm; }
//! use posthaste::sea_orm::OutboxExt;
//! use posthaste::{Delivery, Event, Outbox, PgStore};
//! use sea_orm::entity::prelude::*;
//! use sea_orm::{ActiveValue::Set, Database};
//!
//! mod order {
//!     use sea_orm::entity::prelude::*;
//!
//!     #[derive(Clone, Debug, DeriveEntityModel)]
//!     #[sea_orm(table_name = "orders")]
//!     pub struct Model {
//!         #[sea_orm(primary_key)]
//!         pub id: i64,
//!         pub total: i64,
//!     }
//!
//!     #[derive(Clone, Copy, Debug, EnumIter, DeriveRelation)]
//!     pub enum Relation {}
//!
//!     impl ActiveModelBehavior for ActiveModel {}
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let db = Database::connect("postgres://localhost/shop").await?;
//!     // One pool for both. On SQLite it is `get_sqlite_connection_pool`, on MySQL `get_mysql_connection_pool`.
//!     let store = PgStore::new(db.get_postgres_connection_pool().clone());
//!     store.migrate().await?;
//!     let outbox = Outbox::builder(store)
//!         .listen("Order", "OrderPlaced", |event: Delivery| async move { println!("{}", event.id()) })
//!         .start()
//!         .await?;
//!
//!     let mut tx = outbox.begin_on(&db).await?;
//!     let order = order::ActiveModel { total: Set(1990), ..Default::default() }.insert(&*tx).await?;
//!     tx.write(Event::builder("OrderPlaced").aggregate("Order", order.id).json_text("{}")).await?;
//!     tx.commit().await?; // both are stored, or neither; from here on it is delivered
//!
//!     outbox.shutdown().await;
//!     Ok(())
//! }
//! ```
//!
//! # Three ways to write
//!
//! | who begins and commits | how | the events |
//! |---|---|---|
//! | the outbox | [`begin_on`](OutboxExt::begin_on) gives a [`Transaction`] | are delivered after its commit, without another call |
//! | the outbox, around a closure | [`transaction_on`](OutboxExt::transaction_on) | the same |
//! | you | [`write_in`](OutboxExt::write_in) gives a [`Receipt`](posthaste_core::Receipt) | are delivered once you call `dispatch` after your commit, or else when the poller finds them |
//!
//! # Savepoints
//!
//! [`Transaction::savepoint`] is one that the outbox knows: what it undoes is forgotten, what it keeps is delivered with the
//! rest. SeaORM's own `begin` inside of a transaction sets one, too, and does not tell. An event is never handed to a listener
//! because of that: PostgreSQL says whether a row was written in a savepoint; elsewhere the commit of a [`Transaction`] looks
//! whether its rows are still there, and events of [`write_in`](OutboxExt::write_in) are left to the poller, which finds those
//! that are.
//!
//! # Features
//!
//! `postgres`, `mysql` and `sqlite`, for the stores and for SeaORM's drivers alike. Without one of them there is nothing here.

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod count;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod database;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod ext;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod fault;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod insert;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod savepoint;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod statements;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod transaction;

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use database::SeaOrmStore;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use ext::OutboxExt;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use savepoint::Savepoint;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use transaction::Transaction;
