//! A part of a transaction that can be undone alone.

use std::fmt;
use std::ops::{Deref, DerefMut};

use posthaste_core::store::Error;
use sea_orm::TransactionTrait;

use crate::database::SeaOrmStore;
use crate::fault;
use crate::transaction::{Ended, Own, Transaction, ended};

/// A part of a [`Transaction`] that can be undone alone: its entities and its events, together.
///
/// It is used as the transaction is, with entities on `&*savepoint`, and may have savepoints of its own. Dropping it undoes it.
/// What it keeps is delivered when the transaction around it commits, and not before.
///
/// ```no_run
/// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; pub use posthaste_sea_orm as sea_orm; }
/// # use posthaste::{Event, Outbox, PgStore, sea_orm::OutboxExt};
/// # use sea_orm::{ConnectionTrait, DatabaseConnection};
/// # async fn example(outbox: Outbox<PgStore>, db: DatabaseConnection) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = outbox.begin_on(&db).await?;
/// tx.write(Event::of_json("OrderPlaced", "{}")).await?;
///
/// let mut attempt = tx.savepoint().await?;
/// let redeemed = attempt.execute_unprepared("UPDATE coupons SET left = left - 1 WHERE left > 0").await?;
/// attempt.write(Event::of_json("CouponRedeemed", "{}")).await?;
/// match redeemed.rows_affected() {
///     0 => attempt.rollback().await?, // it has run out, and nobody hears of it
///     _ => attempt.commit().await?,
/// }
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "dropped, it is undone"]
pub struct Savepoint<'t, S: SeaOrmStore> {
    tx: &'t mut Transaction<S>,
    mark: Mark,
    open: bool,
}

/// How much there was before it.
#[derive(Clone, Copy)]
struct Mark {
    savepoints: usize,
    writes: usize,
}

impl<S: SeaOrmStore> Transaction<S> {
    /// Sets a savepoint: what is done from here on can be undone without the rest.
    ///
    /// # Errors
    /// When the database refuses it, or has lost the connection. The transaction has then ended, rolled back.
    ///
    /// # Cancellation
    /// The transaction has then ended, rolled back. What is still tried in it is refused.
    pub async fn savepoint(&mut self) -> Result<Savepoint<'_, S>, Error> {
        let own = self.take().ok_or_else(ended)?;
        let mark = Mark { savepoints: own.savepoints.len(), writes: own.written.len() };
        let outbox = self.outbox.clone();
        // sqlx rolls the whole transaction back when this fails, and further statements would be on their own.
        let set = async move {
            let mut own = own.still_open(outbox.store()).await?;
            match own.connection().begin().await {
                Ok(set) => own.savepoints.push(set),
                Err(error) => {
                    let error = fault::classify(outbox.store(), &[], error);
                    return Err((error, own.give_up(outbox.store()).await));
                }
            }
            Ok(own)
        };
        let set: Result<Own, (Error, Ended)> = self.outbox.finish(set).await;
        match set {
            Ok(own) => self.set(Ok(own)),
            Err((error, ended)) => {
                self.set(Err(ended));
                return Err(error);
            }
        }
        Ok(Savepoint { tx: self, mark, open: true })
    }
}

impl<S: SeaOrmStore> Savepoint<'_, S> {
    /// Keeps what was done in it, as a part of the transaction around it.
    ///
    /// # Errors
    /// When the database refuses it; then it is undone. When the database has rolled the transaction back, that has ended.
    ///
    /// # Cancellation
    /// The transaction has then ended, rolled back.
    pub async fn commit(self) -> Result<(), Error> {
        self.end(true).await
    }

    /// Undoes what was done in it. The transaction around it goes on.
    ///
    /// # Errors
    /// When the database did not confirm it; roll back the transaction then.
    ///
    /// # Cancellation
    /// The transaction has then ended, rolled back.
    pub async fn rollback(self) -> Result<(), Error> {
        self.end(false).await
    }

    async fn end(mut self, keep: bool) -> Result<(), Error> {
        let mark = self.mark;
        let own = self.tx.take().ok_or_else(ended)?;
        self.open = false;
        let outbox = self.tx.outbox.clone();
        let end = async move {
            let mut own = own.still_open(outbox.store()).await?;
            // Inner ones that were forgotten are undone.
            own.savepoints.truncate(mark.savepoints + 1);
            let savepoint = own.savepoints.pop().expect("a savepoint ends once");
            // One that SeaORM cannot keep is undone when it is dropped.
            let ended = if keep { savepoint.commit().await } else { savepoint.rollback().await };
            if !keep || ended.is_err() {
                let certain = ended.is_ok() || !own.is_out_of_sight();
                own.written.forget_since(mark.writes, certain);
            }
            Ok((own, ended.map_err(|error| fault::classify(outbox.store(), &[], error))))
        };
        let (own, ended) = match self.tx.outbox.finish(end).await {
            Ok((own, ended)) => (Ok(own), ended),
            Err((error, how)) => (Err(how), Err(error)),
        };
        self.tx.set(own);
        ended
    }
}

impl<S: SeaOrmStore> Drop for Savepoint<'_, S> {
    fn drop(&mut self) {
        if self.open
            && let Some(own) = &mut self.tx.own
        {
            // Undone before the next statement.
            own.savepoints.truncate(self.mark.savepoints);
            own.written.forget_since(self.mark.writes, true);
        }
    }
}

impl<S: SeaOrmStore> Deref for Savepoint<'_, S> {
    type Target = Transaction<S>;

    fn deref(&self) -> &Transaction<S> {
        self.tx
    }
}

impl<S: SeaOrmStore> DerefMut for Savepoint<'_, S> {
    fn deref_mut(&mut self) -> &mut Transaction<S> {
        self.tx
    }
}

impl<S: SeaOrmStore> fmt::Debug for Savepoint<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let writes = self.tx.own.as_ref().map(|own| own.written.len().saturating_sub(self.mark.writes));
        f.debug_struct("Savepoint").field("writes", &writes).finish_non_exhaustive()
    }
}
