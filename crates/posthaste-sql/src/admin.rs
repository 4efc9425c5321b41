//! Conditions of an operator's queries, for every database alike.

use posthaste_core::Timestamp;
use posthaste_core::store::{Filter, Pause, Paused};
use sqlx::{Database, Encode, QueryBuilder, Type};

use crate::dialect::Dialect;

/// The conditions of the partial indexes. A query must repeat one word for word to be served by its index: SQLite does
/// not see that `status = 3` implies it.
pub(crate) const PENDING: &str = "status IN (0, 2)";
pub(crate) const FINAL: &str = "status IN (1, 3)";

/// Appends the conditions of a filter, each after an `AND`. Statuses are left to the caller when `statuses` is false.
pub(crate) fn push_filter<DB>(query: &mut QueryBuilder<DB>, dialect: &Dialect, filter: &Filter, statuses: bool)
where
    DB: Database,
    for<'q> String: Encode<'q, DB> + Type<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB>,
{
    if statuses && !filter.statuses.is_empty() {
        query.push(" AND status IN (");
        let mut list = query.separated(", ");
        for status in &filter.statuses {
            list.push(status.code());
        }
        query.push(")");
        if filter.statuses.iter().all(|status| status.is_final()) {
            query.push(" AND ").push(FINAL);
        } else if filter.statuses.iter().all(|status| !status.is_final()) {
            query.push(" AND ").push(PENDING);
        }
    }
    let texts = [
        ("event_type", &filter.event_type),
        ("aggregate_type", &filter.aggregate_type),
        ("aggregate_id", &filter.aggregate_id),
        ("tenant_id", &filter.tenant_id),
    ];
    for (column, text) in texts {
        if let Some(text) = text {
            query.push(format_args!(" AND {column} = ")).push_bind(text.clone());
        }
    }
    let (open, close) = dialect.moment;
    for (condition, moment) in
        [(" AND created_at >= ", filter.created_from), (" AND created_at < ", filter.created_before)]
    {
        if let Some(moment) = moment {
            query.push(condition).push(open).push_bind(moment.as_micros()).push(close);
        }
    }
    if let Some(moment) = filter.ended_before {
        // Statements of other programs may end a row without the moment; its insert then stands in for it.
        query.push(" AND CASE WHEN status IN (1, 3) THEN coalesce(done_at, created_at) END < ");
        query.push(open).push_bind(moment.as_micros()).push(close);
    }
    if let Some(text) = &filter.error_contains {
        let (open, close) = dialect.error_contains;
        query.push(" AND ").push(open).push_bind(text.clone()).push(close);
    }
}

/// Pauses as they are kept. What a later release means by another number is passed by.
pub(crate) fn pauses(rows: Vec<(i64, String, Option<String>, i64)>) -> Vec<Pause> {
    let pause = |(kind, name, reason, since)| {
        let (what, since) = (Paused::from_row(kind, name)?, Timestamp::from_micros(since));
        Some(Pause { what, reason, since })
    };
    rows.into_iter().filter_map(pause).collect()
}

/// A number of rows as SQL takes it.
pub(crate) fn limit(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}
