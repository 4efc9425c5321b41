//! Statements on a transaction, so that entities run on it behind any reference.

use std::future::Future;
use std::mem::forget;
use std::pin::Pin;

use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, ExecResult, QueryResult, Statement};

use crate::database::SeaOrmStore;
use crate::savepoint::Savepoint;
use crate::transaction::{Transaction, gone};

/// What a method of SeaORM's trait gives.
type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, DbErr>> + Send + 'a>>;

/// Whether it is certain that a statement ends no transaction, and begins none.
fn is_plain(sql: &str) -> bool {
    const PLAIN: [&str; 5] = ["SELECT", "INSERT", "UPDATE", "DELETE", "WITH"];
    let first = sql.trim_start().split(|letter: char| !letter.is_ascii_alphabetic()).next();
    first.is_some_and(|first| PLAIN.iter().any(|plain| first.eq_ignore_ascii_case(plain))) && !sql.contains(';')
}

/// The answer to a statement on SeaORM's transaction, unless that has ended.
fn answer<'a, S: SeaOrmStore, T: Send>(
    tx: &'a Transaction<S>,
    plain: bool,
    statement: impl FnOnce(&'a DatabaseTransaction) -> Answer<'a, T> + Send + 'a,
) -> Answer<'a, T> {
    let (store, own) = (tx.outbox.store(), tx.own.as_ref());
    Box::pin(async move {
        let own = own.ok_or_else(gone)?;
        // Whoever comes before it may find the transaction ended, or end it.
        let _turn = own.turn().await;
        let connection = own.connection_in_order(store).await?;
        if !plain {
            own.lose_sight();
        }
        let statement = statement(connection);
        let question = own.question();
        let answer = statement.await?;
        forget(question);
        Ok(answer)
    })
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
                answer(self, is_plain(&statement.sql), move |tx| tx.execute_raw(statement))
            }

            fn execute_unprepared<'s, 'q, 'a>(&'s self, sql: &'q str) -> Answer<'a, ExecResult>
            where
                's: 'a,
                'q: 'a,
                Self: 'a,
            {
                answer(self, is_plain(sql), move |tx| tx.execute_unprepared(sql))
            }

            fn query_one_raw<'s, 'a>(&'s self, statement: Statement) -> Answer<'a, Option<QueryResult>>
            where
                's: 'a,
                Self: 'a,
            {
                answer(self, is_plain(&statement.sql), move |tx| tx.query_one_raw(statement))
            }

            fn query_all_raw<'s, 'a>(&'s self, statement: Statement) -> Answer<'a, Vec<QueryResult>>
            where
                's: 'a,
                Self: 'a,
            {
                answer(self, is_plain(&statement.sql), move |tx| tx.query_all_raw(statement))
            }
        }
    };
}

on!(Transaction<S>);
on!(Savepoint<'_, S>);
