//! Faults 1 and 2: a process is killed at a point, and others go on.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;

use posthaste_conformance::{MariaDbFixture, PgFixture, SqliteFixture};
use posthaste_core::kill::{POINTS, VARIABLE, last_words};
use posthaste_core::{Status, Timestamp};
use rustix::process::Signal;

use super::ledger::Ledger;
use super::site::{Database, Left, Site};
use super::victim::Scenario;

/// Kills a process at the point and looks at what it has left; then lets another go on from there.
async fn killed<D: Database>(point: &str, scenario: Scenario, left: Left) {
    let site = Site::<D>::new(scenario).await;
    kill(&site, point).await;
    site.assert_left(left, &site.ids).await;
    if left.is_leased() {
        site.wait_for_leases().await;
    }
    site.recover().await;
    site.assert_recovered(left, &site.ids).await;
}

/// The same in an outbox with order. Nothing is left leased but lanes, which run out.
async fn killed_in_order<D: Database>(point: &str, scenario: Scenario, left: Left) {
    let site = Site::<D>::new(scenario).await;
    kill(&site, point).await;
    site.assert_left(left, &site.ids).await;
    site.wait_for_leases().await;
    site.recover().await;
    site.assert_recovered(left, &site.ids).await;
    let received = site.destination.received();
    assert!(received.starts_with(&site.ids), "out of order: {received:?}");
}

async fn kill<D: Database>(site: &Site<D>, point: &str) {
    let output = site.play(&[(VARIABLE, point)]).await;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let by = output.status.signal();
    assert_eq!(by, Some(Signal::KILL.as_raw()), "{}\n{stdout}\n{stderr}", output.status);
    assert!(stderr.lines().any(|line| line == last_words(point)), "{stderr}");
}

/// One of the rows is no event. It becomes DEAD, before or after the end of the process.
async fn killed_burying<D: Database>(point: &str, buried: bool) {
    let site = Site::<D>::new(Scenario::Relay).await;
    let (malformed, events) = site.ids.split_last().unwrap();
    site.damage(malformed).await;
    kill(&site, point).await;
    site.assert_left(Left::Leased, events).await;
    assert_eq!(site.record(malformed).await.state.status == Status::Dead, buried);
    site.wait_for_leases().await;
    site.recover().await;
    site.assert_recovered(Left::Leased, events).await;
    let error = site.record(malformed).await.state.last_error.unwrap();
    assert!(error.starts_with("undecodable"), "{error}");
}

/// The listener is still at it when leases are renewed.
async fn killed_renewing<D: Database>(point: &str, renewed: bool) {
    let site = Site::<D>::new(Scenario::Hang).await;
    kill(&site, point).await;
    site.assert_left(Left::Published, &site.ids).await;
    for id in &site.ids {
        let state = site.record(id).await.state;
        let leased_at = state.lease.unwrap().1;
        assert_eq!(leased_at > later(state.created_at), renewed, "{id} of {} leased at {leased_at}", state.created_at);
    }
    site.wait_for_leases().await;
    site.recover().await;
    site.assert_recovered(Left::Published, &site.ids).await;
}

/// After an insert, and before the first renewal.
fn later(created_at: Timestamp) -> Timestamp {
    created_at + std::time::Duration::from_millis(50)
}

/// Making the table goes on where it ended, or from the beginning.
async fn killed_migrating<D: Database>(point: &str) {
    let site = Site::<D>::new(Scenario::Migrate).await;
    kill(&site, point).await;
    site.store().create().await;
    site.recover().await;
    site.assert_recovered(Left::Nothing, &site.ids).await;
}

/// Makes a test of each point, and a list of the points that have one.
macro_rules! points {
    ($database:ty; $($name:ident: $point:literal, $function:ident($($argument:expr),*);)+) => {
        pub(super) const TESTED: &[&str] = &[$($point),+];

        $(
            #[tokio::test]
            async fn $name() {
                $function::<$database>($point, $($argument),*).await;
            }
        )+
    };
}

