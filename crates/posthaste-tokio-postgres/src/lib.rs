//! Events written in transactions of [tokio-postgres](tokio_postgres), and of deadpool-postgres with the feature
//! `deadpool`.
//!
//! The outbox itself stays on a [`PgStore`], whose pool of sqlx delivers; a few connections are enough for it. What is
//! written is written by your client, in your transaction:
//!
//! ```no_run
//! # mod posthaste {
//! #     pub use {posthaste_core::*, posthaste_sql::*, posthaste_tokio_postgres as tokio_postgres};
//! # }
//! use posthaste::tokio_postgres::OutboxExt;
//! use posthaste::{Delivery, Event, Outbox, PgStore};
//! use tokio_postgres::NoTls;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = PgStore::connect("postgres://shop@localhost/shop").await?;
//! store.migrate().await?;
//! let outbox = Outbox::builder(store)
//!     .listen("Order", "OrderPlaced", |event: Delivery| async move { println!("delivering {}", event.id()) })
//!     .start()
//!     .await?;
//!
//! let (mut client, connection) = tokio_postgres::connect("postgres://shop@localhost/shop", NoTls).await?;
//! let connection = tokio::spawn(connection);
//!
//! let mut tx = outbox.begin_on(&mut client).await?;
//! tx.execute("INSERT INTO orders (id) VALUES ($1)", &[&42_i64]).await?;
//! tx.write(Event::builder("OrderPlaced").aggregate("Order", 42).json_text(r#"{"total":1990}"#)).await?;
//! tx.commit().await?; // both are stored, or neither; from here on it is delivered
//!
//! outbox.shutdown().await;
//! drop(client);
//! connection.await??;
//! # Ok(())
//! # }
//! ```
//!
//! [`begin_on`](OutboxExt::begin_on) takes a client, a client of a deadpool, or a builder of transactions of either. If
//! the transaction is to stay yours, [`write_in`](OutboxExt::write_in) writes into it and gives a [`Receipt`].
//!
//! # Futures that are dropped
//!
//! No transaction is left open by one: what was begun is rolled back before the next statement of that client, also
//! when it is back in its pool, and a commit that was begun goes on to its end, also when the client is dropped. Nobody
//! hears of that end then, so the events are left to the poller, which looks for them at once.
//!
//! A deadpool that parts with a client (`Object::take`, a pool that is closed or made smaller) ends its connection at
//! once. A commit that was cut off before may then not have been sent: all of it has happened, or nothing of it.

mod begin;
mod fault;
mod insert;
mod savepoint;
mod transaction;

use posthaste_core::{IntoEvent, Outbox, Receipt, WriteError, store};
use posthaste_sql::PgStore;

pub use begin::{Begin, LibraryTransaction};
pub use savepoint::Savepoint;
pub use transaction::Transaction;

use insert::{Failure, Inserted, Place, insert};

/// A [`Transaction`] on a client of tokio-postgres.
pub type TokioTransaction<'c> = Transaction<tokio_postgres::Transaction<'c>>;

/// A [`Transaction`] on a client of a deadpool. Comes with the feature `deadpool`.
#[cfg(feature = "deadpool")]
pub type DeadpoolTransaction<'c> = Transaction<deadpool_postgres::Transaction<'c>>;

/// Writes events in transactions of tokio-postgres.
pub trait OutboxExt: sealed::Outbox {
    /// Begins a transaction in which your own statements and events go together. Use it as the transaction that it is.
    ///
    /// ```no_run
    /// # mod posthaste {
    /// #     pub use {posthaste_core::*, posthaste_sql::*, posthaste_tokio_postgres as tokio_postgres};
    /// # }
    /// use posthaste::tokio_postgres::OutboxExt;
    /// use posthaste::{Event, Outbox, PgStore};
    /// use tokio_postgres::Client;
    ///
    /// # async fn example(outbox: Outbox<PgStore>, client: &mut Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut tx = outbox.begin_on(client).await?;
    /// tx.execute("INSERT INTO orders (id) VALUES ($1)", &[&42_i64]).await?;
    /// tx.write(Event::of_json("OrderPlaced", "{}")).await?;
    /// tx.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the connection is lost, or the database refuses it.
    ///
    /// # Cancellation
    /// Safe: a transaction that was begun is rolled back before the next statement of that client.
    fn begin_on<B: Begin + Send>(
        &self,
        on: B,
    ) -> impl Future<Output = Result<Transaction<B::Transaction>, store::Error>> + Send;

    /// Writes an event in a transaction that is yours. Call [`Receipt::dispatch`] after its commit; without it the
    /// poller delivers the event, a little later.
    ///
    /// ```no_run
    /// # mod posthaste {
    /// #     pub use {posthaste_core::*, posthaste_sql::*, posthaste_tokio_postgres as tokio_postgres};
    /// # }
    /// use posthaste::tokio_postgres::OutboxExt;
    /// use posthaste::{Event, Outbox, PgStore};
    /// use tokio_postgres::Client;
    ///
    /// # async fn example(outbox: Outbox<PgStore>, client: &mut Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let tx = client.transaction().await?;
    /// let receipt = outbox.write_in(&tx, Event::of_json("OrderPlaced", "{}")).await?;
    /// tx.commit().await?;
    /// receipt.dispatch();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If a statement of the transaction has failed, roll it back, even if you can do without that statement:
    /// PostgreSQL then answers the commit with success, and commits nothing. The transaction of
    /// [`begin_on`](Self::begin_on) notices that. An event that is written in a savepoint is left to the poller.
    ///
    /// A client, in which no transaction is open, is not accepted:
    /// ```compile_fail,E0308
    /// # mod posthaste {
    /// #     pub use {posthaste_core::*, posthaste_sql::*, posthaste_tokio_postgres as tokio_postgres};
    /// # }
    /// # use posthaste::tokio_postgres::OutboxExt;
    /// # use posthaste::{Event, Outbox, PgStore};
    /// # use tokio_postgres::Client;
    /// # async fn example(outbox: Outbox<PgStore>, client: &mut Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let receipt = outbox.write_in(&*client, Event::of_json("OrderPlaced", "{}")).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the event is not acceptable or the database does not take it. If it was the database, the transaction can
    /// only be rolled back, at least to a savepoint before the write.
    ///
    /// # Cancellation
    /// Whether the event was inserted is then open; roll the transaction back, or the poller delivers it if it was.
    fn write_in(
        &self,
        tx: &tokio_postgres::Transaction<'_>,
        event: impl IntoEvent + Send,
    ) -> impl Future<Output = Result<Receipt, WriteError>> + Send {
        self.write_all_in(tx, [event])
    }

