//! Inserting rows.

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use posthaste_core::event::{Availability, Payload};
use posthaste_core::store::{Error, Lease, NewRow};
use posthaste_core::{Event, EventId, Timestamp};
use sqlx::mysql::{MySql, MySqlArguments, MySqlConnection};
use sqlx::query::{Query, QueryScalar};
use sqlx::{Executor, SqlStr};

use super::{MySqlStore, fault};
use crate::driver::{self, DriverStore, Parameter, Refusal, headers, taken_id};
use crate::many::{MOST, Many};
use crate::plain::are_plain;

/// Bytes of an insert that every server takes. Only beyond them is it asked how many it takes; the smallest default is
/// 16 MB.
const SURELY_ACCEPTED: usize = 512 * 1024;

/// Bytes of a row besides what varies much: all the short texts at their longest would be some 3000.
const ROW_BYTES: usize = 1024;

/// Whether the transaction was open in which rows were inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Open {
    Surely,
    /// There was one, at least.
    Perhaps,
}

impl MySqlStore {
    /// Inserts rows, of which there is one at least, unless no transaction is open: a deadlock ends it, and sqlx does not notice.
    ///
    /// MariaDB is asked by the insert itself. MySQL has to be asked before, and so has whoever is told several statements.
    pub(super) async fn insert_rows(&self, connection: &mut MySqlConnection, rows: &[NewRow]) -> Result<Open, Error> {
        let insert = Insert::of(rows);
        let small = rows.iter().map(bytes).sum::<usize>() <= SURELY_ACCEPTED;
        let server = self.server(connection).await.map_err(|error| self.fault(error))?;
        if server.in_transaction
            && small
            && let Some(sql) = self.asking(insert).exactly(rows.len())
        {
            match insert.bind(sql, rows).execute(&mut *connection).await {
                Ok(_) => return Ok(Open::Surely),
                Err(error) if fault::is_out_of_range(&error) => {}
                Err(error) => return Err(self.insert_fault(connection, rows, error).await),
            }
        }
        self.expect_open(connection).await?;
        let inserted = match self.statement(insert).exactly(rows.len()).filter(|_| small) {
            Some(sql) => insert.bind(sql, rows).execute(&mut *connection).await.map(drop),
            None => {
                // Half of it, because the estimate is rough.
                let most = if small { SURELY_ACCEPTED } else { server.max_allowed_packet / 2 };
                self.insert_cuts(connection, insert, &self.cut(insert, rows, most)).await
            }
        };
        match inserted {
            Ok(()) => Ok(Open::Perhaps),
            Err(error) => Err(self.insert_fault(connection, rows, error).await),
        }
    }

    fn statement(&self, insert: Insert) -> &Many {
        match insert {
            Insert::Plain => &self.sql.insert_plain,
            Insert::Leased => &self.sql.insert_leased,
            Insert::Any => &self.sql.insert,
        }
    }

    /// The same, but refused outside of a transaction.
    fn asking(&self, insert: Insert) -> &Many {
        match insert {
            Insert::Plain => &self.sql.insert_plain_asking,
            Insert::Leased => &self.sql.insert_leased_asking,
            Insert::Any => &self.sql.insert_asking,
        }
    }

