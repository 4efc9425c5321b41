//! Leasing rows, and keeping leases.

use std::collections::HashSet;
use std::time::Duration;

use posthaste_core::store::{Claim, Claimed, Lease};
use posthaste_core::{EventId, Timestamp};
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::gate::{AT_ONCE, let_others_go_on};
use super::{SqliteStore, row, settle};
use crate::admin::limit;

/// What a claim read, before anybody made sense of it.
pub(super) struct Leased {
    rows: Vec<SqliteRow>,
    now: Timestamp,
    next_in: Option<Duration>,
}

impl Leased {
    /// Makes events of the rows. Done after the turn to write is over: the next writer need not wait for it.
    pub(super) async fn decode(self) -> Claimed {
        let mut taken = Vec::with_capacity(self.rows.len());
        let mut rows = self.rows.into_iter();
        while rows.len() > 0 {
            taken.extend(rows.by_ref().take(AT_ONCE).map(|row| row::taken(&row, self.now)));
            let_others_go_on().await;
        }
        // RETURNING promises no order.
        taken.sort_unstable_by_key(|taken| (taken.available_at, taken.seq));
        let mut claimed = Claimed { next_in: self.next_in, ..Claimed::default() };
        claimed.rows.reserve(taken.len());
        for taken in taken {
            match taken.row {
                Ok(row) => claimed.rows.push(row),
                Err(malformed) => claimed.malformed.push(malformed),
            }
        }
        claimed
    }
}

impl SqliteStore {
    pub(super) async fn try_claim(&self, claim: &Claim) -> Result<Leased, sqlx::Error> {
        let now = self.now();
        if claim.limit == 0 {
            return Ok(Leased { rows: Vec::new(), now, next_in: None });
        }
        let mut connection = self.relay().await?.acquire().await?;
        // All at once: values freed here while SQLite's thread makes more of them contend for its allocator.
        let rows = sqlx::query(self.sql.slots.claim.clone())
            .bind(claim.lease.as_str())
            .bind(now.as_micros())
            .bind((now - claim.skip_recent).as_micros())
            .bind((now - claim.lease_duration).as_micros())
            .bind(limit(claim.limit))
            .fetch_all(&mut *connection)
            .await?;
        let mut leased = Leased { rows, now, next_in: None };
        if leased.rows.len() < claim.limit {
            // The rows are leased by now: not to know the next moment is no reason to give them up.
            leased.next_in = self.next_in(&mut connection, now).await.unwrap_or_default();
        }
        Ok(leased)
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
