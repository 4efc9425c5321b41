//! Lanes: how a table is prepared for them, what is walked, and who waits for whom.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::Event;
use posthaste_core::store::{
    Action, AdminStore, Error, Key, LaneLease, LaneRow, LaneRows, LaneSettlement, LaneStore, ReadLane, ReadLanes,
    RelayStore, Settled,
};
use posthaste_sql::{Partitions, PgStore};
use sqlx::Executor;

use super::support::{Database, eventually, sql, within, write};

const LEASE: Duration = Duration::from_secs(300);
const ALL: usize = 1000;

fn event(id: &str, order: &str) -> Event {
    Event::builder("OrderPlaced").id(id).aggregate("Order", order).json_text("{}").build().unwrap()
}

fn lanes(store: &PgStore) -> Arc<dyn LaneStore> {
    store.lanes().unwrap()
}

async fn leased(store: &PgStore, owner: &str) -> Vec<LaneLease> {
    lanes(store).lease_lanes(owner, ALL, LEASE).await.unwrap()
}

/// What is pending in lanes, so many of each.
async fn read(store: &PgStore, owner: &str, leases: &[LaneLease], limit: usize) -> LaneRows {
    let parts = leases.iter().map(|lease| ReadLane { lease: *lease, after: 0, until: None, limit, key: None });
    let (parts, in_hand, passed) = (parts.collect(), Vec::new(), Vec::new());
    let read = ReadLanes { owner: owner.into(), parts, in_hand, passed, lease_duration: LEASE };
    lanes(store).read_lanes(&read).await.unwrap()
}

/// Settlements of what was read.
fn settlements(leases: &[LaneLease], read: &LaneRows, action: &Action) -> Vec<LaneSettlement> {
    let settlement = |row: &posthaste_core::store::LaneRow| LaneSettlement {
        lease: *leases.iter().find(|lease| lease.lane == row.lane).unwrap(),
        seq: row.seq,
        id: row.row.as_ref().unwrap().event.id().clone(),
        action: action.clone(),
        closes: false,
    };
    read.rows.iter().map(settlement).collect()
}

async fn scalar<T>(store: &PgStore, query: &'static str) -> T
where
    T: Send + Unpin + for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    sqlx::query_scalar(query).fetch_one(store.pool()).await.unwrap()
}

/// How many relations of the outbox there are.
const RELATIONS: &str = "SELECT count(*) FROM pg_class WHERE relname LIKE 'outbox_event%'";

#[tokio::test]
async fn a_table_without_lanes_has_nothing_of_them() {
    let database = Database::new().await;
    let store = database.store().await;
    // The table, four indexes and the sequence; the table of pauses and its index.
    assert_eq!(scalar::<i64>(&store, RELATIONS).await, 8);
    assert!(lanes(&store).count_lanes().await.is_err());
    store.prepare_lanes().await.unwrap();
    store.prepare_lanes().await.unwrap();
    assert_eq!(scalar::<i64>(&store, RELATIONS).await, 16);
    let error = database.empty().await.with_table("another").unwrap().prepare_lanes().await.unwrap_err();
    assert!(matches!(error, Error::Schema { .. }) && error.to_string().contains("migrate()"), "{error}");
}

#[tokio::test]
async fn an_index_that_was_left_invalid_is_built_again() {
    let database = Database::new().await;
    let store = database.store().await;
    store.prepare_lanes().await.unwrap();
    let invalid = "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox_event_lane_seq'::regclass";
    sql(&store, invalid).await;
    let error = lanes(&store).count_lanes().await.unwrap_err().to_string();
    assert!(error.contains("not complete") && error.contains("prepare_lanes()"), "{error}");
    store.prepare_lanes().await.unwrap();
    assert_eq!(lanes(&store).count_lanes().await.unwrap(), 64);
    sql(&store, "DROP INDEX outbox_event_lane_seq").await;
    let error = lanes(&store).count_lanes().await.unwrap_err().to_string();
    assert!(error.contains("missing") && error.contains("prepare_lanes()"), "{error}");
}

