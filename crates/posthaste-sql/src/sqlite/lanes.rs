//! The lane: who has it, what is in it, and what becomes of it.

mod keys;
mod prepare;
mod settle;

use std::time::Duration;

use posthaste_core::store::{
    BoxFuture, ClosedKey, Error, Key, Lane, LaneLease, LaneRow, LaneRows, LaneSettlement, LaneStore, ReadLane,
    ReadLanes, RelayOfLanes, Renewed, Settled,
};
use posthaste_core::{Event, Timestamp};
use sqlx::SqlStr;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::gate::Patience;
use super::row::Values;
use super::sql::DIALECT;
use super::sql::lanes as sql;
use super::tx::begin_immediate;
use super::{SqliteStore, packed, patiently, row};
use crate::admin::limit;
use crate::lanes::{lane, others, relay, renewed};
use crate::table::TableName;

/// How long a relay that is gone is remembered.
const REMEMBERED: Duration = Duration::from_secs(86_400);

/// What is said about the lane of a table.
pub(super) struct Statements {
    lease: SqlStr,
    renew: SqlStr,
    here: SqlStr,
    gone: SqlStr,
    relays: SqlStr,
    give_back: SqlStr,
    held: SqlStr,
    read: SqlStr,
    read_wide: SqlStr,
    settle_done_run: SqlStr,
    settle_done: SqlStr,
    delete_done_run: SqlStr,
    delete_done: SqlStr,
    settle_other: SqlStr,
    pending: SqlStr,
    close: SqlStr,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let statement = |template| DIALECT.statement(template, table);
        Self {
            lease: statement(sql::LEASE),
            renew: statement(sql::RENEW),
            here: statement(sql::HERE),
            gone: statement(sql::GONE),
            relays: statement(sql::RELAYS),
            give_back: statement(sql::GIVE_BACK),
            held: statement(sql::HELD),
            read: statement(sql::READ),
            read_wide: statement(sql::READ_WIDE),
            settle_done_run: statement(sql::SETTLE_DONE_RUN),
            settle_done: statement(sql::SETTLE_DONE),
            delete_done_run: statement(sql::DELETE_DONE_RUN),
            delete_done: statement(sql::DELETE_DONE),
            settle_other: statement(sql::SETTLE_OTHER),
            pending: statement(sql::PENDING),
            close: statement(sql::CLOSE),
        }
    }
}

/// Each of these waits up to 30 s for transactions of other processes before it answers [`Error::Busy`].
impl LaneStore for SqliteStore {
    fn count_lanes(&self) -> BoxFuture<'_, Result<u16, Error>> {
        Box::pin(self.expect_lanes())
    }

    /// There is one.
    fn lane_of(&self, _: &Event) -> Option<Lane> {
        Some(Lane(0))
    }

    fn lease_lanes<'a>(
        &'a self,
        owner: &'a str,
        wanted: usize,
        length: Duration,
    ) -> BoxFuture<'a, Result<Vec<LaneLease>, Error>> {
        Box::pin(patiently!(self, self.try_lease_lanes(owner, wanted, length)))
    }

    fn renew_lanes<'a>(
        &'a self,
        owner: &'a str,
        leases: &'a [LaneLease],
        length: Duration,
    ) -> BoxFuture<'a, Result<Renewed, Error>> {
        Box::pin(patiently!(self, self.try_renew_lanes(owner, leases, length)))
    }

    fn agree<'a>(
        &'a self,
        owner: &'a str,
        settings: &'a str,
        length: Duration,
    ) -> BoxFuture<'a, Result<Vec<RelayOfLanes>, Error>> {
        Box::pin(patiently!(self, self.try_agree(owner, settings, length)))
    }

    fn relays(&self) -> BoxFuture<'_, Result<Vec<RelayOfLanes>, Error>> {
        Box::pin(async move {
            if !self.has_keys().await? {
                return Ok(Vec::new());
            }
            patiently!(self, self.try_relays()).await
        })
    }

    fn give_back_lanes<'a>(&'a self, owner: &'a str, leases: &'a [LaneLease]) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(patiently!(self, self.try_give_back_lanes(owner, leases)))
    }

    /// Waits for no writer.
    fn read_lanes<'a>(&'a self, read: &'a ReadLanes) -> BoxFuture<'a, Result<LaneRows, Error>> {
        Box::pin(async move {
            let mut patience = Patience::new();
            loop {
                match self.try_read_lanes(read).await {
                    Ok(rows) => return Ok(rows),
                    Err(error) => patience.after(error, self.table()).await?,
                }
            }
        })
    }

    fn settle_in_lanes<'a>(
        &'a self,
        owner: &'a str,
        settlements: &'a [LaneSettlement],
    ) -> BoxFuture<'a, Result<Vec<Settled>, Error>> {
        Box::pin(patiently!(self, self.try_settle_in_lanes(owner, settlements)))
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
        Box::pin(patiently!(self, self.try_reopened_keys(owner, leases, limit)))
    }

    fn forget_keys<'a>(&'a self, owner: &'a str, keys: &'a [(LaneLease, Key)]) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(patiently!(self, self.try_forget_keys(owner, keys)))
    }
}

impl SqliteStore {
    async fn try_lease_lanes(
        &self,
        owner: &str,
        wanted: usize,
        length: Duration,
    ) -> Result<Vec<LaneLease>, sqlx::Error> {
        let now = self.now();
        let leased: Vec<(i64, i64)> = sqlx::query_as(self.sql.lanes.lease.clone())
            .bind(owner)
            .bind((now + length).as_micros())
            .bind(now.as_micros())
            .bind(limit(wanted))
            .fetch_all(self.relay().await?)
            .await?;
        Ok(leased.into_iter().map(lease).collect())
    }

