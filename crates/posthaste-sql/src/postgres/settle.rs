//! Writing outcomes back.

use std::collections::HashSet;

use posthaste_core::Timestamp;
use posthaste_core::store::{Action, Error, Settled, Settlement, Status, cut_error};
use sqlx::postgres::types::PgInterval;
use sqlx::postgres::{PgArguments, PgConnection, Postgres};
use sqlx::query::QueryScalar;
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use super::PgStore;
use super::moment::{Moment, interval};
use super::sql::PENDING;

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
            let applied = match done_by_seq(&round) {
                Some(seqs) if since.is_none() && self.one_table.last() && are_close(&seqs) => {
                    self.settle_done_in_runs(&round, &seqs).await?
                }
                Some(seqs) => self.settle_done_by_seq(&round, &seqs, since).await?,
                None => self.settle_by_id(&round, since).await?,
            };
            for place in applied {
                settled[round[place].0] = Settled::Applied;
            }
        }
        Ok(settled)
    }

    /// Makes rows DONE that have these numbers, which rise and are close to each other, in a table in which no two rows have
    /// the same. The places in the round of those that were held.
    async fn settle_done_in_runs(&self, round: &Round<'_>, seqs: &[i64]) -> Result<Vec<usize>, sqlx::Error> {
        let slots = &self.sql.slots;
        let sql = if self.deletes_done { &slots.delete_done_run } else { &slots.settle_done_run };
        let (firsts, leases) = runs_and_gaps(round, seqs);
        let query = sqlx::query_scalar(sql.clone()).bind(firsts).bind(leases).bind(true);
        let connection = &mut *self.acquire().await?;
        let applied: Vec<i64> = query.bind(seqs.first()).bind(seqs.last()).fetch_all(&mut *connection).await?;
        if applied.len() == seqs.len() {
            return Ok((0..seqs.len()).collect());
        }
        // Their leases are lost, or they have moved to another table.
        let mut places = places(seqs, &applied);
        let applied: HashSet<_> = places.iter().copied().collect();
        let left: Vec<_> = (0..seqs.len()).filter(|place| !applied.contains(place)).collect();
        let rest: Vec<_> = left.iter().map(|place| round[*place]).collect();
        let found = self.settle_by_id_on(connection, &rest, None).await?;
        places.extend(found.into_iter().map(|place| left[place]));
        Ok(places)
    }

    /// Makes rows DONE that have these numbers, which rise. The places in the round of those that were held.
    async fn settle_done_by_seq(
        &self,
        round: &Round<'_>,
        seqs: &[i64],
        since: Option<Timestamp>,
    ) -> Result<Vec<usize>, sqlx::Error> {
        let slots = &self.sql.slots;
        let sql = if self.deletes_done { &slots.delete_done_by_seq } else { &slots.settle_done_by_seq };
        let (firsts, leases) = runs(round, seqs);
        let query = sqlx::query_scalar(inserted(sql, 6, since));
        let query = query.bind(seqs).bind(leases).bind(true).bind(ids(round)).bind(firsts).bind_since(since);
        let applied = query.fetch_all(&mut *self.acquire().await?).await?;
        Ok(places(seqs, &applied))
    }

    /// Settles rows of every kind. The places in the round of those that were held.
    async fn settle_by_id(&self, round: &Round<'_>, since: Option<Timestamp>) -> Result<Vec<usize>, sqlx::Error> {
        self.settle_by_id_on(&mut *self.acquire().await?, round, since).await
    }

    async fn settle_by_id_on(
        &self,
        connection: &mut PgConnection,
        round: &Round<'_>,
        since: Option<Timestamp>,
    ) -> Result<Vec<usize>, sqlx::Error> {
        let slots = &self.sql.slots;
        let leases: Vec<_> = round.iter().map(|(_, settlement)| settlement.lease.as_str()).collect();
        let query = if round.iter().all(|(_, settlement)| settlement.action == Action::Done) {
            let sql = if self.deletes_done { &slots.delete_done } else { &slots.settle_done };
            sqlx::query_scalar(inserted(sql, 4, since)).bind(ids(round)).bind(leases).bind(true)
        } else {
            let changes: Vec<_> = round.iter().map(|(_, settlement)| change(&settlement.action)).collect();
            let sql = if self.deletes_done { &self.sql.settle_and_delete_done } else { &slots.settle_other };
            sqlx::query_scalar(inserted(sql, 8, since))
                .bind(ids(round))
                .bind(leases)
                .bind(true)
                .bind(changes.iter().map(|change| change.status.map(Status::code)).collect::<Vec<_>>())
                .bind(changes.iter().map(|change| change.attempts).collect::<Vec<_>>())
                .bind(changes.iter().map(|change| change.delay).collect::<Vec<_>>())
                .bind(changes.into_iter().map(|change| change.error).collect::<Vec<_>>())
        };
        let applied: Vec<i64> = query.bind_since(since).fetch_all(connection).await?;
        Ok(applied.into_iter().map(place_in_array).collect())
    }
}

