//! Writing outcomes back, under the epoch of the lane.

use std::collections::HashSet;

use posthaste_core::Timestamp;
use posthaste_core::store::{LaneLease, LaneSettlement, Settled};
use sqlx::sqlite::SqliteConnection;

use super::super::SqliteStore;
use super::super::settle::{MAX_RUNS, change};
use super::super::tx::begin_immediate;
use super::lease;
use crate::lanes::{Round, rounds};

impl SqliteStore {
    pub(super) async fn try_settle_in_lanes(
        &self,
        owner: &str,
        settlements: &[LaneSettlement],
    ) -> Result<Vec<Settled>, sqlx::Error> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        // Nearly always everything can be settled. The number of changed rows says so, at less than asking for each.
        if let Some(settled) = self.settle_lanes_once(owner, settlements, false).await? {
            return Ok(settled);
        }
        Ok(self.settle_lanes_once(owner, settlements, true).await?.unwrap_or_default())
    }

    /// Settles what can be: of rows in lanes that are held, those that are pending if it is asked which those are, else all or
    /// nothing.
    async fn settle_lanes_once(
        &self,
        owner: &str,
        settlements: &[LaneSettlement],
        asks: bool,
    ) -> Result<Option<Vec<Settled>>, sqlx::Error> {
        let mut settled = vec![Settled::Lost; settlements.len()];
        // This transaction is the only one that writes: what it has seen stays so until its end.
        let mut tx = begin_immediate(self.relay().await?).await?;
        let held = self.held_lanes(&mut tx, owner).await?;
        for mut round in rounds(settlements) {
            round.retain(|(_, settlement)| held.contains(&settlement.lease));
            if asks {
                let pending = self.pending(&mut tx, &round).await?;
                round.retain(|(_, settlement)| pending.contains(&settlement.seq));
            }
            let applied = self.apply_in_lanes(&mut tx, &round).await?;
            if !asks && applied < round.len() as u64 {
                tx.rollback().await?;
                return Ok(None);
            }
            for (place, _) in round {
                settled[place] = Settled::Applied;
            }
        }
        tx.commit().await?;
        Ok(Some(settled))
    }

    /// The leases of an owner.
    pub(super) async fn held_lanes(
        &self,
        connection: &mut SqliteConnection,
        owner: &str,
    ) -> Result<HashSet<LaneLease>, sqlx::Error> {
        let query = sqlx::query_as(self.sql.lanes.held.clone()).bind(owner);
        Ok(query.fetch_all(connection).await?.into_iter().map(lease).collect())
    }

    /// The numbers of those rows that are pending.
    async fn pending(&self, connection: &mut SqliteConnection, round: &Round<'_>) -> Result<HashSet<i64>, sqlx::Error> {
        let query = sqlx::query_scalar(self.sql.lanes.pending.clone()).bind(numbers(&seqs(round)));
        Ok(query.fetch_all(connection).await?.into_iter().collect())
    }

    /// Settles what is pending, in few statements, and says how many it was.
    async fn apply_in_lanes(&self, connection: &mut SqliteConnection, round: &Round<'_>) -> Result<u64, sqlx::Error> {
        let now = self.now();
        let Parts { done, changes, closing } = parts(round, now);
        let mut applied = self.done_in_lanes(connection, &done, now).await?;
        kill_point!("settle.between");
        if let Some(changes) = changes {
            let query = sqlx::query(self.sql.lanes.settle_other.clone()).bind(changes);
            applied += query.execute(&mut *connection).await?.rows_affected();
        }
        if !closing.is_empty() {
            let query = sqlx::query(self.sql.lanes.close.clone()).bind(numbers(&closing)).bind(now.as_micros());
            query.execute(&mut *connection).await?;
        }
        kill_point!("settle.applied");
        Ok(applied)
    }

    /// Makes rows DONE, whose sorted numbers these are, and says how many it could.
    async fn done_in_lanes(
        &self,
        connection: &mut SqliteConnection,
        seqs: &[i64],
        now: Timestamp,
    ) -> Result<u64, sqlx::Error> {
        let sql = &self.sql.lanes;
        let (by_run, by_seq) = match self.deletes_done {
            true => (&sql.delete_done_run, &sql.delete_done),
            false => (&sql.settle_done_run, &sql.settle_done),
        };
        let query = |sql: &sqlx::SqlStr| {
            let query = sqlx::query(sql.clone());
            if self.deletes_done { query } else { query.bind(now.as_micros()) }
        };
        // Between two numbers of a run there is no other row.
        let runs: Vec<&[i64]> = seqs.chunk_by(|one, next| one + 1 == *next).collect();
        if runs.len() > MAX_RUNS {
            let done = query(by_seq).bind(numbers(seqs)).execute(connection).await?;
            return Ok(done.rows_affected());
        }
        let mut applied = 0;
        for run in runs {
            let done = query(by_run).bind(run[0]).bind(run[run.len() - 1]).execute(&mut *connection).await?;
            applied += done.rows_affected();
        }
        Ok(applied)
    }
}

/// A round by what is said about it.
struct Parts {
    /// The numbers of rows that are done.
    done: Vec<i64>,
    /// A JSON array of every other change, if there is one.
    changes: Option<String>,
    /// The numbers of rows that close their keys.
    closing: Vec<i64>,
}

fn parts(round: &Round<'_>, now: Timestamp) -> Parts {
    let (mut done, mut changes, mut closing) = (Vec::with_capacity(round.len()), Vec::new(), Vec::new());
    for (_, settlement) in round {
        match change(&settlement.action, now) {
            None => done.push(settlement.seq),
            Some((status, attempts, available_at, done_at, error)) => {
                changes.push((settlement.seq, status, attempts, available_at, done_at, error));
            }
        }
        if settlement.closes {
            closing.push(settlement.seq);
        }
    }
    let changes = (!changes.is_empty()).then(|| serde_json::to_string(&changes).expect("texts and numbers are JSON"));
    Parts { done, changes, closing }
}

fn seqs(round: &Round<'_>) -> Vec<i64> {
    round.iter().map(|(_, settlement)| settlement.seq).collect()
}

/// A JSON array of numbers.
fn numbers(numbers: &[i64]) -> String {
    serde_json::to_string(numbers).expect("numbers are JSON")
}
