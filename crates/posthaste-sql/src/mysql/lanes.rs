//! Lanes: who has them, what is in them, and what becomes of it.

mod keys;
mod moments;
mod prepare;
mod read;
mod settle;

use std::collections::HashSet;
use std::time::Duration;

use posthaste_core::Event;
use posthaste_core::store::{
    BoxFuture, ClosedKey, Error, Key, Lane, LaneLease, LaneRows, LaneSettlement, LaneStore, ReadLanes, RelayOfLanes,
    Renewed, Settled,
};
use sqlx::SqlStr;
use sqlx::mysql::MySqlConnection;

use super::insert::length;
use super::patience::Patience;
use super::settle::fill;
use super::sql::lanes as sql;
use super::sql::{DIALECT, SKIP_LOCKED, VALUE};
use super::{MySqlStore, patiently};
use crate::admin::limit;
use crate::finish::finish;
use crate::lanes::{Prepared, lane, others, relay, renewed};
use crate::many::Many;
use crate::table::TableName;
use moments::Moments;

/// What is said about the lanes of a table, and what is known of them.
pub(super) struct Statements {
    free: SqlStr,
    free_skipping: SqlStr,
    lease: Many,
    held: Many,
    fence: Many,
    renew: Many,
    give_back: Many,
    here: SqlStr,
    gone: SqlStr,
    relays: SqlStr,
    mine: SqlStr,
    numbers: Many,
    wanted: Many,
    pending: Many,
    rows: Many,
    settle_done: Many,
    delete_done: Many,
    settle_other: Many,
    lock_pending: Many,
    close: Many,
    pub(super) prepared: Prepared,
    moments: Moments,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let statement = |template: &str| DIALECT.statement(template, table);
        let many = |template: &str| Many::new(&DIALECT.fill(template, table), VALUE, ", ");
        let union = |row: &str| Many::new("{rows}", DIALECT.fill(row, table), " UNION ALL ");
        Self {
            free: statement(sql::FREE),
            free_skipping: statement(&(sql::FREE.to_owned() + SKIP_LOCKED)),
            lease: many(sql::LEASE),
            held: many(sql::HELD),
            fence: many(sql::FENCE),
            renew: many(sql::RENEW),
            give_back: many(sql::GIVE_BACK),
            here: statement(sql::HERE),
            gone: statement(sql::GONE),
            relays: statement(sql::RELAYS),
            mine: statement(sql::MINE),
            numbers: union(sql::NUMBERS_OF_LANE),
            wanted: union(sql::WANTED_OF_LANE),
            pending: many(sql::PENDING),
            rows: many(sql::ROWS),
            settle_done: many(sql::SETTLE_DONE),
            delete_done: many(sql::DELETE_DONE),
            settle_other: Many::new(&DIALECT.fill(sql::SETTLE_OTHER, table), sql::CHANGE, " UNION ALL "),
            lock_pending: many(sql::LOCK_PENDING),
            close: many(sql::CLOSE),
            prepared: Prepared::default(),
            moments: Moments::default(),
        }
    }
}

