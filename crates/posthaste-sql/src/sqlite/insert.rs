//! Inserting rows.

use std::borrow::Cow;
use std::collections::HashSet;

use posthaste_core::event::{Availability, Payload};
use posthaste_core::store::{Error, Lease, NewRow};
use posthaste_core::{Event, EventId, Timestamp};
use sqlx::SqlStr;
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection};

use super::{SqliteStore, fault, tx};
use crate::driver::{self, DriverStore, Parameter, Refusal, headers, taken_id};
use crate::many::Many;
use crate::plain::are_plain;

/// When it is asked whether the transaction is open in which rows are inserted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// It was, and nobody has had the connection since.
    Before,
    /// In the message of the insert.
    Afterwards,
}

impl SqliteStore {
    /// Inserts rows within the transaction that is open.
    pub(super) async fn insert_rows(
        &self,
        connection: &mut SqliteConnection,
        rows: &[NewRow],
        ask: Ask,
    ) -> Result<(), Error> {
        let now = self.now();
        // One row has nothing to share.
        let plain = rows.len() > 1 && are_plain(rows) && share_a_lease(rows);
        let insert = if plain { Insert::Plain } else { Insert::Any };
        let statement = match (ask, insert) {
            (Ask::Before, insert) => self.statement(insert),
            (Ask::Afterwards, Insert::Plain) => &self.sql.insert_plain_asking,
            (Ask::Afterwards, Insert::Any) => &self.sql.insert_asking,
        };
        if let Some(sql) = statement.exactly(rows.len()) {
            return match insert.bind(sql, rows, now).execute(&mut *connection).await {
                Err(error) if fault::is_within_a_transaction(&error) => Ok(()),
                Err(error) if fault::is_duplicate(&error) => Err(self.duplicate(connection, rows).await),
                Err(error) => Err(self.fault(error)),
                Ok(_) if ask == Ask::Before => Ok(()),
                // Known only now: they were stored on their own.
                Ok(_) => {
                    self.take_back(connection, rows).await?;
                    Err(tx::ended())
                }
            };
        }
        // Several statements: a savepoint makes them all or none within a transaction that may go on after an error. It is set
        // by hand: dropped at the wrong moment, a savepoint of sqlx rolls back the transaction around it.
        let say = async |connection: &mut SqliteConnection, sql: &'static str| {
            sqlx::raw_sql(sql).execute(connection).await.map(drop).map_err(|error| self.fault(error))
        };
        // Outside of a transaction it would begin one, of which sqlx knows nothing.
        if ask == Ask::Afterwards {
            self.expect_open(connection).await?;
        }
        say(connection, "SAVEPOINT posthaste_insert").await?;
        match self.insert_cut(connection, insert, rows, now).await {
            Ok(()) => say(connection, "RELEASE SAVEPOINT posthaste_insert").await,
            Err(error) => {
                say(connection, "ROLLBACK TO SAVEPOINT posthaste_insert; RELEASE SAVEPOINT posthaste_insert").await?;
                if fault::is_duplicate(&error) {
                    return Err(self.duplicate(connection, rows).await);
                }
                Err(self.fault(error))
            }
        }
    }

    /// Deletes rows that were inserted outside of a transaction by mistake.
    async fn take_back(&self, connection: &mut SqliteConnection, rows: &[NewRow]) -> Result<(), Error> {
        let ids: Vec<&str> = rows.iter().map(|row| row.event.id().as_str()).collect();
        let json = serde_json::to_string(&ids).unwrap_or_default();
        let deleted = sqlx::query(self.sql.take_back.clone()).bind(json).execute(connection).await;
        deleted.map(drop).map_err(|error| self.fault(error))
    }

    /// Those of these events that are not in the table, as the connection sees it.
    pub(super) async fn missing(
        &self,
        connection: &mut SqliteConnection,
        ids: &[EventId],
    ) -> Result<Vec<EventId>, Error> {
        let ids: Vec<&str> = ids.iter().map(EventId::as_str).collect();
        let json = serde_json::to_string(&ids).unwrap_or_default();
        let missing = sqlx::query_scalar::<_, String>(self.sql.missing.clone()).bind(json);
        let missing = missing.fetch_all(connection).await.map_err(|error| self.fault(error))?;
        Ok(missing.into_iter().map(EventId::from_row).collect())
    }

    async fn insert_cut(
        &self,
        connection: &mut SqliteConnection,
        insert: Insert,
        mut rows: &[NewRow],
        now: Timestamp,
    ) -> Result<(), sqlx::Error> {
        while !rows.is_empty() {
            let (sql, size) = self.statement(insert).at_most(rows.len());
            let (cut, rest) = rows.split_at(size);
            insert.bind(sql, cut, now).execute(&mut *connection).await?;
            rows = rest;
            kill_point!("insert.between");
        }
        Ok(())
    }

    fn statement(&self, insert: Insert) -> &Many {
        match insert {
            Insert::Plain => &self.sql.insert_plain,
            Insert::Any => &self.sql.insert,
        }
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

impl DriverStore for SqliteStore {
    fn inserts<'r>(&self, mut rows: &'r [NewRow]) -> Vec<driver::Insert<'r>> {
        let now = self.now();
        let mut inserts = Vec::new();
        while !rows.is_empty() {
            let (sql, size) = self.sql.insert.at_most(rows.len());
            let (cut, rest) = rows.split_at(size);
            let parameters = cut.iter().flat_map(|row| values_of(row, now)).collect();
            inserts.push(driver::Insert { sql: sql.as_str().to_owned(), parameters });
            rows = rest;
        }
        inserts
    }

    fn refused(&self, rows: &[NewRow], refusal: Refusal) -> Error {
        let error = refusal.into_sqlx();
        if fault::is_duplicate(&error) {
            return Error::DuplicateId { id: taken_id(rows, |_| false) };
        }
        self.fault(error)
    }
}

