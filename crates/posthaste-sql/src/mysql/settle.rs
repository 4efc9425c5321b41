//! Writing outcomes back.

use std::collections::{HashMap, HashSet};

use posthaste_core::store::{Action, Lease, Settled, Settlement, Status, cut_error};
use sqlx::mysql::{MySql, MySqlArguments, MySqlConnection};
use sqlx::query::Query;

use super::MySqlStore;
use super::insert::length;
use crate::many::MOST;

impl MySqlStore {
    pub(super) async fn try_settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>, sqlx::Error> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        let settled = self.settle_rounds(settlements).await?;
        if settlements.iter().any(|settlement| !matches!(settlement.action, Action::Done | Action::Dead { .. })) {
            self.sql.mark.clear();
        }
        Ok(settled)
    }

    async fn settle_rounds(&self, settlements: &[Settlement]) -> Result<Vec<Settled>, sqlx::Error> {
        let rounds = rounds(settlements);
        // Nearly always every lease still stands. The number of changed rows says so, at less than asking for each.
        if let [round] = rounds.as_slice() {
            let mut tx = self.begin_relay().await?;
            if self.apply(&mut tx, round).await? == settlements.len() as u64 {
                tx.commit().await?;
                return Ok(vec![Settled::Applied; settlements.len()]);
            }
            tx.rollback().await?;
        }
        let mut settled = vec![Settled::Lost; settlements.len()];
        let mut tx = self.begin_relay().await?;
        for round in &rounds {
            for (id, _) in self.held(&mut tx, &round.leases()).await? {
                if let Some(&place) = round.places.get(id.as_str()) {
                    settled[place] = Settled::Applied;
                }
            }
            self.apply(&mut tx, round).await?;
        }
        tx.commit().await?;
        Ok(settled)
    }

    /// Settles what can be, in few statements, and says how many it could.
    ///
    /// sqlx asks the server for the number of rows that it found, not only of those that it found different.
    async fn apply(&self, connection: &mut MySqlConnection, round: &Round<'_>) -> Result<u64, sqlx::Error> {
        let (done_by_seq, done) = if self.deletes_done {
            (&self.sql.delete_done_by_seq, &self.sql.delete_done)
        } else {
            (&self.sql.settle_done_by_seq, &self.sql.settle_done)
        };
        let mut applied = 0;
        for (lease, seqs) in round.done_by_seq() {
            for seqs in seqs.chunks(MOST) {
                let (sql, size) = done_by_seq.at_least(seqs.len());
                let query = fill(seqs, size).fold(sqlx::query(sql), |query, seq| query.bind(*seq));
                applied += query.bind(lease.as_str()).execute(&mut *connection).await?.rows_affected();
            }
        }
        for leases in round.done_by_id().chunks(MOST) {
            let (sql, size) = done.at_least(leases.len());
            let query = bind_leases(sqlx::query(sql), leases, size);
            applied += query.execute(&mut *connection).await?.rows_affected();
        }
        kill_point!("settle.between");
        for changes in round.changes().chunks(MOST) {
            let (sql, size) = self.sql.settle_other.at_least(changes.len());
            let query = fill(changes, size).fold(sqlx::query(sql), |query, change| change.bind(query));
            applied += query.execute(&mut *connection).await?.rows_affected();
        }
        kill_point!("settle.applied");
        Ok(applied)
    }

    /// Those of the ids and leases that stand in pending rows, which stay locked.
    pub(super) async fn held(
        &self,
        connection: &mut MySqlConnection,
        leases: &[(&str, &str)],
    ) -> Result<HashSet<(String, String)>, sqlx::Error> {
        let mut held = HashSet::new();
        for leases in leases.chunks(MOST) {
            let (sql, size) = self.sql.held.at_least(leases.len());
            let query = fill(leases, size).fold(sqlx::query_as(sql), |query, (id, lease)| query.bind(*id).bind(*lease));
            held.extend(query.fetch_all(&mut *connection).await?);
        }
        Ok(held)
    }
}

pub(super) type Statement<'q> = Query<'q, MySql, MySqlArguments>;

/// The items, and the last of them again and again up to that size. To name a row twice changes nothing.
pub(super) fn fill<T>(items: &[T], size: usize) -> impl Iterator<Item = &T> {
    items.iter().chain(std::iter::repeat_n(items.last(), size - items.len()).flatten())
}

pub(super) fn bind_leases<'q>(query: Statement<'q>, leases: &[(&'q str, &'q str)], size: usize) -> Statement<'q> {
    fill(leases, size).fold(query, |query, (id, lease)| query.bind(*id).bind(*lease))
}

