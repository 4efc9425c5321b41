//! What an outbox can do with SeaORM.

use std::future::Future;

use posthaste_core::outbox::TransactionError;
use posthaste_core::store::Error;
use posthaste_core::{IntoEvent, Outbox, Receipt, WriteError};
use sea_orm::{
    DatabaseConnection, DatabaseTransaction, DbBackend, SqliteTransactionMode, TransactionOptions,
    TransactionTrait as _,
};

use crate::database::{SeaOrmStore, begun, expect};
use crate::insert::{Inserted, Kept, Refused, insert};
use crate::transaction::Transaction;
use crate::{count, fault};

/// How many connections are mended before one is asked for no more.
const MOST_MISCOUNTED: usize = 100;

/// Writes events in transactions of SeaORM. Every [`Outbox`] on a store in a database that SeaORM knows has it.
pub trait OutboxExt {
    /// The store of the outbox.
    type Store: SeaOrmStore;

    /// Begins a transaction in which entities and events go together. Entities run on `&tx`.
    ///
    /// On SQLite it writes from the start (`BEGIN IMMEDIATE`): one that first read and then writes would be refused, without
    /// any waiting, if another wrote in between.
    ///
    /// ```no_run
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; pub use posthaste_sea_orm as sea_orm; }
    /// # use posthaste::{Event, Outbox, PgStore, sea_orm::OutboxExt};
    /// # use sea_orm::{ConnectionTrait, DatabaseConnection};
    /// # async fn example(outbox: Outbox<PgStore>, db: DatabaseConnection) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut tx = outbox.begin_on(&db).await?;
    /// tx.execute_unprepared("UPDATE orders SET paid = true WHERE id = 42").await?; // or any entity, on `&tx`
    /// tx.write(Event::builder("OrderPaid").aggregate("Order", 42).json_text("{}")).await?;
    /// tx.commit().await?; // delivered from here on
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the connection is to another kind of database than the outbox's; when the database cannot be reached or is busy for
    /// too long; on SQLite, when the connection cannot be freed of a transaction that others have left on it.
    ///
    /// # Cancellation
    /// Safe: a transaction that was begun and that nobody waits for any more is rolled back.
    fn begin_on(
        &self,
        db: &DatabaseConnection,
    ) -> impl Future<Output = Result<Transaction<Self::Store>, Error>> + Send {
        self.begin_on_with(db, TransactionOptions::default())
    }

    /// The same, with an isolation level, an access mode or a mode of SQLite's.
    ///
    /// # Errors
    /// As those of [`begin_on`](Self::begin_on).
    fn begin_on_with(
        &self,
        db: &DatabaseConnection,
        options: TransactionOptions,
    ) -> impl Future<Output = Result<Transaction<Self::Store>, Error>> + Send;

    /// Runs a closure in a transaction. It commits when the closure returns `Ok`, and its events are delivered from there on; it
    /// rolls back when the closure returns `Err`, panics or is dropped.
    ///
    /// ```no_run
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; pub use posthaste_sea_orm as sea_orm; }
    /// # use posthaste::{Event, Outbox, PgStore, sea_orm::OutboxExt};
    /// # use sea_orm::{ConnectionTrait, DatabaseConnection};
    /// # async fn example(outbox: Outbox<PgStore>, db: DatabaseConnection) -> Result<(), Box<dyn std::error::Error>> {
    /// let paid = outbox
    ///     .transaction_on(&db, async |tx| {
    ///         let paid = tx.execute_unprepared("UPDATE orders SET paid = true WHERE id = 42").await?;
    ///         tx.write(Event::builder("OrderPaid").aggregate("Order", 42).json_text("{}")).await?;
    ///         Ok::<_, Box<dyn std::error::Error>>(paid.rows_affected())
    ///     })
    ///     .await?;
    /// assert_eq!(paid, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// What the closure returns; or, turned into its error, why the transaction could not begin or commit.
    ///
    /// # Cancellation
    /// Safe: dropped before the commit it rolls back, and a commit that was begun goes on to its end.
    fn transaction_on<T, E: From<TransactionError>>(
        &self,
        db: &DatabaseConnection,
        work: impl AsyncFnOnce(&mut Transaction<Self::Store>) -> Result<T, E>,
    ) -> impl Future<Output = Result<T, E>>;

    /// Writes an event in a transaction that is yours. Call [`Receipt::dispatch`] after its commit; without it the poller
    /// delivers the event, a little later.
    ///
    /// On SQLite and MySQL nobody says whether the transaction is one that SeaORM began inside of another, and that may be
    /// undone. There `dispatch` has the poller look at the table, at once, instead of handing the event to its listener:
    /// [`begin_on`](Self::begin_on) is faster.
    ///
    /// ```no_run
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; pub use posthaste_sea_orm as sea_orm; }
    /// # use posthaste::{Event, Outbox, PgStore, sea_orm::OutboxExt};
    /// # use sea_orm::{ConnectionTrait, DatabaseConnection, TransactionTrait};
    /// # async fn example(outbox: Outbox<PgStore>, db: DatabaseConnection) -> Result<(), Box<dyn std::error::Error>> {
    /// let txn = db.begin().await?;
    /// let receipt = outbox.write_in(&txn, Event::of_json("OrderPaid", "{}")).await?;
    /// txn.commit().await?;
    /// receipt.dispatch();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A connection is not a transaction:
    ///
    /// ```compile_fail,E0308
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; pub use posthaste_sea_orm as sea_orm; }
    /// # use posthaste::{Event, Outbox, PgStore, sea_orm::OutboxExt};
    /// # use sea_orm::{ConnectionTrait, DatabaseConnection};
    /// # async fn example(outbox: Outbox<PgStore>, db: DatabaseConnection) -> Result<(), Box<dyn std::error::Error>> {
    /// let receipt = outbox.write_in(&db, Event::of_json("OrderPaid", "{}")).await?;
    /// # receipt.dispatch();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the event is not acceptable or the database does not take it; when the transaction is one of another kind of
    /// database than the outbox's, and nothing is written; when the database has rolled the transaction back by itself.
    ///
    /// In the last case, on SQLite, another transaction takes the place of the one that is gone. It takes no events, its commit
    /// fails, and with its rollback the connection is as good as new. Statements that came between SQLite's rollback and the
    /// write are stored on their own; [`begin_on`](Self::begin_on) has a transaction that can refuse them. If foreign keys are not
    /// enforced, which sqlx does unless it is told otherwise, nothing takes that place: the commit fails as well, but what comes
    /// before it is stored on its own, and the connection stays with a driver that counts a transaction too many, until
    /// `begin_on` mends it.
    ///
    /// # Cancellation
    /// Whether the event was inserted is then open; roll the transaction back. On MySQL, sqlx may lose its place in the
    /// conversation with the server: close the pool, or better, use [`begin_on`](Self::begin_on), which does not let it come
    /// to that.
    fn write_in(
        &self,
        tx: &DatabaseTransaction,
        event: impl IntoEvent + Send,
    ) -> impl Future<Output = Result<Receipt, WriteError>> + Send {
        self.write_all_in(tx, [event])
    }

    /// Writes several events in a transaction that is yours, in few statements. Otherwise like [`write_in`](Self::write_in).
    ///
    /// # Errors
    /// As those of [`write_in`](Self::write_in). None of them is written then.
    fn write_all_in<E: IntoEvent>(
        &self,
        tx: &DatabaseTransaction,
        events: impl IntoIterator<Item = E> + Send,
    ) -> impl Future<Output = Result<Receipt, WriteError>> + Send;
}

