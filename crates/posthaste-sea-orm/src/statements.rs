//! Statements on a transaction, so that entities run on it behind any reference.

use std::future::{Future, ready};
use std::pin::Pin;

use sea_orm::{ConnectionTrait, DbBackend, DbErr, ExecResult, QueryResult, Statement};

use crate::database::SeaOrmStore;
use crate::savepoint::Savepoint;
use crate::transaction::Transaction;

/// What a method of SeaORM's trait gives.
type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, DbErr>> + Send + 'a>>;

/// The answer of a transaction that has ended.
fn refused<'a, T: Send + 'a>(error: DbErr) -> Answer<'a, T> {
    Box::pin(ready(Err(error)))
}

macro_rules! on {
    ($connection:ty) => {
        impl<S: SeaOrmStore> ConnectionTrait for $connection {
            fn get_database_backend(&self) -> DbBackend {
                S::BACKEND
            }

            fn execute_raw<'s, 'a>(&'s self, statement: Statement) -> Answer<'a, ExecResult>
            where
                's: 'a,
                Self: 'a,
            {
                self.connection().map_or_else(refused, |tx| tx.execute_raw(statement))
            }

            fn execute_unprepared<'s, 'q, 'a>(&'s self, sql: &'q str) -> Answer<'a, ExecResult>
            where
                's: 'a,
                'q: 'a,
                Self: 'a,
            {
                self.connection().map_or_else(refused, |tx| tx.execute_unprepared(sql))
            }

            fn query_one_raw<'s, 'a>(&'s self, statement: Statement) -> Answer<'a, Option<QueryResult>>
            where
                's: 'a,
                Self: 'a,
            {
                self.connection().map_or_else(refused, |tx| tx.query_one_raw(statement))
            }

            fn query_all_raw<'s, 'a>(&'s self, statement: Statement) -> Answer<'a, Vec<QueryResult>>
            where
                's: 'a,
                Self: 'a,
            {
                self.connection().map_or_else(refused, |tx| tx.query_all_raw(statement))
            }
        }
    };
}

on!(Transaction<S>);
on!(Savepoint<'_, S>);
