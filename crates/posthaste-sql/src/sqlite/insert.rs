//! Inserting rows.

use std::collections::HashSet;

use posthaste_core::event::{Availability, Payload};
use posthaste_core::store::{Error, Lease, NewRow};
use posthaste_core::{EventId, Timestamp};
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection};
use sqlx::{Connection, SqlStr};

use super::sql::{DIALECT, INSERT_ROW};
use super::{SqliteStore, fault};
use crate::table::TableName;

/// Rows of one statement. A slice is cut greedily, so that every statement is one of these and stays prepared; the
/// largest is far below the 32,766 parameters of SQLite.
const SIZES: [usize; 10] = [512, 256, 128, 64, 32, 16, 8, 4, 2, 1];

/// An insert of each size.
pub(super) struct Inserts([SqlStr; SIZES.len()]);

impl Inserts {
    pub(super) fn new(table: &TableName) -> Self {
        Self(SIZES.map(|rows| {
            let template = DIALECT.slots.insert.to_owned() + &vec![INSERT_ROW; rows].join(", ");
            DIALECT.statement(&template, table)
        }))
    }
}

impl SqliteStore {
    pub(super) async fn insert_rows(&self, connection: &mut SqliteConnection, rows: &[NewRow]) -> Result<(), Error> {
        let now = self.now();
        if SIZES.contains(&rows.len()) {
            return match self.insert_cut(connection, rows, now).await {
                Err(error) if fault::is_duplicate(&error) => Err(self.duplicate(connection, rows).await),
                done => done.map_err(|error| self.fault(error)),
            };
        }
        if rows.is_empty() {
            return Ok(());
        }
        // Several statements: a savepoint makes them all or none within a transaction that may go on after an error.
        let mut savepoint = connection.begin().await.map_err(|error| self.fault(error))?;
        match self.insert_cut(&mut savepoint, rows, now).await {
            Ok(()) => savepoint.commit().await.map_err(|error| self.fault(error)),
            Err(error) => {
                savepoint.rollback().await.map_err(|error| self.fault(error))?;
                if fault::is_duplicate(&error) {
                    return Err(self.duplicate(connection, rows).await);
                }
                Err(self.fault(error))
            }
        }
    }

    async fn insert_cut(
        &self,
        connection: &mut SqliteConnection,
        mut rows: &[NewRow],
        now: Timestamp,
    ) -> Result<(), sqlx::Error> {
        for (size, sql) in SIZES.into_iter().zip(&self.sql.inserts.0) {
            while let Some((cut, rest)) = rows.split_at_checked(size) {
                let query = cut.iter().fold(sqlx::query(sql.clone()), |query, row| bind(query, row, now));
                query.execute(&mut *connection).await?;
                rows = rest;
                kill_point!("insert.between");
            }
        }
        Ok(())
    }

    /// The error for a taken id, with the id, which SQLite does not tell.
    async fn duplicate(&self, connection: &mut SqliteConnection, rows: &[NewRow]) -> Error {
        let mut ids = HashSet::new();
        if let Some(twice) = rows.iter().map(|row| row.event.id()).find(|id| !ids.insert(*id)) {
            return Error::DuplicateId { id: twice.clone() };
        }
        let ids: Vec<&str> = rows.iter().map(|row| row.event.id().as_str()).collect();
        let json = serde_json::to_string(&ids).unwrap_or_default();
        let taken = sqlx::query_scalar::<_, String>(self.sql.slots.taken.clone()).bind(json);
        match taken.fetch_optional(connection).await {
            Ok(id) => Error::DuplicateId { id: EventId::from_row(id.unwrap_or_default()) },
            Err(error) => self.fault(error),
        }
    }
}

type Insert<'q> = Query<'q, Sqlite, SqliteArguments>;

/// Binds the values of a row, in the order of the columns in the insert.
fn bind<'q>(query: Insert<'q>, row: &'q NewRow, now: Timestamp) -> Insert<'q> {
    let event = &row.event;
    let headers = (!event.headers().is_empty())
        .then(|| serde_json::to_string(event.headers()).expect("a map of strings is JSON"));
    let bytes = match event.payload() {
        Payload::Bytes(bytes) => Some(&**bytes),
        _ => None,
    };
    let available_at = match event.availability() {
        Availability::Now => now,
        Availability::At(at) => at,
        Availability::After(delay) => now + delay,
    };
    query
        .bind(event.id().as_str())
        .bind(event.event_type())
        .bind(event.aggregate_type())
        .bind(event.aggregate_id())
        .bind(event.tenant_id())
        .bind(event.topic())
        .bind(event.content_type())
        .bind(event.payload().as_json())
        .bind(bytes)
        .bind(headers)
        .bind(event.occurred_at().as_micros())
        .bind(now.as_micros())
        .bind(available_at.as_micros())
        .bind(row.lease.as_ref().map(Lease::as_str))
        .bind(row.lease.as_ref().map(|_| now.as_micros()))
}
