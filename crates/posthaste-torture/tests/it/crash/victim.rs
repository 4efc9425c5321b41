//! The process that is killed, or told to end.
//!
//! Everything in it happens on one thread. What runs beside the point of its end is then always in the same state.

use std::env::{self, VarError};
use std::future::pending;
use std::path::PathBuf;
use std::process::exit;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use posthaste_core::poller::{ClaimHandler, Handled};
use posthaste_core::store::{ClaimedRow, Lease, RelayStore};
use posthaste_core::{Closed, Event, Options, Ordered, Outbox, Poller};
use posthaste_sql::{MySqlStore, PgStore, Scheme, SqliteStore, detect};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, timeout};

use super::destination::{Destination, Mark, Then};
use super::ledger::Ledger;

/// What it is to do, where its database is, and where its destination.
const SCENARIO: &str = "POSTHASTE_VICTIM";
const URL: &str = "POSTHASTE_VICTIM_URL";
const DIRECTORY: &str = "POSTHASTE_VICTIM_DIRECTORY";

/// Long, because only one that was not killed in spite of all waits for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long leases last, so that none runs out by itself while a test runs.
pub(crate) const LEASE: Duration = Duration::from_secs(600);

/// What the process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scenario {
    /// Makes the table.
    Migrate,
    /// Writes, delivers hot, settles.
    Write,
    /// Writes more events than one statement of any database takes.
    WriteMany,
    /// Writes in a transaction that is not the outbox's.
    WriteForeign,
    /// Writes, and then forgets what it wrote.
    Forget,
    /// Delivers hot, and one of the events fails.
    Fail,
    /// Delivers hot, and the listener does not come back before leases have to be renewed.
    Hang,
    /// Delivers what others have written.
    Relay,
    /// Delivers in order what others have written.
    Order,
    /// The same, and ends in good order when it has.
    OrderAndShutDown,
    /// Claims what others have written, and does not want it.
    Refuse,
    /// Takes over from another process that is no more.
    TakeOver,
    /// Writes, and ends at once in good order.
    ShutDown,
    /// Writes, and ends in a hurry while a listener runs.
    ShutDownNow,
    /// Writes, and ends when it is told to: in good order at first, in a hurry the second time.
    Serve,
    /// The same with a deadline that the listener does not keep.
    ServeBriefly,
    /// The same with events that others have written.
    ServeOthers,
}

/// The deadline that a listener does not keep.
pub(crate) const BRIEFLY: Duration = Duration::from_millis(500);

impl Scenario {
    /// A process of this very program that plays it.
    pub(crate) fn command(self, url: &str, directory: &std::path::Path) -> Command {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "crash::victim", "--ignored", "--nocapture"])
            .env(SCENARIO, self.to_possible_value().unwrap().get_name())
            .env(URL, url)
            .env(DIRECTORY, directory)
            .kill_on_drop(true);
        command
    }

    /// The ids of its events.
    pub(crate) fn ids(self) -> Vec<String> {
        let count = if self == Self::WriteMany { 10_001 } else { 3 };
        (1..=count).map(|number| format!("event-{number}")).collect()
    }

    /// Whether its events are written before it starts.
    pub(crate) fn comes_later(self) -> bool {
        self.is_ordered() || matches!(self, Self::Relay | Self::Refuse | Self::TakeOver | Self::ServeOthers)
    }

    /// Whether it delivers in order.
    pub(crate) fn is_ordered(self) -> bool {
        matches!(self, Self::Order | Self::OrderAndShutDown)
    }

    /// Whether it ends when it is told to.
    fn serves(self) -> bool {
        matches!(self, Self::Serve | Self::ServeBriefly | Self::ServeOthers)
    }

    fn options(self) -> Options {
        // What it gives back of its own is not to be claimed by the same process before the test has seen it.
        let poll_skip_recent = if self.comes_later() { Duration::ZERO } else { LEASE };
        let options = Options { lease: LEASE, poll_skip_recent, ..Options::default() };
        match self {
            // Half of it has to be left at the commit.
            Self::Hang => Options { lease: Duration::from_secs(1), ..options },
            Self::Serve | Self::ServeOthers => Options { workers: 1, shutdown_deadline: PATIENCE, ..options },
            Self::ServeBriefly => Options { workers: 1, shutdown_deadline: BRIEFLY, ..options },
            _ => options,
        }
    }

    fn then(self) -> Then {
        match self {
            Self::Fail => Then::LastFailed,
            Self::Hang | Self::ShutDownNow => Then::Wait,
            _ if self.serves() => Then::Wait,
            _ => Then::Done,
        }
    }
}

pub(crate) async fn run() {
    let scenario = match env::var(SCENARIO) {
        Ok(name) => Scenario::from_str(&name, false).unwrap(),
        // Somebody runs all tests that are ignored.
        Err(VarError::NotPresent) => return,
        Err(error) => panic!("{error}"),
    };
    let url = env::var(URL).unwrap();
    let played = async {
        match detect(&url).unwrap() {
            Scheme::MySql => Victim::<MySqlStore>::new(scenario, &url).await.play().await,
            Scheme::Postgres => Victim::<PgStore>::new(scenario, &url).await.play().await,
            Scheme::Sqlite => Victim::<SqliteStore>::new(scenario, &url).await.play().await,
            other => panic!("no victim on {other}"),
        }
    };
    timeout(PATIENCE, played).await.expect("it came to nothing");
}

struct Victim<S> {
    scenario: Scenario,
    store: S,
    destination: Destination,
    ids: Vec<String>,
}

