//! Writing outcomes back, under the epochs of lanes.

use std::collections::HashSet;

use posthaste_core::store::{Action, LaneSettlement, Settled};
use sqlx::mysql::MySqlConnection;

use super::super::MySqlStore;
use super::super::settle::{Columns, fill};
use crate::lanes::{Round, leases_of, rounds};
use crate::many::MOST;

impl MySqlStore {
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
        let rounds = rounds(settlements);
        let mut tx = self.begin_relay().await?;
        // All of them at once, and in their order, so that two settlements that meet wait in one direction only.
        let mut leases: Vec<_> = rounds.iter().flat_map(leases_of).collect();
        leases.sort_unstable();
        leases.dedup();
        let held = self.held_lanes(&mut tx, &self.sql.lanes.fence, owner, &leases).await?;
        for mut round in rounds {
            round.retain(|(_, settlement)| held.contains(&settlement.lease));
            if asks {
                let pending = self.lock_pending(&mut tx, &seqs(&round)).await?;
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

    /// Those of some numbers that are pending, which stay locked.
    async fn lock_pending(&self, connection: &mut MySqlConnection, seqs: &[i64]) -> Result<HashSet<i64>, sqlx::Error> {
        let mut pending = HashSet::new();
        for seqs in seqs.chunks(MOST) {
            let (sql, size) = self.sql.lanes.lock_pending.at_least(seqs.len());
            let query = fill(seqs, size).fold(sqlx::query_scalar::<_, i64>(sql), |query, seq| query.bind(*seq));
            pending.extend(query.fetch_all(&mut *connection).await?);
        }
        Ok(pending)
    }

    /// Settles what is pending, in few statements, and says how many it was.
    async fn apply_in_lanes(&self, connection: &mut MySqlConnection, round: &Round<'_>) -> Result<u64, sqlx::Error> {
        let Parts { done, changes, closing } = parts(round);
        let sql = &self.sql.lanes;
        let mut applied = 0;
        let statement = if self.deletes_done { &sql.delete_done } else { &sql.settle_done };
        for seqs in done.chunks(MOST) {
            let (sql, size) = statement.at_least(seqs.len());
            let query = fill(seqs, size).fold(sqlx::query(sql), |query, seq| query.bind(*seq));
            applied += query.execute(&mut *connection).await?.rows_affected();
        }
        kill_point!("settle.between");
        for changes in changes.chunks(MOST) {
            let (sql, size) = sql.settle_other.at_least(changes.len());
            let query =
                fill(changes, size).fold(sqlx::query(sql), |query, (seq, columns)| columns.bind(query.bind(*seq)));
            applied += query.execute(&mut *connection).await?.rows_affected();
        }
        for seqs in closing.chunks(MOST) {
            let (sql, size) = sql.close.at_least(seqs.len());
            let query = fill(seqs, size).fold(sqlx::query(sql), |query, seq| query.bind(*seq));
            query.execute(&mut *connection).await?;
        }
        kill_point!("settle.applied");
        Ok(applied)
    }
}

/// A round by what is said about it.
struct Parts {
    /// The numbers of rows that are done.
    done: Vec<i64>,
    /// Every other change, by number.
    changes: Vec<(i64, Columns)>,
    /// The numbers of rows that close their keys.
    closing: Vec<i64>,
}

fn parts(round: &Round<'_>) -> Parts {
    let (mut done, mut changes, mut closing) = (Vec::with_capacity(round.len()), Vec::new(), Vec::new());
    for (_, settlement) in round {
        match Columns::of(&settlement.action) {
            None => done.push(settlement.seq),
            Some(columns) => changes.push((settlement.seq, columns)),
        }
        if settlement.closes && matches!(settlement.action, Action::Dead { .. }) {
            closing.push(settlement.seq);
        }
    }
    Parts { done, changes, closing }
}

fn seqs(round: &Round<'_>) -> Vec<i64> {
    round.iter().map(|(_, settlement)| settlement.seq).collect()
}
