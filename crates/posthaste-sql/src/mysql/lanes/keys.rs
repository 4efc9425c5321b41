//! Keys of which nothing is delivered until somebody decides.

use posthaste_core::store::{ClosedKey, Key, LaneHolders, LaneLease, StalledKey};
use posthaste_core::{EventId, Timestamp};
use sqlx::mysql::{MySql, MySqlConnection, MySqlRow};
use sqlx::{QueryBuilder, Row, SqlStr};

use super::super::MySqlStore;
use super::super::admin::push_numbers;
use super::super::sql::DIALECT;
use super::super::sql::lanes as sql;
use crate::admin::limit;
use crate::lanes::{Holder, blocked, holders, lane, parked};
use crate::many::MOST;

impl MySqlStore {
    fn key_statement(&self, template: &str) -> SqlStr {
        DIALECT.statement(template, self.table())
    }

    /// Whether keys of this table can be closed: it was prepared for lanes.
    pub(in super::super) async fn has_keys(&self, connection: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
        if self.sql.lanes.prepared.is_known() {
            return Ok(true);
        }
        let query = sqlx::query_scalar::<_, i64>(sql::HAS_KEYS).bind(self.table().schema()).bind(self.table().name());
        let tables = query.fetch_one(connection).await?;
        Ok(self.sql.lanes.prepared.note(tables > 0))
    }

    pub(super) async fn try_reopened_keys(
        &self,
        owner: &str,
        leases: &[LaneLease],
        most: usize,
    ) -> Result<Vec<ClosedKey>, sqlx::Error> {
        let mut connection = self.acquire().await?;
        let mut reopened = Vec::new();
        for lease in leases {
            let query = sqlx::query(self.key_statement(sql::REOPENED)).bind(owner).bind(lease.lane.0).bind(lease.epoch);
            let rows = query.bind(limit(most)).fetch_all(&mut *connection).await?;
            reopened.extend(rows.iter().map(closed_key));
        }
        reopened.into_iter().take(most).collect()
    }

    pub(super) async fn try_forget_keys(&self, owner: &str, keys: &[(LaneLease, Key)]) -> Result<(), sqlx::Error> {
        let mut leases: Vec<_> = keys.iter().map(|(lease, _)| *lease).collect();
        leases.sort_unstable();
        leases.dedup();
        let mut tx = self.begin_relay().await?;
        let held = self.held_lanes(&mut tx, &self.sql.lanes.fence, owner, &leases).await?;
        for (lease, key) in keys.iter().filter(|(lease, _)| held.contains(lease)) {
            let query = sqlx::query(self.key_statement(sql::FORGET)).bind(&*key.aggregate_type);
            query.bind(&*key.aggregate_id).bind(lease.lane.0).execute(&mut *tx).await?;
        }
        tx.commit().await
    }

