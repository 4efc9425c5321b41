//! Keys of which nothing is delivered until somebody decides.

use posthaste_core::store::{ClosedKey, Error, Key, LaneHolders, LaneLease, StalledKey};
use posthaste_core::{EventId, Timestamp};
use sqlx::sqlite::{Sqlite, SqliteRow};
use sqlx::{QueryBuilder, Row, SqlStr};

use super::super::SqliteStore;
use super::super::gate::Patience;
use super::super::sql::DIALECT;
use super::super::sql::lanes as sql;
use super::super::tx::begin_immediate;
use super::patiently;
use crate::admin::limit;
use crate::lanes::{Holder, blocked, holders, lane, parked};

impl SqliteStore {
    fn key_statement(&self, template: &str) -> SqlStr {
        DIALECT.statement(template, self.table())
    }

    /// Whether keys of this table can be closed: it was prepared for lanes.
    pub(in super::super) async fn has_keys(&self) -> Result<bool, Error> {
        if self.sql.prepared.is_known() {
            return Ok(true);
        }
        let query = sqlx::query_scalar::<_, i64>(self.key_statement(sql::HAS_KEYS));
        let tables = query.fetch_one(&self.pool).await.map_err(|error| self.fault(error))?;
        Ok(self.sql.prepared.note(tables > 0))
    }

    pub(super) async fn try_reopened_keys(
        &self,
        owner: &str,
        leases: &[LaneLease],
        most: usize,
    ) -> Result<Vec<ClosedKey>, sqlx::Error> {
        let mut reopened = Vec::new();
        for lease in leases {
            let query = sqlx::query(self.key_statement(sql::REOPENED)).bind(lease.lane.0).bind(lease.epoch).bind(owner);
            let rows = query.bind(limit(most)).fetch_all(self.relay().await?).await?;
            reopened.extend(rows.iter().map(closed_key));
        }
        reopened.into_iter().take(most).collect()
    }

    pub(super) async fn try_forget_keys(&self, owner: &str, keys: &[(LaneLease, Key)]) -> Result<(), sqlx::Error> {
        let mut tx = begin_immediate(self.relay().await?).await?;
        let held = self.held_lanes(&mut tx, owner).await?;
        for (lease, key) in keys.iter().filter(|(lease, _)| held.contains(lease)) {
            let query = sqlx::query(self.key_statement(sql::FORGET)).bind(&*key.aggregate_type);
            query.bind(&*key.aggregate_id).bind(lease.lane.0).execute(&mut *tx).await?;
        }
        tx.commit().await
    }

    pub(in super::super) async fn list_closed_keys(&self, most: usize) -> Result<Vec<ClosedKey>, Error> {
        if !self.has_keys().await? {
            return Ok(Vec::new());
        }
        let query = sqlx::query(self.key_statement(sql::CLOSED)).bind(limit(most));
        let rows = query.fetch_all(&self.pool).await.map_err(|error| self.fault(error))?;
        rows.iter().map(closed_key).collect::<Result<_, _>>().map_err(|error| self.fault(error))
    }

    pub(in super::super) async fn list_stalled_keys(&self, most: usize) -> Result<Vec<StalledKey>, Error> {
        if !self.has_keys().await? {
            return Ok(Vec::new());
        }
        self.try_stalled_keys(most).await.map_err(|error| self.fault(error))
    }

    async fn try_stalled_keys(&self, most: usize) -> Result<Vec<StalledKey>, sqlx::Error> {
        let query = sqlx::query(self.key_statement(sql::PARKED)).bind(limit(most));
        let rows = query.fetch_all(&self.pool).await?;
        let parked = rows.iter().map(|row| Ok(parked((closed_key(row)?, row.try_get(8)?))));
        let mut stalled = parked.collect::<Result<Vec<_>, sqlx::Error>>()?;
        let query = sqlx::query(self.key_statement(sql::BLOCKED)).bind(limit(most - stalled.len()));
        for row in query.fetch_all(&self.pool).await? {
            let text = |at| row.try_get::<&str, _>(at).map(Box::from);
            let key = Key { aggregate_type: text(0)?, aggregate_id: text(1)? };
            let head = (row.try_get(2)?, EventId::from_row(row.try_get::<&str, _>(3)?));
            let moment = |at| row.try_get(at).map(Timestamp::from_micros);
            stalled.push(blocked(key, head, [moment(4)?, moment(5)?], row.try_get(6)?, row.try_get(7)?));
        }
        Ok(stalled)
    }