impl<S: SeaOrmStore> OutboxExt for Outbox<S> {
    type Store = S;

    async fn begin_on_with(
        &self,
        db: &DatabaseConnection,
        options: TransactionOptions,
    ) -> Result<Transaction<S>, Error> {
        expect::<S>(db.get_database_backend())?;
        let mode = options.sqlite_transaction_mode.unwrap_or(SqliteTransactionMode::Immediate);
        let options = TransactionOptions { sqlite_transaction_mode: Some(mode), ..options };
        // sqlx forgets a BEGIN whose answer nobody waited for, and its connection would return to the pool inside of it.
        let db = db.clone();
        let begin = async move {
            if S::BACKEND != DbBackend::Sqlite {
                let tx = db.begin_with_options(options).await?;
                begun::<S>(&tx).await?;
                return Ok((tx, None));
            }
            for _ in 0..MOST_MISCOUNTED {
                let tx = db.begin_with_options(options).await?;
                if let Some(mark) = count::mark(&tx).await {
                    return Ok((tx, Some(mark)));
                }
                // It goes back to the pool as one that is as good as new.
                count::clear(&tx).await?;
            }
            Err(count::miscounted())
        };
        let begun = self.finish(begin).await;
        let (tx, mark) = begun.map_err(|error| fault::classify(self.store(), &[], error))?;
        Ok(Transaction::new(self.clone(), tx, mark))
    }

    async fn transaction_on<T, E: From<TransactionError>>(
        &self,
        db: &DatabaseConnection,
        work: impl AsyncFnOnce(&mut Transaction<S>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut tx = self.begin_on(db).await.map_err(TransactionError::Begin)?;
        match work(&mut tx).await {
            Ok(value) => {
                tx.commit().await.map_err(TransactionError::Commit)?;
                Ok(value)
            }
            Err(error) => {
                // Nothing is committed in any case, and what the closure says is worth more.
                if let Err(error) = tx.rollback().await {
                    tracing::debug!(%error, "the rollback was not confirmed");
                }
                Err(error)
            }
        }
    }

    async fn write_all_in<E: IntoEvent>(
        &self,
        tx: &DatabaseTransaction,
        events: impl IntoIterator<Item = E> + Send,
    ) -> Result<Receipt, WriteError> {
        // Where nobody says that there is no savepoint around it, it is for the poller, and so it is leased to nobody.
        let receipt = match S::BACKEND {
            DbBackend::Postgres => self.prepare(events)?,
            _ => self.prepare_nested(events)?,
        };
        match insert(self.store(), tx, None, receipt.rows_to_insert()).await {
            Ok(Inserted { kept: Kept::Surely, .. }) => Ok(receipt),
            Ok(_) => Ok(receipt.nested()),
            Err(Refused { error, partly, ended }) => {
                if S::BACKEND == DbBackend::Sqlite && ended {
                    count::stand_in(tx).await;
                }
                let error = WriteError::of_store(receipt.rows_to_insert(), error);
                // Dropped, it leaves to the poller what may be in the transaction.
                if !partly {
                    receipt.never_written();
                }
                Err(error)
            }
        }
    }
}
