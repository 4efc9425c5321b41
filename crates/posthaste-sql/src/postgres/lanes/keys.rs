//! Keys of which nothing is delivered until somebody decides.

use posthaste_core::EventId;
use posthaste_core::store::{ClosedKey, Error, Key, LaneLease};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::super::PgStore;
use super::super::moment::Moment;
use super::super::sql::DIALECT;
use super::super::sql::lanes as sql;
use super::columns;
use crate::admin::limit;
use crate::lanes::lane;

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

    /// Lets a closed key go on, with its head or behind it, and says whether it was closed.
    pub(in super::super) async fn reopen(&self, key: &Key, with_head: bool) -> Result<bool, Error> {
        if !self.has_keys().await? {
            return Ok(false);
        }
        let template = if with_head { sql::RELEASE } else { sql::SKIP_HEAD };
        let opened: i64 = self
            .retrying(async || {
                let query = sqlx::query_scalar(DIALECT.statement(template, self.table()));
                let query = query.bind(&*key.aggregate_type).bind(&*key.aggregate_id);
                query.fetch_one(&mut *self.acquire().await?).await
            })
            .await?;
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