impl<S: Ledger> Victim<S> {
    async fn new(scenario: Scenario, url: &str) -> Self {
        let destination = Destination::new(&PathBuf::from(env::var_os(DIRECTORY).unwrap()));
        Self { scenario, store: S::open(url).await, destination, ids: scenario.ids() }
    }

    async fn play(self) {
        match self.scenario {
            Scenario::Migrate => self.store.create().await,
            Scenario::Refuse => self.refuse().await,
            Scenario::Forget => self.forget().await,
            Scenario::TakeOver | Scenario::Relay | Scenario::Order => {
                // Dropped, it would stop. It ends with the process.
                let _outbox = self.start().await;
                pending::<()>().await;
            }
            Scenario::WriteForeign => self.write_foreign().await,
            Scenario::Write | Scenario::WriteMany | Scenario::Fail | Scenario::Hang => {
                let outbox = self.start().await;
                write(&outbox, &self.ids).await;
                pending::<()>().await;
            }
            Scenario::OrderAndShutDown => {
                let outbox = self.start().await;
                self.until_published(self.ids.len()).await;
                outbox.shutdown().await;
            }
            Scenario::ShutDown => {
                let outbox = self.start().await;
                write(&outbox, &self.ids).await;
                outbox.shutdown().await;
            }
            Scenario::ShutDownNow => {
                let outbox = self.start().await;
                write(&outbox, &self.ids).await;
                self.until_published(1).await;
                outbox.shutdown_now().await;
            }
            Scenario::Serve | Scenario::ServeBriefly | Scenario::ServeOthers => self.serve().await,
        }
    }

    async fn start(&self) -> Outbox<S> {
        let builder = match self.scenario {
            Scenario::TakeOver => Outbox::single_node(self.store.clone()),
            _ => Outbox::many_nodes(self.store.clone()),
        };
        // One by one, so that some are left in the queue when it is told to end.
        let at_once = if self.scenario.serves() { 1 } else { 100 };
        let listener = self.destination.listener(at_once, self.scenario.then());
        let builder = if self.scenario.is_ordered() { builder.ordered(Ordered::all()) } else { builder };
        builder.options(self.scenario.options()).listen_all(listener).start().await.unwrap()
    }

    async fn write_foreign(self) {
        let outbox = self.start().await;
        let mut tx = self.store.begin_foreign().await;
        S::book(&mut tx, &self.ids).await;
        let receipt = outbox.write_all(&mut tx, self.ids.iter().map(|id| event(id))).await.unwrap();
        S::commit_foreign(tx).await;
        receipt.dispatch();
        pending::<()>().await;
    }

    /// The rows are leased to this process, which never learns that they were committed.
    async fn forget(self) {
        let outbox = self.start().await;
        let receipt = outbox.prepare(self.ids.iter().map(|id| event(id))).unwrap();
        let rows: Vec<_> = receipt.rows().cloned().collect();
        let mut tx = self.store.begin().await.unwrap();
        S::book(&mut tx, &self.ids).await;
        self.store.insert(&mut tx, &rows).await.unwrap();
        self.store.commit(tx).await.unwrap();
        drop(receipt);
        pending::<()>().await;
    }

    async fn refuse(self) {
        let store: Arc<dyn RelayStore> = Arc::new(self.store);
        let poller = Poller::builder(store, Arc::new(Unwilling)).options(self.scenario.options()).build().unwrap();
        poller.poll(100).await.unwrap();
    }

    async fn serve(self) {
        let mut signals = signal(SignalKind::terminate()).unwrap();
        let outbox = self.start().await;
        if !self.scenario.comes_later() {
            write(&outbox, &self.ids).await;
        }
        signals.recv().await;
        let told_again = async {
            until_closing(&outbox).await;
            self.destination.set(Mark::Ending);
            signals.recv().await
        };
        let closed = tokio::select! {
            closed = outbox.shutdown() => closed,
            _ = told_again => outbox.shutdown_now().await,
        };
        exit(status(closed));
    }

    async fn until_published(&self, count: usize) {
        while self.destination.received().len() < count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Waits until the end is under way: nothing is promised a place on the hot path any more.
async fn until_closing<S: Ledger>(outbox: &Outbox<S>) {
    loop {
        let receipt = outbox.prepare([event("refused")]).unwrap();
        let closing = receipt.rows().all(|row| row.lease.is_none());
        receipt.never_written();
        if closing {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The exit status that tells how it ended.
fn status(closed: Closed) -> i32 {
    match closed {
        closed if closed.is_clean() => DRAINED,
        Closed { abandoned: 0, .. } => RELEASED,
        _ => ABANDONED,
    }
}

/// All was delivered and settled.
pub(crate) const DRAINED: i32 = 0;

/// Something was given back.
pub(crate) const RELEASED: i32 = 3;

/// Something could not even be given back.
pub(crate) const ABANDONED: i32 = 4;

/// Writes in the ledger, and the events that belong to it.
pub(crate) async fn write<S: Ledger>(outbox: &Outbox<S>, ids: &[String]) {
    let mut tx = outbox.begin().await.unwrap();
    S::book(&mut tx, ids).await;
    tx.write_all(ids.iter().map(|id| event(id))).await.unwrap();
    tx.commit().await.unwrap();
}

fn event(id: &str) -> Event {
    Event::builder("Booked").id(id).aggregate("Ledger", 1).json_text("{}").build().unwrap()
}

/// Claims, and takes nothing.
struct Unwilling;

impl ClaimHandler for Unwilling {
    fn capacity(&self) -> usize {
        100
    }

    fn handle(&self, _: ClaimedRow, _: &Lease, _: Instant) -> Handled {
        Handled::Refused
    }
}
