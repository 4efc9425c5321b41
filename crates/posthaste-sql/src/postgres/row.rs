//! Reading rows.

use std::time::Duration;

use posthaste_core::store::{ClaimedRow, Malformed, RawRow, Record, RowState, Status};
use posthaste_core::{EventId, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::moment::Moment;

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
    pub(super) const AVAILABLE_AT: usize = 14;

    // Of a claim.
    pub(super) const CLAIMED_AT: usize = 15;
    pub(super) const NEXT_AVAILABLE: usize = 16;

    // Of a list.
    pub(super) const STATUS: usize = 15;
    pub(super) const DONE_AT: usize = 16;
    pub(super) const LAST_ERROR: usize = 17;
    pub(super) const LOCKED_BY: usize = 18;
    pub(super) const LOCKED_AT: usize = 19;
}

/// A claimed row, with what orders it.
pub(super) struct Taken {
    pub(super) available_at: Moment,
    pub(super) seq: i64,
    pub(super) created_at: Moment,
    pub(super) row: Result<ClaimedRow, Malformed>,
}

/// Reads a claimed row.
pub(super) fn taken(row: &PgRow) -> Result<Taken, sqlx::Error> {
    let available_at: Moment = row.try_get(column::AVAILABLE_AT)?;
    let Moment(claimed_at) = row.try_get(column::CLAIMED_AT)?;
    let seq = row.try_get(column::SEQ)?;
    let created_at = row.try_get(column::CREATED_AT)?;
    let raw = raw(row)?;
    let attempts = attempts(row)?;
    let id = raw.event_id.clone();
    let row = match (raw.decode(), attempts) {
        (Ok(event), Ok(attempts)) => Ok(ClaimedRow { seq, event, attempts, lag: claimed_at.since(available_at.0) }),
        (Err(reason), _) | (_, Err(reason)) => Err(Malformed { id, reason }),
    };
    Ok(Taken { available_at, seq, created_at, row })
}

/// In how long the next row becomes available, as a claimed row tells it.
pub(super) fn next_in(row: &PgRow) -> Result<Option<Duration>, sqlx::Error> {
    let Moment(claimed_at) = row.try_get(column::CLAIMED_AT)?;
    let next: Option<Moment> = row.try_get(column::NEXT_AVAILABLE)?;
    Ok(next.map(|Moment(next)| next.since(claimed_at)))
}

/// Reads a row for an operator.
pub(super) fn record(row: &PgRow) -> Result<Record, sqlx::Error> {
    let time = |at| row.try_get::<Option<Moment>, _>(at).map(|moment| moment.map(|Moment(time)| time));
    let raw = raw(row)?;
    let attempts = attempts(row)?;
    let locked_by: Option<String> = row.try_get(column::LOCKED_BY)?;
    let locked_at = time(column::LOCKED_AT)?.unwrap_or(Timestamp::UNIX_EPOCH);
    Ok(Record {
        id: raw.event_id.clone(),
        state: RowState {
            seq: row.try_get(column::SEQ)?,
            status: Status::from_code(row.try_get::<i16, _>(column::STATUS)?.into()).unwrap_or(Status::New),
            attempts: attempts.as_ref().copied().unwrap_or(0),
            available_at: time(column::AVAILABLE_AT)?.unwrap_or(Timestamp::UNIX_EPOCH),
            created_at: Timestamp::from_micros(raw.created_at),
            done_at: time(column::DONE_AT)?,
            last_error: row.try_get(column::LAST_ERROR)?,
            lease: locked_by.map(|lease| (lease, locked_at)),
        },
        event: attempts.and(raw.decode()),
    })
}

fn raw(row: &PgRow) -> Result<RawRow, sqlx::Error> {
    let micros = |Moment(time)| time.as_micros();
    Ok(RawRow {
        event_id: EventId::from_row(row.try_get::<&str, _>(column::EVENT_ID)?),
        event_type: row.try_get(column::EVENT_TYPE)?,
        aggregate_type: row.try_get(column::AGGREGATE_TYPE)?,
        aggregate_id: row.try_get(column::AGGREGATE_ID)?,
        tenant_id: row.try_get(column::TENANT_ID)?,
        topic: row.try_get(column::TOPIC)?,
        content_type: row.try_get::<Option<&str>, _>(column::CONTENT_TYPE)?.map(RawRow::content_type),
        payload: row.try_get(column::PAYLOAD)?,
        payload_bytes: row.try_get(column::PAYLOAD_BYTES)?,
        headers: row.try_get(column::HEADERS)?,
        occurred_at: row.try_get::<Option<_>, _>(column::OCCURRED_AT)?.map(micros),
        created_at: row.try_get(column::CREATED_AT).map(micros)?,
    })
}

fn attempts(row: &PgRow) -> Result<Result<u32, String>, sqlx::Error> {
    let attempts: i32 = row.try_get(column::ATTEMPTS)?;
    Ok(u32::try_from(attempts).map_err(|_| "attempts is negative".to_owned()))
}
