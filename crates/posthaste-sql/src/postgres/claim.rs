//! Leasing rows, and keeping leases.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::TryStreamExt;
use posthaste_core::store::{Claim, Claimed, Lease};
use posthaste_core::{EventId, Timestamp};
use sqlx::SqlStr;
use sqlx::postgres::PgConnection;
use tokio::time::Instant;

use super::moment::{Moment, interval};
use super::{PgStore, fault, row};
use crate::admin::limit;

/// When to look again at what a claim has just missed.
const SOON: Duration = Duration::from_millis(5);

/// The longest that a statement takes to the server. The clocks of both are not compared.
const ON_ITS_WAY: Duration = Duration::from_secs(1);

/// How the server comes to the plan of a claim.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plan {
    /// It has one more parameter, for which no plan is kept.
    Anew,
    Kept,
}

/// Rows that were leased, and in how long the next one becomes available.
#[derive(Default)]
struct Take {
    rows: Vec<row::Taken>,
    next_in: Option<Duration>,
}

impl PgStore {
    pub(super) async fn try_claim(&self, claim: &Claim) -> Result<Claimed, sqlx::Error> {
        if claim.limit == 0 {
            return Ok(Claimed::default());
        }
        let connection = &mut *self.acquire().await?;
        let sent_at = Instant::now();
        let since = self.partitioned.as_ref().and_then(|partitioned| partitioned.since.claimed(claim.limit));
        // In a table with partitions, old rows go with their partitions.
        let mark = if self.partitioned.is_none() { self.low_water.mark() } else { None };
        let mut taken = self.take(connection, claim, since.or(mark)).await?;
        let last = taken.rows.iter().map(|row| row.available_at.0).max();
        self.low_water.claimed(mark, sent_at.elapsed(), taken.rows.len(), last);
        if since.is_some() && taken.rows.len() < claim.limit {
            // There may be more in older partitions. If they cannot be asked, what was taken counts all the same.
            let rest = Claim { limit: claim.limit - taken.rows.len(), ..claim.clone() };
            match self.take(connection, &rest, None).await {
                Ok(more) => taken.rows.extend(more.rows),
                Err(error) => tracing::debug!(table = %self.table(), %error, "old partitions could not be asked"),
            }
        }
        // RETURNING promises no order.
        taken.rows.sort_unstable_by_key(|taken| (taken.available_at, taken.seq));

        let count = taken.rows.len();
        let mut claimed = Claimed::default();
        claimed.rows.reserve(count);
        for taken in taken.rows {
            match taken.row {
                Ok(row) => claimed.rows.push(row),
                Err(malformed) => claimed.malformed.push(malformed),
            }
        }
        claimed.next_in = match count {
            // More, if several have the same number.
            _ if count >= claim.limit => None,
            0 => self.next_in(connection, claim, sent_at).await?,
            // What was taken counts, whether this can be answered or not.
            _ if self.partitioned.is_some() => self.next_in(connection, claim, sent_at).await.unwrap_or(Some(SOON)),
            _ => taken.next_in,
        };
        if mark.is_some() && count < claim.limit {
            // There may be something before the mark.
            let whole_in = self.low_water.whole_in();
            claimed.next_in = Some(claimed.next_in.map_or(whole_in, |next_in| next_in.min(whole_in)));
        }
        Ok(claimed)
    }

    /// Leases rows that were available since a moment; of a table in partitions, those that were inserted since.
    async fn take(
        &self,
        connection: &mut PgConnection,
        claim: &Claim,
        since: Option<Timestamp>,
    ) -> Result<Take, sqlx::Error> {
        if self.partitioned.is_some() {
            return self.take_by(&self.sql.claim_from_partitions, connection, claim, since, Plan::Anew).await;
        }
        if self.one_table.ask(self.table(), connection).await? {
            let few = &self.sql.claim_few_from_one_table;
            let mut serving = self.kept_plan.serves(claim.limit).then(|| self.kept_plan.begin(few));
            let (sql, plan) = match &serving {
                Some(serving) => (serving.statement.clone(), Plan::Kept),
                None => (self.sql.claim_from_one_table.clone(), Plan::Anew),
            };
            match self.take_by(&sql, connection, claim, since, plan).await {
                Ok(taken) => {
                    if let Some(serving) = &mut serving {
                        serving.rows = taken.rows.len();
                    }
                    return Ok(taken);
                }
                Err(error) if fault::is_foreign(&error) => self.one_table.note(false),
                Err(error) => return Err(error),
            }
        }
        self.take_by(&self.sql.slots.claim, connection, claim, since, Plan::Anew).await
    }

    async fn take_by(
        &self,
        sql: &SqlStr,
        connection: &mut PgConnection,
        claim: &Claim,
        since: Option<Timestamp>,
        plan: Plan,
    ) -> Result<Take, sqlx::Error> {
        let mut query = sqlx::query(sql.clone())
            .bind(claim.lease.as_str())
            .bind(interval(claim.skip_recent))
            .bind(interval(claim.lease_duration))
            .bind(limit(claim.limit))
            .bind(since.map(Moment));
        if plan == Plan::Anew {
            query = query.bind(true);
        }
        let mut take = Take::default();
        let mut rows = query.fetch(&mut *connection);
        while let Some(row) = rows.try_next().await? {
            if take.rows.is_empty() {
                // The same in every row.
                take.next_in = row::next_in(&row)?;
            }
            take.rows.push(row::taken(&row)?);
        }
        if let Some(partitioned) = &self.partitioned {
            partitioned.since.taken(
                since,
                take.rows.iter().map(|row| row.created_at.0).min(),
                claim.limit <= take.rows.len(),
            );
        }
        Ok(take)
    }

    /// In how long to look again after a claim that was not full. Soon, if something has become due since it looked, or is
    /// locked: nobody else may be looking.
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
        if let Some(partitioned) = &self.partitioned {
            partitioned.since.worked_on(now);
        }
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
