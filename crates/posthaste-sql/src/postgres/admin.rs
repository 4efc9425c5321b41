//! What an operator asks.

use std::time::Duration;

use posthaste_core::EventId;
use posthaste_core::store::{
    AdminStore, BoxFuture, Counts, Cursor, Error, Filter, Order, Page, Purge, Record, Redrive, Status,
};
use sqlx::QueryBuilder;
use sqlx::postgres::Postgres;

use super::moment::interval;
use super::sql::DIALECT;
use super::{PgStore, row};
use crate::admin::{FINAL, limit, push_filter};

/// Rows that somebody else is changing are passed by: they change already.
const LOCK: &str = " FOR UPDATE SKIP LOCKED))";

impl AdminStore for PgStore {
    fn counts(&self) -> BoxFuture<'_, Result<Counts, Error>> {
        Box::pin(async move {
            let query = sqlx::query_as::<_, (i16, i64)>(self.sql.slots.counts.clone());
            let rows = query.fetch_all(&self.pool).await.map_err(|error| self.fault(error))?;
            let mut counts = Counts::default();
            for (code, count) in rows {
                if let Some(status) = Status::from_code(code.into()) {
                    *counts.of_mut(status) = u64::try_from(count).unwrap_or(0);
                }
            }
            Ok(counts)
        })
    }

    fn find<'a>(&'a self, id: &'a EventId) -> BoxFuture<'a, Result<Option<Record>, Error>> {
        Box::pin(async move {
            let mut query = QueryBuilder::<Postgres>::new(self.sql.slots.records.as_str());
            query.push(" AND event_id = ").push_bind(id.as_str());
            let row = query.build().fetch_optional(&self.pool).await.map_err(|error| self.fault(error))?;
            row.as_ref().map(row::record).transpose().map_err(|error| self.fault(error))
        })
    }

    fn list<'a>(&'a self, filter: &'a Filter, page: &'a Page) -> BoxFuture<'a, Result<Vec<Record>, Error>> {
        Box::pin(async move {
            let mut query = self.list_query(filter, page);
            let rows = query.build().fetch_all(&self.pool).await.map_err(|error| self.fault(error))?;
            rows.iter().map(row::record).collect::<Result<_, _>>().map_err(|error| self.fault(error))
        })
    }

    fn redrive<'a>(&'a self, redrive: &'a Redrive) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(self.retrying(|| self.run(self.redrive_query(redrive))))
    }

    fn purge<'a>(&'a self, purge: &'a Purge) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(async move {
            let mut purged = 0;
            for (condition, kept) in purgeable(purge) {
                let left = limit(purge.chunk) - i64::try_from(purged).unwrap_or(i64::MAX);
                if left <= 0 {
                    break;
                }
                purged += self.retrying(|| self.run(self.purge_query(&condition, kept, left))).await?;
            }
            Ok(purged)
        })
    }
}

impl PgStore {
    fn list_query(&self, filter: &Filter, page: &Page) -> QueryBuilder<Postgres> {
        let mut query = QueryBuilder::new(self.sql.slots.records.as_str());
        push_filter(&mut query, &DIALECT, filter, true);
        let (beyond, direction) = match page.order {
            Order::OldestFirst => (" AND seq > ", "ASC"),
            Order::NewestFirst => (" AND seq < ", "DESC"),
        };
        if let Some(Cursor(seq)) = page.after {
            query.push(beyond).push_bind(seq);
        }
        query.push(format_args!(" ORDER BY seq {direction} LIMIT ")).push_bind(limit(page.limit));
        query
    }

    fn redrive_query(&self, redrive: &Redrive) -> QueryBuilder<Postgres> {
        let mut query = QueryBuilder::new(self.sql.slots.redrive.as_str());
        if let Some(ids) = &redrive.ids {
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            query.push(" AND event_id = ANY (").push_bind(ids).push(")");
        }
        push_filter(&mut query, &DIALECT, &redrive.filter, false);
        query.push(" ORDER BY seq LIMIT ").push_bind(limit(redrive.chunk)).push(LOCK);
        query
    }

    fn purge_query(&self, condition: &str, kept: Duration, chunk: i64) -> QueryBuilder<Postgres> {
        let mut query = QueryBuilder::new(self.sql.slots.purge.as_str());
        query.push(self.sql.slots.purgeable.as_str()).push(condition);
        query.push(" <= (SELECT clock_timestamp() - ").push_bind(interval(kept)).push(")");
        query.push(" LIMIT ").push_bind(chunk).push(LOCK);
        query
    }

    /// Carries out a statement that writes, and says how many rows it changed.
    async fn run(&self, mut query: QueryBuilder<Postgres>) -> Result<u64, sqlx::Error> {
        Ok(query.build().execute(&self.pool).await?.rows_affected())
    }
}

/// Conditions for rows to purge, up to the moment since when they are kept, and for how long.
fn purgeable(purge: &Purge) -> Vec<(String, Duration)> {
    let mut conditions = Vec::new();
    for (status, kept) in [(Status::Done, purge.done_after), (Status::Dead, purge.dead_after)] {
        let Some(kept) = kept else { continue };
        let status = format!("{FINAL} AND status = {} AND ", status.code());
        conditions.push((status.clone() + "done_at", kept));
        // Statements of other programs may end a row without the moment; its insert then stands in for it.
        conditions.push((status + "done_at IS NULL AND created_at", kept));
    }
    if let Some(kept) = purge.any_after {
        // Walks the table from its oldest page on: an index for this would cost every insert.
        conditions.push(("created_at".to_owned(), kept));
    }
    conditions
}