#[tokio::test]
async fn the_sql_of_what_is_left_prepares_the_table() {
    let database = Database::new().await;
    let whole = database.empty().await.with_table("whole").unwrap();
    let parts = database.empty().await.with_table("parts").unwrap().partitioned(Partitions::daily());
    for (store, table) in [(whole, "whole"), (parts, "parts")] {
        store.migrate().await.unwrap();
        // Another store of the same table, which was not told of partitions.
        let store = PgStore::new(store.pool().clone()).with_table(table).unwrap();
        let invalid = format!("UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{table}_lane_seq'::regclass");
        for before in ["", &format!("DROP TABLE {table}_key"), &format!("DROP INDEX {table}_lane_seq"), &invalid] {
            sql(&store, before).await;
            let left = store.pending_lanes_sql().await.unwrap();
            for statement in left.split_inclusive(";\n") {
                sql(&store, statement).await;
            }
            assert_eq!(store.pending_lanes_sql().await.unwrap(), "", "after {before:?}");
            assert_eq!(lanes(&store).count_lanes().await.unwrap(), 64);
        }
        sql(&store, format!("DELETE FROM {table}_lane WHERE lane = 7")).await;
        let error = store.pending_lanes_sql().await.unwrap_err().to_string();
        assert!(error.contains("63 lanes"), "{error}");
    }
}

#[tokio::test]
async fn writers_go_on_while_the_index_is_built() {
    let database = Database::new().await;
    let store = database.store().await;
    let mut open = database.connection().await;
    open.execute("BEGIN; INSERT INTO outbox_event (event_id, event_type, payload) VALUES ('open', 'X', '{}')")
        .await
        .unwrap();
    let two = [store.clone(), store.clone()].map(|store| tokio::spawn(async move { store.prepare_lanes().await }));
    // One of them waits for the transaction that is open, the other one for the first.
    eventually("the index is being built", async || {
        database.backends("state = 'active' AND query LIKE 'CREATE INDEX CONCURRENTLY%'").await == 1
    })
    .await;
    within("a writer writes", write(&store, [event("beside", "7")])).await;
    open.execute("COMMIT").await.unwrap();
    for prepared in two {
        within("it is prepared", prepared).await.unwrap().unwrap();
    }
    let mine = leased(&store, "a").await;
    assert_eq!(read(&store, "a", &mine, ALL).await.rows.len(), 2);
}

#[tokio::test]
async fn partitions_have_a_part_of_the_index_each_also_those_to_come() {
    let database = Database::new().await;
    let store = database.empty().await.partitioned(Partitions::daily().ahead(1));
    store.migrate().await.unwrap();
    write(&store, [event("1", "7"), event("2", "8")]).await;
    // What an earlier attempt has left: the whole, a part that is not complete, and one that is not attached.
    sql(
        &store,
        "CREATE INDEX outbox_event_lane_seq ON ONLY outbox_event \
         ((hashtextextended(coalesce(aggregate_id, event_id) COLLATE \"C\", 0) & 63), seq) WHERE status NOT IN (1, 3); \
         CREATE INDEX half ON outbox_event_default \
         ((hashtextextended(coalesce(aggregate_id, event_id) COLLATE \"C\", 0) & 63), seq) WHERE status NOT IN (1, 3); \
         UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'half'::regclass",
    )
    .await;
    assert!(lanes(&store).count_lanes().await.unwrap_err().to_string().contains("not complete"));
    store.prepare_lanes().await.unwrap();
    assert_eq!(lanes(&store).count_lanes().await.unwrap(), 64);
    let parts = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox_event_lane_seq'::regclass";
    let whole = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox_event'::regclass";
    assert_eq!(scalar::<i64>(&store, parts).await, 3);
    let more = store.clone().partitioned(Partitions::daily().ahead(4));
    more.maintain_partitions().await.unwrap();
    assert_eq!((scalar::<i64>(&store, parts).await, scalar::<i64>(&store, whole).await), (6, 6));
    assert_eq!(lanes(&store).count_lanes().await.unwrap(), 64);
    let mine = leased(&store, "a").await;
    assert_eq!(read(&store, "a", &mine, ALL).await.rows.len(), 2);
}