/// The points that a process passes on any database, and those that are this one's own.
macro_rules! points_of {
    ($database:ty; $($own:tt)*) => {
        use super::*;
        use Left::*;
        use Scenario::*;

        points! { $database;
            at_migrate_before: "migrate.before", killed_migrating();
            at_migrate_after: "migrate.after", killed_migrating();

            at_start_before: "start.before", killed(Write, Nothing);
            at_take_over_before: "take_over.before", killed(TakeOver, Leased);
            at_take_over_after: "take_over.after", killed(TakeOver, Free);

            at_begin_after: "begin.after", killed(Write, Nothing);
            at_insert_before: "insert.before", killed(Write, Nothing);
            at_insert_after: "insert.after", killed(Write, Nothing);
            at_commit_before: "commit.before", killed(Write, Nothing);
            at_commit_after: "commit.after", killed(Write, Leased);
            at_insert_before_of_a_foreign_transaction: "insert.before", killed(WriteForeign, Nothing);
            at_insert_after_of_a_foreign_transaction: "insert.after", killed(WriteForeign, Nothing);
            at_commit_after_of_a_foreign_transaction: "commit.after", killed(WriteForeign, Leased);
            at_hot_enqueued: "hot.enqueued", killed(Write, Leased);

            at_claim_before: "claim.before", killed(Relay, Free);
            at_claim_after: "claim.after", killed(Relay, Leased);
            at_cold_enqueued: "cold.enqueued", killed(Relay, Leased);
            at_bury_before: "bury.before", killed_burying(false);
            at_bury_after: "bury.after", killed_burying(true);
            at_refuse_before: "refuse.before", killed(Refuse, Leased);
            at_refuse_after: "refuse.after", killed(Refuse, Free);

            at_listener_before: "listener.before", killed(Write, Leased);
            at_listener_before_of_a_cold_event: "listener.before", killed(Relay, Leased);
            at_listener_after: "listener.after", killed(Write, Published);
            at_listener_after_of_a_cold_event: "listener.after", killed(Relay, Published);
            at_settle_before: "settle.before", killed(Write, Published);
            at_settle_after: "settle.after", killed(Write, Done);
            at_settle_after_of_a_cold_event: "settle.after", killed(Relay, Done);
            at_renew_before: "renew.before", killed_renewing(false);
            at_renew_after: "renew.after", killed_renewing(true);
            at_handback_before: "handback.before", killed(Forget, Leased);
            at_handback_after: "handback.after", killed(Forget, Free);

            at_lease_before: "lease.before", killed_in_order(Order, Free);
            at_lease_after: "lease.after", killed_in_order(Order, Free);
            at_read_before: "read.before", killed_in_order(Order, Free);
            at_read_after: "read.after", killed_in_order(Order, Free);
            at_cold_enqueued_in_order: "cold.enqueued", killed_in_order(Order, Free);
            at_listener_before_in_order: "listener.before", killed_in_order(Order, Free);
            at_shutdown_settled_in_order: "shutdown.settled", killed_in_order(OrderAndShutDown, Done);
            at_give_back_before: "give_back.before", killed_in_order(OrderAndShutDown, Done);
            at_give_back_after: "give_back.after", killed_in_order(OrderAndShutDown, Done);

            at_shutdown_before: "shutdown.before", killed(ShutDown, Leased);
            at_shutdown_drained: "shutdown.drained", killed(ShutDown, Settling);
            at_shutdown_settled: "shutdown.settled", killed(ShutDown, Done);
            at_shutdown_after: "shutdown.after", killed(ShutDown, Done);
            at_shutdown_before_in_a_hurry: "shutdown.before", killed(ShutDownNow, Published);
            at_release_before: "release.before", killed(ShutDownNow, Published);
            at_release_after: "release.after", killed(ShutDownNow, Released);
            at_shutdown_after_in_a_hurry: "shutdown.after", killed(ShutDownNow, Released);

            $($own)*
        }
    };
}

mod on_mariadb {
    points_of! { MariaDbFixture;
        at_insert_between: "insert.between", killed(Write, Nothing);
        at_claim_locked: "claim.locked", killed(Relay, Free);
        at_claim_leased: "claim.leased", killed(Relay, Free);
        at_settle_between: "settle.between", killed(Fail, Published);
        at_settle_applied: "settle.applied", killed(Fail, Published);
        at_renew_applied: "renew.applied", killed_renewing(false);
    }
}

mod on_postgres {
    points_of! { PgFixture;
        at_insert_between: "insert.between", killed(WriteMany, Nothing);
    }
}

mod on_sqlite {
    points_of! { SqliteFixture;
        at_insert_between: "insert.between", killed(Write, Nothing);
        at_settle_between: "settle.between", killed(Fail, Published);
        at_settle_applied: "settle.applied", killed(Fail, Published);
    }
}

#[test]
fn every_point_has_a_test() {
    let tested: BTreeSet<_> =
        [on_mariadb::TESTED, on_postgres::TESTED, on_sqlite::TESTED].concat().into_iter().collect();
    assert_eq!(tested, POINTS.iter().copied().collect());
}

#[tokio::test]
async fn an_unknown_point_is_an_error_that_lists_the_points() {
    let site = Site::<SqliteFixture>::new(Scenario::Write).await;
    let output = site.play(&[(VARIABLE, "commit.aftr")]).await;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(POINTS.iter().all(|point| stderr.contains(point)), "{stderr}");
}