    /// The rows, cut to what goes into one statement each.
    fn cut<'a>(&self, insert: Insert, mut rows: &'a [NewRow], most: usize) -> Vec<&'a [NewRow]> {
        let mut cuts = Vec::new();
        while !rows.is_empty() {
            let mut sums = rows.iter().scan(0, |sum, row| {
                *sum += bytes(row);
                Some(*sum)
            });
            let fitting = sums.position(|sum| sum > most).unwrap_or(rows.len());
            let (cut, rest) = rows.split_at(self.statement(insert).at_most(fitting).1);
            cuts.push(cut);
            rows = rest;
        }
        cuts
    }

    /// Several statements: a savepoint makes them all or none within a transaction that may go on after an error.
    ///
    /// It is set by hand: dropped at the wrong moment, a savepoint of sqlx rolls back the transaction around it.
    async fn insert_cuts(
        &self,
        connection: &mut MySqlConnection,
        insert: Insert,
        cuts: &[&[NewRow]],
    ) -> Result<(), sqlx::Error> {
        if let [only] = cuts {
            let (sql, _) = self.statement(insert).at_most(only.len());
            return insert.bind(sql, only).execute(connection).await.map(drop);
        }
        connection.execute("SAVEPOINT posthaste_insert").await?;
        for cut in cuts {
            let (sql, _) = self.statement(insert).at_most(cut.len());
            if let Err(error) = insert.bind(sql, cut).execute(&mut *connection).await {
                let undone = connection.execute("ROLLBACK TO SAVEPOINT posthaste_insert").await;
                // A lost deadlock has rolled back the whole transaction, and the savepoint with it.
                return match undone {
                    Err(failed) if !fault::is_no_savepoint(&failed) => Err(failed),
                    _ => Err(error),
                };
            }
            kill_point!("insert.between");
        }
        connection.execute("RELEASE SAVEPOINT posthaste_insert").await?;
        Ok(())
    }

    async fn insert_fault(&self, connection: &mut MySqlConnection, rows: &[NewRow], error: sqlx::Error) -> Error {
        if fault::is_duplicate(&error) {
            return self.duplicate(connection, rows).await;
        }
        // Of a savepoint that was dropped after the transaction had ended.
        if fault::is_no_savepoint(&error)
            && let Err(ended) = self.expect_open(connection).await
        {
            return ended;
        }
        self.fault(error)
    }

    /// The error for a taken id, with the id, which the server tells in words alone.
    async fn duplicate(&self, connection: &mut MySqlConnection, rows: &[NewRow]) -> Error {
        let ids: Vec<_> = rows.iter().map(|row| row.event.id()).collect();
        let mut seen = HashSet::new();
        if let Some(twice) = ids.iter().find(|id| !seen.insert(**id)) {
            return Error::DuplicateId { id: (*twice).clone() };
        }
        match self.taken(connection, &ids).await {
            Ok(Some(id)) => Error::DuplicateId { id },
            // Whoever had it has deleted it meanwhile.
            Ok(None) => Error::DuplicateId { id: ids[0].clone() },
            Err(error) => self.fault(error),
        }
    }

    /// One of these ids that is in the table.
    pub(super) async fn taken(
        &self,
        connection: &mut MySqlConnection,
        ids: &[&EventId],
    ) -> Result<Option<EventId>, sqlx::Error> {
        for ids in ids.chunks(MOST) {
            let (sql, size) = self.sql.taken.at_least(ids.len());
            let ids = ids.iter().map(|id| Some(id.as_str())).chain(std::iter::repeat(None));
            let taken = ids.take(size).fold(sqlx::query_scalar::<_, String>(sql), QueryScalar::bind);
            if let Some(id) = taken.fetch_optional(&mut *connection).await? {
                return Ok(Some(EventId::from_row(id)));
            }
        }
        Ok(None)
    }
}

impl DriverStore for MySqlStore {
    fn inserts<'r>(&self, rows: &'r [NewRow]) -> Vec<driver::Insert<'r>> {
        let cuts = self.cut(Insert::Any, rows, SURELY_ACCEPTED);
        let insert = |cut: &'r [NewRow]| {
            let (sql, _) = self.sql.insert.at_most(cut.len());
            driver::Insert { sql: sql.as_str().to_owned(), parameters: cut.iter().flat_map(values_of).collect() }
        };
        cuts.into_iter().map(insert).collect()
    }

    fn refused(&self, rows: &[NewRow], refusal: Refusal) -> Error {
        let message = refusal.message.clone();
        let error = refusal.into_sqlx();
        if fault::is_duplicate(&error) {
            return Error::DuplicateId { id: taken_id(rows, |id| message.contains(&format!("'{id}'"))) };
        }
        self.fault(error)
    }
}

