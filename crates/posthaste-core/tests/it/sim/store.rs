//! The store of a process, in which calls are slow, fail, hang and get lost by the seed.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use posthaste_core::EventId;
use posthaste_core::memory::MemoryTx;
use posthaste_core::store::{
    Action, AdminStore, BoxFuture, Claim, Claimed, CommitError, Counts, Error, Filter, LaneStore, Lease, NewRow, Page,
    Purge, Record, Redrive, RelayStore, Settled, Settlement, WriteStore,
};
use tokio::time::sleep;

use super::plan::millis;
use super::{Open, Process, Sabotage, Sim};

/// One process's way to the table.
#[derive(Clone)]
pub(super) struct SimStore {
    pub(super) sim: Arc<Sim>,
    pub(super) process: Arc<Process>,
}

/// A call of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Begin,
    Commit,
    Rollback,
    Claim,
    Settle,
    Renew,
    /// With lanes.
    Lease,
    Read,
    GiveBack,
}

/// What becomes of one call.
struct Fate {
    yields: u32,
    before: Duration,
    after: Duration,
    end: End,
    /// It was sent: when its caller loses interest, or dies, the database carries it out all the same.
    survives: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Fine,
    /// It is not carried out.
    Fails(Trouble),
    /// It is carried out, and the answer is lost.
    AnswerLost(Trouble),
    /// It is carried out after its caller was told that it failed.
    Late(Trouble, Duration),
    /// There is never an answer.
    Hangs,
    Panics,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Trouble {
    Unavailable,
    Busy,
    Refused,
}

impl Trouble {
    fn error(self) -> Error {
        match self {
            Self::Unavailable => Error::Unavailable("away by the seed".into()),
            Self::Busy => Error::Busy("busy by the seed".into()),
            Self::Refused => Error::Refused("refused by the seed".into()),
        }
    }
}

/// A call that gave no answer.
pub(super) enum Broken {
    NotDone(Error),
    /// It may have been carried out, or may yet be.
    Open(Error),
}

impl From<Broken> for Error {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::NotDone(error) | Broken::Open(error) => error,
        }
    }
}

impl Fate {
    /// What the test has said, or else the seed.
    fn of(call: Call, process: &Process, sim: &Sim) -> Self {
        let fate = match process.scripted(call) {
            Some(end) => Self { yields: 0, before: Duration::ZERO, after: Duration::ZERO, end, survives: true },
            None => Self::draw(call, sim),
        };
        if !matches!(fate.end, End::Fine) {
            sim.note(format!("{} {call:?}: {:?}", process.name, fate.end));
        }
        fate
    }

    fn draw(call: Call, sim: &Sim) -> Self {
        let odds = sim.plan.store;
        let away = sim.is_away() || (odds.no_renewals && call == Call::Renew);
        let healed = sim.is_healed();
        sim.draw(|rng| {
            let yields = rng.u32(..4);
            if healed {
                return Self { yields, before: Duration::ZERO, after: Duration::ZERO, end: End::Fine, survives: true };
            }
            let delay = |rng: &mut fastrand::Rng| match () {
                () if odds.very_slow.hit(rng) => millis(rng, 100..=5000),
                () if odds.slow.hit(rng) => millis(rng, 1..=30),
                () => Duration::ZERO,
            };
            let (before, after) = (delay(rng), delay(rng));
            let trouble = [Trouble::Unavailable, Trouble::Busy, Trouble::Refused][rng.usize(..3)];
            let end = match () {
                () if away => End::Fails(Trouble::Unavailable),
                () if odds.fails.hit(rng) => End::Fails(trouble),
                () if odds.answer_lost.hit(rng) => End::AnswerLost(trouble),
                () if odds.late.hit(rng) => End::Late(trouble, millis(rng, 0..=5000)),
                () if odds.hangs.hit(rng) => End::Hangs,
                () if odds.panics.hit(rng) => End::Panics,
                () => End::Fine,
            };
            Self { yields, before, after, end, survives: rng.bool() }
        })
    }
}

