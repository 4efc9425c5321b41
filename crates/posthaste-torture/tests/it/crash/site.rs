//! What a process has left behind, and whether others can go on from there.

use std::collections::BTreeSet;
use std::process::Output;
use std::time::Duration;

use posthaste_conformance::Tables;
use posthaste_core::store::{AdminStore, Claim, Filter, Lease, Page, Record, RelayStore};
use posthaste_core::{EventId, Options, Ordered, Outbox, Status};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;

use super::destination::{Destination, Then};
use super::ledger::{self, Ledger};
use super::victim::{self, LEASE, Scenario};

/// How long a test waits for something before it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What another process writes after it all.
const LATER: &str = "later";

/// A kind of database with a ledger.
pub(crate) trait Database: Tables<Store: Ledger> {}

impl<F: Tables<Store: Ledger>> Database for F {}

/// A database and a destination of their own.
pub(crate) struct Site<D> {
    fixture: D,
    scenario: Scenario,
    directory: TempDir,
    pub(crate) destination: Destination,
    pub(crate) ids: Vec<String>,
}

/// What is left of the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing was committed.
    Nothing,
    /// Committed; anybody may have them.
    Free,
    /// Committed, and leased to the dead.
    Leased,
    /// Published, and still leased to the dead.
    Published,
    /// Published, and given back.
    Released,
    /// Published, and a settlement was on its way that may or may not have arrived.
    Settling,
    /// Published and settled.
    Done,
}

impl Left {
    fn is_published(self) -> bool {
        matches!(self, Self::Published | Self::Released | Self::Settling | Self::Done)
    }

    /// Whether others have to wait for leases to run out.
    pub(crate) fn is_leased(self) -> bool {
        matches!(self, Self::Leased | Self::Published | Self::Settling)
    }

    /// How often an event is published in the end.
    fn times(self) -> std::ops::RangeInclusive<usize> {
        match self {
            Self::Nothing => 0..=0,
            Self::Free | Self::Leased | Self::Done => 1..=1,
            Self::Settling => 1..=2,
            Self::Published | Self::Released => 2..=2,
        }
    }
}

impl<D: Database> Site<D> {
    /// Everything as the scenario finds it.
    pub(crate) async fn new(scenario: Scenario) -> Self {
        let fixture = if scenario == Scenario::Migrate { D::empty().await } else { D::create().await };
        fixture.execute(ledger::CREATE).await;
        if scenario.is_ordered() {
            fixture.prepare_lanes().await;
        }
        let directory = tempfile::tempdir().unwrap();
        let destination = Destination::new(directory.path());
        let site = Self { fixture, scenario, directory, destination, ids: scenario.ids() };
        if scenario.comes_later() {
            let writer = Outbox::writer_only(site.store()).start().await.unwrap();
            victim::write(&writer, &site.ids).await;
        }
        if scenario == Scenario::TakeOver {
            assert_eq!(site.claim().await.len(), site.ids.len());
        }
        site
    }

    pub(crate) fn store(&self) -> D::Store {
        self.fixture.store()
    }

    pub(crate) fn command(&self) -> Command {
        self.scenario.command(&self.store().url(), self.directory.path())
    }

    /// Plays the scenario to its end.
    pub(crate) async fn play(&self, variables: &[(&str, &str)]) -> Output {
        let mut command = self.command();
        command.envs(variables.iter().copied());
        timeout(PATIENCE * 2, command.output()).await.unwrap().unwrap()
    }

    /// Makes one of the rows something that is no event.
    pub(crate) async fn damage(&self, id: &str) {
        self.fixture.damage(&EventId::new(id).unwrap()).await;
    }

    /// Where the row of an event stands.
    pub(crate) async fn record(&self, id: &str) -> Record {
        self.store().find(&EventId::new(id).unwrap()).await.unwrap().unwrap()
    }

    async fn records(&self) -> Vec<Record> {
        let page = Page { limit: 100, ..Page::default() };
        self.store().list(&Filter::default(), &page).await.unwrap()
    }

    /// Claims what anybody could claim.
    async fn claim(&self) -> Vec<String> {
        let lease = Lease::new("bystander", 1);
        let claim = Claim { lease, lease_duration: LEASE, limit: 100, skip_recent: Duration::ZERO };
        let claimed = self.store().claim(&claim).await.unwrap();
        claimed.rows.iter().map(|row| row.event.id().to_string()).collect()
    }

    /// Fails unless exactly this is left of the events.
    pub(crate) async fn assert_left(&self, left: Left, ids: &[String]) {
        let records = self.records().await;
        let rows: BTreeSet<_> = records.iter().map(|record| record.id.to_string()).collect();
        assert_eq!(self.store().booked().await, rows, "ledger and outbox");
        assert_eq!(rows.is_empty(), left == Left::Nothing, "rows: {rows:?}");

        let published = if left.is_published() { ids } else { &[] };
        assert_eq!(self.destination.received(), published, "published");
        if left == Left::Settling {
            return;
        }
        let status = if left == Left::Done { Status::Done } else { Status::New };
        for record in records.iter().filter(|record| ids.iter().any(|id| record.id == id.as_str())) {
            let state = &record.state;
            let stands = (state.status, state.attempts, state.lease.is_some());
            assert_eq!(stands, (status, 0, left.is_leased()), "{}", record.id);
        }
        if left.is_leased() {
            assert_eq!(self.claim().await, [""; 0], "claimed in spite of their leases");
        }
    }

    /// The leases of the dead run out.
    pub(crate) async fn wait_for_leases(&self) {
        self.fixture.advance(LEASE).await;
    }

    /// Another process comes and goes on, also with a transaction of its own.
    pub(crate) async fn recover(&self) {
        let options = Options { lease: LEASE, poll_interval: Duration::from_millis(100), ..Options::default() };
        let listener = self.destination.listener(100, Then::Done);
        let outbox = Outbox::many_nodes(self.fixture.node().await).options(options).listen_all(listener);
        let outbox = if self.scenario.is_ordered() { outbox.ordered(Ordered::all()) } else { outbox };
        let outbox = outbox.start().await.unwrap();
        victim::write(&outbox, &[LATER.to_owned()]).await;
        let all_final = async {
            while self.store().counts().await.unwrap().pending() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, all_final).await.expect("events are pending for ever");
        assert!(outbox.shutdown().await.is_clean());
    }

    /// Fails unless in the end everything is as if nothing had happened, but for repeats.
    pub(crate) async fn assert_recovered(&self, left: Left, ids: &[String]) {
        let received = self.destination.received();
        let times = |id: &str| received.iter().filter(|received| *received == id).count();
        for id in ids {
            assert!(left.times().contains(&times(id)), "{id} in {received:?}");
        }
        assert_eq!(times(LATER), 1, "{received:?}");

        let records = self.records().await;
        let rows: BTreeSet<_> = records.iter().map(|record| record.id.to_string()).collect();
        assert_eq!(self.store().booked().await, rows, "ledger and outbox");
        let published: BTreeSet<_> = received.into_iter().collect();
        let done: BTreeSet<_> = records
            .iter()
            .filter(|record| (record.state.status, record.state.attempts) == (Status::Done, 0))
            .map(|record| record.id.to_string())
            .collect();
        assert_eq!(published, done, "published and done");
        assert!(records.iter().all(|record| record.state.lease.is_none()));
    }
}