/// Settlements of rows of which no two are the same, with their places, in the order of the rows.
type Round<'a> = [(usize, &'a Settlement)];

type Scalars<'q> = QueryScalar<'q, Postgres, i64, PgArguments>;

/// Places of rows count from one.
pub(super) fn place_in_array(place: i64) -> usize {
    usize::try_from(place - 1).expect("a place in an array")
}

pub(super) trait BindSince {
    /// Binds the moment since which rows were inserted, if there is one.
    fn bind_since(self, since: Option<Timestamp>) -> Self;
}

impl BindSince for Scalars<'_> {
    fn bind_since(self, since: Option<Timestamp>) -> Self {
        match since {
            Some(since) => self.bind(Moment(since)),
            None => self,
        }
    }
}

/// The numbers of the rows, if all of them are known, none is there twice, and all of them are done.
fn done_by_seq(round: &Round<'_>) -> Option<Vec<i64>> {
    let seqs: Option<Vec<_>> =
        round.iter().map(|(_, settlement)| settlement.seq.filter(|_| settlement.action == Action::Done)).collect();
    seqs.filter(|seqs| seqs.is_sorted_by(|one, next| one < next))
}

/// Whether a walk from the first to the last of these numbers meets few others.
pub(super) fn are_close(seqs: &[i64]) -> bool {
    let (Some(first), Some(last)) = (seqs.first(), seqs.last()) else { return false };
    last.abs_diff(*first) <= 2 * seqs.len() as u64
}

/// The rows in runs under one lease each: from which number on, and the lease.
fn runs<'a>(round: &Round<'a>, seqs: &[i64]) -> (Vec<i64>, Vec<&'a str>) {
    let leases = round.iter().map(|(_, settlement)| settlement.lease.as_str());
    let mut runs: Vec<_> = seqs.iter().copied().zip(leases).collect();
    runs.dedup_by_key(|(_, lease)| *lease);
    runs.into_iter().unzip()
}

/// The same, with gaps between the numbers as runs under no lease.
fn runs_and_gaps<'a>(round: &Round<'a>, seqs: &[i64]) -> (Vec<i64>, Vec<Option<&'a str>>) {
    let (mut firsts, mut leases) = (Vec::new(), Vec::new());
    let mut next = None;
    for (&seq, (_, settlement)) in seqs.iter().zip(round) {
        if let Some(gap) = next.filter(|next| *next < seq) {
            firsts.push(gap);
            leases.push(None);
        }
        let lease = Some(settlement.lease.as_str());
        if leases.last() != Some(&lease) {
            firsts.push(seq);
            leases.push(lease);
        }
        next = seq.checked_add(1);
    }
    (firsts, leases)
}

/// The places of those numbers that were settled.
pub(super) fn places(seqs: &[i64], applied: &[i64]) -> Vec<usize> {
    applied.iter().filter_map(|seq| seqs.binary_search(seq).ok()).collect()
}

/// A settlement; of rows that were inserted since a moment, if there is one, which is the parameter with that number.
pub(super) fn inserted(sql: &SqlStr, parameter: usize, since: Option<Timestamp>) -> SqlStr {
    if since.is_none() {
        return sql.clone();
    }
    let (pending, pending_since) = PENDING;
    let sql = sql.as_str().replace(pending, &pending_since.replace("{since}", &format!("${parameter}")));
    AssertSqlSafe(sql).into_sql_str()
}

