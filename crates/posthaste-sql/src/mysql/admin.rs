//! What an operator asks.

use posthaste_core::store::{
    AdminStore, BoxFuture, ClosedKey, Counts, Cursor, Error, Filter, Key, LaneHolders, Order, Page, Pause, Paused,
    Purge, Record, Redrive, StalledKey, Status,
};
use posthaste_core::{EventId, Timestamp};
use sqlx::{MySql, QueryBuilder, SqlStr};

use super::insert::length;
use super::patience::Patience;
use super::sql::{DIALECT, lanes};
use super::{MySqlStore, patiently, row};
use crate::admin::{limit, pauses, push_filter};
use crate::ahead::{BY_NUMBER, Step, push_read};
use crate::finish::finish;
use crate::many::MOST;

/// The moment, in microseconds since 1970.
const CLOCK: &str = "SELECT TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6))";

impl AdminStore for MySqlStore {
    fn counts(&self) -> BoxFuture<'_, Result<Counts, Error>> {
        patiently!(self, |store| store.try_counts())
    }

    fn find<'a>(&'a self, id: &'a EventId) -> BoxFuture<'a, Result<Option<Record>, Error>> {
        let id = id.clone();
        patiently!(self, |store| store.try_find(&id))
    }

    fn list<'a>(&'a self, filter: &'a Filter, page: &'a Page) -> BoxFuture<'a, Result<Vec<Record>, Error>> {
        let (filter, page) = (filter.clone(), *page);
        patiently!(self, |store| store.try_list(&filter, &page))
    }

    fn clock(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        patiently!(self, |store| store.try_clock())
    }

    fn redrive<'a>(&'a self, redrive: &'a Redrive) -> BoxFuture<'a, Result<u64, Error>> {
        let redrive = redrive.clone();
        patiently!(self, |store| store.try_with_dead(&store.sql.slots.redrive, &redrive))
    }

    fn discard<'a>(&'a self, dead: &'a Redrive) -> BoxFuture<'a, Result<u64, Error>> {
        let dead = dead.clone();
        patiently!(self, |store| store.try_with_dead(&store.sql.slots.discard, &dead))
    }

    fn purge<'a>(&'a self, purge: &'a Purge) -> BoxFuture<'a, Result<u64, Error>> {
        let purge = purge.clone();
        patiently!(self, |store| store.try_purge(&purge))
    }

    fn closed_keys(&self, limit: usize) -> BoxFuture<'_, Result<Vec<ClosedKey>, Error>> {
        patiently!(self, |store| store.try_closed_keys(limit))
    }

    fn stalled_keys(&self, limit: usize) -> BoxFuture<'_, Result<Vec<StalledKey>, Error>> {
        patiently!(self, |store| store.try_stalled_keys(limit))
    }

    fn lane_holders(&self) -> BoxFuture<'_, Result<Option<LaneHolders>, Error>> {
        patiently!(self, |store| store.try_lane_holders())
    }

    fn release_key<'a>(&'a self, key: &'a Key, head: &'a EventId) -> BoxFuture<'a, Result<bool, Error>> {
        let (key, head) = (key.clone(), head.clone());
        patiently!(self, |store| store.try_reopen(&key, &head, true))
    }

    fn skip_head<'a>(&'a self, key: &'a Key, head: &'a EventId) -> BoxFuture<'a, Result<bool, Error>> {
        let (key, head) = (key.clone(), head.clone());
        patiently!(self, |store| store.try_reopen(&key, &head, false))
    }

    fn give_up_head<'a>(&'a self, key: &'a Key, head: &'a EventId) -> BoxFuture<'a, Result<bool, Error>> {
        let (key, head) = (key.clone(), head.clone());
        patiently!(self, |store| store.try_give_up(&key, &head))
    }

    fn pauses(&self) -> BoxFuture<'_, Result<Vec<Pause>, Error>> {
        patiently!(self, |store| store.try_pauses())
    }

    fn pause<'a>(&'a self, what: &'a Paused, reason: Option<&'a str>) -> BoxFuture<'a, Result<bool, Error>> {
        let (what, reason) = (what.clone(), reason.map(str::to_owned));
        patiently!(self, |store| store.try_pause(&what, reason.as_deref()))
    }

    fn resume<'a>(&'a self, what: &'a Paused) -> BoxFuture<'a, Result<bool, Error>> {
        let what = what.clone();
        patiently!(self, |store| store.try_resume(&what))
    }
}

