//! Leasing rows, and keeping leases.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::TryStreamExt;
use posthaste_core::EventId;
use posthaste_core::store::{Claim, Claimed, Lease};
use sqlx::postgres::PgConnection;
use tokio::time::Instant;

use super::moment::{Moment, interval};
use super::{PgStore, row};
use crate::admin::limit;

/// When to look again at what a claim has just missed.
const SOON: Duration = Duration::from_millis(5);

/// The longest that a statement takes to the server. The clocks of both are not compared.
const ON_ITS_WAY: Duration = Duration::from_secs(1);

impl PgStore {
    pub(super) async fn try_claim(&self, claim: &Claim) -> Result<Claimed, sqlx::Error> {
        if claim.limit == 0 {
            return Ok(Claimed::default());
        }
        let mut connection = self.acquire().await?;
        let sent_at = Instant::now();
        let query = sqlx::query(self.sql.slots.claim.clone())
            .bind(claim.lease.as_str())
            .bind(interval(claim.skip_recent))
            .bind(interval(claim.lease_duration))
            .bind(limit(claim.limit))
            .bind(true);

        let mut taken = Vec::new();
        let mut next_in = None;
        {
            let mut rows = query.fetch(&mut *connection);
            while let Some(row) = rows.try_next().await? {
                if taken.is_empty() {
                    // The same in every row.
                    next_in = row::next_in(&row)?;
                }
                taken.push(row::taken(&row)?);
            }
        }
        // RETURNING promises no order.
        taken.sort_unstable_by_key(|taken| (taken.available_at, taken.seq));

        let count = taken.len();
        let mut claimed = Claimed::default();
        claimed.rows.reserve(count);
        for taken in taken {
            match taken.row {
                Ok(row) => claimed.rows.push(row),
                Err(malformed) => claimed.malformed.push(malformed),
            }
        }
        claimed.next_in = match count {
            0 => self.next_in(&mut connection, claim, sent_at).await?,
            _ if count == claim.limit => None,
            _ => next_in,
        };
        Ok(claimed)
    }

    /// In how long to look again after a claim that found nothing. Soon, if something has become due since it looked, or
    /// is locked: nobody else may be looking.
    async fn next_in(
        &self,
        connection: &mut PgConnection,
        claim: &Claim,
        sent_at: Instant,
    ) -> Result<Option<Duration>, sqlx::Error> {
        let query = sqlx::query_as::<_, (Option<Moment>, Moment)>(self.sql.slots.next_available.clone())
            .bind(interval(sent_at.elapsed() + ON_ITS_WAY))
            .bind(interval(claim.skip_recent));
        let (next, Moment(now)) = query.fetch_one(connection).await?;
        Ok(next.map(|Moment(next)| next.since(now).max(SOON)))
    }

    pub(super) async fn try_renew(&self, leases: &[(EventId, Lease)]) -> Result<Vec<bool>, sqlx::Error> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        // In the order of the ids, as every statement about several rows.
        let mut sorted: Vec<_> = leases.iter().map(|(id, lease)| (id.as_str(), lease.as_str())).collect();
        sorted.sort_unstable();
        let (ids, texts): (Vec<_>, Vec<_>) = sorted.into_iter().unzip();
        let query = sqlx::query_as(self.sql.slots.renew.clone()).bind(ids).bind(texts).bind(true);
        let held: HashSet<(String, String)> = query.fetch_all(&mut *self.acquire().await?).await?.into_iter().collect();
        let key = |id: &EventId, lease: &Lease| (id.to_string(), lease.as_str().to_owned());
        Ok(leases.iter().map(|(id, lease)| held.contains(&key(id, lease))).collect())
    }

    pub(super) async fn try_release_all(&self) -> Result<u64, sqlx::Error> {
        let released = sqlx::query(self.sql.slots.release_all.clone()).execute(&mut *self.acquire().await?).await?;
        Ok(released.rows_affected())
    }
}
