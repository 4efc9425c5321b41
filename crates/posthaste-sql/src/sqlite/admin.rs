//! What an operator asks.

use posthaste_core::store::{
    AdminStore, BoxFuture, ClosedKey, Counts, Cursor, Error, Filter, Key, LaneHolders, Order, Page, Pause, Paused,
    Purge, Record, Redrive, StalledKey, Status,
};
use posthaste_core::{EventId, Timestamp};
use sqlx::sqlite::{Sqlite, SqliteArguments};
use sqlx::{Arguments, QueryBuilder};

use super::sql::{DIALECT, lanes};
use super::{SqliteStore, row};
use crate::admin::{FINAL, limit, pauses, push_filter};
use crate::ahead::{BY_NUMBER, Step, push_read};

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
            let rows =
                self.list_query(filter, page).build().fetch_all(&self.pool).await.map_err(|error| self.fault(error))?;
            Ok(rows.iter().map(row::record).collect())
        })
    }

    fn clock(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        Box::pin(async move { Ok(self.now()) })
    }

    fn redrive<'a>(&'a self, redrive: &'a Redrive) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(self.change_dead(Change::Redrive, redrive))
    }

    fn discard<'a>(&'a self, dead: &'a Redrive) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(self.change_dead(Change::Discard, dead))
    }

    fn purge<'a>(&'a self, purge: &'a Purge) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(async move {
            let has_keys = purge.dead_after.is_some() && self.has_keys().await?;
            match self.purge_query(purge, has_keys) {
                Some(query) => self.run(query).await,
                None => Ok(0),
            }
        })
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
            let query = sqlx::query_as(self.sql.slots.pauses.clone());
            Ok(pauses(query.fetch_all(&self.pool).await.map_err(|error| self.fault(error))?))
        })
    }

    fn pause<'a>(&'a self, what: &'a Paused, reason: Option<&'a str>) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let _turn = self.gate.enter().await?;
            let query = sqlx::query(self.sql.slots.pause.clone()).bind(what.kind()).bind(what.name()).bind(reason);
            let query = query.bind(self.now().as_micros());
            let done = query.execute(&self.pool).await.map_err(|error| self.fault(error))?;
            Ok(done.rows_affected() > 0)
        })
    }

    fn resume<'a>(&'a self, what: &'a Paused) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let _turn = self.gate.enter().await?;
            let query = sqlx::query(self.sql.slots.resume.clone()).bind(what.kind()).bind(what.name());
            let done = query.execute(&self.pool).await.map_err(|error| self.fault(error))?;
            Ok(done.rows_affected() > 0)
        })
    }
}

