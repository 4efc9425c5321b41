//! Leasing rows, and keeping leases.

use std::collections::HashSet;
use std::sync::Weak;
use std::time::Duration;

use posthaste_core::store::{Claim, Claimed, Lease};
use posthaste_core::{EventId, Timestamp};
use sqlx::mysql::{MySqlConnection, MySqlRow};

use super::insert::{length, moment};
use super::{MySqlStore, row, settle};
use crate::admin::limit;
use crate::many::MOST;

/// When to look again at what somebody else had locked. Locks on rows are held for a few round trips.
const SOON: Duration = Duration::from_millis(5);

impl MySqlStore {
    /// Locks the rows, leases them, and lets them go. Where the server can it passes by what another claim has locked;
    /// where it cannot, it waits for the other to commit, and then sees that those rows are leased.
    ///
    /// Without a caller who still waits for the rows it leases nothing.
    pub(super) async fn try_claim(&self, claim: &Claim, caller: &Weak<()>) -> Result<Claimed, sqlx::Error> {
        if claim.limit == 0 {
            return Ok(Claimed::default());
        }
        let mut tx = self.begin_relay().await?;
        if caller.strong_count() == 0 {
            tx.rollback().await?;
            return Ok(Claimed::default());
        }
        let skip_locked = match self.skip_locked {
            Some(told) => told,
            None => self.server(&mut tx).await?.skip_locked,
        };
        let mut from = self.sql.mark.get(claim.limit);
        let mut rows = self.lock_from(&mut tx, claim, from, skip_locked).await?;
        if from.is_some() && rows.len() < claim.limit {
            from = None;
            rows = self.lock_from(&mut tx, claim, from, skip_locked).await?;
        }
        kill_point!("claim.locked");
        let full = rows.len() == claim.limit;
        let seqs: Vec<i64> = rows.iter().map(row::seq).collect();
        self.lease(&mut tx, &claim.lease, &seqs).await?;
        kill_point!("claim.leased");
        let next_in = if full { None } else { self.next_in(&mut tx, claim).await? };
        if caller.strong_count() == 0 {
            tx.rollback().await?;
            return Ok(Claimed::default());
        }
        tx.commit().await?;
        match rows.last() {
            Some(last) if full => self.sql.mark.set(from, row::available_at(last)),
            _ => self.sql.mark.clear(),
        }

        let mut claimed = Claimed { next_in, ..Claimed::default() };
        claimed.rows.reserve(rows.len());
        for row in &rows {
            match row::claimed(row) {
                Ok(row) => claimed.rows.push(row),
                Err(malformed) => claimed.malformed.push(malformed),
            }
        }
        Ok(claimed)
    }

    /// Locks what can be claimed, from a moment on or from the beginning.
    async fn lock_from(
        &self,
        connection: &mut MySqlConnection,
        claim: &Claim,
        from: Option<Timestamp>,
        skip_locked: bool,
    ) -> Result<Vec<MySqlRow>, sqlx::Error> {
        let sql = if skip_locked { &self.sql.claim_skipping } else { &self.sql.slots.claim };
        let query = sqlx::query(sql.clone())
            .bind(length(claim.skip_recent))
            .bind(length(claim.lease_duration))
            .bind(moment(from.unwrap_or(Timestamp::from_micros(i64::MIN))))
            .bind(limit(claim.limit));
        query.fetch_all(connection).await
    }

    /// Leases rows that this transaction has locked.
    async fn lease(&self, connection: &mut MySqlConnection, lease: &Lease, seqs: &[i64]) -> Result<(), sqlx::Error> {
        for seqs in seqs.chunks(MOST) {
            let (sql, size) = self.sql.lease_claimed.at_least(seqs.len());
            let query = sqlx::query(sql).bind(lease.as_str());
            settle::fill(seqs, size).fold(query, |query, seq| query.bind(*seq)).execute(&mut *connection).await?;
        }
        Ok(())
    }

    /// In how long to look again. Soon, if something can be claimed that this claim passed by: whoever had it locked may
    /// not have leased it, and nobody else may be looking.
    async fn next_in(&self, connection: &mut MySqlConnection, claim: &Claim) -> Result<Option<Duration>, sqlx::Error> {
        let next = sqlx::query_scalar::<_, Option<i64>>(self.sql.slots.next_available.clone())
            .bind(length(claim.skip_recent))
            .bind(length(claim.lease_duration));
        let next = next.fetch_one(connection).await?;
        Ok(next.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0)).max(SOON)))
    }

    pub(super) async fn try_renew(&self, leases: &[(EventId, Lease)]) -> Result<Vec<bool>, sqlx::Error> {
        let pairs: HashSet<(&str, &str)> = leases.iter().map(|(id, lease)| (id.as_str(), lease.as_str())).collect();
        if pairs.is_empty() {
            return Ok(Vec::new());
        }
        let pairs = settle::sorted(pairs);
        let mut tx = self.begin_relay().await?;
        let mut renewed = 0;
        for pairs in pairs.chunks(MOST) {
            let (sql, size) = self.sql.renew.at_least(pairs.len());
            let query = settle::bind_leases(sqlx::query(sql), pairs, size);
            renewed += query.execute(&mut *tx).await?.rows_affected();
        }
        kill_point!("renew.applied");
        // Nearly always all of them are held, and need not be asked for.
        let held = if renewed == pairs.len() as u64 { None } else { Some(self.held(&mut tx, &pairs).await?) };
        tx.commit().await?;
        let is_held = |id: &EventId, lease: &Lease| {
            held.as_ref().is_none_or(|held| held.contains(&(id.to_string(), lease.as_str().to_owned())))
        };
        Ok(leases.iter().map(|(id, lease)| is_held(id, lease)).collect())
    }

    pub(super) async fn try_release_all(&self) -> Result<u64, sqlx::Error> {
        let mut tx = self.begin_relay().await?;
        let released = sqlx::query(self.sql.slots.release_all.clone()).execute(&mut *tx).await?;
        tx.commit().await?;
        self.sql.mark.clear();
        Ok(released.rows_affected())
    }
}