/// What [`bind`] binds, for other drivers.
fn values_of(row: &NewRow, now: Timestamp) -> [Parameter<'_>; 15] {
    let text = |text| Parameter::Text(Some(Cow::Borrowed(text)));
    let any = |text: Option<_>| Parameter::Text(text.map(Cow::Borrowed));
    let moment = |at: Timestamp| Parameter::Number(Some(at.as_micros()));
    let event = &row.event;
    [
        text(event.id().as_str()),
        text(event.event_type()),
        text(event.aggregate_type()),
        any(event.aggregate_id()),
        any(event.tenant_id()),
        any(event.topic()),
        text(event.content_type()),
        any(event.payload().as_json()),
        Parameter::Bytes(payload_bytes(event)),
        Parameter::Text(headers(event).map(Cow::Owned)),
        moment(event.occurred_at()),
        moment(now),
        moment(available_at(event, now)),
        any(row.lease.as_ref().map(Lease::as_str)),
        Parameter::Number(row.lease.as_ref().map(|_| now.as_micros())),
    ]
}

fn payload_bytes(event: &Event) -> Option<&[u8]> {
    match event.payload() {
        Payload::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}

fn available_at(event: &Event, now: Timestamp) -> Timestamp {
    match event.availability() {
        Availability::Now => now,
        Availability::At(at) => at,
        Availability::After(delay) => now + delay,
    }
}

/// Which columns an insert names.
#[derive(Clone, Copy)]
enum Insert {
    /// All that an event may have.
    Any,
    /// Those that events of the usual kind have.
    Plain,
}

impl Insert {
    fn bind(self, sql: SqlStr, rows: &[NewRow], now: Timestamp) -> Query<'_, Sqlite, SqliteArguments> {
        let query = sqlx::query(sql);
        match self {
            Self::Any => rows.iter().fold(query, |query, row| bind(query, row, now)),
            Self::Plain => {
                let lease = rows[0].lease.as_ref().map(Lease::as_str);
                let query = query
                    .bind(now.as_micros())
                    .bind(now.as_micros())
                    .bind(rows[0].event.content_type())
                    .bind(lease)
                    .bind(lease.map(|_| now.as_micros()));
                rows.iter().fold(query, bind_plain)
            }
        }
    }
}

fn share_a_lease(rows: &[NewRow]) -> bool {
    rows.iter().all(|row| row.lease == rows[0].lease)
}

/// Binds the values of a row, in the order of the columns in the insert.
fn bind<'q>(
    query: Query<'q, Sqlite, SqliteArguments>,
    row: &'q NewRow,
    now: Timestamp,
) -> Query<'q, Sqlite, SqliteArguments> {
    let event = &row.event;
    query
        .bind(event.id().as_str())
        .bind(event.event_type())
        .bind(event.aggregate_type())
        .bind(event.aggregate_id())
        .bind(event.tenant_id())
        .bind(event.topic())
        .bind(event.content_type())
        .bind(event.payload().as_json())
        .bind(payload_bytes(event))
        .bind(headers(event))
        .bind(event.occurred_at().as_micros())
        .bind(now.as_micros())
        .bind(available_at(event, now).as_micros())
        .bind(row.lease.as_ref().map(Lease::as_str))
        .bind(row.lease.as_ref().map(|_| now.as_micros()))
}

/// The same for what a row of the usual kind does not share with the others.
fn bind_plain<'q>(query: Query<'q, Sqlite, SqliteArguments>, row: &'q NewRow) -> Query<'q, Sqlite, SqliteArguments> {
    let event = &row.event;
    query
        .bind(event.id().as_str())
        .bind(event.event_type())
        .bind(event.aggregate_type())
        .bind(event.aggregate_id())
        .bind(event.payload().as_json())
        .bind(event.occurred_at().as_micros())
}