impl SqliteStore {
    fn list_query(&self, filter: &Filter, page: &Page) -> QueryBuilder<Sqlite> {
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

    /// Changes a chunk of DEAD rows. Closed keys whose heads are among them go on.
    async fn change_dead(&self, change: Change, wanted: &Redrive) -> Result<u64, Error> {
        let has_keys = self.has_keys().await?;
        let mut pass = self.sql.ahead.pass(wanted);
        loop {
            let numbers = match pass.step() {
                Step::Read(after) => {
                    let mut query = self.read_dead(&wanted.filter, after);
                    let numbers = query.build_query_scalar().fetch_all(&self.pool).await;
                    pass.read(numbers.map_err(|error| self.fault(error))?);
                    continue;
                }
                Step::Numbered(numbers) => Some(numbers),
                Step::Rest => None,
            };
            let query = || self.dead_query(change, wanted, numbers.as_deref());
            let changed = if has_keys { self.change_dead_with_keys(query).await? } else { self.run(query()).await? };
            if changed > 0 || numbers.is_none() {
                pass.keep();
                return Ok(changed);
            }
        }
    }

    /// The numbers of DEAD rows that fit, from behind one on.
    fn read_dead(&self, filter: &Filter, after: i64) -> QueryBuilder<Sqlite> {
        let mut query = QueryBuilder::new(self.sql.slots.dead.as_str());
        push_read(&mut query, &DIALECT, filter, after);
        query
    }

    /// The statement for those of these numbers, or for all that are wanted.
    fn dead_query(&self, change: Change, wanted: &Redrive, numbers: Option<&[i64]>) -> QueryBuilder<Sqlite> {
        let slots = &self.sql.slots;
        let mut query = match change {
            Change::Redrive => {
                let mut moment = SqliteArguments::default();
                moment.add(self.now().as_micros()).expect("a number can be bound");
                QueryBuilder::with_arguments(slots.redrive.as_str(), moment)
            }
            Change::Discard => QueryBuilder::new(slots.discard.as_str()),
        };
        if let Some(numbers) = numbers {
            let json = serde_json::to_string(numbers).expect("numbers are JSON");
            query.push(slots.dead_numbered.as_str()).push_bind(json).push(")) AND status = 3");
            push_wanted(&mut query, wanted);
        } else {
            query.push(slots.dead.as_str());
            push_wanted(&mut query, wanted);
            query.push(BY_NUMBER).push_bind(limit(wanted.chunk)).push(")");
        }
        query
    }

    /// The statement for a purge, unless there is nothing to be purged.
    fn purge_query(&self, purge: &Purge, has_keys: bool) -> Option<QueryBuilder<Sqlite>> {
        let now = self.now();
        let mut conditions = Vec::new();
        for (status, kept) in [(Status::Done, purge.done_after), (Status::Dead, purge.dead_after)] {
            let Some(kept) = kept else { continue };
            // What somebody is to decide about is kept until then.
            let heads_nothing = match status {
                Status::Dead if has_keys => DIALECT.fill(lanes::HEADS_NO_CLOSED_KEY, self.table()),
                _ => String::new(),
            };
            let status = format!("{FINAL} AND status = {} AND {heads_nothing}", status.code());
            conditions.push((status.clone() + "done_at <= ", kept));
            // Statements of other programs may end a row without the moment; its insert then stands in for it.
            conditions.push((status + "done_at IS NULL AND created_at <= ", kept));
        }
        if let Some(kept) = purge.any_after {
            conditions.push((format!("seq <= ({}) AND created_at <= ", self.sql.slots.oldest.as_str()), kept));
        }
        let mut query = QueryBuilder::new(self.sql.slots.purge.as_str());
        for (index, (condition, kept)) in conditions.iter().enumerate() {
            query.push(if index == 0 { "" } else { " UNION ALL " });
            query.push(self.sql.slots.purgeable.as_str()).push(condition).push_bind((now - *kept).as_micros());
        }
        query.push(" LIMIT ").push_bind(limit(purge.chunk)).push(")");
        (!conditions.is_empty()).then_some(query)
    }

    /// Carries out a statement that writes, and says how many rows it changed.
    async fn run(&self, mut query: QueryBuilder<Sqlite>) -> Result<u64, Error> {
        let _turn = self.gate.enter().await?;
        let done = query.build().execute(&self.pool).await.map_err(|error| self.fault(error))?;
        Ok(done.rows_affected())
    }
}

/// What becomes of DEAD rows.
#[derive(Clone, Copy)]
enum Change {
    Redrive,
    Discard,
}

/// Which DEAD rows are wanted.
fn push_wanted(query: &mut QueryBuilder<Sqlite>, wanted: &Redrive) {
    if let Some(ids) = &wanted.ids {
        let ids: Vec<&str> = ids.iter().map(EventId::as_str).collect();
        let json = serde_json::to_string(&ids).expect("texts are JSON");
        query.push(" AND event_id IN (SELECT value FROM json_each(").push_bind(json).push("))");
    }
    push_filter(query, &DIALECT, &wanted.filter, false);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn plan(store: &SqliteStore, query: QueryBuilder<Sqlite>) -> String {
        store.plan(query.into_string().as_str(), 0).await
    }

    #[tokio::test]
    async fn what_is_dead_or_old_is_found_without_walking_what_is_done() {
        let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
        store.migrate().await.unwrap();
        let day = Some(Duration::from_secs(86_400));

        let purge = Purge { done_after: day, dead_after: day, ..Purge::default() };
        store.prepare_lanes().await.unwrap();
        for has_keys in [false, true] {
            let purge = plan(&store, store.purge_query(&purge, has_keys).unwrap()).await;
            assert_eq!(purge.matches("INDEX outbox_event_final (status=? AND done_at<?)").count(), 2, "{purge}");
            assert_eq!(purge.matches("INDEX outbox_event_final (status=? AND done_at=?)").count(), 2, "{purge}");
            assert!(!purge.contains("SCAN outbox_event"), "{purge}");
            assert!(!purge.contains("SCAN k"), "{purge}");
        }
        let purge = Purge { any_after: day, ..Purge::default() };
        let purge = plan(&store, store.purge_query(&purge, false).unwrap()).await;
        assert!(purge.contains("SEARCH outbox_event USING INTEGER PRIMARY KEY (rowid<?)"), "{purge}");
        assert!(!purge.contains("TEMP B-TREE"), "{purge}");

        for filter in [
            Filter::default(),
            Filter { ended_before: Some(store.now()), ..Filter::default() },
            Filter { event_type: Some(String::new()), error_contains: Some(String::new()), ..Filter::default() },
        ] {
            let read = plan(&store, store.read_dead(&filter, 0)).await;
            assert!(read.contains("INDEX outbox_event_final (status=?)"), "{read}");
            for change in [Change::Redrive, Change::Discard] {
                let all = store.dead_query(change, &Redrive::matching(filter.clone()), None);
                let all = plan(&store, all).await;
                assert!(all.contains("INDEX outbox_event_final (status=?)"), "{all}");
            }
        }
        let dead = Filter { statuses: vec![Status::Dead], ..Filter::default() };
        let list = plan(&store, store.list_query(&dead, &Page::default())).await;
        assert!(list.contains("INDEX outbox_event_final (status=?)"), "{list}");
        let aggregate = Filter { aggregate_id: Some(String::new()), ..Filter::default() };
        let list = plan(&store, store.list_query(&aggregate, &Page::default())).await;
        assert!(list.contains("INDEX outbox_event_aggregate (aggregate_id=?)"), "{list}");
        assert!(!list.contains("TEMP B-TREE"), "{list}");
    }

    #[tokio::test]
    async fn a_chunk_of_what_is_dead_is_found_by_its_numbers() {
        let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
        store.migrate().await.unwrap();
        for filter in [
            Filter::default(),
            Filter { ended_before: Some(store.now()), ..Filter::default() },
            // Which would find all of a busy aggregate, for each chunk.
            Filter { aggregate_id: Some(String::new()), ..Filter::default() },
        ] {
            for change in [Change::Redrive, Change::Discard] {
                let chunk = store.dead_query(change, &Redrive::matching(filter.clone()), Some(&[1, 2]));
                let chunk = plan(&store, chunk).await;
                assert!(chunk.contains("SEARCH outbox_event USING INTEGER PRIMARY KEY (rowid=?)"), "{chunk}");
                assert!(!chunk.contains("USING INDEX") && !chunk.contains("TEMP B-TREE"), "{chunk}");
            }
        }
    }
}