    pub(in super::super) async fn try_closed_keys(&self, most: usize) -> Result<Vec<ClosedKey>, sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        if !self.has_keys(&mut connection).await? {
            return Ok(Vec::new());
        }
        let query = sqlx::query(self.key_statement(sql::CLOSED)).bind(limit(most));
        query.fetch_all(&mut *connection).await?.iter().map(closed_key).collect()
    }

    pub(in super::super) async fn try_stalled_keys(&self, most: usize) -> Result<Vec<StalledKey>, sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        if !self.has_keys(&mut connection).await? {
            return Ok(Vec::new());
        }
        let query = sqlx::query(self.key_statement(sql::PARKED)).bind(limit(most));
        let rows = query.fetch_all(&mut *connection).await?;
        let parked = rows.iter().map(|row| Ok(parked((closed_key(row)?, row.try_get(8)?))));
        let mut stalled = parked.collect::<Result<Vec<_>, sqlx::Error>>()?;
        let query = sqlx::query(self.key_statement(sql::BLOCKED)).bind(limit(most - stalled.len()));
        for row in query.fetch_all(&mut *connection).await? {
            let text = |at| row.try_get::<&str, _>(at).map(Box::from);
            let key = Key { aggregate_type: text(0)?, aggregate_id: text(1)? };
            let head = (row.try_get(2)?, EventId::from_row(row.try_get::<&str, _>(3)?));
            let moment = |at| row.try_get(at).map(Timestamp::from_micros);
            stalled.push(blocked(key, head, [moment(4)?, moment(5)?], row.try_get(6)?, row.try_get(7)?));
        }
        Ok(stalled)
    }

    pub(in super::super) async fn try_lane_holders(&self) -> Result<Option<LaneHolders>, sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        if !self.has_keys(&mut connection).await? {
            return Ok(None);
        }
        type Row = (Option<i64>, Option<String>, Option<i64>, Option<String>, i64);
        let rows: Vec<Row> = sqlx::query_as(self.key_statement(sql::HOLDERS)).fetch_all(&mut *connection).await?;
        let now = rows.first().map(|row| Timestamp::from_micros(row.4));
        let holder = |(lane, owner, until, settings, _): Row| {
            let until = until.map(Timestamp::from_micros);
            Holder { lane, owner, until, settings }
        };
        Ok(now.map(|now| holders(now, rows.into_iter().map(holder).collect())))
    }

    /// Lets a key go on that is closed because of that event, with it or behind it, and says whether it was.
    pub(in super::super) async fn try_reopen(
        &self,
        key: &Key,
        head: &EventId,
        with_head: bool,
    ) -> Result<bool, sqlx::Error> {
        let mut tx = self.begin_relay().await?;
        if !self.has_keys(&mut tx).await? {
            tx.rollback().await?;
            return Ok(false);
        }
        let query = sqlx::query_scalar::<_, i64>(self.key_statement(sql::HEAD));
        let query = query.bind(&*key.aggregate_type).bind(&*key.aggregate_id).bind(head.as_str());
        let head = query.fetch_optional(&mut *tx).await?;
        if let Some(seq) = head {
            let query = sqlx::query(self.key_statement(sql::REOPEN)).bind(&*key.aggregate_type);
            query.bind(&*key.aggregate_id).execute(&mut *tx).await?;
            if with_head {
                sqlx::query(self.key_statement(sql::REDRIVE_HEAD)).bind(seq).execute(&mut *tx).await?;
            }
        }
        tx.commit().await?;
        Ok(head.is_some())
    }

    /// Gives up the head of a key that is blocked, if it is that one, and says whether it was.
    pub(in super::super) async fn try_give_up(&self, key: &Key, head: &EventId) -> Result<bool, sqlx::Error> {
        let mut tx = self.begin_relay().await?;
        if !self.has_keys(&mut tx).await? {
            tx.rollback().await?;
            return Ok(false);
        }
        let id = &*key.aggregate_id;
        let query = sqlx::query_as::<_, (i64, String)>(self.key_statement(sql::FIRST_OF_KEY)).bind(id).bind(id);
        let first = query.bind(&*key.aggregate_type).fetch_optional(&mut *tx).await?;
        let mut given_up = false;
        if let Some((seq, _)) = first.filter(|(_, first)| first == head.as_str()) {
            let query = sqlx::query(self.key_statement(sql::GIVE_UP)).bind(seq);
            given_up = query.execute(&mut *tx).await?.rows_affected() == 1;
            if given_up {
                sqlx::query(self.key_statement(sql::GO_ON_BEHIND)).bind(seq).execute(&mut *tx).await?;
            }
        }
        tx.commit().await?;
        Ok(given_up)
    }

    /// After a redrive or a discard, in its transaction: closed keys whose heads are among these go on.
    pub(in super::super) async fn reopen_changed(
        &self,
        connection: &mut MySqlConnection,
        changed: &[i64],
    ) -> Result<(), sqlx::Error> {
        if !self.has_keys(connection).await? {
            return Ok(());
        }
        for seqs in changed.chunks(MOST) {
            let mut query = QueryBuilder::<MySql>::new(DIALECT.fill(sql::REOPEN_CHANGED, self.table()));
            push_numbers(&mut query, seqs);
            query.build().execute(&mut *connection).await?;
        }
        Ok(())
    }
}

fn closed_key(row: &MySqlRow) -> Result<ClosedKey, sqlx::Error> {
    let text = |at| row.try_get::<&str, _>(at).map(Box::from);
    Ok(ClosedKey {
        key: Key { aggregate_type: text(0)?, aggregate_id: text(1)? },
        lane: lane(row.try_get(2)?),
        head_seq: row.try_get(3)?,
        head_id: EventId::from_row(row.try_get::<&str, _>(4)?),
        since: Timestamp::from_micros(row.try_get(5)?),
        reason: row.try_get(6)?,
        reopened: row.try_get(7)?,
    })
}
