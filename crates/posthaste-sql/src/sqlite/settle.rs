//! Writing outcomes back.

use std::collections::HashMap;

use posthaste_core::store::{Action, Lease, Settled, Settlement, Status, cut_error};
use posthaste_core::{EventId, Timestamp};
use sqlx::sqlite::SqliteConnection;

use super::SqliteStore;
use super::tx::begin_immediate;

/// Up to how many runs of numbers are settled by a statement each. More of them are settled by one statement, for which
/// SQLite makes a table of the numbers first.
pub(super) const MAX_RUNS: usize = 8;

impl SqliteStore {
    pub(super) async fn try_settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>, sqlx::Error> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        let rounds = rounds(settlements);
        // Nearly always every lease still stands. The number of changed rows says so, at less than asking for each.
        if let [round] = rounds.as_slice() {
            let mut tx = begin_immediate(self.relay().await?).await?;
            if self.apply(&mut tx, round).await? == settlements.len() as u64 {
                tx.commit().await?;
                return Ok(vec![Settled::Applied; settlements.len()]);
            }
            tx.rollback().await?;
        }
        let mut settled = vec![Settled::Lost; settlements.len()];
        let mut tx = begin_immediate(self.relay().await?).await?;
        for round in &rounds {
            for id in self.held(&mut tx, round).await? {
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
    async fn apply(&self, connection: &mut SqliteConnection, round: &Round<'_>) -> Result<u64, sqlx::Error> {
        let now = self.now();
        let mut applied = 0;
        for (lease, seqs) in round.done_by_seq() {
            applied += self.done(connection, lease, &seqs, now).await?;
        }
        if let Some(done) = round.done_by_id() {
            let query = if self.deletes_done {
                sqlx::query(self.sql.slots.delete_done.clone()).bind(done)
            } else {
                sqlx::query(self.sql.slots.settle_done.clone()).bind(done).bind(now.as_micros())
            };
            applied += query.execute(&mut *connection).await?.rows_affected();
        }
        kill_point!("settle.between");
        if let Some(others) = round.others(now) {
            let query = sqlx::query(self.sql.slots.settle_other.clone()).bind(others);
            applied += query.execute(connection).await?.rows_affected();
        }
        kill_point!("settle.applied");
        Ok(applied)
    }

    /// Makes rows DONE, whose sorted numbers these are, and says how many it could.
    async fn done(
        &self,
        connection: &mut SqliteConnection,
        lease: &Lease,
        seqs: &[i64],
        now: Timestamp,
    ) -> Result<u64, sqlx::Error> {
        // Rows that were written one after the other are mostly claimed and delivered so: one stretch of the table.
        let runs: Vec<&[i64]> = seqs.chunk_by(|one, next| one + 1 == *next).collect();
        let slots = &self.sql.slots;
        let (by_run, by_seq) = match self.deletes_done {
            true => (&slots.delete_done_run, &slots.delete_done_by_seq),
            false => (&slots.settle_done_run, &slots.settle_done_by_seq),
        };
        let mut queries = Vec::new();
        if runs.len() <= MAX_RUNS {
            for run in runs {
                queries.push(sqlx::query(by_run.clone()).bind(run[0]).bind(run[run.len() - 1]).bind(lease.as_str()));
            }
        } else {
            let seqs = serde_json::to_string(seqs).expect("numbers are JSON");
            queries.push(sqlx::query(by_seq.clone()).bind(seqs).bind(lease.as_str()));
        }
        let mut applied = 0;
        for query in queries {
            let query = if self.deletes_done { query } else { query.bind(now.as_micros()) };
            applied += query.execute(&mut *connection).await?.rows_affected();
        }
        Ok(applied)
    }

    /// The ids of a round whose leases stand in pending rows.
    async fn held(&self, connection: &mut SqliteConnection, round: &Round<'_>) -> Result<Vec<String>, sqlx::Error> {
        let leases = leases_by_id(round.settlements.iter().map(|settlement| (&settlement.id, &settlement.lease)));
        sqlx::query_scalar(self.sql.slots.held.clone()).bind(leases).fetch_all(connection).await
    }
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

impl Round<'_> {
    fn done(&self) -> impl Iterator<Item = &Settlement> {
        self.settlements.iter().copied().filter(|settlement| settlement.action == Action::Done)
    }

    /// The rows that are DONE and whose numbers are known, by lease: a claim gives many of them the same.
    fn done_by_seq(&self) -> Vec<(&Lease, Vec<i64>)> {
        let mut by_lease: Vec<(&Lease, Vec<i64>)> = Vec::new();
        for settlement in self.done() {
            let Some(seq) = settlement.seq else { continue };
            match by_lease.iter_mut().find(|(lease, _)| *lease == &settlement.lease) {
                Some((_, seqs)) => seqs.push(seq),
                None => by_lease.push((&settlement.lease, vec![seq])),
            }
        }
        for (_, seqs) in &mut by_lease {
            seqs.sort_unstable();
        }
        by_lease
    }

    /// Leases by id of the other rows that are DONE.
    fn done_by_id(&self) -> Option<String> {
        let done = self.done().filter(|settlement| settlement.seq.is_none());
        let mut done = done.map(|settlement| (&settlement.id, &settlement.lease)).peekable();
        done.peek().is_some().then(|| leases_by_id(done))
    }

    /// Every other change.
    fn others(&self, now: Timestamp) -> Option<String> {
        let changes: Vec<_> =
            self.settlements.iter().filter_map(|settlement| change_under_lease(settlement, now)).collect();
        (!changes.is_empty()).then(|| serde_json::to_string(&changes).expect("texts and numbers are JSON"))
    }
}

/// Id, lease, status, attempts to add, available_at, done_at and error; nothing where the column stays as it is.
type Change<'a> = (&'a str, &'a str, Option<i16>, u8, Option<i64>, Option<i64>, Option<String>);

/// The same without id and lease.
type Columns = (Option<i16>, u8, Option<i64>, Option<i64>, Option<String>);

fn change_under_lease(settlement: &Settlement, now: Timestamp) -> Option<Change<'_>> {
    let (status, attempts, available_at, done_at, error) = change(&settlement.action, now)?;
    Some((settlement.id.as_str(), settlement.lease.as_str(), status, attempts, available_at, done_at, error))
}

/// What becomes of a row, unless it is done.
pub(super) fn change(action: &Action, now: Timestamp) -> Option<Columns> {
    Some(match action {
        Action::Done => return None,
        Action::Retry { delay, error } => {
            let available_at = Some((now + *delay).as_micros());
            (Some(Status::Retry.code()), 1, available_at, None, Some(cut_error(error)))
        }
        Action::Defer { delay } => (None, 0, Some((now + *delay).as_micros()), None, None),
        Action::Dead { error, counts } => {
            let done_at = Some(now.as_micros());
            (Some(Status::Dead.code()), u8::from(*counts), None, done_at, Some(cut_error(error)))
        }
        Action::Release => (None, 0, None, None, None),
    })
}

/// A JSON object of leases by event id.
pub(super) fn leases_by_id<'a>(leases: impl Iterator<Item = (&'a EventId, &'a Lease)>) -> String {
    let mut json = Vec::from(b"{");
    for (id, lease) in leases {
        if json.len() > 1 {
            json.push(b',');
        }
        for (text, end) in [(id.as_str(), b':'), (lease.as_str(), b' ')] {
            serde_json::to_writer(&mut json, text).expect("text is JSON");
            json.push(end);
        }
    }
    json.push(b'}');
    String::from_utf8(json).expect("JSON is UTF-8")
}