/// A statement on its way to the database.
struct Statement<T, F: FnOnce(&Sim) -> T + Send + 'static> {
    sim: Arc<Sim>,
    run: Option<F>,
    survives: bool,
}

impl<T, F: FnOnce(&Sim) -> T + Send + 'static> Statement<T, F> {
    fn run(&mut self) -> T {
        let run = self.run.take().expect("a statement is carried out once");
        run(&self.sim)
    }

    fn run_late(&mut self, delay: Duration) {
        let (Some(run), Ok(runtime)) = (self.run.take(), tokio::runtime::Handle::try_current()) else { return };
        let sim = Arc::clone(&self.sim);
        let open = Open::new(&self.sim);
        runtime.spawn(async move {
            let _open = open;
            sleep(delay).await;
            run(&sim);
        });
    }
}

impl<T, F: FnOnce(&Sim) -> T + Send + 'static> Drop for Statement<T, F> {
    fn drop(&mut self) {
        if self.survives && self.run.is_some() {
            let delay = self.sim.draw(|rng| millis(rng, 0..=2000));
            self.run_late(delay);
        }
    }
}

impl SimStore {
    /// A call with whatever becomes of it.
    pub(super) async fn call<T, F>(&self, call: Call, run: F) -> Result<T, Broken>
    where
        T: Send + 'static,
        F: FnOnce(&Sim) -> T + Send + 'static,
    {
        self.sim.step().await;
        self.process.goes_on().await;
        let fate = Fate::of(call, &self.process, &self.sim);
        let survives = fate.survives && !matches!(fate.end, End::Fails(_));
        let mut statement = Statement { sim: Arc::clone(&self.sim), run: Some(run), survives };
        for _ in 0..fate.yields {
            tokio::task::yield_now().await;
        }
        pause(fate.before).await;
        if self.process.is_dead() && survives {
            statement.run();
        }
        self.process.goes_on().await;
        let answer = match fate.end {
            End::Fine => Ok(statement.run()),
            End::Fails(trouble) => Err(Broken::NotDone(trouble.error())),
            End::AnswerLost(trouble) => {
                statement.run();
                Err(Broken::Open(trouble.error()))
            }
            End::Late(trouble, delay) => {
                statement.run_late(delay);
                Err(Broken::Open(trouble.error()))
            }
            End::Hangs => {
                std::future::pending::<()>().await;
                unreachable!("pending for ever")
            }
            // Without the hook that prints it.
            End::Panics => std::panic::resume_unwind(Box::new("the store panics by the seed")),
        };
        pause(fate.after).await;
        self.process.goes_on().await;
        answer
    }

    /// Like `call`, for a writer: it does not wait for ever, since nobody but its user could end that.
    async fn write_call<T, F>(&self, call: Call, run: F) -> Result<T, Broken>
    where
        T: Send + 'static,
        F: FnOnce(&Sim) -> T + Send + 'static,
    {
        let _open = Open::new(&self.sim);
        let patience = self.sim.draw(|rng| millis(rng, 10_000..=30_000));
        match tokio::time::timeout(patience, self.call(call, run)).await {
            Ok(answer) => answer,
            Err(_) => Err(Broken::Open(Error::Unavailable("no answer".into()))),
        }
    }
}

async fn pause(length: Duration) {
    if !length.is_zero() {
        sleep(length).await;
    }
}

/// A transaction that knows what was written in it.
#[derive(Default)]
pub(super) struct SimTx(SimConnection);

#[derive(Default)]
pub(super) struct SimConnection {
    inner: MemoryTx,
    rows: Vec<(NewRow, u64)>,
}

impl Deref for SimTx {
    type Target = SimConnection;

    fn deref(&self) -> &SimConnection {
        &self.0
    }
}

impl DerefMut for SimTx {
    fn deref_mut(&mut self) -> &mut SimConnection {
        &mut self.0
    }
}

/// The memory store answers at once.
pub(super) fn at_once<T>(call: impl Future<Output = T>) -> T {
    call.now_or_never().expect("the memory store does not wait")
}

impl WriteStore for SimStore {
    type Connection = SimConnection;
    type Tx<'c> = SimTx;
    type OwnTx = SimTx;

