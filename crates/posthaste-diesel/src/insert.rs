//! Inserting rows on a connection of diesel-async.

use diesel::connection::{InTransactionStatus, TransactionManagerStatus};
use diesel::result::Error as DieselError;
use diesel_async::{AsyncConnection, TransactionManager};
use posthaste_core::store::Error;
use posthaste_core::{IntoEvent, Outbox, Receipt, WriteError};

use crate::fault;
use crate::statement::Statement;
use crate::store::DieselStore;

/// What is said to who writes where diesel-async has no transaction open.
const OUTSIDE: &str = "no transaction is open on this connection, and outside of one an event could be stored without its \
                       change: write inside `outbox.transaction_on(&mut conn, async |tx| …)` or `conn.transaction(async |conn| …)`";

/// What is known of the transaction of a connection.
pub(crate) struct Open {
    /// 0 outside of a transaction, 1 in it, more in savepoints.
    pub(crate) depth: u32,
    /// Whether it is one of a test, which is never committed.
    pub(crate) test: bool,
}

impl Open {
    /// Whether what is written may be undone although the transaction is committed, or is never committed.
    fn nested(&self) -> bool {
        self.depth > 1 || self.test
    }
}

/// How deep in transactions a connection is, as diesel-async has counted it.
pub(crate) fn open<C: AsyncConnection>(conn: &mut C) -> Result<Open, Error> {
    match C::TransactionManager::transaction_manager_status_mut(conn) {
        TransactionManagerStatus::Valid(valid) => Ok(match &valid.in_transaction {
            Some(InTransactionStatus { transaction_depth, test_transaction, .. }) => {
                Open { depth: transaction_depth.get(), test: *test_transaction }
            }
            None => Open { depth: 0, test: false },
        }),
        TransactionManagerStatus::InError => Err(Error::Unavailable(Box::new(DieselError::BrokenTransactionManager))),
    }
}

/// Writes events in the transaction that is open.
pub(crate) async fn write<S, C, E>(
    outbox: &Outbox<S>,
    conn: &mut C,
    events: impl IntoIterator<Item = E>,
) -> Result<Receipt, WriteError>
where
    S: DieselStore,
    C: AsyncConnection<Backend = S::Backend>,
    E: IntoEvent,
{
    let open = open(conn);
    let receipt = match &open {
        Ok(open) if open.nested() => outbox.prepare_nested(events)?,
        _ => outbox.prepare(events)?,
    };
    let refused = |receipt: Receipt, error| {
        let error = WriteError::of_store(receipt.rows_to_insert(), error);
        receipt.never_written();
        Err(error)
    };
    match open {
        Ok(open) if open.depth == 0 => return refused(receipt, Error::Refused(OUTSIDE.into())),
        Err(error) => return refused(receipt, error),
        Ok(_) => {}
    }
    let failed = match insert(outbox.store(), conn, &receipt).await {
        Ok(true) => return Ok(receipt.nested()),
        Ok(false) => return Ok(receipt),
        Err(failed) => failed,
    };
    let error = fault::of_insert(outbox.store(), receipt.rows_to_insert(), failed.error);
    if failed.partly {
        // Dropped: some of its rows may be in the transaction.
        return Err(WriteError::of_store(receipt.rows_to_insert(), error));
    }
    refused(receipt, error)
}

struct Failed {
    error: DieselError,
    /// Whether some of the rows may have stayed.
    partly: bool,
}

impl From<DieselError> for Failed {
    fn from(error: DieselError) -> Self {
        Self { error, partly: false }
    }
}

/// All rows or none. Says whether the database knows that it happened in a savepoint.
async fn insert<S, C>(store: &S, conn: &mut C, receipt: &Receipt) -> Result<bool, Failed>
where
    S: DieselStore,
    C: AsyncConnection<Backend = S::Backend>,
{
    let inserts = store.inserts(receipt.rows_to_insert());
    // Set by hand: what is dropped in a savepoint of diesel-async leaves its count of them wrong.
    let savepoint = S::GOES_ON_AFTER_ERROR && inserts.len() > 1;
    if savepoint {
        conn.batch_execute("SAVEPOINT posthaste_insert").await?;
    }
    let mut nested = false;
    for insert in inserts {
        match S::carry_out(conn, Statement::new(insert)).await {
            Ok(in_savepoint) => nested |= in_savepoint,
            Err(error) if savepoint => {
                let undone = conn.batch_execute("ROLLBACK TO SAVEPOINT posthaste_insert").await;
                return Err(Failed { error, partly: undone.is_err() });
            }
            Err(error) => return Err(error.into()),
        }
    }
    if savepoint {
        let released = conn.batch_execute("RELEASE SAVEPOINT posthaste_insert").await;
        released.map_err(|error| Failed { error, partly: true })?;
    }
    Ok(nested)
}
