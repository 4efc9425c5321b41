//! `posthaste relay` in order: two of them, one of which is killed, read back by clients that are not ours.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::{Instant, sleep};

use crate::operations::{address, metrics};
use crate::place::{Place, Running};
use crate::relay::{jetstream, lines, postgres, unique, variable};

/// How many aggregates there are, and how many events of each are written at once.
const ORDERS: usize = 20;
const EVENTS: usize = 150;

/// How often so many are written, at most, until a relay is stopped while it has delivered some of them and not all.
const TRIES: usize = 20;

/// Longer than anything takes that is going to happen.
const PATIENCE: Duration = Duration::from_secs(90);

/// A shop in a database of its own, whose relays deliver in order.
struct Shop {
    here: Place,
    connection: PgConnection,
}

impl Shop {
    async fn open(destination: &str) -> Self {
        let url = postgres().await;
        let settings = format!(
            "[database]\nurl = \"env:SHOP_DATABASE\"\n[relay]\nordered = true\nlane_lease = \"2s\"\n{destination}\n\
             [[route]]\nname = \"orders\"\nmatch = {{ aggregate_type = \"Order\" }}\nto = \"orders\"\n"
        );
        let here = Place::with(&settings).variable("SHOP_DATABASE", &url);
        here.ok(&["migrate", "up", "--lanes", "--wake-trigger"]);
        Self { here, connection: PgConnection::connect(&url).await.unwrap() }
    }

    /// Writes the events with these numbers of so many orders, of each in the order of its numbers.
    async fn write(&mut self, orders: usize, numbers: std::ops::Range<usize>) {
        let insert = format!(
            "INSERT INTO outbox_event (event_id, event_type, aggregate_type, aggregate_id, payload) \
             SELECT 'order-' || k || '-' || n, 'Changed', 'Order', k::text AS aggregate, n::text AS payload \
             FROM generate_series({}, {}) AS n, generate_series(1, {orders}) AS k ORDER BY n, k",
            numbers.start,
            numbers.end - 1
        );
        sqlx::raw_sql(AssertSqlSafe(insert)).execute(&mut self.connection).await.unwrap();
    }

    async fn count(&mut self, what: &'static str) -> i64 {
        sqlx::query_scalar(what).fetch_one(&mut self.connection).await.unwrap()
    }

    async fn done(&mut self) -> usize {
        self.count("SELECT count(*) FROM outbox_event WHERE status = 1").await.try_into().unwrap()
    }