    async fn begin(&self) -> Result<SimTx, Error> {
        Ok(self.write_call(Call::Begin, |_| SimTx::default()).await?)
    }

    async fn insert(&self, connection: &mut SimConnection, rows: &[NewRow]) -> Result<(), Error> {
        // What is dropped in the first pause was not inserted, in the second it was.
        let (before, fails, after) = self.sim.draw(|rng| (millis(rng, 0..=3), rng.u8(..50) == 0, millis(rng, 0..=3)));
        pause(before).await;
        if fails && !self.sim.plan.calm {
            return Err(Error::Busy("no insert by the seed".into()));
        }
        self.sim.base.insert(&mut connection.inner, rows).await?;
        let now = self.sim.now();
        connection.rows.extend(rows.iter().map(|row| (row.clone(), now)));
        pause(after).await;
        Ok(())
    }

    async fn commit(&self, tx: SimTx) -> Result<(), CommitError> {
        match self.write_call(Call::Commit, move |sim| sim.commit(tx)).await {
            Ok(committed) => committed.map_err(CommitError::NotCommitted),
            Err(Broken::NotDone(error)) => Err(CommitError::NotCommitted(error)),
            Err(Broken::Open(error)) => Err(CommitError::Unknown(error)),
        }
    }

    async fn rollback(&self, tx: SimTx) -> Result<(), Error> {
        Ok(self.write_call(Call::Rollback, move |sim| sim.roll_back(tx)).await?)
    }
}

impl RelayStore for SimStore {
    fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed, Error>> {
        let claim = claim.clone();
        Box::pin(async move { Ok(self.call(Call::Claim, move |sim| sim.claim(&claim)).await?) })
    }

    fn settle<'a>(&'a self, settlements: &'a [Settlement]) -> BoxFuture<'a, Result<Vec<Settled>, Error>> {
        Box::pin(async move {
            let sent = settlements.to_vec();
            self.sim.ledger().sent(settlements);
            let answers = self.call(Call::Settle, move |sim| sim.settle(sent)).await?;
            self.sim.ledger().arrived(settlements, &answers);
            Ok(answers)
        })
    }

    fn renew<'a>(&'a self, leases: &'a [(EventId, Lease)]) -> BoxFuture<'a, Result<Vec<bool>, Error>> {
        let leases = leases.to_vec();
        Box::pin(async move { Ok(self.call(Call::Renew, move |sim| sim.renew(&leases)).await?) })
    }

    fn lanes(&self) -> Option<Arc<dyn LaneStore>> {
        self.as_lanes()
    }

    fn release_all(&self) -> BoxFuture<'_, Result<u64, Error>> {
        // Its panics are not contained, and a process that cannot start has nobody to wait for it.
        Box::pin(async move { Ok(self.sim.release_all()) })
    }
}

impl AdminStore for SimStore {
    fn counts(&self) -> BoxFuture<'_, Result<Counts, Error>> {
        self.sim.base.counts()
    }

    fn find<'a>(&'a self, id: &'a EventId) -> BoxFuture<'a, Result<Option<Record>, Error>> {
        self.sim.base.find(id)
    }

    fn list<'a>(&'a self, filter: &'a Filter, page: &'a Page) -> BoxFuture<'a, Result<Vec<Record>, Error>> {
        self.sim.base.list(filter, page)
    }

    fn redrive<'a>(&'a self, redrive: &'a Redrive) -> BoxFuture<'a, Result<u64, Error>> {
        self.sim.base.redrive(redrive)
    }

    fn purge<'a>(&'a self, purge: &'a Purge) -> BoxFuture<'a, Result<u64, Error>> {
        self.sim.base.purge(purge)
    }
}

/// Statements, at the moment at which the table carries them out.
impl Sim {
    fn commit(&self, tx: SimTx) -> Result<(), Error> {
        at_once(self.base.commit(tx.0.inner)).map_err(|error| match error {
            CommitError::NotCommitted(error) | CommitError::Unknown(error) => error,
            error => Error::Refused(Box::new(error)),
        })?;
        let mut ledger = self.ledger();
        ledger.committed(self.now(), &tx.0.rows);
        for (row, _) in &tx.0.rows {
            ledger.lanes.note_lane(row.event.id(), self.base.lane_of(&row.event));
        }
        Ok(())
    }