#[tokio::test]
async fn reads_and_settlements_walk_what_they_are_about_with_the_plans_of_an_empty_table_and_without_statistics() {
    for (analyzed, partitioned) in [(false, false), (true, false), (false, true)] {
        let database = Database::new().await;
        // One connection, so that plans would be kept on it, and figures are complete.
        let store = database.store_with(sqlx::postgres::PgPoolOptions::new().max_connections(1)).await;
        let store = if partitioned { store.partitioned(Partitions::daily()) } else { store };
        store.migrate().await.unwrap();
        // Preparing takes one more.
        database.empty().await.prepare_lanes().await.unwrap();
        sql(&store, "ALTER TABLE outbox_event_lane SET (autovacuum_enabled = false)").await;
        let mine = leased(&store, "a").await;
        for round in 0..10 {
            write(&store, [event(&format!("first {round}"), "7"), event(&format!("second {round}"), "8")]).await;
            let found = read(&store, "a", &mine, ALL).await;
            let mut settlements = settlements(&mine, &found, &Action::Done);
            if round % 2 == 0 {
                settlements[0].action = Action::Dead { error: "no".into(), counts: true };
            }
            lanes(&store).settle_in_lanes("a", &settlements).await.unwrap();
        }
        if analyzed {
            sql(&store, "VACUUM ANALYZE outbox_event").await;
        }
        // Beside what is done, and many pending rows of which a read wants few.
        for (status, count) in [(1, 50_000), (0, 20_000)] {
            sql(
                &store,
                format!(
                    "INSERT INTO outbox_event (event_id, event_type, aggregate_type, aggregate_id, payload, status, done_at) \
                     SELECT '{status} ' || n, 'X', 'Order', n % 500, '{{}}', {status}, now() \
                     FROM generate_series(1, {count}) AS n"
                ),
            )
            .await;
        }
        let before = walked(&store).await;
        let found = read(&store, "a", &mine, 10).await;
        assert_eq!(found.rows.len(), 640);
        let read_walked = walked(&store).await;
        assert!(
            read_walked.0 - before.0 <= 700,
            "{} rows walked for 640, {analyzed} {partitioned}",
            read_walked.0 - before.0
        );
        assert!(read_walked.1 - before.1 >= 64, "the index was not used, {analyzed} {partitioned}");
        let mut batch = settlements(&mine, &found, &Action::Done);
        let rest = batch.split_off(320);
        assert_eq!(lanes(&store).settle_in_lanes("a", &batch).await.unwrap(), [Settled::Applied; 320]);
        batch = rest;
        batch[7].action = Action::Retry { delay: Duration::from_secs(3600), error: "no".into() };
        assert_eq!(lanes(&store).settle_in_lanes("a", &batch).await.unwrap(), [Settled::Applied; 320]);
        let settle_walked = walked(&store).await.0 - read_walked.0;
        assert!(settle_walked <= 2_000, "{settle_walked} rows walked for 640, {analyzed} {partitioned}");
        assert_eq!(store.counts().await.unwrap().retry, 1);
    }
}

/// How many rows the server has looked at, and how often it began to search in the index of lanes.
async fn walked(store: &PgStore) -> (i64, i64) {
    sql(store, "SELECT pg_stat_force_next_flush()").await;
    let rows = "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables \
                WHERE relname = 'outbox_event' OR relname LIKE 'outbox_event_p%' OR relname = 'outbox_event_default'";
    let scans = "SELECT coalesce(sum(idx_scan), 0)::bigint FROM pg_stat_user_indexes AS s \
                 JOIN pg_index AS i USING (indexrelid) \
                 WHERE pg_get_indexdef(i.indexrelid) LIKE '%hashtextextended%'";
    (scalar(store, rows).await, scalar(store, scans).await)
}

