//! Lanes: how a table is prepared for them, what is walked, and who waits for whom.

use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_core::Event;
use posthaste_core::store::{
    Action, AdminStore, Error, Lane, LaneLease, LaneRow, LaneRows, LaneSettlement, LaneStore, ReadLane, ReadLanes,
    RelayStore, Settled,
};
use posthaste_sql::MySqlStore;
use sqlx::Executor;

use super::{Database, execute, until_waiting};
use crate::support::write;

const LEASE: Duration = Duration::from_secs(300);
const ALL: usize = 1000;

fn event(id: &str, order: &str) -> Event {
    Event::builder("OrderPlaced").id(id).aggregate("Order", order).json_text("{}").build().unwrap()
}

fn lanes(store: &MySqlStore) -> Arc<dyn LaneStore> {
    store.lanes().unwrap()
}

async fn leased(store: &MySqlStore, owner: &str) -> Vec<LaneLease> {
    lanes(store).lease_lanes(owner, ALL, LEASE).await.unwrap()
}

fn read_of(owner: &str, leases: &[LaneLease], limit: usize) -> ReadLanes {
    let parts = leases.iter().map(|lease| ReadLane { lease: *lease, after: 0, until: None, limit, key: None });
    let (parts, in_hand, passed) = (parts.collect(), Vec::new(), Vec::new());
    ReadLanes { owner: owner.into(), parts, in_hand, passed, lease_duration: LEASE }
}

/// What is pending in lanes, so many of each.
async fn read(store: &MySqlStore, owner: &str, leases: &[LaneLease], limit: usize) -> LaneRows {
    lanes(store).read_lanes(&read_of(owner, leases, limit)).await.unwrap()
}

fn done(leases: &[LaneLease], row: &LaneRow) -> LaneSettlement {
    LaneSettlement {
        lease: *leases.iter().find(|lease| lease.lane == row.lane).unwrap(),
        seq: row.seq,
        id: row.row.as_ref().unwrap().event.id().clone(),
        action: Action::Done,
        closes: false,
    }
}

#[tokio::test]
async fn what_was_interrupted_half_way_is_completed() {
    let database = Database::new().await;
    let store = database.empty().await;
    let error = store.prepare_lanes().await.unwrap_err();
    assert!(matches!(error, Error::Schema { .. }) && error.to_string().contains("migrate()"), "{error}");
    store.migrate().await.unwrap();
    write(&store, [event("1", "7")]).await;
    for undo in [
        "ALTER TABLE outbox_event DROP INDEX outbox_event_lane_seq",
        "ALTER TABLE outbox_event DROP INDEX outbox_event_lane_seq, DROP COLUMN lane",
        "DELETE FROM outbox_event_lane",
        "DROP TABLE outbox_event_key",
    ] {
        store.prepare_lanes().await.unwrap();
        assert_eq!(lanes(&store).count_lanes().await.unwrap(), 16);
        execute(&store, undo).await;
    }
    store.prepare_lanes().await.unwrap();
    let mine = leased(&store, "a").await;
    let found = read(&store, "a", &mine, ALL).await;
    assert_eq!(found.rows.len(), 1);
    assert_eq!(lanes(&store).lane_of(&event("9", "7")), Some(found.rows[0].lane));
}

#[tokio::test]
async fn the_lane_of_an_event_is_that_of_its_row() {
    let database = Database::new().await;
    let store = database.store().await;
    store.prepare_lanes().await.unwrap();
    let mut events: Vec<_> =
        ["x", "7", "Łódź", "\u{1f600}", "with space "].map(|id| event(&format!("of {id}"), id)).into();
    events.push(Event::builder("Happened").id("alone").json_text("{}").build().unwrap());
    write(&store, events.clone()).await;
    let mine = leased(&store, "a").await;
    let found = read(&store, "a", &mine, ALL).await;
    assert_eq!(found.rows.len(), events.len());
    for row in found.rows {
        assert_eq!(lanes(&store).lane_of(&row.row.unwrap().event), Some(row.lane));
    }
}

#[tokio::test]
async fn reads_walk_what_they_are_about() {
    let database = Database::new().await;
    let store = database.store_of_one().await;
    store.prepare_lanes().await.unwrap();
    let mine = leased(&store, "a").await;
    for round in 0..20 {
        write(&store, (0..500).map(|n| event(&format!("{round} {n}"), &n.to_string()))).await;
    }
    execute(&store, "UPDATE outbox_event SET status = 1, done_at = UTC_TIMESTAMP(6) WHERE seq <= 5000").await;
    let walked = async || {
        let read: Vec<(String, String)> =
            sqlx::query_as("SHOW SESSION STATUS LIKE 'Handler\\_read\\_%'").fetch_all(store.pool()).await.unwrap();
        read.iter().map(|(_, count)| count.parse::<u64>().unwrap()).sum::<u64>()
    };
    read(&store, "a", &mine, 10).await;
    let before = walked().await;
    let found = read(&store, "a", &mine, 10).await;
    assert_eq!(found.rows.len(), 160);
    let after = walked().await;
    // Numbers twice, and rows; SHOW STATUS itself reads some.
    assert!(after - before < 1_500, "{} rows read for 160", after - before);
    // In hand, many of them, they are walked in the index alone and not taken twice.
    let in_hand: Vec<i64> =
        found.rows.iter().map(|row| row.seq).collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    let next = ReadLanes { in_hand: in_hand.clone(), ..read_of("a", &mine, 10) };
    let next = lanes(&store).read_lanes(&next).await.unwrap();
    assert_eq!(next.rows.len(), 160);
    assert!(next.rows.iter().all(|row| in_hand.binary_search(&row.seq).is_err()));
    assert!(next.open.iter().all(|writer| writer.0.starts_with("moment")), "{:?}", next.open);
}