/// Each of these is tried again a bounded number of times when it loses a deadlock or waits for a lock too long, before it answers
/// [`Error::Busy`].
impl LaneStore for MySqlStore {
    fn count_lanes(&self) -> BoxFuture<'_, Result<u16, Error>> {
        let store = self.clone();
        Box::pin(finish(&self.tasks, async move { store.expect_lanes().await }))
    }

    fn lane_of(&self, event: &Event) -> Option<Lane> {
        let hash = crc32(event.aggregate_id().unwrap_or(event.id().as_str()));
        Some(lane(i64::from(hash) % i64::from(sql::LANES)))
    }

    fn lease_lanes<'a>(
        &'a self,
        owner: &'a str,
        wanted: usize,
        length: Duration,
    ) -> BoxFuture<'a, Result<Vec<LaneLease>, Error>> {
        let owner = owner.to_owned();
        patiently!(self, |store| store.try_lease_lanes(&owner, wanted, length))
    }

    fn renew_lanes<'a>(
        &'a self,
        owner: &'a str,
        leases: &'a [LaneLease],
        length: Duration,
    ) -> BoxFuture<'a, Result<Renewed, Error>> {
        let (owner, leases) = (owner.to_owned(), leases.to_vec());
        patiently!(self, |store| store.try_renew_lanes(&owner, &leases, length))
    }

    fn agree<'a>(
        &'a self,
        owner: &'a str,
        settings: &'a str,
        length: Duration,
    ) -> BoxFuture<'a, Result<Vec<RelayOfLanes>, Error>> {
        let (owner, settings) = (owner.to_owned(), settings.to_owned());
        patiently!(self, |store| store.try_agree(&owner, &settings, length))
    }

    fn relays(&self) -> BoxFuture<'_, Result<Vec<RelayOfLanes>, Error>> {
        patiently!(self, |store| store.try_relays())
    }

    fn give_back_lanes<'a>(&'a self, owner: &'a str, leases: &'a [LaneLease]) -> BoxFuture<'a, Result<(), Error>> {
        let (owner, leases) = (owner.to_owned(), leases.to_vec());
        patiently!(self, |store| store.try_give_back_lanes(&owner, &leases))
    }

    fn read_lanes<'a>(&'a self, read: &'a ReadLanes) -> BoxFuture<'a, Result<LaneRows, Error>> {
        let read = read.clone();
        patiently!(self, |store| store.try_read_lanes(&read))
    }

    fn settle_in_lanes<'a>(
        &'a self,
        owner: &'a str,
        settlements: &'a [LaneSettlement],
    ) -> BoxFuture<'a, Result<Vec<Settled>, Error>> {
        let (owner, settlements) = (owner.to_owned(), settlements.to_vec());
        patiently!(self, |store| store.try_settle_in_lanes(&owner, &settlements))
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
        let (owner, leases) = (owner.to_owned(), leases.to_vec());
        patiently!(self, |store| store.try_reopened_keys(&owner, &leases, limit))
    }

    fn forget_keys<'a>(&'a self, owner: &'a str, keys: &'a [(LaneLease, Key)]) -> BoxFuture<'a, Result<(), Error>> {
        let (owner, keys) = (owner.to_owned(), keys.to_vec());
        patiently!(self, |store| store.try_forget_keys(&owner, &keys))
    }
}

