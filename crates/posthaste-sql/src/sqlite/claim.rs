//! Leasing rows, and keeping leases.

use std::collections::HashSet;
use std::time::Duration;

use posthaste_core::store::{Claim, Claimed, Error, Lease};
use posthaste_core::{EventId, Timestamp};
use sqlx::SqlStr;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::gate::Patience;
use super::row::{Taken, Values};
use super::{SqliteStore, packed, row, settle};
use crate::admin::limit;

/// What a claim read, before anybody made sense of it.
pub(super) struct Leased {
    rows: Rows,
    now: Timestamp,
    next_in: Option<Duration>,
}

enum Rows {
    Packed(Vec<SqliteRow>),
    Wide(Vec<SqliteRow>),
}

impl SqliteStore {
    pub(super) async fn try_claim(&self, claim: &Claim) -> Result<Leased, sqlx::Error> {
        let now = self.now();
        let mut leased = Leased { rows: Rows::Packed(Vec::new()), now, next_in: None };
        if claim.limit == 0 {
            return Ok(leased);
        }
        let mut connection = self.relay().await?.acquire().await?;
        let query = |statement: &SqlStr| {
            sqlx::query(statement.clone())
                .bind(claim.lease.as_str())
                .bind(now.as_micros())
                .bind((now - claim.skip_recent).as_micros())
                .bind((now - claim.lease_duration).as_micros())
                .bind(limit(claim.limit))
        };
        // All at once: values freed here while SQLite's thread makes more of them contend for its allocator.
        leased.rows = match query(&self.sql.slots.claim).fetch_all(&mut *connection).await {
            Ok(rows) => Rows::Packed(rows),
            Err(error) if packed::may_be_refused(&error) => {
                Rows::Wide(query(&self.sql.claim_wide).fetch_all(&mut *connection).await?)
            }
            Err(error) => return Err(error),
        };
        let (Rows::Packed(rows) | Rows::Wide(rows)) = &leased.rows;
        if rows.len() < claim.limit {
            // The rows are leased by now: not to know the next moment is no reason to give them up.
            leased.next_in = self.next_in(&mut connection, now).await.unwrap_or_default();
        }
        Ok(leased)
    }

    /// Makes events of the rows. Done after the turn to write is over: the next writer need not wait for it.
    pub(super) async fn decode(&self, claim: &Claim, leased: Leased) -> Result<Claimed, Error> {
        let Leased { rows, now, next_in } = leased;
        let rows = match rows {
            Rows::Packed(rows) => {
                let count = rows.len();
                match row::each(rows, |row| Some(packed::values(row)?.taken(now))).await {
                    Some(taken) => return Ok(claimed(taken, next_in)),
                    None => self.leased_under(&claim.lease, now, count).await?,
                }
            }
            Rows::Wide(rows) => rows,
        };
        let taken = row::each(rows, |row| Some(Values::of(row).taken(now))).await;
        Ok(claimed(taken.expect("it is made of any row"), next_in))
    }

    /// The rows under a lease that a claim has just taken and no other has, so many, with every column by itself. Waits for other
    /// processes as the claim does: they are leased, and nobody else would deliver them until that is over.
    async fn leased_under(&self, lease: &Lease, now: Timestamp, count: usize) -> Result<Vec<SqliteRow>, Error> {
        let mut patience = Patience::new();
        loop {
            match self.try_leased_under(lease, now, count).await {
                Ok(rows) => return Ok(rows),
                Err(error) => patience.after(error, self.table()).await?,
            }
        }
    }

    async fn try_leased_under(
        &self,
        lease: &Lease,
        now: Timestamp,
        count: usize,
    ) -> Result<Vec<SqliteRow>, sqlx::Error> {
        let query = sqlx::query(self.sql.leased_wide.clone()).bind(lease.as_str()).bind(now.as_micros());
        query.bind(limit(count)).fetch_all(self.relay().await?).await
    }

    async fn next_in(
        &self,
        connection: &mut SqliteConnection,
        now: Timestamp,
    ) -> Result<Option<Duration>, sqlx::Error> {
        let next: Option<i64> = sqlx::query_scalar(self.sql.slots.next_available.clone())
            .bind(now.as_micros())
            .fetch_one(connection)
            .await?;
        Ok(next.map(|next| Timestamp::from_micros(next).since(now)))
    }

    pub(super) async fn try_renew(&self, leases: &[(EventId, Lease)]) -> Result<Vec<bool>, sqlx::Error> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let held: HashSet<(String, String)> = sqlx::query_as(self.sql.slots.renew.clone())
            .bind(settle::leases_by_id(leases.iter().map(|(id, lease)| (id, lease))))
            .bind(self.now().as_micros())
            .fetch_all(self.relay().await?)
            .await?
            .into_iter()
            .collect();
        let key = |id: &EventId, lease: &Lease| (id.to_string(), lease.as_str().to_owned());
        Ok(leases.iter().map(|(id, lease)| held.contains(&key(id, lease))).collect())
    }

    pub(super) async fn try_release_all(&self) -> Result<u64, sqlx::Error> {
        let released = sqlx::query(self.sql.slots.release_all.clone()).execute(self.relay().await?).await?;
        Ok(released.rows_affected())
    }
}

/// The rows of a claim in their order: RETURNING promises none.
fn claimed(mut taken: Vec<Taken>, next_in: Option<Duration>) -> Claimed {
    taken.sort_unstable_by_key(|taken| (taken.available_at, taken.seq));
    let mut claimed = Claimed { next_in, ..Claimed::default() };
    claimed.rows.reserve(taken.len());
    for taken in taken {
        match taken.row {
            Ok(row) => claimed.rows.push(row),
            Err(malformed) => claimed.malformed.push(malformed),
        }
    }
    claimed
}