#[tokio::test]
async fn a_settlement_under_way_is_passed_over_by_leases() {
    let database = Database::new().await;
    let store = database.store().await;
    store.prepare_lanes().await.unwrap();
    leased(&store, "a").await;
    execute(&store, "UPDATE outbox_event_lane SET until = '1970-01-01 00:00:00'").await;
    let mut settlement = database.connection().await;
    settlement.execute("BEGIN").await.unwrap();
    settlement.execute("SELECT * FROM outbox_event_lane WHERE lane = 5 LOCK IN SHARE MODE").await.unwrap();
    let theirs = leased(&store, "b").await;
    assert_eq!(theirs.len(), 15);
    assert!(theirs.iter().all(|lease| lease.lane != Lane(5)));
    settlement.execute("COMMIT").await.unwrap();
    assert_eq!(leased(&store, "b").await, [LaneLease { lane: Lane(5), epoch: 2 }]);
}

#[tokio::test]
async fn a_settlement_waits_for_a_lease_under_way_and_is_refused() {
    for commits in [true, false] {
        let database = Database::new().await;
        let store = database.store().await;
        store.prepare_lanes().await.unwrap();
        write(&store, [event("1", "7")]).await;
        let mine = leased(&store, "a").await;
        let found = read(&store, "a", &mine, ALL).await;
        let lane = found.rows[0].lane.0;
        let mut lease = database.connection().await;
        lease.execute("BEGIN").await.unwrap();
        let take = format!("UPDATE outbox_event_lane SET owner = 'b', epoch = epoch + 1 WHERE lane = {lane}");
        lease.execute(sqlx::AssertSqlSafe(take)).await.unwrap();
        let batch = vec![done(&mine, &found.rows[0])];
        let settling = tokio::spawn({
            let lanes = lanes(&store);
            async move { lanes.settle_in_lanes("a", &batch).await.unwrap() }
        });
        until_waiting(&database, 1).await;
        lease.execute(if commits { "COMMIT" } else { "ROLLBACK" }).await.unwrap();
        let settled = settling.await.unwrap();
        assert_eq!(settled, [if commits { Settled::Lost } else { Settled::Applied }]);
        assert_eq!(store.counts().await.unwrap().done, u64::from(!commits));
    }
}

#[tokio::test]
async fn a_writer_has_the_same_name_when_he_has_prepared_his_transaction() {
    let database = Database::new().await;
    let store = database.store().await;
    store.prepare_lanes().await.unwrap();
    let mine = leased(&store, "a").await;
    // Its name is known to the whole server.
    let prepared = format!("posthaste {:x}", fastrand::u64(..));
    let say = |what: &str| sqlx::raw_sql(sqlx::AssertSqlSafe(format!("XA {what} '{prepared}'")));
    let mut writer = database.connection().await;
    say("START").execute(&mut writer).await.unwrap();
    let insert = "INSERT INTO outbox_event (event_id, event_type, payload, aggregate_type, aggregate_id, available_at, created_at) \
                  VALUES ('prepared', 'X', '{}', 'Order', '7', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))";
    sqlx::raw_sql(insert).execute(&mut writer).await.unwrap();
    let open = async || {
        let open = read(&store, "a", &mine, ALL).await.open;
        open.into_iter().filter(|writer| !writer.0.starts_with("moment")).collect::<Vec<_>>()
    };
    let named = open().await;
    assert_eq!(named.len(), 1, "{named:?}");
    say("END").execute(&mut writer).await.unwrap();
    say("PREPARE").execute(&mut writer).await.unwrap();
    assert_eq!(open().await, named);
    write(&store, [event("next", "8")]).await;
    assert_eq!(open().await, named);
    assert_eq!(read(&store, "a", &mine, ALL).await.rows.len(), 1);
    say("COMMIT").execute(&mut writer).await.unwrap();
    assert_eq!(open().await, []);
    assert_eq!(read(&store, "a", &mine, ALL).await.rows.len(), 2);
}

#[tokio::test]
async fn a_read_stands_for_numbers_without_rows_for_a_while() {
    let database = Database::new().await;
    let store = database.store().await;
    store.prepare_lanes().await.unwrap();
    let mine = leased(&store, "a").await;
    assert_eq!(read(&store, "a", &mine, ALL).await.open, []);
    let mut first = LaneRows::default();
    for n in 0..20 {
        write(&store, [event(&n.to_string(), "7")]).await;
        let asked_at = Instant::now();
        first = read(&store, "a", &mine, ALL).await;
        // One that takes longer stands for nothing any more when it is back.
        if asked_at.elapsed() < Duration::from_millis(100) {
            break;
        }
    }
    assert_eq!(first.open.len(), 1);
    let in_hand = first.rows.iter().map(|row| row.seq).collect();
    let in_hand = ReadLanes { in_hand, ..read_of("a", &mine, ALL) };
    let again = async || lanes(&store).read_lanes(&in_hand).await.unwrap().open;
    tokio::time::sleep(Duration::from_millis(200)).await;
    // Nothing new was read since.
    assert_eq!(again().await, []);
}