#[tokio::test]
async fn a_settlement_under_way_is_passed_over_by_leases_and_holds_no_renewal_up() {
    let database = Database::new().await;
    let store = database.store().await;
    store.prepare_lanes().await.unwrap();
    let mine = leased(&store, "a").await;
    sql(&store, "UPDATE outbox_event_lane SET until = '-infinity'").await;
    let mut settlement = database.connection().await;
    settlement.execute("BEGIN; SELECT FROM outbox_event_lane WHERE lane = 5 FOR KEY SHARE").await.unwrap();
    let theirs = within("others lease", leased(&store, "b")).await;
    assert_eq!(theirs.len(), 63);
    assert!(theirs.iter().all(|lease| lease.lane.0 != 5));
    let renewed = within("it is renewed", lanes(&store).renew_lanes("a", &mine, LEASE)).await.unwrap();
    assert_eq!(renewed.held.iter().filter(|held| **held).count(), 1);
    sql(&store, "UPDATE outbox_event_lane SET until = '-infinity' WHERE lane = 5").await;
    settlement.execute("COMMIT").await.unwrap();
    assert_eq!(leased(&store, "b").await, [LaneLease { lane: posthaste_core::store::Lane(5), epoch: 2 }]);
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
        let take = format!(
            "BEGIN; SELECT FROM outbox_event_lane WHERE lane = {lane} FOR UPDATE; \
             UPDATE outbox_event_lane SET owner = 'b', epoch = epoch + 1 WHERE lane = {lane}"
        );
        lease.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(take))).await.unwrap();
        let batch = settlements(&mine, &found, &Action::Done);
        let settling = tokio::spawn({
            let lanes = lanes(&store);
            async move { lanes.settle_in_lanes("a", &batch).await.unwrap() }
        });
        eventually("it waits", async || database.backends("wait_event_type = 'Lock'").await == 1).await;
        lease.execute(if commits { "COMMIT" } else { "ROLLBACK" }).await.unwrap();
        let settled = within("it is settled", settling).await.unwrap();
        assert_eq!(settled, [if commits { Settled::Lost } else { Settled::Applied }]);
        assert_eq!(store.counts().await.unwrap().done, u64::from(!commits));
    }
}

#[tokio::test]
async fn of_a_batch_with_a_lost_lane_the_rows_of_the_others_are_settled() {
    for deletes in [false, true] {
        let database = Database::new().await;
        let store = database.store().await;
        let store = if deletes { store.deleting_done() } else { store };
        store.prepare_lanes().await.unwrap();
        let events: Vec<_> = (0..1000).map(|n| event(&format!("{n}"), &format!("{}", n % 50))).collect();
        write(&store, events).await;
        let mine = leased(&store, "a").await;
        let found = read(&store, "a", &mine, ALL).await;
        assert_eq!(found.rows.len(), 1000);
        let lost = found.rows[0].lane;
        let take = format!("UPDATE outbox_event_lane SET owner = 'b', epoch = epoch + 1 WHERE lane = {}", lost.0);
        sql(&store, take).await;
        let mut batch = settlements(&mine, &found, &Action::Done);
        batch.sort_by_key(|settlement| settlement.seq);
        let settled = lanes(&store).settle_in_lanes("a", &batch).await.unwrap();
        let expected: Vec<_> = batch
            .iter()
            .map(|settlement| if settlement.lease.lane == lost { Settled::Lost } else { Settled::Applied })
            .collect();
        assert!(expected.contains(&Settled::Lost) && expected.contains(&Settled::Applied));
        assert_eq!(settled, expected);
        let pending = u64::try_from(expected.iter().filter(|settled| **settled == Settled::Lost).count()).unwrap();
        assert_eq!(store.counts().await.unwrap().new, pending);
    }
}