    fn roll_back(&self, tx: SimTx) {
        if self.sabotage == Some(Sabotage::RollbackCommits) {
            let _ = at_once(self.base.commit(tx.0.inner));
        }
    }

    fn claim(&self, claim: &Claim) -> Claimed {
        if self.sabotage == Some(Sabotage::ClaimsWhatIsLeased) {
            at_once(self.base.release_all()).unwrap();
        }
        let claimed = at_once(self.base.claim(claim)).unwrap();
        self.ledger().claimed(self.now(), claim, &claimed);
        claimed
    }

    fn settle(&self, mut settlements: Vec<Settlement>) -> Vec<Settled> {
        let mut answers = Vec::new();
        for settlement in &mut settlements {
            let named = settlement.clone();
            self.meddle(settlement);
            answers.extend(at_once(self.base.settle(std::slice::from_ref(settlement))).unwrap());
            settlement.lease = named.lease;
        }
        // What is given back at the end of a process comes from a map, in any order.
        let mut settled: Vec<_> = settlements.iter().zip(&answers).collect();
        settled.sort_by(|(one, _), (other, _)| one.id.cmp(&other.id));
        for (settlement, answer) in settled {
            self.ledger().settled(self.now(), settlement, *answer);
        }
        answers
    }

    /// Plants a mistake.
    fn meddle(&self, settlement: &mut Settlement) {
        match self.sabotage {
            Some(Sabotage::SettlesWithoutFence) => {
                let ledger = self.ledger();
                let row = ledger.facts.get(&settlement.id).and_then(|fact| fact.row.as_ref());
                if let Some(lease) = row.and_then(|row| row.lease.clone()) {
                    settlement.lease = lease;
                }
            }
            Some(Sabotage::FailuresAreDone) if matches!(settlement.action, Action::Retry { .. }) => {
                settlement.action = Action::Done;
            }
            _ => {}
        }
    }

    fn renew(&self, leases: &[(EventId, Lease)]) -> Vec<bool> {
        let held = at_once(self.base.renew(leases)).unwrap();
        let mut renewed: Vec<_> = leases.iter().zip(&held).collect();
        renewed.sort_by(|((one, _), _), ((other, _), _)| one.cmp(other));
        for ((id, lease), held) in renewed {
            self.ledger().renewed(self.now(), id, lease, *held);
        }
        held
    }

    fn release_all(&self) -> u64 {
        let released = at_once(self.base.release_all()).unwrap();
        self.ledger().released_all(self.now());
        released
    }

    /// An operator redrives one event.
    pub(super) fn redrive(&self, id: &EventId) {
        let redrive = Redrive::ids([id.clone()]);
        let count = at_once(self.base.redrive(&redrive)).unwrap();
        self.ledger().redriven(self.now(), id, count);
    }

    /// Compares the table with what it must be.
    pub(super) fn check_the_table(&self) {
        let records = at_once(self.base.list(&Filter::default(), &Page { limit: usize::MAX, ..Page::default() }));
        let mut found: std::collections::BTreeMap<_, _> =
            records.unwrap().into_iter().map(|record| (record.id.clone(), record)).collect();
        let mut ledger = self.ledger();
        let mut wrong = Vec::new();
        for (id, fact) in &ledger.facts {
            let same = match (&fact.row, found.remove(id)) {
                (Some(row), Some(record)) => {
                    let counted = ledger.deletes_done || row.attempts == record.state.attempts;
                    row.status == record.state.status && counted
                }
                (Some(row), None) => ledger.deletes_done && row.status == posthaste_core::Status::Done,
                (None, None) => true,
                (None, Some(_)) => false,
            };
            if !same {
                wrong.push(format!("table: {id} is not as it must be"));
            }
        }
        wrong.extend(found.keys().map(|id| format!("table: {id} was never written")));
        let now = self.now();
        wrong.into_iter().for_each(|wrong| ledger.broken(now, wrong));
    }
}