impl MySqlStore {
    /// Locks lanes that nobody has, and takes them.
    async fn try_lease_lanes(
        &self,
        owner: &str,
        wanted: usize,
        lasts: Duration,
    ) -> Result<Vec<LaneLease>, sqlx::Error> {
        let mut tx = self.begin_relay().await?;
        let skip_locked = match self.skip_locked {
            Some(told) => told,
            None => self.server(&mut tx).await?.skip_locked,
        };
        let sql = if skip_locked { &self.sql.lanes.free_skipping } else { &self.sql.lanes.free };
        let free: Vec<(i64, i64)> = sqlx::query_as(sql.clone()).bind(limit(wanted)).fetch_all(&mut *tx).await?;
        let leases: Vec<_> = free.into_iter().map(|(number, epoch)| lease((number, epoch + 1))).collect();
        if !leases.is_empty() {
            let (sql, size) = self.sql.lanes.lease.at_least(leases.len());
            let query = sqlx::query(sql).bind(owner).bind(length(lasts));
            fill(&leases, size).fold(query, |query, lease| query.bind(lease.lane.0)).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(leases)
    }

    async fn try_renew_lanes(
        &self,
        owner: &str,
        leases: &[LaneLease],
        lasts: Duration,
    ) -> Result<Renewed, sqlx::Error> {
        let lanes = &self.sql.lanes;
        let mut tx = self.begin_relay().await?;
        let held = self.held_lanes(&mut tx, &lanes.held, owner, leases).await?;
        let standing: Vec<_> = leases.iter().filter(|lease| held.contains(lease)).copied().collect();
        if !standing.is_empty() {
            let (sql, size) = lanes.renew.at_least(standing.len());
            let query = sqlx::query(sql).bind(length(lasts));
            fill(&standing, size).fold(query, |query, lease| query.bind(lease.lane.0)).execute(&mut *tx).await?;
        }
        // Of whom nobody is, others are forgotten.
        let going = if lasts.is_zero() { owner } else { "" };
        sqlx::query(lanes.gone.clone()).bind(going).execute(&mut *tx).await?;
        if !lasts.is_zero() {
            sqlx::query(lanes.here.clone()).bind(owner).bind(length(lasts)).execute(&mut *tx).await?;
        }
        let relays = self.relays_there(&mut tx).await?;
        tx.commit().await?;
        Ok(renewed(leases.iter().map(|lease| held.contains(lease)).collect(), relays, owner))
    }

    async fn try_agree(&self, owner: &str, settings: &str, lasts: Duration) -> Result<Vec<RelayOfLanes>, sqlx::Error> {
        let statement = |template| DIALECT.statement(template, self.table());
        let mut tx = self.begin_relay().await?;
        sqlx::query(statement(sql::AGREE_ALONE)).execute(&mut *tx).await?;
        let others = others(self.relays_there(&mut tx).await?, owner, settings);
        if others.is_empty() {
            let query = sqlx::query(statement(sql::AGREE)).bind(owner).bind(settings).bind(length(lasts));
            query.execute(&mut *tx).await?;
        } else {
            sqlx::query(statement(sql::DISAGREE)).bind(owner).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(others)
    }

    async fn try_relays(&self) -> Result<Vec<RelayOfLanes>, sqlx::Error> {
        let mut connection = self.acquire().await?;
        if !self.has_keys(&mut connection).await? {
            return Ok(Vec::new());
        }
        self.relays_there(&mut connection).await
    }

    async fn relays_there(&self, connection: &mut MySqlConnection) -> Result<Vec<RelayOfLanes>, sqlx::Error> {
        let there = sqlx::query_as(self.sql.lanes.relays.clone()).fetch_all(connection).await?;
        Ok(there.into_iter().map(relay).collect())
    }

    async fn try_give_back_lanes(&self, owner: &str, leases: &[LaneLease]) -> Result<(), sqlx::Error> {
        let mut tx = self.begin_relay().await?;
        let held = self.held_lanes(&mut tx, &self.sql.lanes.held, owner, leases).await?;
        let held: Vec<_> = leases.iter().filter(|lease| held.contains(lease)).collect();
        if !held.is_empty() {
            let (sql, size) = self.sql.lanes.give_back.at_least(held.len());
            let query = fill(&held, size).fold(sqlx::query(sql), |query, lease| query.bind(lease.lane.0));
            query.execute(&mut *tx).await?;
        }
        tx.commit().await
    }

    /// What an owner has of the lanes of these leases, which stay locked in the way of that statement.
    async fn held_lanes(
        &self,
        connection: &mut MySqlConnection,
        statement: &Many,
        owner: &str,
        leases: &[LaneLease],
    ) -> Result<HashSet<LaneLease>, sqlx::Error> {
        if leases.is_empty() {
            return Ok(HashSet::new());
        }
        let (sql, size) = statement.at_least(leases.len());
        let query = fill(leases, size).fold(sqlx::query_as(sql), |query, lease| query.bind(lease.lane.0));
        Ok(query.bind(owner).fetch_all(connection).await?.into_iter().map(lease).collect())
    }
}

fn lease((number, epoch): (i64, i64)) -> LaneLease {
    LaneLease { lane: lane(number), epoch }
}

/// The checksum of that name, as the servers compute it.
fn crc32(text: &str) -> u32 {
    !text.bytes().fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_servers() {
        // SELECT CRC32('MySQL'), CRC32(''), CRC32('mysql')
        assert_eq!([crc32("MySQL"), crc32(""), crc32("mysql")], [3_259_397_556, 0, 2_501_908_538]);
    }
}