/// In one order for everybody: transactions that lock the same rows in different orders wait for each other.
pub(super) fn sorted<T: Ord>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.into_iter().collect();
    items.sort_unstable();
    items
}

/// Settlements of which no two are of the same row.
#[derive(Default)]
struct Round<'a> {
    settlements: Vec<&'a Settlement>,
    /// Where each id was in the slice that is settled.
    places: HashMap<&'a str, usize>,
}

/// The settlements as rounds: the second settlement of a row must find what the first one made of it.
fn rounds(settlements: &[Settlement]) -> Vec<Round<'_>> {
    let mut rounds = vec![Round::default()];
    rounds[0].settlements.reserve(settlements.len());
    rounds[0].places.reserve(settlements.len());
    for (place, settlement) in settlements.iter().enumerate() {
        let id = settlement.id.as_str();
        let index = rounds.iter().position(|round| !round.places.contains_key(id)).unwrap_or(rounds.len());
        if index == rounds.len() {
            rounds.push(Round::default());
        }
        rounds[index].settlements.push(settlement);
        rounds[index].places.insert(id, place);
    }
    rounds
}

impl<'a> Round<'a> {
    fn done(&self) -> impl Iterator<Item = &'a Settlement> {
        self.settlements.iter().copied().filter(|settlement| settlement.action == Action::Done)
    }

    /// The rows that are DONE and whose number is known. They come in runs: a claim gives many of them one lease.
    fn done_by_seq(&self) -> Vec<(&'a Lease, Vec<i64>)> {
        let mut runs: Vec<(&Lease, Vec<i64>)> = Vec::new();
        for settlement in self.done() {
            let Some(seq) = settlement.seq else { continue };
            match runs.iter_mut().find(|(lease, _)| *lease == &settlement.lease) {
                Some((_, seqs)) => seqs.push(seq),
                None => runs.push((&settlement.lease, vec![seq])),
            }
        }
        runs.into_iter().map(|(lease, seqs)| (lease, sorted(seqs))).collect()
    }

    /// The other rows that are DONE.
    fn done_by_id(&self) -> Vec<(&'a str, &'a str)> {
        sorted(self.done().filter(|settlement| settlement.seq.is_none()).map(lease_of))
    }

    fn leases(&self) -> Vec<(&'a str, &'a str)> {
        sorted(self.settlements.iter().copied().map(lease_of))
    }

    /// Every other change.
    fn changes(&self) -> Vec<Change<'a>> {
        let mut changes: Vec<_> = self.settlements.iter().filter_map(|settlement| Change::of(settlement)).collect();
        changes.sort_unstable_by_key(|change| change.lease);
        changes
    }
}

/// The id and the lease.
fn lease_of(settlement: &Settlement) -> (&str, &str) {
    (settlement.id.as_str(), settlement.lease.as_str())
}

/// A change of a row under a lease.
struct Change<'a> {
    lease: (&'a str, &'a str),
    columns: Columns,
}

impl<'a> Change<'a> {
    fn of(settlement: &'a Settlement) -> Option<Self> {
        Some(Self { lease: lease_of(settlement), columns: Columns::of(&settlement.action)? })
    }

    fn bind<'q>(&self, query: Statement<'q>) -> Statement<'q>
    where
        'a: 'q,
    {
        let (id, lease) = self.lease;
        self.columns.bind(query.bind(id).bind(lease))
    }
}

/// A change of a row; nothing where the column stays as it is.
#[derive(Default)]
pub(super) struct Columns {
    status: Option<i16>,
    attempts: i16,
    delay: Option<i64>,
    error: Option<String>,
}

impl Columns {
    /// What becomes of a row, unless it is done.
    pub(super) fn of(action: &Action) -> Option<Self> {
        Some(match action {
            Action::Done => return None,
            Action::Retry { delay, error } => Self {
                status: Some(Status::Retry.code()),
                attempts: 1,
                delay: Some(length(*delay)),
                error: Some(cut_error(error)),
            },
            Action::Defer { delay } => Self { delay: Some(length(*delay)), ..Self::default() },
            Action::Dead { error, counts } => Self {
                status: Some(Status::Dead.code()),
                attempts: i16::from(*counts),
                delay: None,
                error: Some(cut_error(error)),
            },
            Action::Release => Self::default(),
        })
    }

    pub(super) fn bind<'q>(&self, query: Statement<'q>) -> Statement<'q> {
        query.bind(self.status).bind(self.attempts).bind(self.delay).bind(self.error.clone())
    }
}