impl MySqlStore {
    async fn try_counts(&self) -> Result<Counts, sqlx::Error> {
        let query = sqlx::query_as::<_, (i64, i64)>(self.sql.slots.counts.clone());
        let mut counts = Counts::default();
        for (code, count) in query.fetch_all(&self.pool).await? {
            if let Some(status) = Status::from_code(code) {
                *counts.of_mut(status) = u64::try_from(count).unwrap_or(0);
            }
        }
        Ok(counts)
    }

    async fn try_clock(&self) -> Result<Timestamp, sqlx::Error> {
        Ok(Timestamp::from_micros(sqlx::query_scalar(CLOCK).fetch_one(&self.pool).await?))
    }

    async fn try_pauses(&self) -> Result<Vec<Pause>, sqlx::Error> {
        Ok(pauses(sqlx::query_as(self.sql.slots.pauses.clone()).fetch_all(&self.pool).await?))
    }

    async fn try_pause(&self, what: &Paused, reason: Option<&str>) -> Result<bool, sqlx::Error> {
        let query = sqlx::query(self.sql.slots.pause.clone()).bind(what.kind()).bind(what.name()).bind(reason);
        Ok(query.execute(&self.pool).await?.rows_affected() > 0)
    }

    async fn try_resume(&self, what: &Paused) -> Result<bool, sqlx::Error> {
        let query = sqlx::query(self.sql.slots.resume.clone()).bind(what.kind()).bind(what.name());
        Ok(query.execute(&self.pool).await?.rows_affected() > 0)
    }

    async fn try_find(&self, id: &EventId) -> Result<Option<Record>, sqlx::Error> {
        let mut query = QueryBuilder::<MySql>::new(self.sql.slots.records.as_str());
        query.push(" AND event_id = ").push_bind(id.as_str());
        Ok(query.build().fetch_optional(&self.pool).await?.as_ref().map(row::record))
    }

    async fn try_list(&self, filter: &Filter, page: &Page) -> Result<Vec<Record>, sqlx::Error> {
        let rows = self.list_query(filter, page).build().fetch_all(&self.pool).await?;
        Ok(rows.iter().map(row::record).collect())
    }

