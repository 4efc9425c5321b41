//! What an error of diesel means to the outbox.

use diesel::result::{DatabaseErrorKind, Error as DieselError};
use posthaste_core::store::{Error, NewRow};
use posthaste_sql::driver::Refusal;

use crate::store::DieselStore;

/// What the database meant when it refused an insert of these rows.
pub(crate) fn of_insert<S: DieselStore>(store: &S, rows: &[NewRow], error: DieselError) -> Error {
    match &error {
        DieselError::DatabaseError(kind, said) if !is_lost(kind) => {
            let refusal = Refusal {
                detail: said.details().map(str::to_owned),
                table: said.table_name().map(str::to_owned),
                constraint: said.constraint_name().map(str::to_owned),
                ..Refusal::new(S::code(kind, said.message()), said.message())
            };
            store.refused(rows, refusal)
        }
        _ => of_driver(error),
    }
}

/// The same of a statement that begins or ends a transaction.
pub(crate) fn of_control<S: DieselStore>(store: &S, error: DieselError) -> Error {
    match error {
        // What failed to commit is of the most interest.
        DieselError::RollbackErrorOnCommit { commit_error, .. } => of_control(store, *commit_error),
        // No row of ours is to blame for a key that is checked so late.
        DieselError::DatabaseError(DatabaseErrorKind::UniqueViolation, _) => Error::Refused(Box::new(error)),
        _ => of_insert(store, &[], error),
    }
}

fn of_driver(error: DieselError) -> Error {
    match &error {
        DieselError::DatabaseError(..) | DieselError::BrokenTransactionManager => Error::Unavailable(Box::new(error)),
        _ => Error::Refused(Box::new(error)),
    }
}

/// Whether the connection is gone.
fn is_lost(kind: &DatabaseErrorKind) -> bool {
    matches!(kind, DatabaseErrorKind::ClosedConnection | DatabaseErrorKind::UnableToSendCommand)
}

/// Whether a commit that failed certainly did not happen. Nothing if that shows in whether the database goes on talking.
pub(crate) fn refuses_commit<S: DieselStore>(error: &DieselError) -> Option<bool> {
    match error {
        DieselError::RollbackErrorOnCommit { commit_error, .. } => refuses_commit::<S>(commit_error),
        DieselError::DatabaseError(kind, said) => S::refuses_commit(kind, said.message()),
        // Nothing was sent.
        DieselError::BrokenTransactionManager | DieselError::NotInTransaction => Some(true),
        _ => Some(false),
    }
}
