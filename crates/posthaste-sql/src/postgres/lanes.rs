//! Lanes: who has them, what is in them, and what becomes of it.

mod closed;
mod hash;
mod keys;
mod prepare;
mod read;
mod settle;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use posthaste_core::Event;
use posthaste_core::store::{
    BoxFuture, ClosedKey, Error, Key, Lane, LaneLease, LaneRows, LaneSettlement, LaneStore, ReadLanes, RelayOfLanes,
    Renewed, Settled,
};
use sqlx::postgres::{PgConnection, Postgres};
use sqlx::{SqlSafeStr, SqlStr, Transaction};

use super::PgStore;
use super::kept_plan::KeptPlan;
use super::moment::interval;
use super::sql::lanes as sql;
use super::sql::{BEGIN, DIALECT};
use crate::admin::limit;
use crate::lanes::{lane, relay, renewed};
use crate::table::TableName;
use closed::ClosedKeys;

/// What is said about the lanes of a table.
pub(super) struct Statements {
    count: SqlStr,
    lease: SqlStr,
    renew: SqlStr,
    give_back: SqlStr,
    read: SqlStr,
    read_by_kept_plan: SqlStr,
    kept_plan: KeptPlan,
    closed_hashes: SqlStr,
    closed_keys: ClosedKeys,
    settle_done_in_one_table: SqlStr,
    delete_done_in_one_table: SqlStr,
    settle_done_in_a_range: SqlStr,
    delete_done_in_a_range: SqlStr,
    settle_done: SqlStr,
    delete_done: SqlStr,
    settle_other: SqlStr,
    settle_and_delete_done: SqlStr,
    settle_and_close: SqlStr,
    settle_delete_done_and_close: SqlStr,
    /// Whether the server has said that its hash function is ours.
    hashes_alike: AtomicBool,
}

impl Statements {
    /// The server was away, so what is known of it may be wrong.
    pub(super) fn server_was_away(&self) {
        self.closed_keys.forget();
    }

    pub(super) fn new(table: &TableName) -> Self {
        let statement = |template| DIALECT.statement(template, table);
        Self {
            count: statement(sql::COUNT),
            lease: statement(sql::LEASE),
            renew: statement(sql::RENEW),
            give_back: statement(sql::GIVE_BACK),
            read: statement(sql::READ),
            read_by_kept_plan: statement(sql::READ_BY_KEPT_PLAN),
            kept_plan: KeptPlan::default(),
            closed_hashes: statement(sql::CLOSED_HASHES),
            closed_keys: ClosedKeys::default(),
            settle_done_in_one_table: statement(sql::SETTLE_DONE_IN_ONE_TABLE),
            delete_done_in_one_table: statement(sql::DELETE_DONE_IN_ONE_TABLE),
            settle_done_in_a_range: statement(sql::SETTLE_DONE_IN_A_RANGE),
            delete_done_in_a_range: statement(sql::DELETE_DONE_IN_A_RANGE),
            settle_done: statement(sql::SETTLE_DONE),
            delete_done: statement(sql::DELETE_DONE),
            settle_other: statement(sql::SETTLE_OTHER),
            settle_and_delete_done: statement(sql::SETTLE_AND_DELETE_DONE),
            settle_and_close: statement(sql::SETTLE_AND_CLOSE),
            settle_delete_done_and_close: statement(sql::SETTLE_DELETE_DONE_AND_CLOSE),
            hashes_alike: AtomicBool::new(false),
        }
    }
}

/// Each of these tries up to six times before it answers [`Error::Busy`].
impl LaneStore for PgStore {
    fn count_lanes(&self) -> BoxFuture<'_, Result<u16, Error>> {
        Box::pin(self.expect_lanes())
    }

    /// Known as soon as the server was asked for the number of lanes, unless it hashes otherwise than others do.
    fn lane_of(&self, event: &Event) -> Option<Lane> {
        self.sql.lanes.hashes_alike.load(Ordering::Relaxed).then(|| hash::lane_of(event))
    }

    fn lease_lanes<'a>(
        &'a self,
        owner: &'a str,
        wanted: usize,
        length: Duration,
    ) -> BoxFuture<'a, Result<Vec<LaneLease>, Error>> {
        Box::pin(self.retrying(move || self.try_lease_lanes(owner, wanted, length)))
    }

    fn renew_lanes<'a>(
        &'a self,
        owner: &'a str,
        leases: &'a [LaneLease],
        length: Duration,
    ) -> BoxFuture<'a, Result<Renewed, Error>> {
        Box::pin(self.retrying(move || self.try_renew_lanes(owner, leases, length)))
    }

    fn agree<'a>(
        &'a self,
        owner: &'a str,
        settings: &'a str,
        length: Duration,
    ) -> BoxFuture<'a, Result<Vec<RelayOfLanes>, Error>> {
        Box::pin(self.retrying(move || self.try_agree(owner, settings, length)))
    }

    fn relays(&self) -> BoxFuture<'_, Result<Vec<RelayOfLanes>, Error>> {
        Box::pin(async move {
            if !self.has_keys().await? {
                return Ok(Vec::new());
            }
            self.retrying(async || relays(self.table(), &mut *self.acquire().await?).await).await
        })
    }

    fn give_back_lanes<'a>(&'a self, owner: &'a str, leases: &'a [LaneLease]) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.retrying(move || self.try_give_back_lanes(owner, leases)))
    }

    fn read_lanes<'a>(&'a self, read: &'a ReadLanes) -> BoxFuture<'a, Result<LaneRows, Error>> {
        Box::pin(self.retrying(move || self.try_read_lanes(read)))
    }

    fn settle_in_lanes<'a>(
        &'a self,
        owner: &'a str,
        settlements: &'a [LaneSettlement],
    ) -> BoxFuture<'a, Result<Vec<Settled>, Error>> {
        Box::pin(self.settle_all_in_lanes(owner, settlements))
    }

    /// A statement waits for the disk while another is at work.
    fn settles_at_once(&self) -> usize {
        2
    }

    fn closes_keys(&self) -> bool {
        true
    }

    fn reopened_keys<'a>(
        &'a self,
        owner: &'a str,
        leases: &'a [LaneLease],
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<ClosedKey>, Error>> {
        Box::pin(self.retrying(move || self.try_reopened_keys(owner, leases, limit)))
    }

    fn forget_keys<'a>(&'a self, owner: &'a str, keys: &'a [(LaneLease, Key)]) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.retrying(move || self.try_forget_keys(owner, keys)))
    }
}

