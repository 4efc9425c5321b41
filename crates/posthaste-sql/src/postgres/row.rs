//! Reading rows.

use std::time::Duration;

use posthaste_core::store::{ClaimedRow, Key, LaneLease, Malformed, RawRow, Record, RowState, Status};
use posthaste_core::{EventId, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::moment::Moment;
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
    pub(super) const AVAILABLE_AT: usize = 14;

    // Of a claim.
    pub(super) const CLAIMED_AT: usize = 15;
    pub(super) const NEXT_AVAILABLE: usize = 16;

    // Of a read of lanes.
    pub(super) const READ_AT: usize = 15;
    pub(super) const LEASED_AT: usize = 16;
    pub(super) const LANE: usize = 17;
    pub(super) const LOST_EPOCH: usize = 18;
    pub(super) const WRITER: usize = 19;

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

/// What a read of lanes tells.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and it is taken apart at once")]
pub(super) enum OfLanes<'r> {
    /// A row, and when it was inserted.
    Row(Found, Timestamp),
    /// A lane that is not held under that epoch.
    Lost(LaneLease),
    /// Somebody whose transaction is open.
    Open(&'r str),
}

/// Reads what a read of lanes tells.
pub(super) fn of_lanes(row: &PgRow) -> Result<OfLanes<'_>, sqlx::Error> {
    if let Some(writer) = row.try_get(column::WRITER)? {
        return Ok(OfLanes::Open(writer));
    }
    let lane = lane(row.try_get(column::LANE)?);
    if let Some(epoch) = row.try_get(column::LOST_EPOCH)? {
        return Ok(OfLanes::Lost(LaneLease { lane, epoch }));
    }
    let raw = raw(row)?;
    let created_at = Timestamp::from_micros(raw.created_at);
    let Moment(read_at) = row.try_get(column::READ_AT)?;
    let Moment(available_at) = row.try_get(column::AVAILABLE_AT)?;
    let found = Found {
        lane,
        seq: row.try_get(column::SEQ)?,
        id: raw.event_id.clone(),
        read_at,
        available_at,
        leased_at: row.try_get::<Option<Moment>, _>(column::LEASED_AT)?.map(|Moment(leased_at)| leased_at),
        attempts: attempts(row)?,
        raw: Ok(raw),
    };
    Ok(OfLanes::Row(found, created_at))
}

/// The key of a row of a lane, as far as it can be read.
pub(super) fn key_of(row: &PgRow) -> Option<Key> {
    key(row.try_get(column::AGGREGATE_TYPE).ok()?, row.try_get(column::AGGREGATE_ID).ok()?)
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