    async fn try_renew_lanes(
        &self,
        owner: &str,
        leases: &[LaneLease],
        length: Duration,
    ) -> Result<Renewed, sqlx::Error> {
        let now = self.now();
        let until = (now + length).as_micros();
        let mut tx = begin_immediate(self.relay().await?).await?;
        let mut held = Vec::with_capacity(leases.len());
        for lease in leases {
            let query = sqlx::query(self.sql.lanes.renew.clone()).bind(lease.lane.0).bind(lease.epoch).bind(owner);
            held.push(query.bind(until).execute(&mut *tx).await?.rows_affected() == 1);
        }
        // Who is going is gone for long.
        let until = if length.is_zero() { i64::MIN } else { until };
        let here = sqlx::query(self.sql.lanes.here.clone()).bind(owner).bind(until).bind(now.as_micros());
        here.execute(&mut *tx).await?;
        let gone = (now - REMEMBERED).as_micros();
        sqlx::query(self.sql.lanes.gone.clone()).bind(gone).execute(&mut *tx).await?;
        let relays = self.relays_at(now, &mut tx).await?;
        tx.commit().await?;
        Ok(renewed(held, relays, owner))
    }

    async fn try_agree(&self, owner: &str, settings: &str, length: Duration) -> Result<Vec<RelayOfLanes>, sqlx::Error> {
        let now = self.now();
        let mut tx = begin_immediate(self.relay().await?).await?;
        let others = others(self.relays_at(now, &mut tx).await?, owner, settings);
        let statement = |template| DIALECT.statement(template, self.table());
        if others.is_empty() {
            let query = sqlx::query(statement(sql::AGREE)).bind(owner).bind(settings);
            query.bind((now + length).as_micros()).execute(&mut *tx).await?;
        } else {
            sqlx::query(statement(sql::DISAGREE)).bind(owner).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(others)
    }

    async fn try_relays(&self) -> Result<Vec<RelayOfLanes>, sqlx::Error> {
        let mut connection = self.relay().await?.acquire().await?;
        self.relays_at(self.now(), &mut connection).await
    }

    async fn relays_at(
        &self,
        now: Timestamp,
        connection: &mut SqliteConnection,
    ) -> Result<Vec<RelayOfLanes>, sqlx::Error> {
        let query = sqlx::query_as(self.sql.lanes.relays.clone()).bind(now.as_micros());
        Ok(query.fetch_all(connection).await?.into_iter().map(relay).collect())
    }

    async fn try_give_back_lanes(&self, owner: &str, leases: &[LaneLease]) -> Result<(), sqlx::Error> {
        for lease in leases {
            let query = sqlx::query(self.sql.lanes.give_back.clone()).bind(lease.lane.0).bind(lease.epoch).bind(owner);
            query.execute(self.relay().await?).await?;
        }
        Ok(())
    }

    async fn try_read_lanes(&self, read: &ReadLanes) -> Result<LaneRows, sqlx::Error> {
        let mut found = LaneRows::default();
        let in_hand = serde_json::to_string(&read.in_hand).expect("numbers are JSON");
        for part in &read.parts {
            match self.read_lane(part, read, &in_hand).await? {
                Some(rows) => found.rows.extend(rows),
                None => found.lost.push(part.lease),
            }
        }
        // There is one writer at a time, so numbers are committed in order, and nobody has one that is not seen.
        Ok(found)
    }

    /// What is in a lane; none if it is not held.
    async fn read_lane(
        &self,
        part: &ReadLane,
        read: &ReadLanes,
        in_hand: &str,
    ) -> Result<Option<Vec<LaneRow>>, sqlx::Error> {
        let (lane, now, key) = (part.lease.lane, self.now(), part.key.as_ref());
        let query = |statement: &SqlStr| {
            sqlx::query(statement.clone())
                .bind(part.after)
                .bind(part.until.unwrap_or(i64::MAX))
                .bind(limit(part.limit))
                .bind(in_hand)
                .bind(key.map(|key| &*key.aggregate_type))
                .bind(key.map(|key| &*key.aggregate_id))
                .bind(lane.0)
                .bind(part.lease.epoch)
                .bind(&*read.owner)
        };
        let in_lane =
            |values: Values, key: &dyn Fn() -> Option<Key>| values.in_lane(lane, now).row(read.lease_duration, key);
        match query(&self.sql.lanes.read).fetch_all(self.reader().await?).await {
            Ok(mut rows) => {
                if !is_held(&mut rows) {
                    return Ok(None);
                }
                let packed = |row: &SqliteRow| Some(in_lane(packed::values(row)?, &|| packed::key_of(row)));
                if let Some(rows) = row::each(rows, packed).await {
                    return Ok(Some(rows));
                }
            }
            Err(error) if packed::may_be_refused(&error) => {}
            Err(error) => return Err(error),
        }
        let mut rows = query(&self.sql.lanes.read_wide).fetch_all(self.reader().await?).await?;
        if !is_held(&mut rows) {
            return Ok(None);
        }
        let wide = |row: &SqliteRow| Some(in_lane(Values::of(row), &|| row::key_of(row)));
        Ok(Some(row::each(rows, wide).await.expect("it is made of any row")))
    }
}

/// Takes away the last row, which says whether the rest counts.
fn is_held(rows: &mut Vec<SqliteRow>) -> bool {
    rows.pop().is_some_and(|last| row::number(&last, 0) == 1)
}

fn lease((number, epoch): (i64, i64)) -> LaneLease {
    LaneLease { lane: lane(number), epoch }
}
