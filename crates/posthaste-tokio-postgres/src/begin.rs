//! What a transaction is begun on, and the libraries' own transactions.

use tokio_postgres::Error;

/// What [`begin_on`](crate::OutboxExt::begin_on) begins a transaction on: `&mut client`, or a builder of transactions,
/// which knows isolation levels.
///
/// ```no_run
/// # mod posthaste {
/// #     pub use {posthaste_core::*, posthaste_sql::*, posthaste_tokio_postgres as tokio_postgres};
/// # }
/// use posthaste::tokio_postgres::OutboxExt;
/// use posthaste::{Event, Outbox, PgStore};
/// use tokio_postgres::{Client, IsolationLevel};
///
/// # async fn example(outbox: Outbox<PgStore>, client: &mut Client) -> Result<(), Box<dyn std::error::Error>> {
/// let strict = client.build_transaction().isolation_level(IsolationLevel::Serializable);
/// let mut tx = outbox.begin_on(strict).await?;
/// tx.write(Event::of_json("OrderPlaced", "{}")).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "no transaction can be begun on `{Self}`",
    note = "give `&mut client`, or a builder of transactions such as `client.build_transaction()`",
    note = "of a pool, get a client first: `pool.get().await?`; deadpool-postgres needs the feature `deadpool`"
)]
pub trait Begin: sealed::Begin {
    /// The transaction of the library.
    type Transaction: LibraryTransaction;

    #[doc(hidden)]
    fn start(self) -> impl Future<Output = Result<Self::Transaction, Error>> + Send;
}

/// A transaction of tokio-postgres or of deadpool-postgres.
pub trait LibraryTransaction: sealed::LibraryTransaction + Send + Sync {
    #[doc(hidden)]
    fn plain(&self) -> &tokio_postgres::Transaction<'_>;

    #[doc(hidden)]
    fn commit(self) -> impl Future<Output = Result<(), Error>> + Send;

    #[doc(hidden)]
    fn rollback(self) -> impl Future<Output = Result<(), Error>> + Send;
}

mod sealed {
    pub trait Begin {}
    pub trait LibraryTransaction {}
}

macro_rules! begins {
    ($on:ty, $transaction:ty, $start:expr) => {
        impl<'c> sealed::Begin for $on {}

        impl<'c> Begin for $on {
            type Transaction = $transaction;

            async fn start(self) -> Result<$transaction, Error> {
                let start = $start;
                start(self).await
            }
        }
    };
}

macro_rules! library_transaction {
    ($transaction:ty) => {
        impl sealed::LibraryTransaction for $transaction {}

        impl LibraryTransaction for $transaction {
            fn plain(&self) -> &tokio_postgres::Transaction<'_> {
                self
            }

            async fn commit(self) -> Result<(), Error> {
                self.commit().await
            }

            async fn rollback(self) -> Result<(), Error> {
                self.rollback().await
            }
        }
    };
}

begins!(&'c mut tokio_postgres::Client, tokio_postgres::Transaction<'c>, tokio_postgres::Client::transaction);
begins!(
    tokio_postgres::TransactionBuilder<'c>,
    tokio_postgres::Transaction<'c>,
    tokio_postgres::TransactionBuilder::start
);
library_transaction!(tokio_postgres::Transaction<'_>);

#[cfg(feature = "deadpool")]
mod deadpool {
    use deadpool_postgres::{Client, ClientWrapper, Transaction, TransactionBuilder};

    use super::{Begin, Error, LibraryTransaction, sealed};

    begins!(&'c mut Client, Transaction<'c>, |client: &'c mut Client| ClientWrapper::transaction(client));
    begins!(&'c mut ClientWrapper, Transaction<'c>, ClientWrapper::transaction);
    begins!(TransactionBuilder<'c>, Transaction<'c>, TransactionBuilder::start);
    library_transaction!(Transaction<'_>);
}