/// The settlements with their places, in rounds: the second settlement of a row must find what the first one made of it.
///
/// Each round is in the order of the rows, so that two statements that meet wait for each other in one direction only.
fn rounds(settlements: &[Settlement]) -> Vec<Vec<(usize, &Settlement)>> {
    let mut rest: Vec<_> = settlements.iter().enumerate().collect();
    rest.sort_unstable_by_key(|(_, settlement)| (settlement.seq, &settlement.id));
    // Two of one row have the same number, and are neighbours now, if all numbers are known.
    let known = rest.first().is_some_and(|(_, settlement)| settlement.seq.is_some());
    if known && rest.windows(2).all(|pair| pair[0].1.id != pair[1].1.id) {
        return vec![rest];
    }
    rest.sort_unstable_by_key(|(place, _)| *place);
    let mut rounds = Vec::new();
    while !rest.is_empty() {
        let mut ids = HashSet::with_capacity(rest.len());
        let (mut round, again): (Vec<_>, Vec<_>) = rest.into_iter().partition(|(_, next)| ids.insert(&next.id));
        round.sort_unstable_by_key(|(_, settlement)| (settlement.seq, &settlement.id));
        rounds.push(round);
        rest = again;
    }
    rounds
}

fn ids<'a>(round: &Round<'a>) -> Vec<&'a str> {
    round.iter().map(|(_, settlement)| settlement.id.as_str()).collect()
}

/// What becomes of a row; nothing where a column stays as it is.
#[derive(Default)]
pub(super) struct Change {
    pub(super) status: Option<Status>,
    pub(super) attempts: i32,
    pub(super) delay: Option<PgInterval>,
    pub(super) error: Option<String>,
}

pub(super) fn change(action: &Action) -> Change {
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

#[cfg(test)]
mod tests {
    use posthaste_core::EventId;
    use posthaste_core::store::Lease;

    use super::*;

    fn done(seq: i64, lease: u64) -> Settlement {
        let id = EventId::from_row(format!("event {seq}"));
        Settlement { id, seq: Some(seq), lease: Lease::new("me", lease), action: Action::Done }
    }

    #[test]
    fn runs_end_where_the_lease_or_a_gap_begins() {
        let settlements = [(3, 1), (4, 1), (5, 2), (8, 2), (9, 2), (12, 1)].map(|(seq, lease)| done(seq, lease));
        let rounds = rounds(&settlements);
        let [round] = rounds.as_slice() else { panic!("{} rounds", rounds.len()) };
        let seqs = done_by_seq(round).unwrap();
        assert_eq!(runs(round, &seqs), (vec![3, 5, 12], vec!["me/1", "me/2", "me/1"]));
        let (firsts, leases) = runs_and_gaps(round, &seqs);
        assert_eq!(firsts, [3, 5, 6, 8, 10, 12]);
        assert_eq!(leases, [Some("me/1"), Some("me/2"), None, Some("me/2"), None, Some("me/1")]);
        let whole = [(i64::MAX - 1, 1), (i64::MAX, 1)].map(|(seq, lease)| done(seq, lease));
        let seqs = [i64::MAX - 1, i64::MAX];
        assert_eq!(runs_and_gaps(&super::rounds(&whole)[0], &seqs), (vec![seqs[0]], vec![Some("me/1")]));
    }

    #[test]
    fn numbers_are_used_if_each_is_known_and_is_of_one_row() {
        let by_seq = |settlements: &[Settlement]| done_by_seq(&rounds(settlements)[0]);
        assert_eq!(by_seq(&[done(2, 1), done(1, 1)]), Some(vec![1, 2]));
        let another = Settlement { id: EventId::from_row("another"), ..done(1, 1) };
        assert_eq!(by_seq(&[done(1, 1), another]), None);
        assert_eq!(by_seq(&[done(1, 1), Settlement { seq: None, ..done(2, 1) }]), None);
        assert_eq!(by_seq(&[done(1, 1), Settlement { action: Action::Release, ..done(2, 1) }]), None);
    }

    #[test]
    fn numbers_far_apart_are_not_walked() {
        assert!(are_close(&[7]));
        assert!(are_close(&[1, 2, 3, 6]));
        assert!(!are_close(&[1, 2, 3, 10]));
        assert!(!are_close(&[i64::MIN, i64::MAX]));
    }
}
