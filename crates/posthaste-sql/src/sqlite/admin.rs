//! What an operator asks.

use posthaste_core::EventId;
use posthaste_core::store::{
    AdminStore, BoxFuture, Counts, Cursor, Error, Filter, Order, Page, Purge, Record, Redrive, Status,
};
use sqlx::sqlite::{Sqlite, SqliteArguments};
use sqlx::{Arguments, QueryBuilder};

use super::sql::DIALECT;
use super::{SqliteStore, row};
use crate::admin::{limit, push_filter};

impl AdminStore for SqliteStore {
    fn counts(&self) -> BoxFuture<'_, Result<Counts, Error>> {
        Box::pin(async move {
            let query = sqlx::query_as::<_, (i64, i64)>(self.sql.slots.counts.clone());
            let rows = query.fetch_all(&self.pool).await.map_err(|error| self.fault(error))?;
            let mut counts = Counts::default();
            for (code, count) in rows {
                if let Some(status) = Status::from_code(code) {
                    *counts.of_mut(status) = u64::try_from(count).unwrap_or(0);
                }
            }
            Ok(counts)
        })
    }

    fn find<'a>(&'a self, id: &'a EventId) -> BoxFuture<'a, Result<Option<Record>, Error>> {
        Box::pin(async move {
            let mut query = QueryBuilder::<Sqlite>::new(self.sql.slots.records.as_str());
            query.push(" AND event_id = ").push_bind(id.as_str());
            let row = query.build().fetch_optional(&self.pool).await.map_err(|error| self.fault(error))?;
            Ok(row.as_ref().map(row::record))
        })
    }

    fn list<'a>(&'a self, filter: &'a Filter, page: &'a Page) -> BoxFuture<'a, Result<Vec<Record>, Error>> {
        Box::pin(async move {
            let mut query = QueryBuilder::<Sqlite>::new(self.sql.slots.records.as_str());
            push_filter(&mut query, &DIALECT, filter, true);
            let (beyond, direction) = match page.order {
                Order::OldestFirst => (" AND seq > ", "ASC"),
                Order::NewestFirst => (" AND seq < ", "DESC"),
            };
            if let Some(Cursor(seq)) = page.after {
                query.push(beyond).push_bind(seq);
            }
            query.push(format_args!(" ORDER BY seq {direction} LIMIT ")).push_bind(limit(page.limit));
            let rows = query.build().fetch_all(&self.pool).await.map_err(|error| self.fault(error))?;
            Ok(rows.iter().map(row::record).collect())
        })
    }

    fn redrive<'a>(&'a self, redrive: &'a Redrive) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(async move {
            let mut moment = SqliteArguments::default();
            moment.add(self.now().as_micros()).expect("a number can be bound");
            let mut query = QueryBuilder::<Sqlite>::with_arguments(self.sql.slots.redrive.as_str(), moment);
            if let Some(ids) = &redrive.ids {
                let ids: Vec<&str> = ids.iter().map(EventId::as_str).collect();
                let json = serde_json::to_string(&ids).expect("texts are JSON");
                query.push(" AND event_id IN (SELECT value FROM json_each(").push_bind(json).push("))");
            }
            push_filter(&mut query, &DIALECT, &redrive.filter, false);
            query.push(" ORDER BY seq LIMIT ").push_bind(limit(redrive.chunk)).push(")");
            self.run(query).await
        })
    }

    fn purge<'a>(&'a self, purge: &'a Purge) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(async move {
            let now = self.now();
            let mut query = QueryBuilder::<Sqlite>::new(self.sql.slots.purge.as_str());
            let mut union = "";
            for (status, kept) in [(Status::Done, purge.done_after), (Status::Dead, purge.dead_after)] {
                let Some(kept) = kept else { continue };
                let before = (now - kept).as_micros();
                // Statements of other programs may end a row without the moment; its insert then stands in for it.
                for moment in ["done_at <= ", "done_at IS NULL AND created_at <= "] {
                    query.push(union).push(self.sql.slots.purgeable.as_str());
                    query.push(format_args!("status = {} AND {moment}", status.code())).push_bind(before);
                    union = " UNION ALL ";
                }
            }
            if let Some(kept) = purge.any_after {
                query.push(union).push(self.sql.slots.purgeable.as_str());
                query.push("created_at <= ").push_bind((now - kept).as_micros());
                union = " UNION ALL ";
            }
            if union.is_empty() {
                return Ok(0);
            }
            query.push(" LIMIT ").push_bind(limit(purge.chunk)).push(")");
            self.run(query).await
        })
    }
}

impl SqliteStore {
    /// Carries out a statement that writes, and says how many rows it changed.
    async fn run(&self, mut query: QueryBuilder<Sqlite>) -> Result<u64, Error> {
        let _turn = self.gate.enter().await?;
        let done = query.build().execute(&self.pool).await.map_err(|error| self.fault(error))?;
        Ok(done.rows_affected())
    }
}
