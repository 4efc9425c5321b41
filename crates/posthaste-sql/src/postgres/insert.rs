//! Inserting rows.

use std::borrow::Cow;

use posthaste_core::Event;
use posthaste_core::event::{Availability, Payload};
use posthaste_core::store::{Error, Lease, NewRow};
use sqlx::postgres::PgConnection;
use sqlx::postgres::types::PgInterval;

use super::moment::{Moment, interval};
use super::sql::{INSERT_VALUES_ROW, PARAMETERS};
use super::{PgStore, fault};
use crate::driver::{DriverStore, Insert, Parameter, Refusal, headers, taken_id};
use crate::plain::{are_alike, are_plain};

/// The most rows, and about the most bytes of payload, in one statement: a message of PostgreSQL has at most 1 GB.
const MOST_ROWS: usize = 10_000;
const MOST_BYTES: usize = 64 << 20;

/// The most rows of a statement that names each value: a statement has at most 65,535 parameters.
const MOST_VALUES: usize = 512;

impl PgStore {
    /// Several statements are all or none as well: the first that is refused ends the transaction.
    pub(super) async fn insert_rows(&self, connection: &mut PgConnection, rows: &[NewRow]) -> Result<(), Error> {
        for part in parts(rows) {
            let inserted = match part {
                [row] => self.insert_one(connection, row).await,
                rows => self.insert_many(connection, rows).await,
            };
            inserted.map_err(|error| self.insert_fault(part, error))?;
            kill_point!("insert.between");
        }
        Ok(())
    }

    fn insert_fault(&self, rows: &[NewRow], error: sqlx::Error) -> Error {
        match fault::duplicate(&error, self.table()) {
            // In any language: `Key (event_id)=(…) already exists.`
            Some(detail) => {
                let id = taken_id(rows, |id| detail.contains(&format!("(event_id)=({id})")));
                Error::DuplicateId { id }
            }
            None => self.fault(error),
        }
    }

    async fn insert_one(&self, connection: &mut PgConnection, row: &NewRow) -> Result<(), sqlx::Error> {
        let event = &row.event;
        if are_plain(std::slice::from_ref(row)) {
            let sql = if row.lease.is_some() { &self.sql.insert_one_leased } else { &self.sql.insert_one_plain };
            let mut query = sqlx::query(sql.clone())
                .bind(event.id().as_str())
                .bind(event.event_type())
                .bind(event.aggregate_type())
                .bind(event.aggregate_id())
                .bind(event.payload().as_json())
                .bind(event.content_type())
                .bind(Moment(event.occurred_at()));
            if let Some(lease) = &row.lease {
                query = query.bind(lease.as_str());
            }
            return query.execute(connection).await.map(drop);
        }
        let (available_at, delay) = availability(event);
        let query = sqlx::query(self.sql.insert_one.clone())
            .bind(event.id().as_str())
            .bind(event.event_type())
            .bind(event.aggregate_type())
            .bind(event.aggregate_id())
            .bind(event.tenant_id())
            .bind(event.topic())
            .bind(event.content_type())
            .bind(event.payload().as_json())
            .bind(bytes(event))
            .bind(headers(event))
            .bind(Moment(event.occurred_at()))
            .bind(available_at)
            .bind(delay)
            .bind(row.lease.as_ref().map(Lease::as_str));
        query.execute(connection).await.map(drop)
    }

    async fn insert_many(&self, connection: &mut PgConnection, rows: &[NewRow]) -> Result<(), sqlx::Error> {
        fn column<'a, T>(rows: &'a [NewRow], value: impl Fn(&'a Event) -> T) -> Vec<T> {
            rows.iter().map(|row| value(&row.event)).collect()
        }
        let plain = are_plain(rows);
        if plain && are_alike(rows) {
            let first = &rows[0];
            let query = sqlx::query(self.sql.insert_alike.clone())
                .bind(column(rows, |event| event.id().as_str()))
                .bind(column(rows, Event::aggregate_id))
                .bind(column(rows, |event| event.payload().as_json()))
                .bind(column(rows, |event| Moment(event.occurred_at())))
                .bind(first.event.event_type())
                .bind(first.event.aggregate_type())
                .bind(first.event.content_type())
                .bind(first.lease.as_ref().map(Lease::as_str));
            return query.execute(connection).await.map(drop);
        }
        let leases: Vec<_> = rows.iter().map(|row| row.lease.as_ref().map(Lease::as_str)).collect();
        if plain {
            let query = sqlx::query(self.sql.insert_plain.clone())
                .bind(column(rows, |event| event.id().as_str()))
                .bind(column(rows, Event::event_type))
                .bind(column(rows, Event::aggregate_type))
                .bind(column(rows, Event::aggregate_id))
                .bind(column(rows, |event| event.payload().as_json()))
                .bind(column(rows, |event| Moment(event.occurred_at())))
                .bind(leases)
                .bind(rows[0].event.content_type());
            return query.execute(connection).await.map(drop);
        }
        let query = sqlx::query(self.sql.slots.insert.clone())
            .bind(column(rows, |event| event.id().as_str()))
            .bind(column(rows, Event::event_type))
            .bind(column(rows, Event::aggregate_type))
            .bind(column(rows, Event::aggregate_id))
            .bind(column(rows, Event::tenant_id))
            .bind(column(rows, Event::topic))
            .bind(column(rows, Event::content_type))
            .bind(column(rows, |event| event.payload().as_json()))
            .bind(column(rows, bytes))
            .bind(column(rows, headers))
            .bind(column(rows, |event| Moment(event.occurred_at())))
            .bind(column(rows, |event| availability(event).0))
            .bind(column(rows, |event| availability(event).1))
            .bind(leases);
        query.execute(connection).await.map(drop)
    }
}

