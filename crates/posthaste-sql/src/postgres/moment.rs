//! Moments and lengths of time as PostgreSQL keeps them.

use std::time::Duration;

use posthaste_core::Timestamp;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::{Oid, PgInterval};
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueFormat, PgValueRef, Postgres};
use sqlx::{Decode, Encode, Type};

/// A `TIMESTAMPTZ`, without a crate of times in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(pub(super) Timestamp);

/// 2000-01-01, from which PostgreSQL counts, in microseconds after 1970.
const EPOCH: i64 = 946_684_800_000_000;

/// The first and the last microsecond that PostgreSQL knows, in its own count: 4713 BC and the year 294276.
const RANGE: (i64, i64) = (-211_813_488_000_000_000, 9_223_371_331_199_999_999);

/// From the catalogue of PostgreSQL, where they never change.
const TIMESTAMPTZ: Oid = Oid(1184);
const TIMESTAMPTZ_ARRAY: Oid = Oid(1185);

impl Type<Postgres> for Moment {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(TIMESTAMPTZ)
    }
}

impl PgHasArrayType for Moment {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(TIMESTAMPTZ_ARRAY)
    }
}

impl Encode<'_, Postgres> for Moment {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let micros = self.0.as_micros().saturating_sub(EPOCH).clamp(RANGE.0, RANGE.1);
        buffer.extend_from_slice(&micros.to_be_bytes());
        Ok(IsNull::No)
    }

    fn size_hint(&self) -> usize {
        size_of::<i64>()
    }
}

impl<'r> Decode<'r, Postgres> for Moment {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        if value.format() == PgValueFormat::Text {
            return Err("a moment is only read from prepared statements".into());
        }
        // 'infinity' and '-infinity' are the greatest and the least number, and stay so.
        let micros = i64::from_be_bytes(value.as_bytes()?.try_into()?);
        Ok(Self(Timestamp::from_micros(micros.saturating_add(EPOCH))))
    }
}

/// Longer than anything waits, short enough to be added to or taken off any moment of today: 5000 years.
const LONGEST: Duration = Duration::from_secs(5000 * 365 * 86_400);

/// An `INTERVAL`.
pub(super) fn interval(length: Duration) -> PgInterval {
    let microseconds = i64::try_from(length.min(LONGEST).as_micros()).unwrap_or(i64::MAX);
    PgInterval { months: 0, days: 0, microseconds }
}