/// With so many in hand a read keeps its plan, which was made while there was a backlog.
#[tokio::test]
async fn a_read_of_a_backlog_keeps_its_plan_and_walks_what_it_brings() {
    let database = Database::new().await;
    let store = database.store_with(sqlx::postgres::PgPoolOptions::new().max_connections(1)).await;
    store.migrate().await.unwrap();
    database.empty().await.prepare_lanes().await.unwrap();
    let fill = "INSERT INTO outbox_event (event_id, event_type, aggregate_type, aggregate_id, payload) \
                SELECT clock_timestamp()::text || n, 'X', 'Order', n, '{}' FROM generate_series(1, 20000) AS n";
    sql(&store, fill).await;
    let mine = leased(&store, "a").await;
    let mut in_hand = Vec::new();
    for round in 0..12 {
        let parts = mine.iter().map(|lease| ReadLane { lease: *lease, after: 0, until: None, limit: 10, key: None });
        let before = walked(&store).await;
        let read = ReadLanes {
            owner: "a".into(),
            in_hand: in_hand.clone(),
            passed: Vec::new(),
            lease_duration: Duration::from_secs(15),
            parts: parts.collect(),
        };
        // A store that knows of no read before it: on a busy machine reads may be slow, and the plan would be left for that.
        let found = lanes(&PgStore::new(store.pool().clone())).read_lanes(&read).await.unwrap();
        assert_eq!(found.rows.len(), 640, "round {round}");
        assert!(found.rows.iter().all(|row| !in_hand.contains(&row.seq)));
        // Those in hand lie before them, and are walked over.
        let walked = walked(&store).await.0 - before.0;
        assert!(walked <= 700 + i64::try_from(in_hand.len()).unwrap(), "round {round}: {walked} rows walked");
        in_hand.extend(found.rows.iter().map(|row| row.seq));
        in_hand.sort_unstable();
    }
    let kept =
        "SELECT coalesce(sum(generic_plans), 0)::bigint FROM pg_prepared_statements WHERE statement LIKE 'WITH part%'";
    assert!(scalar::<i64>(&store, kept).await > 0, "no plan was kept");
}

/// Whatever stands still beside a backlog, also where it has the same ids: a read looks at none of the rows of closed keys but for those
/// whose hash is that of one by chance.
#[tokio::test]
async fn closed_keys_beside_a_backlog_are_not_walked() {
    for analyzed in [false, true] {
        let database = Database::new().await;
        let store = database.store_with(sqlx::postgres::PgPoolOptions::new().max_connections(1)).await;
        store.migrate().await.unwrap();
        database.empty().await.prepare_lanes().await.unwrap();
        let stuck = "INSERT INTO outbox_event_key (aggregate_type, aggregate_id, lane, state, head_seq, head_id, since) \
                     SELECT 'Stuck', n, hashtextextended(n::text COLLATE \"C\", 0) & 63, 2, -n, 'x' || n, now() \
                     FROM generate_series(1, 10000) AS n";
        sql(&store, stuck).await;
        let fill = "INSERT INTO outbox_event (event_id, event_type, aggregate_type, aggregate_id, payload) \
                    SELECT 'x' || n, 'X', 'Order', n % 10000 + 1, '{}' FROM generate_series(1, 20000) AS n";
        sql(&store, fill).await;
        if analyzed {
            sql(&store, "ANALYZE").await;
        }
        let mine = leased(&store, "a").await;
        let mut in_hand: Vec<i64> = (1_000_000..1_000_300).collect();
        // The first one also asks which keys are closed.
        for round in 0..9 {
            let parts =
                mine.iter().map(|lease| ReadLane { lease: *lease, after: 0, until: None, limit: 10, key: None });
            let read = ReadLanes {
                owner: "a".into(),
                in_hand: in_hand.clone(),
                passed: Vec::new(),
                lease_duration: Duration::from_secs(15),
                parts: parts.collect(),
            };
            let before = walked_keys(&store).await;
            let found = lanes(&store).read_lanes(&read).await.unwrap();
            assert_eq!(found.rows.len(), 640, "round {round}");
            let walked = walked_keys(&store).await - before;
            assert!(round == 0 || walked <= 64 + 64, "round {round}: {walked} keys walked, analyzed: {analyzed}");
            in_hand.extend(found.rows.iter().map(|row| row.seq));
            in_hand.sort_unstable();
        }
    }
}