impl DriverStore for PgStore {
    fn inserts<'r>(&self, rows: &'r [NewRow]) -> Vec<Insert<'r>> {
        let mut inserts = Vec::new();
        for mut part in parts(rows) {
            while !part.is_empty() {
                // Powers of two, so that a driver has few statements to keep prepared.
                let (now, later) = part.split_at(1 << part.len().min(MOST_VALUES).ilog2());
                inserts.push(self.insert_values(now));
                part = later;
            }
        }
        inserts
    }

    fn refused(&self, rows: &[NewRow], refusal: Refusal) -> Error {
        self.insert_fault(rows, refusal.into_sqlx())
    }
}

impl PgStore {
    fn insert_values<'r>(&self, rows: &'r [NewRow]) -> Insert<'r> {
        let mut values = String::new();
        let mut parameters = Vec::with_capacity(rows.len() * PARAMETERS);
        for (index, row) in rows.iter().enumerate() {
            if index > 0 {
                values.push_str(", ");
            }
            // Highest first, since `$1` is the beginning of `$10`.
            let numbered = (1..=PARAMETERS).rev().fold(INSERT_VALUES_ROW.to_owned(), |row, number| {
                row.replace(&format!("${number}::"), &format!("${}::", index * PARAMETERS + number))
            });
            values.push_str(&numbered);
            parameters.extend(values_of(row));
        }
        Insert { sql: self.sql.insert_values.replace("{rows}", &values), parameters }
    }
}

/// What is bound for one row of [`INSERT_VALUES_ROW`].
fn values_of(row: &NewRow) -> [Parameter<'_>; PARAMETERS] {
    let text = |text| Parameter::Text(Some(Cow::Borrowed(text)));
    let any = |text: Option<_>| Parameter::Text(text.map(Cow::Borrowed));
    let event = &row.event;
    let (available_at, delay) = match event.availability() {
        Availability::Now => (None, 0),
        Availability::At(at) => (Some(at.as_micros()), 0),
        Availability::After(delay) => (None, i64::try_from(delay.as_micros()).unwrap_or(i64::MAX)),
    };
    [
        text(event.id().as_str()),
        text(event.event_type()),
        text(event.aggregate_type()),
        any(event.aggregate_id()),
        any(event.tenant_id()),
        any(event.topic()),
        text(event.content_type()),
        any(event.payload().as_json()),
        Parameter::Bytes(bytes(event)),
        Parameter::Text(headers(event).map(Cow::Owned)),
        Parameter::Number(Some(event.occurred_at().as_micros())),
        Parameter::Number(available_at),
        Parameter::Number(Some(delay)),
        any(row.lease.as_ref().map(Lease::as_str)),
    ]
}

/// The rows in parts that fit a statement each.
fn parts(mut rows: &[NewRow]) -> impl Iterator<Item = &[NewRow]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |row: &&NewRow| {
            bytes += row.event.payload().len();
            bytes <= MOST_BYTES
        };
        // One row fits in any case.
        let count = rows.iter().take(MOST_ROWS).take_while(fits).count().max(1).min(rows.len());
        let (part, rest) = rows.split_at(count);
        rows = rest;
        (!part.is_empty()).then_some(part)
    })
}

fn bytes(event: &Event) -> Option<&[u8]> {
    match event.payload() {
        Payload::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}

/// A moment, or how long after the insert.
fn availability(event: &Event) -> (Option<Moment>, PgInterval) {
    match event.availability() {
        Availability::Now => (None, PgInterval::default()),
        Availability::At(at) => (Some(Moment(at)), PgInterval::default()),
        Availability::After(delay) => (None, interval(delay)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(sizes: &[usize]) -> Vec<NewRow> {
        let event = |size: &usize| Event::builder("T").bytes(vec![0; *size]).build().unwrap();
        sizes.iter().map(event).map(NewRow::new).collect()
    }

    #[test]
    fn parts_are_bounded_by_rows_and_by_bytes_and_lose_nothing() {
        let sizes = |rows: &[NewRow]| parts(rows).map(<[NewRow]>::len).collect::<Vec<_>>();
        assert_eq!(sizes(&[]), [0; 0]);
        assert_eq!(sizes(&rows(&[1])), [1]);
        assert_eq!(sizes(&rows(&[0; 20_001])), [10_000, 10_000, 1]);
        assert_eq!(sizes(&rows(&[1 << 20; 130])), [64, 64, 2]);
    }

    #[tokio::test]
    async fn parameters_are_numbered_through_all_rows() {
        let store = PgStore::new(sqlx::PgPool::connect_lazy("postgres://nobody@localhost/nowhere").unwrap());
        let rows = rows(&[1; 7]);
        let inserts = store.inserts(&rows);
        let sizes: Vec<_> = inserts.iter().map(|insert| insert.parameters.len() / PARAMETERS).collect();
        assert_eq!(sizes, [4, 2, 1]);
        for insert in &inserts {
            let last = insert.parameters.len();
            assert!((1..=last).all(|number| insert.sql.contains(&format!("${number}::"))), "{}", insert.sql);
            assert!(!insert.sql.contains(&format!("${}::", last + 1)), "{}", insert.sql);
        }
    }
}
