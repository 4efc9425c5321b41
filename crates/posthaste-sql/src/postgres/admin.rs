//! What an operator asks.

use std::time::Duration;

use posthaste_core::store::{
    AdminStore, BoxFuture, ClosedKey, Counts, Cursor, Error, Filter, Key, LaneHolders, Maintained, Order, Page, Pause,
    Paused, Purge, Record, Redrive, StalledKey, Status,
};
use posthaste_core::{EventId, Timestamp};
use sqlx::postgres::Postgres;
use sqlx::{QueryBuilder, SqlStr};

use super::moment::interval;
use super::sql::DIALECT;
use super::{PgStore, row, sql};
use crate::admin::{FINAL, limit, pauses, push_filter};
use crate::ahead::{BY_NUMBER, Step, push_read};

/// Rows that somebody else is changing are passed by: they change already.
const LOCK: &str = " FOR UPDATE SKIP LOCKED))";

/// The moment, in microseconds since 1970.
const CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

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

    fn clock(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        Box::pin(async move {
            let micros = sqlx::query_scalar(CLOCK).fetch_one(&self.pool).await.map_err(|error| self.fault(error))?;
            Ok(Timestamp::from_micros(micros))
        })
    }

    fn redrive<'a>(&'a self, redrive: &'a Redrive) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(self.change_dead(&self.sql.slots.redrive, redrive))
    }

    fn discard<'a>(&'a self, dead: &'a Redrive) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(self.change_dead(&self.sql.slots.discard, dead))
    }

    fn purge<'a>(&'a self, purge: &'a Purge) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(async move {
            let mut purged = 0;
            let has_keys = purge.dead_after.is_some() && self.has_keys().await?;
            for purgeable in self.purgeable(purge, has_keys) {
                let left = limit(purge.chunk) - i64::try_from(purged).unwrap_or(i64::MAX);
                if left <= 0 {
                    break;
                }
                purged += self.retrying(|| self.run(self.purge_query(&purgeable, purge.by_parts, left))).await?;
            }
            Ok(purged)
        })
    }

    fn has_parts(&self) -> bool {
        self.partitioned.is_some()
    }

    fn maintain<'a>(&'a self, kept: &'a Purge) -> BoxFuture<'a, Result<Maintained, Error>> {
        Box::pin(self.try_maintain(kept))
    }

    fn closed_keys(&self, limit: usize) -> BoxFuture<'_, Result<Vec<ClosedKey>, Error>> {
        Box::pin(self.list_closed_keys(limit))
    }

    fn stalled_keys(&self, limit: usize) -> BoxFuture<'_, Result<Vec<StalledKey>, Error>> {
        Box::pin(self.list_stalled_keys(limit))
    }

    fn lane_holders(&self) -> BoxFuture<'_, Result<Option<LaneHolders>, Error>> {
        Box::pin(self.list_lane_holders())
    }

    fn release_key<'a>(&'a self, key: &'a Key, head: &'a EventId) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.reopen(key, head, true))
    }

    fn skip_head<'a>(&'a self, key: &'a Key, head: &'a EventId) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.reopen(key, head, false))
    }

    fn give_up_head<'a>(&'a self, key: &'a Key, head: &'a EventId) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.give_up(key, head))
    }

    fn pauses(&self) -> BoxFuture<'_, Result<Vec<Pause>, Error>> {
        Box::pin(async move {
            let query = sqlx::query_as::<_, (i16, String, Option<String>, i64)>(self.sql.slots.pauses.clone());
            let rows = query.fetch_all(&self.pool).await.map_err(|error| self.fault(error))?;
            Ok(pauses(rows.into_iter().map(|(kind, name, reason, since)| (kind.into(), name, reason, since)).collect()))
        })
    }

    fn pause<'a>(&'a self, what: &'a Paused, reason: Option<&'a str>) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let query = sqlx::query(self.sql.slots.pause.clone()).bind(what.kind()).bind(what.name()).bind(reason);
            let done = query.execute(&self.pool).await.map_err(|error| self.fault(error))?;
            Ok(done.rows_affected() > 0)
        })
    }

    fn resume<'a>(&'a self, what: &'a Paused) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let query = sqlx::query(self.sql.slots.resume.clone()).bind(what.kind()).bind(what.name());
            let done = query.execute(&self.pool).await.map_err(|error| self.fault(error))?;
            Ok(done.rows_affected() > 0)
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

    /// Carries out a statement about a chunk of DEAD rows. Closed keys whose heads are among them go on.
    async fn change_dead(&self, statement: &SqlStr, wanted: &Redrive) -> Result<u64, Error> {
        let has_keys = self.has_keys().await?;
        let mut pass = self.sql.ahead.pass(wanted);
        loop {
            let numbers = match pass.step() {
                Step::Read(after) => {
                    pass.read(self.read_dead(&wanted.filter, after).await.map_err(|error| self.fault(error))?);
                    continue;
                }
                Step::Numbered(numbers) => Some(numbers),
                Step::Rest => None,
            };
            let query = |before| self.dead_query(before, statement, wanted, numbers.as_deref());
            let changed = if has_keys {
                let (before, after) = sql::lanes::AROUND_DEAD;
                let query = || {
                    let mut query = query(before);
                    query.push(DIALECT.fill(after, self.table()));
                    query
                };
                self.retrying(|| self.count(query())).await?
            } else {
                self.retrying(|| self.run(query(""))).await?
            };
            if changed > 0 || numbers.is_none() {
                pass.keep();
                if changed > 0 {
                    self.tell_of_old_rows().await;
                }
                return Ok(changed);
            }
        }
    }

    /// The numbers of DEAD rows that fit, from behind one on.
    async fn read_dead(&self, filter: &Filter, after: i64) -> Result<Vec<i64>, sqlx::Error> {
        let mut query = QueryBuilder::<Postgres>::new(self.sql.slots.dead.as_str());
        push_read(&mut query, &DIALECT, filter, after);
        query.build_query_scalar().persistent(false).fetch_all(&self.pool).await
    }

    /// What a statement about DEAD rows says: with those of these numbers, or with all that are wanted.
    fn dead_query(
        &self,
        before: &str,
        statement: &SqlStr,
        wanted: &Redrive,
        numbers: Option<&[i64]>,
    ) -> QueryBuilder<Postgres> {
        let mut query = QueryBuilder::new(before);
        query.push(statement.as_str());
        match numbers {
            Some(numbers) => query.push(self.sql.slots.dead_numbered.as_str()).push_bind(numbers.to_vec()).push(")"),
            None => query.push(self.sql.slots.dead.as_str()),
        };
        push_wanted(&mut query, wanted);
        query.push(BY_NUMBER).push_bind(limit(wanted.chunk)).push(LOCK);
        // Another partition may have other rows with these numbers.
        query.push(" AND status + 0 = 3");
        push_wanted(&mut query, wanted);
        query
    }

    fn purgeable(&self, purge: &Purge, has_keys: bool) -> Vec<Purgeable> {
        let mut all = Vec::new();
        for (status, kept) in [(Status::Done, purge.done_after), (Status::Dead, purge.dead_after)] {
            let Some(kept) = kept else { continue };
            let code = status.code();
            // What somebody is to decide about is kept until then.
            let heads_nothing = match status {
                Status::Dead if has_keys => DIALECT.fill(sql::lanes::HEADS_NO_CLOSED_KEY, self.table()),
                _ => String::new(),
            };
            let (status, again) = (
                format!("{FINAL} AND status = {code} AND {heads_nothing}"),
                format!("status + 0 = {code} AND {heads_nothing}"),
            );
            // With one end, the range would look so wide to the planner that it walks the table until it finds a chunk.
            let ended = status.clone() + "done_at >= '-infinity' AND done_at";
            all.push(Purgeable {
                condition: ended,
                again: again.clone() + "done_at",
                kept,
                order: " ORDER BY done_at",
            });
            // Statements of other programs may end a row without the moment; its insert then stands in for it.
            let unsaid = "done_at IS NULL AND created_at";
            all.push(Purgeable { condition: status + unsaid, again: again + unsaid, kept, order: "" });
        }
        if let Some(kept) = purge.any_after {
            let oldest = self.sql.slots.oldest.as_str();
            let condition = format!("seq > -9223372036854775807 AND seq <= ({oldest}) AND created_at");
            all.push(Purgeable { condition, again: "created_at".to_owned(), kept, order: " ORDER BY seq" });
        }
        all
    }

    fn purge_query(&self, purgeable: &Purgeable, by_parts: bool, chunk: i64) -> QueryBuilder<Postgres> {
        let mut query = QueryBuilder::new(self.sql.slots.purge.as_str());
        query.push(self.sql.slots.purgeable.as_str()).push(&purgeable.condition);
        self.push_age(&mut query, purgeable, by_parts);
        query.push(purgeable.order).push(" LIMIT ").push_bind(chunk).push(LOCK);
        // Another partition may have other rows with these numbers.
        query.push(" AND ").push(&purgeable.again);
        self.push_age(&mut query, purgeable, by_parts);
        query
    }

    /// Since when they must be what they are.
    fn push_age(&self, query: &mut QueryBuilder<Postgres>, purgeable: &Purgeable, by_parts: bool) {
        query.push(" <= (SELECT clock_timestamp() - ").push_bind(interval(purgeable.kept)).push(")");
        if let (true, Some(partitioned)) = (by_parts, &self.partitioned) {
            let (before, after) = partitioned.purged_before();
            query.push(before).push_bind(interval(purgeable.kept)).push(after);
        }
    }

    /// Carries out a statement that writes, and says how many rows it changed. It is planned anew each time: a plan that was
    /// made while the table was small would walk the whole of it once it is large.
    async fn run(&self, mut query: QueryBuilder<Postgres>) -> Result<u64, sqlx::Error> {
        Ok(query.build().persistent(false).execute(&mut *self.acquire().await?).await?.rows_affected())
    }

    /// The same for one that counts the rows itself.
    async fn count(&self, mut query: QueryBuilder<Postgres>) -> Result<u64, sqlx::Error> {
        let query = query.build_query_scalar::<i64>().persistent(false);
        Ok(query.fetch_one(&mut *self.acquire().await?).await?.unsigned_abs())
    }
}

/// Which DEAD rows are wanted.
fn push_wanted(query: &mut QueryBuilder<Postgres>, redrive: &Redrive) {
    if let Some(ids) = &redrive.ids {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        query.push(" AND event_id = ANY (").push_bind(ids).push(")");
    }
    push_filter(query, &DIALECT, &redrive.filter, false);
}

/// Rows to purge.
struct Purgeable {
    /// What they must be, up to the moment since when they are kept.
    condition: String,
    /// The same in words that lead to no index, for rows that are found by their numbers.
    again: String,
    /// For how long they are kept.
    kept: Duration,
    /// By the index that is to be walked.
    order: &'static str,
}