/// How many closed keys the server has looked at or for.
async fn walked_keys(store: &PgStore) -> i64 {
    sql(store, "SELECT pg_stat_force_next_flush()").await;
    let rows = "SELECT (seq_tup_read + idx_tup_fetch + (SELECT idx_scan FROM pg_stat_user_indexes \
                WHERE indexrelname = 'outbox_event_key_pkey'))::bigint FROM pg_stat_user_tables \
                WHERE relname = 'outbox_event_key'";
    scalar(store, rows).await
}

/// Orders of one lane with two events each, and reads of what is pending of them with many rows in hand.
struct Backlog {
    store: PgStore,
    orders: Vec<String>,
    mine: Vec<LaneLease>,
}

impl Backlog {
    async fn new(database: &Database, orders: usize) -> Self {
        let store = database.store().await;
        store.prepare_lanes().await.unwrap();
        lanes(&store).count_lanes().await.unwrap();
        let lane = |order: &String| lanes(&store).lane_of(&event("x", order)).unwrap();
        let first = lane(&"0".to_owned());
        let all = (0..).map(|number: u32| number.to_string());
        let orders: Vec<_> = all.filter(|order| lane(order) == first).take(orders).collect();
        write(&store, orders.iter().flat_map(|order| [1, 2].map(|n| event(&format!("{order}-{n}"), order)))).await;
        Self { store, orders, mine: Vec::new() }
    }

    async fn lease(&mut self, owner: &str) {
        self.mine = leased(&self.store, owner).await;
    }

    fn key(&self, order: usize) -> Key {
        Key::of(&event("x", &self.orders[order])).unwrap()
    }

    /// The orders of what is pending, each as often as it has events, for a relay that has many rows in hand, though none of these.
    async fn pending_of_many(&self, owner: &str) -> Vec<usize> {
        self.pending(owner, (1_000_000..1_000_300).collect()).await
    }

    async fn pending(&self, owner: &str, in_hand: Vec<i64>) -> Vec<usize> {
        let all = |lease: &LaneLease| ReadLane { lease: *lease, after: 0, until: None, limit: ALL, key: None };
        let (parts, passed) = (self.mine.iter().map(all).collect(), Vec::new());
        let read = ReadLanes { owner: owner.into(), parts, in_hand, passed, lease_duration: LEASE };
        let found = lanes(&self.store).read_lanes(&read).await.unwrap();
        let order = |row: &LaneRow| {
            let order = row.row.as_ref().unwrap().event.aggregate_id().unwrap().to_owned();
            self.orders.iter().position(|other| *other == order).unwrap()
        };
        let mut orders: Vec<_> = found.rows.iter().map(order).collect();
        orders.sort_unstable();
        orders
    }

    /// Settles the first event of an order.
    async fn settle(&self, owner: &str, order: usize, action: &Action, closes: bool) -> LaneSettlement {
        let found = read(&self.store, owner, &self.mine, ALL).await;
        let mut settlements = settlements(&self.mine, &found, action);
        settlements.retain(|settlement| settlement.id.as_str() == format!("{}-1", self.orders[order]));
        settlements[0].closes = closes;
        let settled = lanes(&self.store).settle_in_lanes(owner, &settlements).await.unwrap();
        assert_eq!(settled, [Settled::Applied]);
        settlements.remove(0)
    }

