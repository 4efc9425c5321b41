//! Leasing rows, and keeping leases.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::TryStreamExt;
use posthaste_core::store::{Claim, Claimed, Lease};
use posthaste_core::{EventId, Timestamp};
use sqlx::sqlite::SqliteConnection;

use super::{SqliteStore, row, settle};
use crate::admin::limit;

impl SqliteStore {
    pub(super) async fn try_claim(&self, claim: &Claim) -> Result<Claimed, sqlx::Error> {
        if claim.limit == 0 {
            return Ok(Claimed::default());
        }
        let mut connection = self.relay().await?.acquire().await?;
        let now = self.now();
        let query = sqlx::query(self.sql.slots.claim.clone())
            .bind(claim.lease.as_str())
            .bind(now.as_micros())
            .bind((now - claim.skip_recent).as_micros())
            .bind((now - claim.lease_duration).as_micros())
            .bind(limit(claim.limit));

        let mut taken = Vec::new();
        {
            // Rows are decoded here while SQLite's thread goes on to the next.
            let mut rows = query.fetch(&mut *connection);
            while let Some(row) = rows.try_next().await? {
                taken.push(row::taken(&row, now));
            }
        }
        // RETURNING promises no order.
        taken.sort_unstable_by_key(|taken| (taken.available_at, taken.seq));

        let full = taken.len() == claim.limit;
        let mut claimed = Claimed::default();
        claimed.rows.reserve(taken.len());
        for taken in taken {
            match taken.row {
                Ok(row) => claimed.rows.push(row),
                Err(malformed) => claimed.malformed.push(malformed),
            }
        }
        if !full {
            // The rows are leased by now: not to know the next moment is no reason to give them up.
            claimed.next_in = self.next_in(&mut connection, now).await.unwrap_or_default();
        }
        Ok(claimed)
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