    /// Writes several events in a transaction that is yours, in few statements. Otherwise like
    /// [`write_in`](Self::write_in).
    ///
    /// # Errors
    /// When an event is not acceptable or the database does not take them; none of them is written then.
    fn write_all_in<E: IntoEvent>(
        &self,
        tx: &tokio_postgres::Transaction<'_>,
        events: impl IntoIterator<Item = E> + Send,
    ) -> impl Future<Output = Result<Receipt, WriteError>> + Send;
}

mod sealed {
    pub trait Outbox {}
}

impl sealed::Outbox for Outbox<PgStore> {}

impl OutboxExt for Outbox<PgStore> {
    async fn begin_on<B: Begin + Send>(&self, on: B) -> Result<Transaction<B::Transaction>, store::Error> {
        let begun = on.start().await.map_err(|error| fault::of_statement(self.store(), error))?;
        Ok(Transaction::new(self.clone(), begun))
    }

    async fn write_all_in<E: IntoEvent>(
        &self,
        tx: &tokio_postgres::Transaction<'_>,
        events: impl IntoIterator<Item = E> + Send,
    ) -> Result<Receipt, WriteError> {
        let receipt = self.prepare(events)?;
        match insert(self.store(), tx, receipt.rows_to_insert()).await {
            Ok(Inserted { place: Place::Transaction, .. }) => Ok(receipt),
            Ok(_) => Ok(receipt.nested()),
            Err(Failure::Refused(error)) => {
                let error = WriteError::of_store(receipt.rows_to_insert(), error);
                receipt.never_written();
                Err(error)
            }
            // Dropped, the receipt leaves it open.
            Err(Failure::Open(error)) => Err(WriteError::of_store(receipt.rows_to_insert(), error)),
        }
    }
}

/// A transaction of a deadpool is accepted, and begun by the outbox as well:
/// ```
/// # mod posthaste {
/// #     pub use {posthaste_core::*, posthaste_sql::*, posthaste_tokio_postgres as tokio_postgres};
/// # }
/// # use posthaste::tokio_postgres::OutboxExt;
/// # use posthaste::{Event, Outbox, PgStore};
/// # async fn example(outbox: Outbox<PgStore>, pool: deadpool_postgres::Pool) -> Result<(), Box<dyn std::error::Error>> {
/// let mut client = pool.get().await?;
/// let tx = client.transaction().await?;
/// let receipt = outbox.write_in(&tx, Event::of_json("OrderPlaced", "{}")).await?;
/// tx.commit().await?;
/// receipt.dispatch();
/// let mut tx = outbox.begin_on(&mut client).await?;
/// # Ok(())
/// # }
/// ```
/// A pool is not:
/// ```compile_fail,E0308
/// # mod posthaste {
/// #     pub use {posthaste_core::*, posthaste_sql::*, posthaste_tokio_postgres as tokio_postgres};
/// # }
/// # use posthaste::tokio_postgres::OutboxExt;
/// # use posthaste::{Event, Outbox, PgStore};
/// # async fn example(outbox: Outbox<PgStore>, pool: deadpool_postgres::Pool) -> Result<(), Box<dyn std::error::Error>> {
/// let receipt = outbox.write_in(&pool, Event::of_json("OrderPlaced", "{}")).await?;
/// # Ok(())
/// # }
/// ```
/// ```compile_fail,E0277
/// # mod posthaste {
/// #     pub use {posthaste_core::*, posthaste_sql::*, posthaste_tokio_postgres as tokio_postgres};
/// # }
/// # use posthaste::tokio_postgres::OutboxExt;
/// # use posthaste::{Event, Outbox, PgStore};
/// # async fn example(outbox: Outbox<PgStore>, mut pool: deadpool_postgres::Pool) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = outbox.begin_on(&mut pool).await?;
/// # Ok(())
/// # }
/// ```
/// Nor is a client that the pool gave:
/// ```compile_fail,E0308
/// # mod posthaste {
/// #     pub use {posthaste_core::*, posthaste_sql::*, posthaste_tokio_postgres as tokio_postgres};
/// # }
/// # use posthaste::tokio_postgres::OutboxExt;
/// # use posthaste::{Event, Outbox, PgStore};
/// # async fn example(outbox: Outbox<PgStore>, pool: deadpool_postgres::Pool) -> Result<(), Box<dyn std::error::Error>> {
/// let client = pool.get().await?;
/// let receipt = outbox.write_in(&client, Event::of_json("OrderPlaced", "{}")).await?;
/// # Ok(())
/// # }
/// ```
#[cfg(all(doctest, feature = "deadpool"))]
struct OnlyTransactionsOfADeadpool;