impl PgStore {
    async fn try_lease_lanes(
        &self,
        owner: &str,
        wanted: usize,
        length: Duration,
    ) -> Result<Vec<LaneLease>, sqlx::Error> {
        let query = sqlx::query_as::<_, (i16, i64)>(self.sql.lanes.lease.clone());
        let query = query.bind(owner).bind(interval(length)).bind(limit(wanted));
        let leased = query.fetch_all(&mut *self.acquire().await?).await?;
        let mut leases: Vec<_> = leased.into_iter().map(|(lane, epoch)| lease(lane, epoch)).collect();
        // RETURNING promises no order.
        leases.sort_unstable();
        self.sql.lanes.closed_keys.leased(&leases);
        Ok(leases)
    }

    async fn try_renew_lanes(
        &self,
        owner: &str,
        leases: &[LaneLease],
        length: Duration,
    ) -> Result<Renewed, sqlx::Error> {
        let (lanes, epochs) = columns(leases);
        type Row = (Option<i16>, Option<i64>, Option<String>, Option<String>);
        let query = sqlx::query_as::<_, Row>(self.sql.lanes.renew.clone());
        let query = query.bind(owner).bind(lanes).bind(epochs).bind(interval(length));
        let (mut held, mut relays) = (HashSet::new(), Vec::new());
        for row in query.fetch_all(&mut *self.acquire().await?).await? {
            match row {
                (Some(lane), Some(epoch), ..) => drop(held.insert(lease(lane, epoch))),
                (.., owner, settings) => relays.extend(owner.zip(settings).map(relay)),
            }
        }
        Ok(renewed(leases.iter().map(|lease| held.contains(lease)).collect(), relays, owner))
    }

    async fn try_agree(&self, owner: &str, settings: &str, length: Duration) -> Result<Vec<RelayOfLanes>, sqlx::Error> {
        let statement = |template| DIALECT.statement(template, self.table());
        let connection = &mut *self.acquire().await?;
        let mut tx = Transaction::<Postgres>::begin(connection, Some(BEGIN.into_sql_str())).await?;
        sqlx::query(statement(sql::AGREE_ALONE)).execute(&mut *tx).await?;
        let query = sqlx::query_as(statement(sql::AGREE)).bind(owner).bind(settings).bind(interval(length));
        let others = query.fetch_all(&mut *tx).await?.into_iter().map(relay).collect();
        tx.commit().await?;
        Ok(others)
    }

    async fn try_give_back_lanes(&self, owner: &str, leases: &[LaneLease]) -> Result<(), sqlx::Error> {
        if leases.is_empty() {
            return Ok(());
        }
        let (lanes, epochs) = columns(leases);
        let query = sqlx::query(self.sql.lanes.give_back.clone()).bind(owner).bind(lanes).bind(epochs);
        query.execute(&mut *self.acquire().await?).await.map(drop)
    }
}

async fn relays(table: &TableName, connection: &mut PgConnection) -> Result<Vec<RelayOfLanes>, sqlx::Error> {
    let there = sqlx::query_as(DIALECT.statement(sql::RELAYS, table)).fetch_all(connection).await?;
    Ok(there.into_iter().map(relay).collect())
}

fn lease(number: i16, epoch: i64) -> LaneLease {
    LaneLease { lane: lane(number.into()), epoch }
}

/// Lanes and epochs as statements take them.
fn columns(leases: &[LaneLease]) -> (Vec<i16>, Vec<i64>) {
    // A number that is too large is of no lane.
    leases.iter().map(|lease| (i16::try_from(lease.lane.0).unwrap_or(-1), lease.epoch)).unzip()
}
