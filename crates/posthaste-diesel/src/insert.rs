//! Inserting rows on a connection of diesel-async.

use diesel::connection::{InTransactionStatus, TransactionManagerStatus};
use diesel::result::Error as DieselError;
use diesel_async::{AsyncConnection, TransactionManager};
use posthaste_core::store::Error;
use posthaste_core::{IntoEvent, Outbox, Receipt, WriteError};

use crate::fault;
use crate::statement::Statement;
use crate::store::{DieselStore, Inserted};

/// What is said to who writes where diesel-async has no transaction open.
const OUTSIDE: &str = "no transaction is open on this connection, and outside of one an event could be stored without its \
                       change: write inside `outbox.transaction_on(&mut conn, async |tx| …)` or `conn.transaction(async |conn| …)`";

/// What is said to who goes on in a transaction that is none any more.
pub(crate) const ENDED: &str = "the transaction has ended, by a statement of its own or because the database has rolled it back, as \
                                SQLite does after some errors: return such an error, and begin another transaction";

/// What is said to who goes on after that.
const CUT_OFF: &str = "something that begins or ends a transaction, or a part of one, was cut off on this connection, so that \
                       diesel-async has lost count: drop it, and use another";

/// What is known of a transaction before a write in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    Nothing,
    /// It was begun.
    Begun,
    /// It is open: nobody had the connection since it was.
    Open,
}

/// What was written.
pub(crate) struct Written {
    pub(crate) receipt: Receipt,
    /// Whether that was in a savepoint, or in a transaction that is never committed.
    pub(crate) nested: bool,
    /// The number of the transaction, where the database tells it.
    pub(crate) txid: Option<i64>,
}

impl Written {
    pub(crate) fn into_receipt(self) -> Receipt {
        if self.nested { self.receipt.nested() } else { self.receipt }
    }
}

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
    if is_cut_off(conn) {
        return Err(Error::Unavailable(CUT_OFF.into()));
    }
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

/// Whether something that begins or ends a transaction was cut off. diesel-async tells only pools of it, and panics in a debug
/// build when it is to begin or end another one.
pub(crate) fn is_cut_off<C: AsyncConnection>(conn: &mut C) -> bool {
    // To a pool an open transaction is as bad, so it is put aside for the question.
    let status = std::mem::take(C::TransactionManager::transaction_manager_status_mut(conn));
    let cut_off = C::TransactionManager::is_broken_transaction_manager(conn);
    *C::TransactionManager::transaction_manager_status_mut(conn) = status;
    cut_off
}

/// Writes events in the transaction that is open.
pub(crate) async fn write<S, C, E>(
    outbox: &Outbox<S>,
    conn: &mut C,
    events: impl IntoIterator<Item = E>,
    known: Known,
) -> Result<Written, WriteError>
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
    let open = match open {
        Ok(open) if open.depth == 0 => {
            let reason = if known == Known::Nothing { OUTSIDE } else { ENDED };
            return refused(receipt, Error::Refused(reason.into()));
        }
        Err(error) => return refused(receipt, error),
        Ok(open) => open,
    };
    if known != Known::Open
        && !receipt.rows_to_insert().is_empty()
        && let Err(error) = expect_open(outbox.store(), conn).await
    {
        return refused(receipt, error);
    }
    let failed = match insert(outbox.store(), conn, &receipt).await {
        Ok(Inserted { nested, txid }) => {
            return Ok(Written { receipt, nested: nested || open.nested(), txid });
        }
        Err(failed) => failed,
    };
    let error = fault::of_insert(outbox.store(), receipt.rows_to_insert(), failed.error);
    if failed.partly {
        // Dropped: some of its rows may be in the transaction.
        return Err(WriteError::of_store(receipt.rows_to_insert(), error));
    }
    refused(receipt, error)
}

/// Fails where the database has ended the transaction by itself, of which diesel need not know: an event would be stored alone.
async fn expect_open<S, C>(store: &S, conn: &mut C) -> Result<(), Error>
where
    S: DieselStore,
    C: AsyncConnection<Backend = S::Backend>,
{
    let Some(probe) = S::PROBE else { return Ok(()) };
    match conn.batch_execute(probe.sql).await {
        Ok(()) => Err(Error::Refused(ENDED.into())),
        Err(DieselError::DatabaseError(_, said)) if said.message().starts_with(probe.refused_inside) => Ok(()),
        Err(error) => Err(fault::of_control(store, error)),
    }
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

/// All rows or none. Says what the database knows of where that happened.
async fn insert<S, C>(store: &S, conn: &mut C, receipt: &Receipt) -> Result<Inserted, Failed>
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
    let mut inserted = Inserted::default();
    for insert in inserts {
        match S::carry_out(conn, Statement::new(insert)).await {
            Ok(Inserted { nested, txid }) => inserted = Inserted { nested: inserted.nested || nested, txid },
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
    Ok(inserted)
}