    async fn until_done(&mut self, count: usize) {
        let until = Instant::now() + PATIENCE;
        while self.done().await < count {
            assert!(Instant::now() < until, "not all are delivered: {} of {count}", self.done().await);
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Starts two relays, and waits until each has its lanes.
    async fn two_relays(&mut self) -> [Running; 2] {
        let mut relays = [self.here.start(&["relay"]), self.here.start(&["relay"])];
        relays.iter_mut().for_each(|relay| relay.says("delivering"));
        let until = Instant::now() + PATIENCE;
        while self.count("SELECT count(DISTINCT owner) FROM outbox_event_lane").await < 2 {
            assert!(Instant::now() < until, "one of them has no lanes");
            sleep(Duration::from_millis(20)).await;
        }
        relays
    }

    /// Two relays deliver, and one of them is killed in the middle of it. The other one takes its lanes over, and goes on with what it has
    /// left. Gives how many events each order has.
    async fn deliver_through_a_kill(&mut self) -> usize {
        let [killed, stays] = self.two_relays().await;
        let mut events = 0;
        let left = loop {
            assert!(events < EVENTS * TRIES, "it was never stopped in the middle of its work");
            let before = self.done().await;
            self.write(ORDERS, events..events + EVENTS).await;
            events += EVENTS;
            if let Some(left) = self.stop_in_the_middle(&killed, before).await {
                break left;
            }
        };
        killed.signal("-KILL");
        assert_eq!(killed.end().0, None, "a signal has ended it");
        self.until_done(ORDERS * events).await;
        for lane in left {
            let (owner, epoch) = self.holder(lane.lane).await;
            assert!(owner.is_some_and(|owner| stays.is_called(&owner)), "lane {} is not the other's", lane.lane);
            assert!(epoch > lane.epoch, "lane {} was not taken over", lane.lane);
        }
        stays.terminate();
        let (status, _, said) = stays.end();
        assert_eq!(status, Some(0), "{said}");
        events
    }

    /// Stops a relay as soon as more than so many events are done. Gives its lanes that have events left, of which it has delivered others;
    /// if there are none, it goes on.
    async fn stop_in_the_middle(&mut self, relay: &Running, before: usize) -> Option<Vec<Left>> {
        let until = Instant::now() + PATIENCE;
        while self.done().await <= before {
            assert!(Instant::now() < until, "nothing is delivered");
            sleep(Duration::from_millis(1)).await;
        }
        relay.signal("-STOP");
        // What it has sent to the server is carried out all the same.
        sleep(Duration::from_millis(100)).await;
        let lanes = "SELECT l.lane, l.epoch, l.owner, count(*) FILTER (WHERE e.status = 1), count(*) FILTER (WHERE e.status <> 1) \
                     FROM outbox_event AS e JOIN outbox_event_lane AS l \
                     ON l.lane = hashtextextended(e.aggregate_id COLLATE \"C\", 0) & 63 GROUP BY l.lane ORDER BY l.lane";
        let lanes: Vec<(i16, i64, Option<String>, i64, i64)> =
            sqlx::query_as(lanes).fetch_all(&mut self.connection).await.unwrap();
        let left = lanes.into_iter().filter_map(|(lane, epoch, owner, done, left)| {
            let in_the_middle = owner.is_some_and(|owner| relay.is_called(&owner)) && done > 0 && left > 0;
            in_the_middle.then_some(Left { lane, epoch })
        });
        let left: Vec<_> = left.collect();
        if left.is_empty() {
            relay.signal("-CONT");
            return None;
        }
        Some(left)
    }

    async fn holder(&mut self, lane: i16) -> (Option<String>, i64) {
        let query = sqlx::query_as("SELECT owner::text, epoch FROM outbox_event_lane WHERE lane = $1").bind(lane);
        query.fetch_one(&mut self.connection).await.unwrap()
    }
}

/// A lane in which events were left, under an epoch.
struct Left {
    lane: i16,
    epoch: i64,
}

/// Everything has arrived, and of each order the first time in the order of its numbers. What was under way when the relay was killed
/// may have come again.
fn assert_in_order(events: usize, arrived: impl Iterator<Item = (String, usize)>) {
    let mut orders: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (order, number) in arrived {
        let numbers = orders.entry(order).or_default();
        if !numbers.contains(&number) {
            numbers.push(number);
        }
    }
    assert_eq!(orders.len(), ORDERS);
    for (order, numbers) in orders {
        assert_eq!(numbers, (0..events).collect::<Vec<_>>(), "order {order}");
    }
}

fn number(value: &Value) -> usize {
    value.to_string().trim_matches('"').parse().unwrap_or_else(|_| panic!("{value}"))
}

fn to_nats(stream: &str) -> String {
    jetstream("add", &format!(r#"{{"name": "{stream}", "subjects": ["{stream}.>"]}}"#));
    let url = variable("POSTHASTE_TEST_NATS_URL");
    format!("[destination.orders]\ntype = \"nats\"\nurl = \"{url}\"\nto = \"{stream}.{{event_type}}\"\n")
}

#[tokio::test]
async fn nats_has_every_order_in_order_when_a_relay_is_killed() {
    let stream = unique("in-order");
    let mut shop = Shop::open(&to_nats(&stream)).await;
    let events = shop.deliver_through_a_kill().await;
    let stored = lines(&jetstream("read", &stream));
    assert_in_order(
        events,
        stored
            .iter()
            .map(|message| (message["headers"]["aggregate-id"].as_str().unwrap().to_owned(), number(&message["body"]))),
    );
}

#[tokio::test]
async fn a_file_has_every_order_in_order_when_a_relay_is_killed() {
    let mut shop = Shop::open("[destination.orders]\ntype = \"file\"\npath = \"out.ndjson\"\n").await;
    let events = shop.deliver_through_a_kill().await;
    let written = lines(&shop.here.read("out.ndjson"));
    assert_in_order(
        events,
        written.iter().map(|line| (line["key"].as_str().unwrap().to_owned(), number(&line["body"]))),
    );
}

/// Events of one order do not wait for each other's acknowledgement, also where the relay counts what its destinations say.
#[tokio::test]
async fn many_events_of_one_order_go_to_nats_at_once() {
    let stream = unique("at-once");
    let mut shop = Shop::open(&to_nats(&stream)).await;
    shop.write(1, 0..EVENTS).await;
    let mut relay = shop.here.start(&["relay"]);
    let address = address(&mut relay);
    shop.until_done(EVENTS).await;
    let told = metrics(address);
    let of = |name: &str| told.get(name).copied().unwrap_or_else(|| panic!("no {name} in {told:#?}"));
    let acknowledged = of(r#"posthaste_destination_events_total{destination="orders",outcome="acknowledged"}"#);
    let batches = of(r#"posthaste_destination_duration_seconds_count{destination="orders"}"#);
    assert_eq!(acknowledged, EVENTS as f64);
    assert!(batches <= EVENTS as f64 / 5.0, "{EVENTS} events in {batches} batches");
    relay.terminate();
    assert_eq!(relay.end().0, Some(0));
    let stored: Vec<_> = lines(&jetstream("read", &stream)).iter().map(|message| number(&message["body"])).collect();
    assert_eq!(stored, (0..EVENTS).collect::<Vec<_>>());
}
