//! Writing outcomes back, under the epochs of lanes.

use posthaste_core::Timestamp;
use posthaste_core::store::{Action, Error, LaneSettlement, Settled, Status};
use sqlx::SqlStr;

use super::super::PgStore;
use super::super::settle::{BindSince, are_close, change, inserted, place_in_array, places};
use super::columns;
use crate::lanes::{Round, leases_of, rounds};

impl PgStore {
    pub(super) async fn settle_all_in_lanes(
        &self,
        owner: &str,
        settlements: &[LaneSettlement],
    ) -> Result<Vec<Settled>, Error> {
        let closing = settlements.iter().filter(|settlement| settlement.closes).map(|settlement| settlement.lease);
        let closing = self.sql.lanes.closed_keys.closing(closing);
        let settled = self.settle_in_rounds(owner, settlements).await?;
        closing.answered();
        Ok(settled)
    }

    async fn settle_in_rounds(&self, owner: &str, settlements: &[LaneSettlement]) -> Result<Vec<Settled>, Error> {
        let mut settled = vec![Settled::Lost; settlements.len()];
        // Each round is a statement. There is one, unless a row is settled twice.
        for mut round in rounds(settlements) {
            let mut quick = self.one_table().await?;
            let mut since = self.partitioned.as_ref().and_then(|partitioned| partitioned.since.settled());
            loop {
                let applied = self.retrying(|| self.settle_round(owner, &round, quick, since)).await?;
                let mut left = vec![true; round.len()];
                for place in applied {
                    left[place] = false;
                    settled[round[place].0] = Settled::Applied;
                }
                let mut left = left.into_iter();
                round.retain(|_| left.next().unwrap_or(false));
                if round.is_empty() || !quick && since.is_none() {
                    break;
                }
                // Where they were likely to be they are not, or not pending, or not ours any more.
                (quick, since) = (false, None);
            }
        }
        Ok(settled)
    }

    /// Whether the table is one in storage, too.
    async fn one_table(&self) -> Result<bool, Error> {
        if self.partitioned.is_some() {
            return Ok(false);
        }
        self.retrying(async || self.one_table.ask(self.table(), &mut *self.acquire().await?).await).await
    }

    /// One statement, so that it happens as a whole or not at all. The places in the round of those that were settled.
    async fn settle_round(
        &self,
        owner: &str,
        round: &Round<'_>,
        quick: bool,
        since: Option<Timestamp>,
    ) -> Result<Vec<usize>, sqlx::Error> {
        let (lanes, epochs) = columns(&leases_of(round));
        let seqs: Vec<i64> = round.iter().map(|(_, settlement)| settlement.seq).collect();
        let sql = &self.sql.lanes;
        let done = round.iter().all(|(_, settlement)| settlement.action == Action::Done);
        let closes = round.iter().any(|(_, settlement)| settlement.closes);
        if done && quick {
            let is_range = are_close(&seqs);
            let template = match is_range {
                true => self.either(&sql.settle_done_in_a_range, &sql.delete_done_in_a_range),
                false => self.either(&sql.settle_done_in_one_table, &sql.delete_done_in_one_table),
            };
            let query = sqlx::query_scalar(template.clone());
            let mut query = query.bind(&seqs).bind(lanes).bind(epochs).bind(owner).bind(true);
            if is_range {
                query = query.bind(seqs.first()).bind(seqs.last());
            }
            let some: Option<Vec<i64>> = query.fetch_one(&mut *self.acquire().await?).await?;
            return Ok(some.map_or_else(|| (0..seqs.len()).collect(), |some| places(&seqs, &some)));
        }
        let (template, parameters) = match (done, closes) {
            (true, _) => (self.either(&sql.settle_done, &sql.delete_done), 6),
            (false, false) => (self.either(&sql.settle_other, &sql.settle_and_delete_done), 10),
            (false, true) => (self.either(&sql.settle_and_close, &sql.settle_delete_done_and_close), 11),
        };
        let query = sqlx::query_scalar(inserted(template, parameters + 1, since));
        let mut query = query.bind(&seqs).bind(lanes).bind(epochs).bind(owner).bind(true);
        query = query.bind(round.iter().map(|(_, settlement)| settlement.id.as_str()).collect::<Vec<_>>());
        if !done {
            let changes: Vec<_> = round.iter().map(|(_, settlement)| change(&settlement.action)).collect();
            query = query
                .bind(changes.iter().map(|change| change.status.map(Status::code)).collect::<Vec<_>>())
                .bind(changes.iter().map(|change| change.attempts).collect::<Vec<_>>())
                .bind(changes.iter().map(|change| change.delay).collect::<Vec<_>>())
                .bind(changes.into_iter().map(|change| change.error).collect::<Vec<_>>());
        }
        if !done && closes {
            query = query.bind(round.iter().map(|(_, settlement)| settlement.closes).collect::<Vec<_>>());
        }
        let applied: Vec<i64> = query.bind_since(since).fetch_all(&mut *self.acquire().await?).await?;
        if done { Ok(places(&seqs, &applied)) } else { Ok(applied.into_iter().map(place_in_array).collect()) }
    }

    /// The one statement, or the other one where what is done is deleted.
    fn either<'a>(&self, keeps: &'a SqlStr, deletes: &'a SqlStr) -> &'a SqlStr {
        if self.deletes_done { deletes } else { keeps }
    }
}