/// What [`bind`] binds, for other drivers.
fn values_of(row: &NewRow) -> [Parameter<'_>; 15] {
    let text = |text| Parameter::Text(Some(Cow::Borrowed(text)));
    let any = |text: Option<_>| Parameter::Text(text.map(Cow::Borrowed));
    let number = |number| Parameter::Number(Some(number));
    let event = &row.event;
    let (available, since_1970) = availability(event);
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
        number(moment(event.occurred_at())),
        number(available),
        number(since_1970.into()),
        any(row.lease.as_ref().map(Lease::as_str)),
        number(row.lease.is_some().into()),
    ]
}

fn payload_bytes(event: &Event) -> Option<&[u8]> {
    match event.payload() {
        Payload::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}

/// A length of time, and whether it counts from 1970 on or from now on.
fn availability(event: &Event) -> (i64, bool) {
    match event.availability() {
        Availability::Now => (0, false),
        Availability::At(at) => (moment(at), true),
        Availability::After(delay) => (length(delay), false),
    }
}

/// About how many bytes a row adds to a statement.
fn bytes(row: &NewRow) -> usize {
    let headers: usize = row.event.headers().iter().map(|(name, value)| name.len() + value.len() + 8).sum();
    row.event.payload().len() + headers + ROW_BYTES
}

/// Which columns an insert names.
#[derive(Clone, Copy)]
enum Insert {
    /// All that an event may have.
    Any,
    /// Those that events of the usual kind have.
    Plain,
    /// The same, and a lease.
    Leased,
}

impl Insert {
    fn of(rows: &[NewRow]) -> Self {
        let leased = rows.iter().filter(|row| row.lease.is_some()).count();
        match are_plain(rows) {
            true if leased == 0 => Self::Plain,
            true if leased == rows.len() => Self::Leased,
            _ => Self::Any,
        }
    }

    fn bind(self, sql: SqlStr, rows: &[NewRow]) -> Query<'_, MySql, MySqlArguments> {
        let query = sqlx::query(sql);
        match self {
            Self::Any => rows.iter().fold(query, bind),
            Self::Plain => rows.iter().fold(query, bind_plain),
            Self::Leased => rows.iter().fold(query, bind_leased),
        }
    }
}

/// Binds the values of a row, in the order of the columns in the insert.
fn bind<'q>(query: Query<'q, MySql, MySqlArguments>, row: &'q NewRow) -> Query<'q, MySql, MySqlArguments> {
    let event = &row.event;
    let (available, since_1970) = availability(event);
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
        .bind(moment(event.occurred_at()))
        .bind(available)
        .bind(since_1970)
        .bind(row.lease.as_ref().map(Lease::as_str))
        .bind(row.lease.is_some())
}

/// The same for a row of the usual kind.
fn bind_plain<'q>(query: Query<'q, MySql, MySqlArguments>, row: &'q NewRow) -> Query<'q, MySql, MySqlArguments> {
    let event = &row.event;
    query
        .bind(event.id().as_str())
        .bind(event.event_type())
        .bind(event.aggregate_type())
        .bind(event.aggregate_id())
        .bind(event.content_type())
        .bind(event.payload().as_json())
        .bind(moment(event.occurred_at()))
}

/// The same for one with a lease.
fn bind_leased<'q>(query: Query<'q, MySql, MySqlArguments>, row: &'q NewRow) -> Query<'q, MySql, MySqlArguments> {
    bind_plain(query, row).bind(row.lease.as_ref().map(Lease::as_str))
}

/// The first moment of the year 1 and the last of 9999, between which the servers can calculate.
const FIRST: i64 = -62_135_596_800_000_000;
const LAST: i64 = 253_402_300_799_999_999;

/// Microseconds after 1970, within what the servers can express.
pub(super) fn moment(at: Timestamp) -> i64 {
    at.as_micros().clamp(FIRST, LAST)
}

/// Microseconds from now on or until now: at most a thousand years, so that the servers can express the moment.
pub(super) fn length(length: Duration) -> i64 {
    const LONGEST: i64 = 1000 * 366 * 86_400 * 1_000_000;
    i64::try_from(length.as_micros()).map_or(LONGEST, |micros| micros.min(LONGEST))
}
