//! Whether the table is one in storage, too, so that rows can be found by where they are, and no two have the same number.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sqlx::postgres::PgConnection;
use tokio::time::Instant;

use super::sql::{DIALECT, IS_ONE_TABLE};
use crate::table::TableName;

/// How long an answer is believed. Somebody may put the table into partitions at any time; until that is known nothing is
/// found in them, and nothing else goes wrong.
const BELIEVED: Duration = Duration::from_secs(30);

/// What the server said last, and when.
#[derive(Default)]
pub(super) struct OneTable(Mutex<Option<(bool, Instant)>>);

impl OneTable {
    /// What the server said last.
    pub(super) fn last(&self) -> bool {
        self.get().is_some_and(|(one, _)| one)
    }

    /// What the server says, or said a moment ago.
    pub(super) async fn ask(&self, table: &TableName, connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
        if let Some((one, at)) = self.get()
            && at.elapsed() < BELIEVED
        {
            return Ok(one);
        }
        let one = sqlx::query_scalar(DIALECT.statement(IS_ONE_TABLE, table)).fetch_one(connection).await?;
        self.note(one);
        Ok(one)
    }

    /// A server that has no such columns says so when they are used.
    pub(super) fn note(&self, one: bool) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((one, Instant::now()));
    }

    fn get(&self) -> Option<(bool, Instant)> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
