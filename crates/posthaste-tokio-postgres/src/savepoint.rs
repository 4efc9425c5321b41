//! A part of a transaction that can be undone alone.

use std::fmt;
use std::ops::{Deref, DerefMut};

use futures_util::FutureExt;
use posthaste_core::store;
use tokio_postgres::SimpleQueryStream;

use crate::begin::LibraryTransaction;
use crate::fault;
use crate::transaction::{Transaction, answered, join};

/// A part of a [`Transaction`] that can be undone alone: its statements and its events, together.
///
/// It is used as the transaction is, and may have savepoints of its own. Dropping it undoes it. What it keeps is
/// delivered when the transaction around it commits, and not before. After statements of your own the poller does so, at once,
/// since nobody sees whether you have rolled back to a savepoint that you have set around it or in it.
#[must_use = "dropped, it is undone"]
pub struct Savepoint<'t, T: LibraryTransaction> {
    tx: &'t mut Transaction<T>,
    /// How many writes came before it.
    mark: usize,
    name: String,
    ended: bool,
}

impl<T: LibraryTransaction> Transaction<T> {
    /// Sets a savepoint: what is done from here on can be undone without the rest.
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
    /// tx.write(Event::of_json("OrderPlaced", "{}")).await?;
    ///
    /// let mut attempt = tx.savepoint().await?;
    /// attempt.write(Event::of_json("CouponRedeemed", "{}")).await?;
    /// attempt.rollback().await?; // the coupon has run out; `commit` would keep it
    ///
    /// tx.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the database refuses it, or the connection is lost. The transaction can then only be rolled back.
    ///
    /// # Cancellation
    /// Safe: it is undone, and the transaction goes on.
    pub async fn savepoint(&mut self) -> Result<Savepoint<'_, T>, store::Error> {
        self.savepoints += 1;
        let name = format!("posthaste_{}", self.savepoints);
        let set = format!("SAVEPOINT {name}");
        // From here on it is undone when this future is dropped.
        let mut savepoint = Savepoint { mark: self.written.len(), tx: self, name, ended: false };
        if let Err(error) = savepoint.tx.open().plain().batch_execute(&set).await {
            savepoint.end();
            return Err(fault::of_statement(savepoint.tx.store(), error));
        }
        Ok(savepoint)
    }
}

impl<T: LibraryTransaction> Savepoint<'_, T> {
    /// Keeps what was done in it, as a part of the transaction around it.
    ///
    /// # Errors
    /// When the database refuses it, since a statement in it had failed; then it is undone.
    ///
    /// # Cancellation
    /// The transaction can then only be rolled back.
    pub async fn commit(mut self) -> Result<(), store::Error> {
        let release = format!("RELEASE SAVEPOINT {}", self.name);
        let released = self.tx.open().plain().batch_execute(&release).await;
        released.map_err(|error| fault::of_statement(self.tx.store(), error))?;
        self.end();
        Ok(())
    }

    /// Undoes what was done in it. The transaction around it goes on.
    ///
    /// # Errors
    /// When the database did not confirm it; roll back the transaction then.
    ///
    /// # Cancellation
    /// Safe: it is undone.
    pub async fn rollback(mut self) -> Result<(), store::Error> {
        let Some(sent) = self.undo() else { return Err(store::Error::Unavailable(NOT_UNDONE.into())) };
        answered(sent).await.map(drop).map_err(|error| fault::of_statement(self.tx.store(), error))
    }

    /// Has it undone before the next statement.
    fn undo(&mut self) -> Option<SimpleQueryStream> {
        // What the library does leaves the savepoint open, so that everything after it would be inside.
        let undo = format!("ROLLBACK TO SAVEPOINT {name}; RELEASE SAVEPOINT {name}", name = self.name);
        let sent = self.tx.open().plain().client().simple_query_raw(&undo).now_or_never().and_then(Result::ok);
        // What could not be undone must not be committed.
        self.tx.spoilt |= sent.is_none();
        if let Some(undone) = join(self.tx.written.drain(self.mark.min(self.tx.written.len())..)) {
            undone.rolled_back();
        }
        self.end();
        sent
    }

    fn end(&mut self) {
        self.ended = true;
        self.tx.savepoints -= 1;
    }
}

pub(crate) const NOT_UNDONE: &str = "a savepoint could not be undone; roll back the transaction";

impl<T: LibraryTransaction> Drop for Savepoint<'_, T> {
    fn drop(&mut self) {
        if !self.ended {
            drop(self.undo());
        }
    }
}

impl<T: LibraryTransaction> Deref for Savepoint<'_, T> {
    type Target = Transaction<T>;

    fn deref(&self) -> &Transaction<T> {
        self.tx
    }
}

impl<T: LibraryTransaction> DerefMut for Savepoint<'_, T> {
    fn deref_mut(&mut self) -> &mut Transaction<T> {
        self.tx
    }
}

impl<T: LibraryTransaction> fmt::Debug for Savepoint<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Savepoint").field("name", &self.name).finish_non_exhaustive()
    }
}
