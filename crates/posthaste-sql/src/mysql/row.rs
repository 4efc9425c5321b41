//! Reading rows.

use posthaste_core::store::{ClaimedRow, Key, Malformed, RawRow, Record, RowState, Status};
use posthaste_core::{EventId, Timestamp};
use sqlx::mysql::{MySql, MySqlRow};
use sqlx::{Decode, Row, Type};

use crate::lanes::{Found, key, lane};

/// The columns, where the claim and the list put them.
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
    // Of a claim only.
    pub(super) const LAG: usize = 14;
    pub(super) const CLAIMED_AVAILABLE_AT: usize = 15;
    // Of a read of lanes only.
    pub(super) const LANE: usize = 14;
    pub(super) const READ_AT: usize = 15;
    pub(super) const DUE_AT: usize = 16;
    pub(super) const LEASED_AT: usize = 17;
    // Of a list only.
    pub(super) const STATUS: usize = 14;
    pub(super) const LAST_ERROR: usize = 15;
    pub(super) const LOCKED_BY: usize = 16;
    pub(super) const AVAILABLE_AT: usize = 17;
    pub(super) const DONE_AT: usize = 18;
    pub(super) const LOCKED_AT: usize = 19;
}

/// The number of a claimed row.
pub(super) fn seq(row: &MySqlRow) -> i64 {
    number(row, column::SEQ)
}

/// From when on a claimed row was available.
pub(super) fn available_at(row: &MySqlRow) -> Timestamp {
    Timestamp::from_micros(number(row, column::CLAIMED_AVAILABLE_AT))
}

/// Reads a claimed row.
pub(super) fn claimed(row: &MySqlRow) -> Result<ClaimedRow, Malformed> {
    let lag = std::time::Duration::from_micros(u64::try_from(number(row, column::LAG)).unwrap_or(0));
    let event = raw(row).and_then(RawRow::decode);
    event
        .and_then(|event| attempts(row).map(|attempts| ClaimedRow { seq: seq(row), event, attempts, lag }))
        .map_err(|reason| Malformed { id: id(row), reason })
}

/// Reads a row of a lane.
pub(super) fn in_lane(row: &MySqlRow) -> Found {
    Found {
        lane: lane(number(row, column::LANE)),
        seq: seq(row),
        id: id(row),
        read_at: Timestamp::from_micros(number(row, column::READ_AT)),
        available_at: Timestamp::from_micros(number(row, column::DUE_AT)),
        leased_at: optional(row, column::LEASED_AT).map(Timestamp::from_micros),
        attempts: attempts(row),
        raw: raw(row),
    }
}

/// The key of a row of a lane, as far as it can be read.
pub(super) fn key_of(row: &MySqlRow) -> Option<Key> {
    key(optional(row, column::AGGREGATE_TYPE), optional(row, column::AGGREGATE_ID))
}

/// Reads a row for an operator. What cannot be read is shown as far as it can.
pub(super) fn record(row: &MySqlRow) -> Record {
    let time = |at| Timestamp::from_micros(number(row, at));
    let locked_by: Option<String> = optional(row, column::LOCKED_BY);
    Record {
        id: id(row),
        event: raw(row).and_then(|raw| attempts(row).and(raw.decode())),
        state: RowState {
            seq: seq(row),
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

fn raw(row: &MySqlRow) -> Result<RawRow, String> {
    Ok(RawRow {
        event_id: id(row),
        event_type: read(row, column::EVENT_TYPE)?.unwrap_or_default(),
        aggregate_type: read(row, column::AGGREGATE_TYPE)?,
        aggregate_id: read(row, column::AGGREGATE_ID)?,
        tenant_id: read(row, column::TENANT_ID)?,
        topic: read(row, column::TOPIC)?,
        content_type: read(row, column::CONTENT_TYPE)?.map(RawRow::content_type),
        payload: read(row, column::PAYLOAD)?,
        payload_bytes: read(row, column::PAYLOAD_BYTES)?,
        headers: read(row, column::HEADERS)?,
        occurred_at: read(row, column::OCCURRED_AT)?,
        created_at: number(row, column::CREATED_AT),
    })
}

fn id(row: &MySqlRow) -> EventId {
    EventId::from_row(optional::<&str>(row, column::EVENT_ID).unwrap_or_default())
}

fn attempts(row: &MySqlRow) -> Result<u32, String> {
    let attempts: Option<i64> = read(row, column::ATTEMPTS)?;
    u32::try_from(attempts.unwrap_or(0)).map_err(|_| "attempts is negative or too large".to_owned())
}

fn number(row: &MySqlRow, at: usize) -> i64 {
    optional(row, at).unwrap_or_default()
}

fn optional<'r, T: Decode<'r, MySql> + Type<MySql>>(row: &'r MySqlRow, at: usize) -> Option<T> {
    row.try_get(at).ok().flatten()
}

/// Columns have types here, so this fails only in a table that somebody has altered.
fn read<'r, T: Decode<'r, MySql> + Type<MySql>>(row: &'r MySqlRow, at: usize) -> Result<Option<T>, String> {
    row.try_get(at).map_err(|error| error.to_string())
}
