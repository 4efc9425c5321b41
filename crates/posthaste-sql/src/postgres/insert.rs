//! Inserting rows.

use std::collections::HashSet;

use posthaste_core::event::{Availability, Payload};
use posthaste_core::store::{Error, Lease, NewRow};
use posthaste_core::{Event, EventId};
use sqlx::postgres::PgConnection;
use sqlx::postgres::types::PgInterval;

use super::moment::{Moment, interval};
use super::{PgStore, fault};
use crate::plain::are_plain;

/// The most rows, and about the most bytes of payload, in one statement: a message of PostgreSQL has at most 1 GB.
const MOST_ROWS: usize = 10_000;
const MOST_BYTES: usize = 64 << 20;

impl PgStore {
    /// Several statements are all or none as well: the first that is refused ends the transaction.
    pub(super) async fn insert_rows(&self, connection: &mut PgConnection, rows: &[NewRow]) -> Result<(), Error> {
        for part in parts(rows) {
            let inserted = match part {
                [row] => self.insert_one(connection, row).await,
                rows => self.insert_many(connection, rows).await,
            };
            inserted.map_err(|error| match fault::duplicate(&error, self.table()) {
                Some(taken) => Error::DuplicateId { id: taken_id(part, taken.detail().unwrap_or_default()) },
                None => self.fault(error),
            })?;
            kill_point!("insert.between");
        }
        Ok(())
    }

    async fn insert_one(&self, connection: &mut PgConnection, row: &NewRow) -> Result<(), sqlx::Error> {
        let event = &row.event;
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
        let leases: Vec<_> = rows.iter().map(|row| row.lease.as_ref().map(Lease::as_str)).collect();
        if are_plain(rows) {
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

fn headers(event: &Event) -> Option<String> {
    (!event.headers().is_empty()).then(|| serde_json::to_string(event.headers()).expect("a map of strings is JSON"))
}

/// A moment, or how long after the insert.
fn availability(event: &Event) -> (Option<Moment>, PgInterval) {
    match event.availability() {
        Availability::Now => (None, PgInterval::default()),
        Availability::At(at) => (Some(Moment(at)), PgInterval::default()),
        Availability::After(delay) => (None, interval(delay)),
    }
}

/// Which id was taken, by what PostgreSQL says of it: `Key (event_id)=(…) already exists.`, in any language.
fn taken_id(rows: &[NewRow], detail: &str) -> EventId {
    let ids = || rows.iter().map(|row| row.event.id());
    let named = ids().find(|id| detail.contains(&format!("(event_id)=({id})")));
    let mut seen = HashSet::new();
    let twice = || ids().find(|id| !seen.insert(*id));
    // A server may be told to keep details to itself; then one of them is to blame.
    named.or_else(twice).or_else(|| ids().next()).cloned().expect("nothing is refused without rows")
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

    #[test]
    fn a_taken_id_is_found_in_what_the_server_says() {
        let row = |id: &str| NewRow::new(Event::builder("T").id(id).json_text("1").build().unwrap());
        let rows = [row("a"), row("b)("), row("c"), row("c")];
        assert_eq!(taken_id(&rows, "Key (event_id)=(b)() already exists."), "b)(");
        assert_eq!(taken_id(&rows, ""), "c");
        assert_eq!(taken_id(&rows[..2], ""), "a");
    }
}
