//! Keys of which nothing is delivered until somebody decides.

use posthaste_core::EventId;
use posthaste_core::store::{ClosedKey, Error, Key, LaneHolders, LaneLease, StalledKey};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::super::PgStore;
use super::super::moment::Moment;
use super::super::sql::DIALECT;
use super::super::sql::lanes as sql;
use super::columns;
use crate::admin::limit;
use crate::lanes::{Holder, blocked, holders, lane, parked};

/// A lane, or a relay; see [`Holder`]. With the moment.
type HolderRow = (Option<i64>, Option<String>, Option<Moment>, Option<String>, Moment);

impl PgStore {
    /// Whether keys of this table can be closed: it was prepared for lanes.
    pub(in super::super) async fn has_keys(&self) -> Result<bool, Error> {
        if self.prepared.is_known() {
            return Ok(true);
        }
        let query = sqlx::query_scalar(DIALECT.statement(sql::HAS_KEYS, self.table()));
        let has_keys = query.fetch_one(&self.pool).await.map_err(|error| self.fault(error))?;
        Ok(self.prepared.note(has_keys))
    }

    pub(super) async fn try_reopened_keys(
        &self,
        owner: &str,
        leases: &[LaneLease],
        most: usize,
    ) -> Result<Vec<ClosedKey>, sqlx::Error> {
        let (lanes, epochs) = columns(leases);
        let query = sqlx::query(DIALECT.statement(sql::REOPENED, self.table()));
        let query = query.bind(owner).bind(lanes).bind(epochs).bind(limit(most));
        query.fetch_all(&mut *self.acquire().await?).await?.iter().map(closed_key).collect()
    }

    pub(super) async fn try_forget_keys(&self, owner: &str, keys: &[(LaneLease, Key)]) -> Result<(), sqlx::Error> {
        if keys.is_empty() {
            return Ok(());
        }
        let (lanes, epochs) = columns(&keys.iter().map(|(lease, _)| *lease).collect::<Vec<_>>());
        let query = sqlx::query(DIALECT.statement(sql::FORGET, self.table()))
            .bind(owner)
            .bind(lanes)
            .bind(epochs)
            .bind(keys.iter().map(|(_, key)| &*key.aggregate_type).collect::<Vec<_>>())
            .bind(keys.iter().map(|(_, key)| &*key.aggregate_id).collect::<Vec<_>>());
        query.execute(&mut *self.acquire().await?).await.map(drop)
    }

    pub(in super::super) async fn list_closed_keys(&self, most: usize) -> Result<Vec<ClosedKey>, Error> {
        if !self.has_keys().await? {
            return Ok(Vec::new());
        }
        let query = sqlx::query(DIALECT.statement(sql::CLOSED, self.table())).bind(limit(most));
        let rows = query.fetch_all(&self.pool).await.map_err(|error| self.fault(error))?;
        rows.iter().map(closed_key).collect::<Result<_, _>>().map_err(|error| self.fault(error))
    }

    pub(in super::super) async fn list_stalled_keys(&self, most: usize) -> Result<Vec<StalledKey>, Error> {
        if !self.has_keys().await? {
            return Ok(Vec::new());
        }
        self.retrying(async || {
            let mut connection = self.acquire().await?;
            let query = sqlx::query(DIALECT.statement(sql::PARKED, self.table())).bind(limit(most));
            let rows = query.persistent(false).fetch_all(&mut *connection).await?;
            let parked = rows.iter().map(|row| Ok(parked((closed_key(row)?, row.try_get(8)?))));
            let mut stalled = parked.collect::<Result<Vec<_>, sqlx::Error>>()?;
            let query = sqlx::query(DIALECT.statement(sql::BLOCKED, self.table())).bind(limit(most - stalled.len()));
            for row in query.persistent(false).fetch_all(&mut *connection).await? {
                let text = |at| row.try_get::<&str, _>(at).map(Box::from);
                let key = Key { aggregate_type: text(0)?, aggregate_id: text(1)? };
                let head = (row.try_get(2)?, EventId::from_row(row.try_get::<&str, _>(3)?));
                let moment = |at| row.try_get(at).map(|Moment(moment)| moment);
                stalled.push(blocked(key, head, [moment(4)?, moment(5)?], row.try_get(6)?, row.try_get(7)?));
            }
            Ok(stalled)
        })
        .await
    }

    pub(in super::super) async fn list_lane_holders(&self) -> Result<Option<LaneHolders>, Error> {
        if !self.has_keys().await? {
            return Ok(None);
        }
        let query = sqlx::query_as::<_, HolderRow>(DIALECT.statement(sql::HOLDERS, self.table()));
        let rows = query.fetch_all(&self.pool).await.map_err(|error| self.fault(error))?;
        let now = rows.first().map(|row| row.4.0);
        let holder = |(lane, owner, until, settings, _): HolderRow| {
            let until = until.map(|Moment(until)| until);
            Holder { lane, owner, until, settings }
        };
        Ok(now.map(|now| holders(now, rows.into_iter().map(holder).collect())))
    }

    /// Lets a key go on that is closed because of that event, with it or behind it, and says whether it was.
    pub(in super::super) async fn reopen(&self, key: &Key, head: &EventId, with_head: bool) -> Result<bool, Error> {
        if !self.has_keys().await? {
            return Ok(false);
        }
        self.decide(if with_head { sql::RELEASE } else { sql::SKIP_HEAD }, key, head).await
    }

    /// Gives up the head of a key that is blocked, if it is that one, and says whether it was.
    pub(in super::super) async fn give_up(&self, key: &Key, head: &EventId) -> Result<bool, Error> {
        if !self.has_keys().await? {
            return Ok(false);
        }
        self.decide(sql::GIVE_UP_HEAD, key, head).await
    }

    /// Carries out what an operator has decided about a key, and tells of it.
    async fn decide(&self, template: &str, key: &Key, head: &EventId) -> Result<bool, Error> {
        let opened: i64 = self
            .retrying(async || {
                let query = sqlx::query_scalar(DIALECT.statement(template, self.table()));
                let query = query.bind(&*key.aggregate_type).bind(&*key.aggregate_id).bind(head.as_str());
                query.fetch_one(&mut *self.acquire().await?).await
            })
            .await?;
        if opened > 0 {
            self.tell_of_old_rows().await;
        }
        Ok(opened > 0)
    }
}

fn closed_key(row: &PgRow) -> Result<ClosedKey, sqlx::Error> {
    let text = |at| row.try_get::<&str, _>(at).map(Box::from);
    Ok(ClosedKey {
        key: Key { aggregate_type: text(0)?, aggregate_id: text(1)? },
        lane: lane(row.try_get::<i16, _>(2)?.into()),
        head_seq: row.try_get(3)?,
        head_id: EventId::from_row(row.try_get::<&str, _>(4)?),
        since: row.try_get(5).map(|Moment(since)| since)?,
        reason: row.try_get(6)?,
        reopened: row.try_get(7)?,
    })
}