    fn list_query(&self, filter: &Filter, page: &Page) -> QueryBuilder<MySql> {
        let mut query = QueryBuilder::new(self.sql.slots.records.as_str());
        push_statuses(&mut query, &filter.statuses);
        push_filter(&mut query, &DIALECT, filter, false);
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

    /// Carries out a statement about a chunk of DEAD rows.
    async fn try_with_dead(&self, statement: &SqlStr, wanted: &Redrive) -> Result<u64, sqlx::Error> {
        let mut pass = self.sql.ahead.pass(wanted);
        loop {
            let numbers = match pass.step() {
                Step::Read(after) => {
                    pass.read(self.try_read_dead(&wanted.filter, after).await?);
                    continue;
                }
                Step::Numbered(numbers) => Some(numbers),
                Step::Rest => None,
            };
            let changed = self.try_change_dead(statement, wanted, numbers.as_deref()).await?;
            if changed > 0 || numbers.is_none() {
                pass.keep();
                return Ok(changed);
            }
        }
    }

    /// The numbers of DEAD rows that fit, from behind one on. Nothing is locked.
    async fn try_read_dead(&self, filter: &Filter, after: i64) -> Result<Vec<i64>, sqlx::Error> {
        let mut query = QueryBuilder::<MySql>::new(self.sql.slots.dead.as_str());
        push_read(&mut query, &DIALECT, filter, after);
        query.build_query_scalar().persistent(false).fetch_all(&self.pool).await
    }

    async fn try_change_dead(
        &self,
        statement: &SqlStr,
        wanted: &Redrive,
        numbers: Option<&[i64]>,
    ) -> Result<u64, sqlx::Error> {
        let parts: Vec<_> = match (numbers, &wanted.ids) {
            (Some(numbers), _) => numbers.chunks(MOST).map(Part::Numbered).collect(),
            (None, Some(ids)) => ids.chunks(MOST).map(Part::Named).collect(),
            (None, None) => vec![Part::All],
        };
        let mut tx = self.begin_relay().await?;
        let mut changed = 0;
        for part in parts {
            let left = limit(wanted.chunk).saturating_sub_unsigned(changed);
            // Which they are is found out first: a closed key goes on if its head is among them.
            let mut query = self.dead_query(&part, &wanted.filter, left);
            let seqs: Vec<i64> = query.build_query_scalar().fetch_all(&mut *tx).await?;
            for seqs in seqs.chunks(MOST) {
                let mut query = QueryBuilder::<MySql>::new(statement.as_str());
                query.push(" AND seq IN (");
                push_numbers(&mut query, seqs);
                changed += query.build().execute(&mut *tx).await?.rows_affected();
            }
            self.reopen_changed(&mut tx, &seqs).await?;
        }
        tx.commit().await?;
        Ok(changed)
    }

    /// Which DEAD rows are meant. They stay locked.
    fn dead_query(&self, part: &Part<'_>, filter: &Filter, limit: i64) -> QueryBuilder<MySql> {
        let mut query;
        match part {
            Part::Numbered(numbers) => {
                query = QueryBuilder::new(self.sql.slots.dead_numbered.as_str());
                push_numbers(&mut query, numbers);
            }
            Part::Named(ids) => {
                query = QueryBuilder::new(self.sql.dead_named.as_str());
                let mut list = query.separated(", ");
                for id in *ids {
                    list.push_bind(id.to_string());
                }
                query.push(")");
            }
            Part::All => query = QueryBuilder::new(self.sql.slots.dead.as_str()),
        }
        push_filter(&mut query, &DIALECT, filter, false);
        query.push(BY_NUMBER).push_bind(limit).push(" FOR UPDATE");
        query
    }

    async fn try_purge(&self, purge: &Purge) -> Result<u64, sqlx::Error> {
        let mut conditions = Vec::new();
        for (status, kept) in [(Status::Done, purge.done_after), (Status::Dead, purge.dead_after)] {
            let Some(kept) = kept else { continue };
            // What somebody is to decide about is kept until then.
            let heads_nothing = match status {
                Status::Dead if self.has_keys(&mut *self.pool.acquire().await?).await? => {
                    DIALECT.fill(lanes::HEADS_NO_CLOSED_KEY, self.table())
                }
                _ => String::new(),
            };
            let condition = format!("stage = {} AND {heads_nothing}stage_at", status.code());
            conditions.push((None, condition, kept, "stage_at"));
        }
        if let Some(kept) = purge.any_after {
            // A query of its own: inside of the other it would lock what it looks at.
            let oldest: Option<i64> = sqlx::query_scalar(self.sql.slots.oldest.clone()).fetch_one(&self.pool).await?;
            conditions.push((oldest, "created_at".to_owned(), kept, "seq"));
        }
        let mut purged = 0;
        for (up_to, condition, kept, order) in conditions {
            let left = limit(purge.chunk).saturating_sub_unsigned(purged);
            let mut query = QueryBuilder::<MySql>::new(self.sql.slots.purge.as_str());
            if let Some(seq) = up_to {
                query.push("seq <= ").push_bind(seq).push(" AND ");
            }
            query.push(condition).push(" <= TIMESTAMPADD(MICROSECOND, -").push_bind(length(kept));
            query.push(format_args!(", UTC_TIMESTAMP(6)) ORDER BY {order} LIMIT ")).push_bind(left);
            let mut tx = self.begin_relay().await?;
            purged += query.build().execute(&mut *tx).await?.rows_affected();
            tx.commit().await?;
        }
        Ok(purged)
    }
}

/// Appends the condition on the status, together with that on the stage, by which the index is sorted.
fn push_statuses(query: &mut QueryBuilder<MySql>, statuses: &[Status]) {
    if statuses.is_empty() {
        return;
    }
    let stage = |status: &Status| if status.is_final() { status.code() } else { 0 };
    let statuses_and_stages = [
        (" AND status IN (", statuses.iter().map(|status| status.code()).collect::<Vec<_>>()),
        (" AND stage IN (", statuses.iter().map(stage).collect()),
    ];
    for (condition, codes) in statuses_and_stages {
        query.push(condition);
        let mut list = query.separated(", ");
        for code in codes {
            list.push(code);
        }
        query.push(")");
    }
}

/// A part of the DEAD rows that are meant.
enum Part<'a> {
    Numbered(&'a [i64]),
    Named(&'a [EventId]),
    All,
}

/// Appends numbers, and the end of their list.
pub(super) fn push_numbers(query: &mut QueryBuilder<MySql>, numbers: &[i64]) {
    let mut list = query.separated(", ");
    for number in numbers {
        list.push(*number);
    }
    query.push(")");
}
