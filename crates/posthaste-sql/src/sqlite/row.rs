//! Reading rows, whatever stands in them: SQLite keeps a value of any type in a column of any type.

use posthaste_core::store::{ClaimedRow, Key, Lane, Malformed, RawRow, Record, RowState, Status};
use posthaste_core::{EventId, Timestamp};
use sqlx::sqlite::{Sqlite, SqliteRow};
use sqlx::{Decode, Row, Type};

use super::gate::{AT_ONCE, let_others_go_on};
use crate::lanes::{Found, key};

/// The columns, where wide claims, wide reads and lists put them.
mod column {
    pub(super) const EVENT_ID: usize = 0;
    pub(super) const EVENT_TYPE: usize = 1;
    pub(super) const AGGREGATE_TYPE: usize = 2;
    pub(super) const AGGREGATE_ID: usize = 3;
    pub(super) const TENANT_ID: usize = 4;
    pub(super) const TOPIC: usize = 5;
    pub(super) const CONTENT_TYPE: usize = 6;
    pub(super) const PAYLOAD: usize = 7;
    pub(super) const PAYLOAD_BYTES: usize = 8;
    pub(super) const HEADERS: usize = 9;
    pub(super) const OCCURRED_AT: usize = 10;
    pub(super) const CREATED_AT: usize = 11;
    pub(super) const SEQ: usize = 12;
    pub(super) const ATTEMPTS: usize = 13;
    pub(super) const AVAILABLE_AT: usize = 14;

    // Of a read of lanes.
    pub(super) const LEASED_AT: usize = 15;

    // Of a list.
    pub(super) const STATUS: usize = 15;
    pub(super) const DONE_AT: usize = 16;
    pub(super) const LAST_ERROR: usize = 17;
    pub(super) const LOCKED_BY: usize = 18;
    pub(super) const LOCKED_AT: usize = 19;
}

/// A claimed row, with what orders it.
pub(super) struct Taken {
    pub(super) available_at: i64,
    pub(super) seq: i64,
    pub(super) row: Result<ClaimedRow, Malformed>,
}

/// What is in a row, as far as it can be read.
pub(super) struct Values {
    pub(super) id: EventId,
    pub(super) seq: i64,
    pub(super) available_at: i64,
    pub(super) attempts: Result<u32, String>,
    /// When somebody leased it, in a read of lanes.
    pub(super) leased_at: Option<i64>,
    pub(super) raw: Result<RawRow, String>,
}

impl Values {
    /// Those of a row with every column by itself.
    pub(super) fn of(row: &SqliteRow) -> Self {
        Self {
            id: id(row),
            seq: number(row, column::SEQ),
            available_at: number(row, column::AVAILABLE_AT),
            attempts: attempts(row),
            leased_at: optional(row, column::LEASED_AT),
            raw: raw(row),
        }
    }

    /// The claimed row.
    pub(super) fn taken(self, now: Timestamp) -> Taken {
        let Self { id, seq, available_at, attempts, raw, .. } = self;
        let lag = now.since(Timestamp::from_micros(available_at));
        let event = raw.and_then(RawRow::decode);
        let row = event.and_then(|event| attempts.map(|attempts| ClaimedRow { seq, event, attempts, lag }));
        Taken { available_at, seq, row: row.map_err(|reason| Malformed { id, reason }) }
    }

    /// What was found in a lane.
    pub(super) fn in_lane(self, lane: Lane, now: Timestamp) -> Found {
        Found {
            lane,
            seq: self.seq,
            id: self.id,
            read_at: now,
            available_at: Timestamp::from_micros(self.available_at),
            leased_at: self.leased_at.map(Timestamp::from_micros),
            attempts: self.attempts,
            raw: self.raw,
        }
    }
}

/// Makes something of each row; nothing at all if it cannot be made of one. Others go on every few rows.
pub(super) async fn each<T>(rows: Vec<SqliteRow>, make: impl Fn(&SqliteRow) -> Option<T>) -> Option<Vec<T>> {
    let mut made = Vec::with_capacity(rows.len());
    let mut rows = rows.into_iter();
    while rows.len() > 0 {
        for row in rows.by_ref().take(AT_ONCE) {
            made.push(make(&row)?);
        }
        let_others_go_on().await;
    }
    Some(made)
}

/// The key of a row of a lane, as far as it can be read.
pub(super) fn key_of(row: &SqliteRow) -> Option<Key> {
    key(optional(row, column::AGGREGATE_TYPE), optional(row, column::AGGREGATE_ID))
}

/// Reads a row for an operator. What cannot be read is shown as far as it can.
pub(super) fn record(row: &SqliteRow) -> Record {
    let time = |at| Timestamp::from_micros(number(row, at));
    let locked_by: Option<String> = optional(row, column::LOCKED_BY);
    Record {
        id: id(row),
        event: raw(row).and_then(|raw| attempts(row).and(raw.decode())),
        state: RowState {
            seq: number(row, column::SEQ),
            status: Status::from_code(number(row, column::STATUS)).unwrap_or(Status::New),
            attempts: attempts(row).unwrap_or(0),
            available_at: time(column::AVAILABLE_AT),
            created_at: time(column::CREATED_AT),
            done_at: optional(row, column::DONE_AT).map(Timestamp::from_micros),
            last_error: optional(row, column::LAST_ERROR),
            lease: locked_by.map(|lease| (lease, time(column::LOCKED_AT))),
        },
    }
}

fn raw(row: &SqliteRow) -> Result<RawRow, String> {
    Ok(RawRow {
        event_id: id(row),
        event_type: text(row, column::EVENT_TYPE)?.unwrap_or_default(),
        aggregate_type: text(row, column::AGGREGATE_TYPE)?,
        aggregate_id: text(row, column::AGGREGATE_ID)?,
        tenant_id: text(row, column::TENANT_ID)?,
        topic: text(row, column::TOPIC)?,
        content_type: text(row, column::CONTENT_TYPE)?.map(RawRow::content_type),
        payload: text(row, column::PAYLOAD)?,
        payload_bytes: read(row, column::PAYLOAD_BYTES, "bytes")?,
        headers: text(row, column::HEADERS)?,
        occurred_at: read(row, column::OCCURRED_AT, "a whole number of microseconds")?,
        created_at: number(row, column::CREATED_AT),
    })
}

fn id(row: &SqliteRow) -> EventId {
    EventId::from_row(optional::<&str>(row, column::EVENT_ID).unwrap_or_default())
}

fn attempts(row: &SqliteRow) -> Result<u32, String> {
    let attempts: Option<i64> = read(row, column::ATTEMPTS, "a whole number")?;
    u32::try_from(attempts.unwrap_or(0)).map_err(|_| "attempts is negative or too large".to_owned())
}

fn text<'r, T: Decode<'r, Sqlite> + Type<Sqlite>>(row: &'r SqliteRow, at: usize) -> Result<Option<T>, String> {
    read(row, at, "text in UTF-8")
}

pub(super) fn number(row: &SqliteRow, at: usize) -> i64 {
    optional(row, at).unwrap_or_default()
}

fn optional<'r, T: Decode<'r, Sqlite> + Type<Sqlite>>(row: &'r SqliteRow, at: usize) -> Option<T> {
    row.try_get(at).ok().flatten()
}

fn read<'r, T: Decode<'r, Sqlite> + Type<Sqlite>>(
    row: &'r SqliteRow,
    at: usize,
    what: &str,
) -> Result<Option<T>, String> {
    row.try_get(at).map_err(|_| {
        use sqlx::Column;
        format!("{} is not {what}", row.column(at).name())
    })
}
