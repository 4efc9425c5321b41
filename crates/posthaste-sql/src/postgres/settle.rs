//! Writing outcomes back.

use std::collections::HashSet;

use posthaste_core::Timestamp;
use posthaste_core::store::{Action, Error, Settled, Settlement, Status, cut_error};
use sqlx::postgres::types::PgInterval;
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use super::PgStore;
use super::moment::{Moment, interval};
use super::sql::HELD;

impl PgStore {
    /// Settles where the rows are likely to be, then what was not found there wherever it is.
    pub(super) async fn settle_all(&self, settlements: &[Settlement]) -> Result<Vec<Settled>, Error> {
        let since = self.partitioned.as_ref().and_then(|partitioned| partitioned.since.settled());
        let mut settled = self.retrying(|| self.try_settle(settlements, since)).await?;
        let lost: Vec<_> = (0..settled.len()).filter(|place| settled[*place] == Settled::Lost).collect();
        if since.is_some() && !lost.is_empty() {
            let rest: Vec<_> = lost.iter().map(|place| settlements[*place].clone()).collect();
            for (place, again) in lost.into_iter().zip(self.retrying(|| self.try_settle(&rest, None)).await?) {
                settled[place] = again;
            }
        }
        Ok(settled)
    }

    /// One statement, so that it happens as a whole or not at all.
    async fn try_settle(
        &self,
        settlements: &[Settlement],
        since: Option<Timestamp>,
    ) -> Result<Vec<Settled>, sqlx::Error> {
        let mut settled = vec![Settled::Lost; settlements.len()];
        // Each round is a statement. There is one, unless a row is settled twice.
        for round in rounds(settlements) {
            for place in self.settle_round(&round, since).await? {
                // Places of rows count from one.
                let place = usize::try_from(place - 1).expect("a place in an array");
                settled[round[place].0] = Settled::Applied;
            }
        }
        Ok(settled)
    }

    /// Settles rows of which no two are the same, inserted since then if that is given. The places of those that were.
    async fn settle_round(
        &self,
        round: &[(usize, &Settlement)],
        since: Option<Timestamp>,
    ) -> Result<Vec<i64>, sqlx::Error> {
        let leases: Vec<_> = round.iter().map(|(_, settlement)| settlement.lease.as_str()).collect();
        let inserted =
            |sql: &SqlStr, parameter| if since.is_some() { inserted_since(sql, parameter) } else { sql.clone() };
        let mut query = if round.iter().all(|(_, settlement)| settlement.action == Action::Done) {
            let slots = &self.sql.slots;
            let (by_seq, by_id) = if self.deletes_done {
                (&slots.delete_done_by_seq, &slots.delete_done)
            } else {
                (&slots.settle_done_by_seq, &slots.settle_done)
            };
            let seqs: Option<Vec<_>> = round.iter().map(|(_, settlement)| settlement.seq).collect();
            match seqs {
                Some(seqs) => {
                    sqlx::query_scalar(inserted(by_seq, 5)).bind(seqs).bind(leases).bind(true).bind(ids(round))
                }
                None => sqlx::query_scalar(inserted(by_id, 4)).bind(ids(round)).bind(leases).bind(true),
            }
        } else {
            let changes: Vec<_> = round.iter().map(|(_, settlement)| change(&settlement.action)).collect();
            let sql = if self.deletes_done { &self.sql.settle_and_delete_done } else { &self.sql.slots.settle_other };
            sqlx::query_scalar(inserted(sql, 8))
                .bind(ids(round))
                .bind(leases)
                .bind(true)
                .bind(changes.iter().map(|change| change.status.map(Status::code)).collect::<Vec<_>>())
                .bind(changes.iter().map(|change| change.attempts).collect::<Vec<_>>())
                .bind(changes.iter().map(|change| change.delay).collect::<Vec<_>>())
                .bind(changes.into_iter().map(|change| change.error).collect::<Vec<_>>())
        };
        if let Some(since) = since {
            query = query.bind(Moment(since));
        }
        query.fetch_all(&mut *self.acquire().await?).await
    }
}

/// The same settlement of rows that were inserted since a moment, which is the parameter with that number.
fn inserted_since(sql: &SqlStr, parameter: usize) -> SqlStr {
    let (held, held_since) = HELD;
    let sql = sql.as_str().replace(held, &held_since.replace("{since}", &format!("${parameter}")));
    AssertSqlSafe(sql).into_sql_str()
}

/// The settlements with their places, in rounds: the second settlement of a row must find what the first one made of it.
///
/// Each round is in the order of the rows, so that two statements that meet wait for each other in one direction only.
fn rounds(settlements: &[Settlement]) -> Vec<Vec<(usize, &Settlement)>> {
    let mut rounds = Vec::new();
    let mut rest: Vec<_> = settlements.iter().enumerate().collect();
    while !rest.is_empty() {
        let mut ids = HashSet::with_capacity(rest.len());
        let (mut round, again): (Vec<_>, Vec<_>) = rest.into_iter().partition(|(_, next)| ids.insert(&next.id));
        round.sort_unstable_by_key(|(_, settlement)| (settlement.seq, &settlement.id));
        rounds.push(round);
        rest = again;
    }
    rounds
}

fn ids<'a>(round: &[(usize, &'a Settlement)]) -> Vec<&'a str> {
    round.iter().map(|(_, settlement)| settlement.id.as_str()).collect()
}

/// What becomes of a row; nothing where a column stays as it is.
#[derive(Default)]
struct Change {
    status: Option<Status>,
    attempts: i32,
    delay: Option<PgInterval>,
    error: Option<String>,
}

fn change(action: &Action) -> Change {
    match action {
        Action::Done => Change { status: Some(Status::Done), ..Change::default() },
        Action::Retry { delay, error } => Change {
            status: Some(Status::Retry),
            attempts: 1,
            delay: Some(interval(*delay)),
            error: Some(cut_error(error)),
        },
        Action::Defer { delay } => Change { delay: Some(interval(*delay)), ..Change::default() },
        Action::Dead { error, counts } => Change {
            status: Some(Status::Dead),
            attempts: i32::from(*counts),
            delay: None,
            error: Some(cut_error(error)),
        },
        Action::Release => Change::default(),
    }
}