    /// Has the first event of an order be DEAD, and the order closed.
    async fn close(&self, owner: &str, order: usize) {
        self.settle(owner, order, &Action::Dead { error: "it is dead".into(), counts: true }, true).await;
    }

    /// Whether reads of many rows look only for orders that may be closed, as they know it: then they miss the last one, which is closed
    /// here by a hand that must not, and which others see.
    async fn looks_for_few(&self, owner: &str) -> bool {
        let last = self.orders.len() - 1;
        self.pending_of_many(owner).await;
        let by_hand = format!(
            "INSERT INTO outbox_event_key (aggregate_type, aggregate_id, lane, state, head_seq, head_id, since) \
             SELECT 'Order', '{0}', hashtextextended('{0}' COLLATE \"C\", 0) & 63, 2, 1, 'x', clock_timestamp()",
            self.orders[last]
        );
        sql(&self.store, by_hand).await;
        assert!(!self.pending(owner, Vec::new()).await.contains(&last), "of few rows each is looked for");
        let looks_for_few = self.pending_of_many(owner).await.contains(&last);
        sql(&self.store, format!("DELETE FROM outbox_event_key WHERE aggregate_id = '{}'", self.orders[last])).await;
        looks_for_few
    }
}

/// Keys that were closed under the lease, or before it, are known, and others are not looked for. What an operator does is seen at once.
#[tokio::test]
async fn a_read_of_many_rows_leaves_closed_keys_out_and_does_not_look_for_others() {
    let database = Database::new().await;
    let mut backlog = Backlog::new(&database, 4).await;
    backlog.lease("a").await;
    backlog.close("a", 0).await;
    lanes(&backlog.store).give_back_lanes("a", &backlog.mine).await.unwrap();

    backlog.lease("b").await;
    assert_eq!(backlog.pending_of_many("b").await, [1, 1, 2, 2, 3, 3]);
    assert!(backlog.looks_for_few("b").await);
    assert_eq!(backlog.pending_of_many("b").await, [1, 1, 2, 2, 3, 3]);
    // It is not known for a while what else may be closed.
    backlog.close("b", 1).await;
    assert_eq!(backlog.pending_of_many("b").await, [2, 2, 3, 3]);
    // It is asked again after a second, and not while a hand has closed another one, which would be known then.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(backlog.looks_for_few("b").await, "it is known again");
    assert_eq!(backlog.pending_of_many("b").await, [2, 2, 3, 3]);

    let lease =
        *backlog.mine.iter().find(|lease| Some(lease.lane) == lanes(&backlog.store).lane_of(&event("x", "0"))).unwrap();
    assert!(backlog.store.release_key(&backlog.key(0), &posthaste_core::EventId::from_row("0-1")).await.unwrap());
    assert_eq!(backlog.pending_of_many("b").await, [2, 2, 3, 3], "its relay has to know first where to begin");
    lanes(&backlog.store).forget_keys("b", &[(lease, backlog.key(0))]).await.unwrap();
    assert_eq!(backlog.pending_of_many("b").await, [0, 0, 2, 2, 3, 3]);
    // Of an order that was not closed an operator gives up the first event, of which its relay has to hear, too.
    let retry = Action::Retry { delay: LEASE, error: "not yet".into() };
    let failed = backlog.settle("b", 2, &retry, false).await;
    assert!(backlog.looks_for_few("b").await);
    assert!(backlog.store.give_up_head(&backlog.key(2), &failed.id).await.unwrap());
    assert_eq!(backlog.pending_of_many("b").await, [0, 0, 3, 3]);
}