    pub(in super::super) async fn list_lane_holders(&self) -> Result<Option<LaneHolders>, Error> {
        if !self.has_keys().await? {
            return Ok(None);
        }
        let now = self.now();
        let query = sqlx::query_as(self.key_statement(sql::HOLDERS)).bind(now.as_micros());
        let rows = query.fetch_all(&self.pool).await.map_err(|error| self.fault(error))?;
        type Row = (Option<i64>, Option<String>, Option<i64>, Option<String>);
        let holder = |(lane, owner, until, settings): Row| {
            let until = until.map(Timestamp::from_micros);
            Holder { lane, owner, until, settings }
        };
        Ok(Some(holders(now, rows.into_iter().map(holder).collect())))
    }

    /// Lets a key go on that is closed because of that event, with it or behind it, and says whether it was.
    pub(in super::super) async fn reopen(&self, key: &Key, head: &EventId, with_head: bool) -> Result<bool, Error> {
        if !self.has_keys().await? {
            return Ok(false);
        }
        patiently!(self, self.try_reopen(key, head, with_head)).await
    }

    async fn try_reopen(&self, key: &Key, head: &EventId, with_head: bool) -> Result<bool, sqlx::Error> {
        let now = self.now().as_micros();
        let mut tx = begin_immediate(&self.pool).await?;
        let query = sqlx::query_scalar::<_, i64>(self.key_statement(sql::REOPEN));
        let query = query.bind(&*key.aggregate_type).bind(&*key.aggregate_id).bind(now).bind(head.as_str());
        let head = query.fetch_optional(&mut *tx).await?;
        if let Some(seq) = head.filter(|_| with_head) {
            let query = sqlx::query(self.key_statement(sql::REDRIVE_HEAD)).bind(seq).bind(now);
            query.execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(head.is_some())
    }

    /// Gives up the head of a key that is blocked, if it is that one, and says whether it was.
    pub(in super::super) async fn give_up(&self, key: &Key, head: &EventId) -> Result<bool, Error> {
        if !self.has_keys().await? {
            return Ok(false);
        }
        patiently!(self, self.try_give_up(key, head)).await
    }

    async fn try_give_up(&self, key: &Key, head: &EventId) -> Result<bool, sqlx::Error> {
        let now = self.now().as_micros();
        let (kind, id) = (&*key.aggregate_type, &*key.aggregate_id);
        let mut tx = begin_immediate(&self.pool).await?;
        let query = sqlx::query_as::<_, (i64, Option<String>)>(self.key_statement(sql::GIVE_UP));
        let query = query.bind(kind).bind(id).bind(head.as_str()).bind(now);
        let given_up = query.fetch_optional(&mut *tx).await?;
        if let Some((seq, reason)) = &given_up {
            let query = sqlx::query(self.key_statement(sql::GO_ON_BEHIND)).bind(kind).bind(id).bind(head.as_str());
            query.bind(now).bind(seq).bind(reason).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(given_up.is_some())
    }

    /// Redrives or discards where keys may be closed: those whose heads are among them go on.
    pub(in super::super) async fn change_dead_with_keys(
        &self,
        query: impl Fn() -> QueryBuilder<Sqlite>,
    ) -> Result<u64, Error> {
        patiently!(self, self.try_change_dead_with_keys(query())).await
    }

    async fn try_change_dead_with_keys(&self, mut query: QueryBuilder<Sqlite>) -> Result<u64, sqlx::Error> {
        let mut tx = begin_immediate(&self.pool).await?;
        query.push(" RETURNING seq");
        let changed: Vec<i64> = query.build_query_scalar().fetch_all(&mut *tx).await?;
        let seqs = serde_json::to_string(&changed).expect("numbers are JSON");
        let query = sqlx::query(self.key_statement(sql::REOPEN_CHANGED)).bind(self.now().as_micros()).bind(seqs);
        query.execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(changed.len() as u64)
    }
}

fn closed_key(row: &SqliteRow) -> Result<ClosedKey, sqlx::Error> {
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
