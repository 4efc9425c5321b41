//! Fault 15: a process is told to end while it delivers, once or twice.

use std::time::Duration;

use posthaste_conformance::{MariaDbFixture, PgFixture, SqliteFixture};
use posthaste_core::Status;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio::time::{Instant, timeout};

use super::destination::Mark;
use super::ledger::Ledger;
use super::site::{Database, PATIENCE, Site};
use super::victim::{ABANDONED, BRIEFLY, DRAINED, RELEASED, Scenario};

/// How long the end may take in a hurry. It gives the database half a second, a few times; without a hurry it has 30 s.
const SOON: Duration = Duration::from_secs(15);

/// How long the database has to take back what it is given back, before it is left to its leases.
const DATABASE: Duration = Duration::from_millis(500);

/// How often something is tried in which the database has to take back in that time what it is given back: on a busy machine it may
/// need longer. That is no excuse for anything else: who leaves something to its leases must have waited for that long, and it must be
/// delivered when they have run out. So nothing is hidden but how often a database is slow, and one that always is fails.
const TRIES: u32 = 3;

/// The first event is with its listener, the others are queued.
async fn serve<D: Database>(scenario: Scenario) -> (Site<D>, Child) {
    let site = Site::<D>::new(scenario).await;
    let child = site.command().spawn().unwrap();
    let published = async {
        while site.destination.received().is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(PATIENCE, published).await.unwrap();
    (site, child)
}

/// Tells it to end, and waits until it knows.
async fn terminate<D>(site: &Site<D>, child: &Child) {
    send(child);
    timeout(PATIENCE, site.destination.until(Mark::Ending)).await.unwrap();
}

fn send(child: &Child) {
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed())).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
}

async fn exit_status(mut child: Child) -> i32 {
    timeout(PATIENCE, child.wait()).await.unwrap().unwrap().code().unwrap()
}

/// The listener ends in time: everything is delivered and settled, also what was queued.
async fn once<D: Database>() {
    let (site, child) = serve::<D>(Scenario::Serve).await;
    terminate(&site, &child).await;
    site.destination.set(Mark::GoOn);
    assert_eq!(exit_status(child).await, DRAINED);
    assert_eq!(site.destination.received(), site.ids);
    assert_stand(&site, Status::Done).await;
}

/// The second signal cuts it short: everything is given back, and delivered by others at once.
async fn twice<D: Database>(scenario: Scenario) {
    for tries_left in (0..TRIES).rev() {
        let (site, child) = serve::<D>(scenario).await;
        terminate(&site, &child).await;
        let at_least = Instant::now() + DATABASE;
        send(&child);
        if released(site, child, at_least, tries_left).await {
            return;
        }
    }
}

/// The deadline cuts it short.
async fn once_and_too_slow<D: Database>() {
    for tries_left in (0..TRIES).rev() {
        let (site, child) = serve::<D>(Scenario::ServeBriefly).await;
        let at_least = Instant::now() + BRIEFLY + DATABASE;
        terminate(&site, &child).await;
        if released(site, child, at_least, tries_left).await {
            return;
        }
    }
}

/// The second signal cuts it short although the database does not answer. Others have to wait for the leases.
async fn twice_without_an_answer<D: Database>() {
    let (site, child) = serve::<D>(Scenario::Serve).await;
    let mut tx = site.store().begin_foreign().await;
    D::Store::lock(&mut tx).await;
    terminate(&site, &child).await;
    send(&child);
    let status = timeout(SOON, exit_status(child)).await.expect("it waits for the database");
    assert_eq!(status, ABANDONED);
    drop(tx);
    site.wait_for_leases().await;
    delivered_again(&site).await;
}

/// Fails unless everything was given back. False if the database had no time for it, and it is to be tried again; then it must have had
/// until that moment.
async fn released<D: Database>(site: Site<D>, child: Child, at_least: Instant, tries_left: u32) -> bool {
    let status = exit_status(child).await;
    assert_eq!(site.destination.received(), site.ids[..1]);
    if status == ABANDONED && tries_left > 0 {
        assert!(Instant::now() >= at_least, "it did not wait for the database");
        site.wait_for_leases().await;
        delivered_again(&site).await;
        return false;
    }
    assert_eq!(status, RELEASED);
    assert_stand(&site, Status::New).await;
    delivered_again(&site).await;
    true
}

async fn delivered_again<D: Database>(site: &Site<D>) {
    site.recover().await;
    assert_stand(site, Status::Done).await;
    let received = site.destination.received();
    let times = |id: &String| received.iter().filter(|received| *received == id).count();
    assert_eq!(site.ids.iter().map(times).collect::<Vec<_>>(), [2, 1, 1]);
}

/// Fails unless all rows have that status, no failed attempt and no lease.
async fn assert_stand<D: Database>(site: &Site<D>, status: Status) {
    for id in &site.ids {
        let state = site.record(id).await.state;
        assert_eq!((state.status, state.attempts, state.lease), (status, 0, None), "{id}");
    }
}

macro_rules! tests_on {
    ($database:ty) => {
        use super::*;

        #[tokio::test]
        async fn told_once_it_drains() {
            once::<$database>().await;
        }

        #[tokio::test]
        async fn told_twice_it_gives_back() {
            twice::<$database>(Scenario::Serve).await;
        }

        #[tokio::test]
        async fn told_twice_it_gives_back_what_it_claimed() {
            twice::<$database>(Scenario::ServeOthers).await;
        }

        #[tokio::test]
        async fn told_twice_it_does_not_wait_for_the_database() {
            twice_without_an_answer::<$database>().await;
        }

        #[tokio::test]
        async fn told_once_it_gives_back_what_takes_too_long() {
            once_and_too_slow::<$database>().await;
        }
    };
}

mod on_mariadb {
    tests_on!(MariaDbFixture);
}

mod on_postgres {
    tests_on!(PgFixture);
}

mod on_sqlite {
    tests_on!(SqliteFixture);
}