#[tokio::test]
async fn the_lane_of_an_event_is_that_of_its_row() {
    let database = Database::new().await;
    let store = database.store().await;
    store.prepare_lanes().await.unwrap();
    let mut events: Vec<_> = (1..40)
        .map(|n| "é1234567".repeat(16).chars().take(n).collect::<String>())
        .map(|id| event(&format!("of {}", id.len()), &id))
        .collect();
    events.push(Event::builder("Happened").id("alone").json_text("{}").build().unwrap());
    write(&store, events.clone()).await;
    let mine = leased(&store, "a").await;
    let found = read(&store, "a", &mine, ALL).await;
    assert_eq!(found.rows.len(), events.len());
    assert_eq!(lanes(&store).lane_of(&events[0]), None, "nobody has asked the server yet");
    lanes(&store).count_lanes().await.unwrap();
    for row in found.rows {
        assert_eq!(lanes(&store).lane_of(&row.row.unwrap().event), Some(row.lane));
    }
}

#[tokio::test]
async fn a_writer_has_the_same_name_when_he_has_prepared_his_transaction() {
    let database = Database::new().await;
    let store = database.store().await;
    store.prepare_lanes().await.unwrap();
    let mine = leased(&store, "a").await;
    let mut writer = database.connection().await;
    writer
        .execute("BEGIN; INSERT INTO outbox_event (event_id, event_type, payload) VALUES ('prepared', 'X', '{}')")
        .await
        .unwrap();
    let open = async || read(&store, "a", &mine, ALL).await.open;
    let named = open().await;
    assert_eq!(named.len(), 1, "{named:?}");
    // Its name is known to the whole server.
    let prepared = scalar::<String>(&store, "SELECT current_database()::text").await;
    let say = |what: &str| sqlx::AssertSqlSafe(format!("{what} '{prepared}'"));
    writer.execute(say("PREPARE TRANSACTION")).await.unwrap();
    assert_eq!(open().await, named);
    // The connection goes on with another one, or ends.
    writer
        .execute("BEGIN; INSERT INTO outbox_event (event_id, event_type, payload) VALUES ('next', 'X', '{}')")
        .await
        .unwrap();
    let both = open().await;
    assert!(both.len() == 2 && both.contains(&named[0]), "{both:?}");
    writer.execute("COMMIT").await.unwrap();
    drop(writer);
    assert_eq!(open().await, named);
    let found = read(&store, "a", &mine, ALL).await;
    assert_eq!(found.rows.len(), 1);
    let mut other = database.connection().await;
    other.execute(say("COMMIT PREPARED")).await.unwrap();
    let found = read(&store, "a", &mine, ALL).await;
    assert_eq!((found.rows.len(), found.open), (2, Vec::new()));
}

#[tokio::test]
async fn every_writer_that_is_open_is_named_and_nobody_else() {
    let database = Database::new().await;
    let store = database.store().await;
    store.prepare_lanes().await.unwrap();
    let mine = leased(&store, "a").await;
    let mut connections = Vec::new();
    for n in 0..3 {
        let mut connection = database.connection().await;
        let insert = format!(
            "BEGIN; SAVEPOINT s; INSERT INTO outbox_event (event_id, event_type, payload) VALUES ('{n}', 'X', '{{}}')"
        );
        connection.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(insert))).await.unwrap();
        connections.push(connection);
    }
    // Who only reads, or settles, or writes elsewhere, brings nothing.
    let mut reader = database.connection().await;
    reader
        .execute(
            "CREATE TABLE orders (id INTEGER); BEGIN; SELECT FROM outbox_event; INSERT INTO orders VALUES (1); \
             UPDATE outbox_event SET status = 1 WHERE seq = 0",
        )
        .await
        .unwrap();
    let open = async || read(&store, "a", &mine, ALL).await.open;
    let named = open().await;
    assert_eq!(named.len(), 3, "{named:?}");
    // He has taken a number, and may yet bring another.
    connections[1].execute("ROLLBACK TO SAVEPOINT s").await.unwrap();
    assert_eq!(open().await.len(), 3);
    connections[1].execute("ROLLBACK").await.unwrap();
    assert_eq!(open().await.len(), 2);
    connections[2].execute("COMMIT").await.unwrap();
    let left = open().await;
    assert_eq!(left.len(), 1);
    assert!(named.contains(&left[0]));
}
