//! Part G: order within an aggregate, by lanes.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::listener::{Delivery, OfOneKey, batch};
use posthaste_core::outbox::StartError;
use posthaste_core::store::{AdminStore, Key, Redrive, Store, WriteStore};
use posthaste_core::{
    Event, Failure, Listener, OnDead, Options, Ordered, Outbox, OutboxBuilder, Outcome, Status, Verdict,
};

use crate::fixture::Lanes;
use crate::meter::Meter;
use crate::rows::{counts, insert, state};
use crate::tap::Tap;
use crate::wait::{Gate, eventually, within};

/// A lease that is over soon enough to wait for, and long enough for a busy machine.
const LANE_LEASE: Duration = Duration::from_secs(3);

fn options() -> Options {
    let soon = Duration::from_millis(20);
    Options {
        lane_lease: LANE_LEASE,
        poll_interval: Duration::from_millis(100),
        retry_base: soon,
        retry_max: soon,
        retry_attempts: 2,
        ..Options::default()
    }
}

/// The event with that number of an order.
fn numbered(order: impl std::fmt::Display, number: u32) -> Event {
    let event = Event::builder("Changed").aggregate("Order", order.to_string()).header("number", number.to_string());
    event.json_text("{}").build().unwrap()
}

fn number_of(event: &Event) -> u32 {
    event.header("number").unwrap().parse().unwrap()
}

fn key(order: &str) -> Key {
    Key { aggregate_type: "Order".into(), aggregate_id: order.into() }
}

async fn ordered<S: Store>(
    store: S,
    options: Options,
    more: impl FnOnce(OutboxBuilder<S>) -> OutboxBuilder<S>,
) -> (Outbox<S>, Meter) {
    let meter = Meter::new();
    let builder = Outbox::builder(store).options(options).metrics(meter.clone()).ordered(Ordered::all());
    (more(builder).start().await.unwrap(), meter)
}

/// Writes events through an outbox, each in a transaction of its own, as those of one aggregate are.
async fn write_each<S: Store>(outbox: &Outbox<S>, events: impl IntoIterator<Item = Event>) {
    for event in events {
        let mut tx = outbox.begin().await.unwrap();
        tx.write(event).await.unwrap();
        tx.commit().await.unwrap();
    }
}

/// What the listeners of all relays have seen, in the order in which they saw it.
#[derive(Clone, Default)]
struct Course(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    /// Of each order, how often each number was begun, and which were acknowledged.
    begun: BTreeMap<String, BTreeMap<u32, u32>>,
    acknowledged: BTreeMap<String, BTreeSet<u32>>,
    wrong: Vec<String>,
}

impl Course {
    fn begins(&self, event: &Event) {
        let seen = &mut *self.0.lock().unwrap();
        let (order, number) = (event.aggregate_id().unwrap().to_owned(), number_of(event));
        *seen.begun.entry(order.clone()).or_default().entry(number).or_default() += 1;
        let acknowledged = seen.acknowledged.entry(order.clone()).or_default();
        // Numbers count from zero, so it is enough that as many were acknowledged.
        let before = acknowledged.range(..number).count();
        if before < number as usize {
            seen.wrong.push(format!("{number} of order {order} began when {before} were acknowledged"));
        }
    }

    fn acknowledges(&self, event: &Event) {
        let mut seen = self.0.lock().unwrap();
        seen.acknowledged.entry(event.aggregate_id().unwrap().to_owned()).or_default().insert(number_of(event));
    }

    /// A listener that is done with everything, after it has let others run.
    fn listener(
        &self,
    ) -> impl Fn(Delivery) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync + 'static {
        let course = self.clone();
        move |event| {
            let course = course.clone();
            Box::pin(async move {
                course.begins(&event);
                tokio::task::yield_now().await;
                course.acknowledges(&event);
            })
        }
    }

    /// How many were acknowledged at least once.
    fn acknowledged(&self) -> usize {
        self.0.lock().unwrap().acknowledged.values().map(BTreeSet::len).sum()
    }

    fn assert_in_order(&self) {
        let seen = self.0.lock().unwrap();
        assert!(seen.wrong.is_empty(), "out of order: {:#?}", seen.wrong);
    }

    fn assert_each_once(&self, count: usize) {
        let seen = self.0.lock().unwrap();
        let begun: Vec<_> = seen.begun.values().flatten().collect();
        assert_eq!(begun.len(), count);
        let twice: Vec<_> = begun.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "more than once: {twice:?}");
    }
}

async fn until_done<S: AdminStore>(store: &S, done: u64) {
    eventually("all are done", async || counts(store).await.done >= done).await;
}

/// Two relays with eight workers each, a thousand orders, writers in both: each event once, and those of an order in order.
pub async fn case_85_two_relays<F: Lanes>(fixture: F) {
    const ORDERS: u32 = 1000;
    let course = Course::default();
    let first: Vec<_> = (0..3).flat_map(|number| (0..ORDERS).map(move |order| numbered(order, number))).collect();
    for events in first.chunks(500) {
        insert(&fixture.store(), events).await;
    }
    let mut relays = Vec::new();
    for _ in 0..2 {
        let options = Options { workers: 8, ..options() };
        relays.push(ordered(fixture.node().await, options, |builder| builder.listen_all(course.listener())).await);
    }
    let mut writers = tokio::task::JoinSet::new();
    for (half, (outbox, _)) in relays.iter().enumerate() {
        let outbox = outbox.clone();
        writers.spawn(async move {
            // Each order has one writer, as those who lock it are one at a time.
            for number in 3..5 {
                let orders: Vec<_> = (0..ORDERS).filter(|order| *order as usize % 2 == half).collect();
                for orders in orders.chunks(50) {
                    let mut tx = outbox.begin().await.unwrap();
                    tx.write_all(orders.iter().map(|order| numbered(order, number))).await.unwrap();
                    tx.commit().await.unwrap();
                }
            }
        });
    }
    within("all are written", writers.join_all()).await;
    until_done(&fixture.store(), u64::from(ORDERS) * 5).await;
    for (outbox, meter) in &relays {
        assert!(outbox.shutdown().await.is_clean());
        assert_eq!(meter.tally().lease_lost, 0);
    }
    course.assert_in_order();
    course.assert_each_once(ORDERS as usize * 5);
}

/// Listeners that take a while, in two relays with short leases: these are renewed under them, nobody is cut short, and no event
/// comes twice.
pub async fn case_85_slow_listeners<F: Lanes>(fixture: F) {
    const ROUNDS: u32 = 5;
    const EVENTS: usize = 200;
    let lease = Duration::from_secs(1);
    for round in 0..ROUNDS {
        let course = Course::default();
        let orders: Vec<_> = (0..20).map(|order| format!("{round}-{order}")).collect();
        let events: Vec<_> =
            (0..10).flat_map(|number| orders.iter().map(move |order| numbered(order, number))).collect();
        assert_eq!(events.len(), EVENTS);
        insert(&fixture.store(), &events).await;
        let mut relays = Vec::new();
        for _ in 0..2 {
            let options = Options { workers: 10, lane_lease: lease, ..options() };
            let course = course.clone();
            let listener = move |event: Delivery| {
                let course = course.clone();
                async move {
                    course.begins(&event);
                    tokio::time::sleep(a_while(&event)).await;
                    course.acknowledges(&event);
                }
            };
            relays.push(ordered(fixture.node().await, options, |builder| builder.listen_all(listener)).await);
        }
        let held_up = longest_wait_until_done(&fixture.store(), u64::from(round + 1) * EVENTS as u64).await;
        let mut lost = 0;
        for (outbox, meter) in &relays {
            outbox.shutdown().await;
            lost += meter.tally().lease_lost;
        }
        // Whatever happens to leases.
        course.assert_in_order();
        // Only a machine that keeps everybody waiting may cost one: a third of it is between two renewals.
        if lost == 0 || held_up < lease / 6 {
            assert_eq!(lost, 0, "attempts were cut short, and nothing took longer than {held_up:?}");
            course.assert_each_once(EVENTS);
            return;
        }
    }
    panic!("the machine is too busy: in none of {ROUNDS} rounds could leases be renewed in time");
}

/// From 50 to 300 ms, which is random as the id of an event is.
fn a_while(event: &Event) -> Duration {
    let mut hasher = DefaultHasher::new();
    event.id().as_str().hash(&mut hasher);
    Duration::from_millis(50 + hasher.finish() % 250)
}

/// Waits until all are done, and says how long the machine and the store have kept it waiting for what takes no time.
async fn longest_wait_until_done<S: AdminStore>(store: &S, done: u64) -> Duration {
    const PAUSE: Duration = Duration::from_millis(10);
    let mut longest = Duration::ZERO;
    within("all are done", async {
        loop {
            let begun_at = tokio::time::Instant::now();
            tokio::time::sleep(PAUSE).await;
            let counted = counts(store).await.done;
            longest = longest.max(begun_at.elapsed().saturating_sub(PAUSE));
            if counted >= done {
                break;
            }
        }
    })
    .await;
    longest
}

/// One order with very many events is delivered in order, beside others which it does not hold up, and with few statements.
pub async fn case_86_hot_key<F: Lanes>(fixture: F) {
    let count = u32::try_from(F::HOT).unwrap();
    let events: Vec<_> = (0..count).map(|number| numbered("hot", number)).collect();
    for events in events.chunks(1000) {
        insert(&fixture.store(), events).await;
    }
    insert(&fixture.store(), &[numbered("cold", 0)]).await;
    let (course, cold) = (Course::default(), Gate::new());
    let (outbox, meter) = {
        let (hears, opens) = (course.listener(), cold.clone());
        ordered(fixture.node().await, options(), |builder| {
            builder.listen_all(move |event: Delivery| {
                if event.aggregate_id() == Some("cold") {
                    opens.open();
                }
                hears(event)
            })
        })
        .await
    };
    within("another order is delivered", cold.pass()).await;
    let overtaken = course.acknowledged();
    until_done(&fixture.store(), u64::from(count) + 1).await;
    outbox.shutdown().await;
    course.assert_in_order();
    course.assert_each_once(count as usize + 1);
    assert!(overtaken < count as usize, "the other order came last");
    let tally = meter.tally();
    let (reads, settlements) = (tally.claim_batch.len(), tally.settle_batch.len());
    assert!(reads + settlements < count as usize / 5, "{reads} reads and {settlements} settlements");
}

/// A listener that fails with the first event of an order, as often as it is told to, and shows what it gets.
fn failing(tap: Tap, failing: &'static str, times: u32) -> Tap {
    tap.answering(move |event| {
        let is_head = event.aggregate_id() == Some(failing) && number_of(event) == 0;
        if is_head && event.attempt() <= times { Err(Failure::retryable("not yet")) } else { Ok(Outcome::Done) }
    })
}

fn told(deliveries: &[Delivery], order: &str) -> Vec<u32> {
    deliveries.iter().filter(|event| event.aggregate_id() == Some(order)).map(|event| number_of(event)).collect()
}

/// Behind an event that fails nothing of its order begins; other orders go on.
pub async fn case_87_block<F: Lanes>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    // More often than a retry policy of two attempts allows.
    let listener = failing(tap, "bad", 4).on_dead(OnDead::Block);
    let (outbox, meter) = ordered(fixture.store(), options(), |builder| builder.listen_all(listener)).await;
    write_each(&outbox, ["bad", "good"].iter().flat_map(|order| (0..3).map(move |number| numbered(order, number))))
        .await;
    meter.until("all are delivered", |tally| tally.delivered == 6).await;
    let deliveries = inbox.rest();
    assert_eq!(told(&deliveries, "bad"), [0, 0, 0, 0, 0, 1, 2]);
    assert_eq!(told(&deliveries, "good"), [0, 1, 2]);
    let attempts: Vec<_> = deliveries.iter().filter(|event| event.aggregate_id() == Some("bad")).collect();
    assert_eq!(attempts.iter().map(|event| event.attempt()).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 1, 1]);
    assert!(attempts.windows(2).all(|pair| pair[0].seq() <= pair[1].seq()));
    assert_eq!((meter.tally().failed, meter.tally().dead), (4, 0));
    outbox.shutdown().await;
}

/// An event that would be tried again in an hour is given up by an operator: it is DEAD, and those behind it go on at once.
pub async fn case_87_given_up<F: Lanes>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let hour = Duration::from_secs(3600);
    let options = Options { retry_base: hour, retry_max: hour, ..options() };
    let listener = failing(tap, "bad", u32::MAX).on_dead(OnDead::Block);
    let (outbox, meter) = ordered(fixture.node().await, options, |builder| builder.listen_all(listener)).await;
    let events: Vec<_> = (0..3).map(|number| numbered("bad", number)).collect();
    write_each(&outbox, events.clone()).await;
    meter.until("the first has failed", |tally| tally.failed == 1).await;
    assert!(!fixture.store().give_up_head(&key("bad"), events[1].id()).await.unwrap());
    assert!(fixture.store().give_up_head(&key("bad"), events[0].id()).await.unwrap());
    outbox.wake();
    meter.until("the others are delivered", |tally| tally.delivered == 2).await;
    assert_eq!(told(&inbox.rest(), "bad"), [0, 1, 2]);
    let head = state(&fixture.store(), events[0].id()).await;
    assert_eq!((head.status, head.attempts, head.last_error.as_deref()), (Status::Dead, 1, Some("not yet")));
    assert_eq!(fixture.store().closed_keys(10).await.unwrap(), []);
    outbox.shutdown().await;
}

/// Of a key that is parked there is nothing to give up: it stays as it is, and nothing overtakes, until somebody decides about it.
pub async fn case_87_given_up_when_parked<F: Lanes>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let listener = failing(tap, "bad", 2);
    let (outbox, meter) = ordered(fixture.node().await, options(), |builder| builder.listen_all(listener)).await;
    let events: Vec<_> = (0..3).map(|number| numbered("bad", number)).collect();
    write_each(&outbox, events.clone()).await;
    meter.until("the first is dead", |tally| tally.dead == 1).await;
    for event in &events {
        assert!(!fixture.store().give_up_head(&key("bad"), event.id()).await.unwrap());
    }
    outbox.wake();
    write_each(&outbox, [numbered("other", 0)]).await;
    meter.until("others go on", |tally| tally.delivered == 1).await;
    assert_eq!(told(&inbox.rest(), "bad"), [0, 0]);
    let closed = fixture.store().closed_keys(10).await.unwrap();
    assert_eq!(
        closed.iter().map(|closed| (&closed.head_id, closed.reopened)).collect::<Vec<_>>(),
        [(events[0].id(), false)]
    );
    let states = [Status::Dead, Status::New, Status::New];
    for (event, status) in events.iter().zip(states) {
        assert_eq!(state(&fixture.store(), event.id()).await.status, status);
    }
    assert!(fixture.store().skip_head(&key("bad")).await.unwrap());
    outbox.wake();
    meter.until("those behind it go on", |tally| tally.delivered == 3).await;
    assert_eq!(told(&inbox.rest(), "bad"), [1, 2]);
    outbox.shutdown().await;
}

/// An event that is given up is DEAD, and those behind it go on, where that was chosen.
pub async fn case_87_skip<F: Lanes>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let listener = failing(tap, "bad", u32::MAX).on_dead(OnDead::Skip);
    let (outbox, meter) = ordered(fixture.store(), options(), |builder| builder.listen_all(listener)).await;
    let events: Vec<_> = (0..3).map(|number| numbered("bad", number)).collect();
    write_each(&outbox, events.clone()).await;
    meter.until("the others are delivered", |tally| tally.delivered == 2).await;
    assert_eq!(told(&inbox.rest(), "bad"), [0, 0, 1, 2]);
    assert_eq!(state(&fixture.store(), events[0].id()).await.status, Status::Dead);
    // Redriven, it comes late.
    fixture.store().redrive(&Redrive::ids([events[0].id().clone()])).await.unwrap();
    outbox.wake();
    assert_eq!(number_of(inbox.next().await.event()), 0);
    outbox.shutdown().await;
}

/// Behind an event that is given up nothing of its order is delivered until somebody decides, whoever has the lane meanwhile.
pub async fn case_87_park<F: Lanes>(fixture: F) {
    for skips in [false, true] {
        let order = if skips { "skipped" } else { "released" };
        let (tap, mut inbox) = Tap::new();
        let (outbox, meter) = {
            let listener = failing(tap, order, u32::MAX);
            ordered(fixture.store(), options(), |builder| builder.listen_all(listener)).await
        };
        let events: Vec<_> = (0..3).map(|number| numbered(order, number)).collect();
        write_each(&outbox, events.clone()).await;
        meter.until("the first is dead", |tally| tally.dead == 1).await;
        write_each(&outbox, [numbered("other", 0)]).await;
        meter.until("others go on", |tally| tally.delivered == 1).await;
        outbox.shutdown().await;
        assert_eq!(told(&inbox.rest(), order), [0, 0]);

        // Another relay, whose listener does not fail, knows of it, too.
        let (tap, mut inbox) = Tap::new();
        let (outbox, meter) = ordered(fixture.node().await, options(), |builder| builder.listen_all(tap)).await;
        write_each(&outbox, [numbered(order, 3), numbered("other", 1)]).await;
        meter.until("others go on", |tally| tally.delivered == 1).await;
        assert_eq!(told(&inbox.rest(), order), [0; 0]);
        let closed = fixture.store().closed_keys(10).await.unwrap();
        assert_eq!(closed.iter().map(|closed| &closed.key).collect::<Vec<_>>(), [&key(order)]);
        assert_eq!(&closed[0].head_id, events[0].id());
        let decided = if skips {
            fixture.store().skip_head(&key(order)).await.unwrap()
        } else {
            fixture.store().release_key(&key(order)).await.unwrap()
        };
        assert!(decided);
        let rest = if skips { 3 } else { 4 };
        meter.until("it goes on", |tally| tally.delivered == 1 + rest).await;
        let expected: &[u32] = if skips { &[1, 2, 3] } else { &[0, 1, 2, 3] };
        assert_eq!(told(&inbox.rest(), order), expected);
        assert_eq!(fixture.store().closed_keys(10).await.unwrap(), []);
        outbox.shutdown().await;
    }
}

/// A row that is no event has its place in the order, and is DEAD in it.
pub async fn case_87_undecodable<F: Lanes>(fixture: F) {
    let events: Vec<_> = (0..3).map(|number| numbered("damaged", number)).collect();
    insert(&fixture.store(), &events).await;
    fixture.damage(events[1].id()).await;
    let (tap, mut inbox) = Tap::new();
    let more = |builder: OutboxBuilder<F::Store>| builder.on_dead(OnDead::Skip).listen_all(tap);
    let (outbox, meter) = ordered(fixture.store(), options(), more).await;
    meter.until("all are through", |tally| tally.delivered == 2 && tally.dead == 1).await;
    assert_eq!(told(&inbox.rest(), "damaged"), [0, 2]);
    assert_eq!(state(&fixture.store(), events[1].id()).await.status, Status::Dead);
    outbox.shutdown().await;
}

/// A relay dies in the middle of a run. Another one begins with the first event that is not done, when the leases are over.
pub async fn case_88_takeover<F: Lanes>(fixture: F) {
    let course = Course::default();
    let events: Vec<_> = (0..10).map(|number| numbered("taken over", number)).collect();
    insert(&fixture.store(), &events).await;
    let (hangs, reached) = (Gate::new(), Gate::new());
    let (dying, meter) = {
        let (course, hangs, reached) = (course.clone(), hangs.clone(), reached.clone());
        let listener = move |event: Delivery| {
            let (course, hangs, reached) = (course.clone(), hangs.clone(), reached.clone());
            async move {
                course.begins(&event);
                if number_of(&event) == 4 {
                    reached.open();
                    hangs.pass().await;
                }
                course.acknowledges(&event);
            }
        };
        ordered(fixture.node().await, options(), |builder| builder.listen_all(listener)).await
    };
    within("it is in the middle", reached.pass()).await;
    meter.until("those before are settled", |tally| tally.delivered == 4).await;
    drop(dying);
    let (heir, meter) = ordered(fixture.node().await, options(), |builder| builder.listen_all(course.listener())).await;
    meter.until("the rest is delivered", |tally| tally.delivered == 6).await;
    heir.shutdown().await;
    course.assert_in_order();
    let seen = course.0.lock().unwrap();
    let times: Vec<_> = seen.begun["taken over"].values().copied().collect();
    assert_eq!(times, [1, 1, 1, 1, 2, 1, 1, 1, 1, 1], "only what was under way is repeated");
}

/// Relays come one after the other and go again, while events are written: lanes move, and nothing is repeated.
pub async fn case_89_rolling_start<F: Lanes>(fixture: F) {
    const ORDERS: u32 = 50;
    let course = Course::default();
    let mut relays = Vec::new();
    let mut written = 0;
    let mut write_more = async |outbox: &Outbox<F::Store>| {
        for _ in 0..4 {
            let mut tx = outbox.begin().await.unwrap();
            tx.write_all((0..ORDERS).map(|order| numbered(order, written))).await.unwrap();
            tx.commit().await.unwrap();
            written += 1;
        }
        written
    };
    for number in 0..3 {
        let options = Options { owner: Some(format!("relay-{number}")), ..options() };
        let relay = ordered(fixture.node().await, options, |builder| builder.listen_all(course.listener())).await;
        relays.push(relay);
        let before: Vec<u64> = relays.iter().map(|(_, meter)| meter.tally().delivered).collect();
        // Until the one that came last has its part: it is seen by the others, and they give lanes up.
        eventually("all of them deliver", async || {
            write_more(&relays[0].0).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            let part = |((_, meter), before): (&(_, Meter), &u64)| meter.tally().delivered > *before;
            F::LANES < 3 || relays.iter().zip(&before).all(part)
        })
        .await;
    }
    for _ in 0..2 {
        let (outbox, _) = relays.remove(0);
        write_more(&outbox).await;
        assert!(outbox.shutdown().await.is_clean());
    }
    let written = write_more(&relays[0].0).await;
    let all = ORDERS as usize * written as usize;
    until_done(&fixture.store(), all as u64).await;
    relays[0].0.shutdown().await;
    course.assert_in_order();
    course.assert_each_once(all);
}

/// A listener that takes batches gets events of many orders at once, one of each, or as many as it can tell apart.
pub async fn case_90_batches<F: Lanes>(fixture: F) {
    for of_one_key in [OfOneKey::One, OfOneKey::Prefix] {
        let run = format!("{of_one_key:?}");
        let events: Vec<_> = (0..10)
            .flat_map(|number| (0..7).map(move |order| (order, number)))
            .map(|(order, number)| numbered(format!("{run}{order}"), number))
            .collect();
        insert(&fixture.store(), &events).await;
        let (course, sizes) = (Course::default(), Arc::new(Mutex::new(Vec::new())));
        let listener = {
            let (course, sizes) = (course.clone(), Arc::clone(&sizes));
            batch(move |events: Vec<Delivery>| {
                let (course, sizes) = (course.clone(), Arc::clone(&sizes));
                async move {
                    let orders: BTreeSet<_> =
                        events.iter().map(|event| event.aggregate_id().unwrap().to_owned()).collect();
                    sizes.lock().unwrap().push((events.len(), orders.len()));
                    // It stops at the first event of an order that it does not take: once, in the middle.
                    let mut refused = BTreeSet::new();
                    let answer = |event: &Delivery| -> Verdict {
                        let order = event.aggregate_id().unwrap().to_owned();
                        let fails = number_of(event) == 5 && event.attempt() == 1;
                        if fails || refused.contains(&order) {
                            refused.insert(order);
                            return Err(Failure::retryable("not this one"));
                        }
                        course.begins(event);
                        course.acknowledges(event);
                        Ok(Outcome::Done)
                    };
                    events.iter().map(answer).collect()
                }
            })
            .with_max_batch(20)
            .with_of_one_key(of_one_key)
        };
        let (outbox, meter) =
            ordered(fixture.node().await, Options { workers: 2, ..options() }, |builder| builder.listen_all(listener))
                .await;
        meter.until("all are delivered", |tally| tally.delivered == 70).await;
        assert_eq!(meter.tally().failed, 7, "what was said of those behind counts for nothing");
        outbox.shutdown().await;
        course.assert_in_order();
        course.assert_each_once(70);
        let sizes = sizes.lock().unwrap();
        assert!(sizes.iter().any(|(_, orders)| *orders > 1), "{sizes:?}");
        assert_eq!(sizes.iter().all(|(events, orders)| events == orders), of_one_key == OfOneKey::One, "{sizes:?}");
    }
}

/// A shutdown waits for what is with listeners, settles it, gives the lanes back at once, and begins nothing more.
pub async fn case_91_shutdown<F: Lanes>(fixture: F) {
    let course = Course::default();
    let events: Vec<_> = (0..10).flat_map(|number| (0..5).map(move |order| numbered(order, number))).collect();
    insert(&fixture.store(), &events).await;
    let (gate, reached) = (Gate::new(), Gate::new());
    // Leases so long that nobody could wait for them.
    let patient = || Options { lane_lease: Duration::from_secs(600), ..options() };
    let (leaving, _) = {
        let (course, gate, reached) = (course.clone(), gate.clone(), reached.clone());
        let listener = move |event: Delivery| {
            let (course, gate, reached) = (course.clone(), gate.clone(), reached.clone());
            async move {
                course.begins(&event);
                reached.open();
                gate.pass().await;
                course.acknowledges(&event);
            }
        };
        ordered(fixture.node().await, Options { workers: 3, ..patient() }, |builder| builder.listen_all(listener)).await
    };
    within("it is at it", reached.pass()).await;
    let shutdown = {
        let leaving = leaving.clone();
        tokio::spawn(async move { leaving.shutdown().await })
    };
    tokio::time::sleep(Duration::from_millis(20)).await;
    gate.open();
    let closed = within("it ends", shutdown).await.unwrap();
    assert!(closed.is_clean(), "{closed:?}");
    assert_eq!(leaving.in_flight(), 0);
    let begun = course.acknowledged();
    assert!((1..=3).contains(&begun), "{begun} were acknowledged");
    assert_eq!(counts(&fixture.store()).await.done, begun as u64);

    let (heir, _) = ordered(fixture.node().await, patient(), |builder| builder.listen_all(course.listener())).await;
    until_done(&fixture.store(), 50).await;
    heir.shutdown().await;
    course.assert_in_order();
    course.assert_each_once(50);
}

/// A shutdown whose deadline comes first cuts listeners short, and others deliver the same events at once.
pub async fn case_91_deadline<F: Lanes>(fixture: F) {
    insert(&fixture.store(), &[numbered("cut", 0), numbered("cut", 1)]).await;
    let (tap, mut inbox) = Tap::new();
    let short =
        Options { shutdown_deadline: Duration::from_millis(50), lane_lease: Duration::from_secs(600), ..options() };
    let (leaving, _) =
        ordered(fixture.node().await, short.clone(), |builder| builder.listen_all(tap.behind(&Gate::new()))).await;
    inbox.next().await;
    let closed = within("it ends", leaving.shutdown()).await;
    assert_eq!((closed.released, closed.abandoned), (1, 0));
    let (tap, mut inbox) = Tap::new();
    let (heir, meter) = ordered(fixture.node().await, short, |builder| builder.listen_all(tap)).await;
    meter.until("both are delivered", |tally| tally.delivered == 2).await;
    assert_eq!(told(&inbox.rest(), "cut"), [0, 1]);
    heir.shutdown().await;
}

/// An event that waits for its moment holds up its order, and nobody else.
pub async fn case_92_delayed_head<F: Lanes>(fixture: F) {
    let delayed = numbered("late", 0).to_builder().deliver_after(Duration::from_secs(2)).build().unwrap();
    insert(&fixture.store(), &[delayed, numbered("late", 1), numbered("now", 0)]).await;
    let (tap, mut inbox) = Tap::new();
    let (outbox, meter) = ordered(fixture.store(), options(), |builder| builder.listen_all(tap)).await;
    assert_eq!(inbox.next().await.aggregate_id(), Some("now"));
    write_each(&outbox, [numbered("late", 2), numbered("now", 1)]).await;
    assert_eq!(inbox.next().await.aggregate_id(), Some("now"));
    meter.until("all are delivered", |tally| tally.delivered == 5).await;
    assert_eq!(told(&inbox.rest(), "late"), [0, 1, 2]);
    outbox.shutdown().await;
}

/// Events of types that are not ordered, and events without an aggregate, wait for nobody.
pub async fn case_92_without_order<F: Lanes>(fixture: F) {
    let gate = Gate::new();
    let (tap, mut inbox) = Tap::new();
    let meter = Meter::new();
    let outbox = Outbox::builder(fixture.store())
        .options(options())
        .metrics(meter.clone())
        .ordered(Ordered::types(["Invoice"]))
        .listen_all(tap.behind(&gate))
        .start()
        .await
        .unwrap();
    // Two of one order, and two without any, are with listeners at once.
    let alone =
        |number: u32| Event::builder("Ping").header("number", number.to_string()).json_text("{}").build().unwrap();
    write_each(&outbox, [numbered("x", 0), numbered("x", 1), alone(0), alone(1)]).await;
    let mut with_listeners = inbox.ids(4).await;
    with_listeners.sort_unstable();
    with_listeners.dedup();
    assert_eq!(with_listeners.len(), 4);
    gate.open();
    meter.until("all are delivered", |tally| tally.delivered == 4).await;
    outbox.shutdown().await;
}

/// A transaction that stays open with an event of an order, while others commit, comes before what its order gets after it.
pub async fn case_93_open_writers<F: Lanes>(fixture: F) {
    let course = Course::default();
    let (outbox, meter) =
        ordered(fixture.node().await, options(), |builder| builder.listen_all(course.listener())).await;
    let store = fixture.store();
    let mut open = store.begin().await.unwrap();
    let rows = [posthaste_core::store::NewRow::new(numbered("open", 0))];
    store.insert(&mut open, &rows).await.unwrap();
    // For longer than anybody waits for it, where others can write meanwhile.
    let mut others = 0;
    if F::WRITES_BESIDE {
        for _ in 0..30 {
            write_each(&outbox, [numbered("others", others)]).await;
            others += 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        meter.until("others go on", |tally| tally.delivered >= u64::from(others)).await;
    }
    store.commit(open).await.unwrap();
    write_each(&outbox, [numbered("open", 1), numbered("open", 2)]).await;
    meter.until("all are delivered", |tally| tally.delivered == u64::from(others) + 3).await;
    outbox.shutdown().await;
    course.assert_in_order();
    course.assert_each_once(others as usize + 3);
}

/// The same in the middle of a backlog, while lanes are read side by side up to the same number: what a transaction brings in the end
/// comes before what its orders get after it, in whichever lanes they are, whether it was waited for or passed.
pub async fn case_93_in_a_backlog<F: Lanes>(fixture: F) {
    const ORDERS: u32 = 60;
    let store = fixture.store();
    let course = Course::default();
    let numbered_of = |kind: &'static str, numbers: std::ops::Range<u32>| {
        let of_each = move |number| (0..ORDERS).map(move |order| numbered(format!("{kind} {order}"), number));
        numbers.flat_map(of_each).collect::<Vec<_>>()
    };
    let mut written = 0;
    for (kind, others, held) in [("waited for", "first", 300), ("passed", "second", 1500)] {
        // Less than there is in the table is in hand, so that reads end before their lanes do.
        let options = Options { cold_queue: 50, ..options() };
        insert(&store, &numbered_of(others, 0..3)).await;
        let mut open = store.begin().await.unwrap();
        let rows: Vec<_> = numbered_of(kind, 0..1).into_iter().map(posthaste_core::store::NewRow::new).collect();
        store.insert(&mut open, &rows).await.unwrap();
        let mut open = Some(open);
        if !F::WRITES_BESIDE {
            store.commit(open.take().unwrap()).await.unwrap();
        }
        insert(&store, &numbered_of(others, 3..6)).await;
        let (outbox, meter) =
            ordered(fixture.node().await, options, |builder| builder.listen_all(course.listener())).await;
        meter.until("others are delivered", |tally| tally.delivered >= u64::from(ORDERS) * 6).await;
        tokio::time::sleep(Duration::from_millis(held)).await;
        if let Some(open) = open {
            store.commit(open).await.unwrap();
        }
        for events in numbered_of(kind, 1..3).chunks(ORDERS as usize) {
            insert(&store, events).await;
        }
        outbox.wake();
        written += u64::from(ORDERS) * 9;
        until_done(&store, written).await;
        outbox.shutdown().await;
    }
    course.assert_in_order();
    course.assert_each_once(usize::try_from(written).unwrap());
}

/// What a commit of this process has written is delivered at once, although nobody polls.
pub async fn case_94_hot_by_reading<F: Lanes>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let options = Options { poll_interval: Duration::from_secs(3600), ..options() };
    let (outbox, meter) = ordered(fixture.store(), options, |builder| builder.listen_all(tap)).await;
    // Its lanes are leased, and it has read them to their end.
    write_each(&outbox, [numbered("first", 0)]).await;
    inbox.next().await;
    for number in 0..50 {
        write_each(&outbox, [numbered("hot", number)]).await;
        assert_eq!(number_of(inbox.next().await.event()), number);
    }
    meter.until("all are settled", |tally| tally.delivered == 51).await;
    assert_eq!(counts(&fixture.store()).await.done, 51);
    outbox.shutdown().await;
}

/// What the others deliver in order, if a start was refused for it.
fn refused_for<S: WriteStore>(started: Result<Outbox<S>, StartError>) -> Vec<String> {
    match started.map(drop) {
        Err(StartError::OtherSettings { others, .. }) => others.into_iter().map(|other| other.settings).collect(),
        other => panic!("{other:?}"),
    }
}

/// Relays of one table deliver the same in order, or do not start; nor does one that knows of no order.
pub async fn case_95_refused<F: Lanes>(fixture: F) {
    let builder = async || Outbox::builder(fixture.node().await).options(options()).listen_all(|_: Delivery| async {});
    let orders = || Ordered::types(["Order"]);
    let (first, _) = ordered(fixture.node().await, options(), |builder| {
        builder.ordered(orders()).listen_all(|_: Delivery| async {})
    })
    .await;
    for other in [Ordered::all(), Ordered::None, Ordered::types(["Order", "Invoice"])] {
        assert_eq!(refused_for(builder().await.ordered(other).start().await), [r#"["Order"]"#]);
    }
    assert_eq!(refused_for(builder().await.start().await), [r#"["Order"]"#]);
    let second = builder().await.ordered(orders()).start().await.unwrap();
    first.shutdown().await;
    assert_eq!(refused_for(builder().await.start().await), [r#"["Order"]"#]);
    second.shutdown().await;
    // Nobody is there any more.
    builder().await.start().await.unwrap().shutdown().await;
    let other = builder().await.ordered(Ordered::all()).start().await.unwrap();
    assert_eq!(refused_for(builder().await.ordered(orders()).start().await), ["all"]);
    other.shutdown().await;
}

/// A relay that was away while one with other settings began delivers nothing when it is back, until that one is gone.
pub async fn case_95_noticed<F: Lanes>(fixture: F) {
    let (counts_of, store) = (Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]), fixture.store());
    let listener = |relay: usize| {
        let counts_of = Arc::clone(&counts_of);
        move |_: Delivery| {
            counts_of[relay].fetch_add(1, Ordering::Relaxed);
            async {}
        }
    };
    let delivered = |relay: usize| counts_of[relay].load(Ordering::Relaxed);
    let (first, _) = ordered(fixture.node().await, options(), |builder| builder.listen_all(listener(0))).await;
    let second = loop {
        // As if the first could not renew anything for so long.
        fixture.advance(LANE_LEASE * 2).await;
        let builder = Outbox::builder(fixture.node().await).options(options()).ordered(Ordered::types(["Order"]));
        match builder.listen_all(listener(1)).start().await {
            Ok(second) => break second,
            Err(StartError::OtherSettings { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    };
    // It hears of it when it renews its leases next, and until then may go on.
    tokio::time::sleep(LANE_LEASE).await;
    insert(&store, &(0..20).map(|order| numbered(order, 0)).collect::<Vec<_>>()).await;
    until_done(&store, 20).await;
    assert_eq!((delivered(0), delivered(1)), (0, 20));
    second.shutdown().await;
    insert(&store, &(0..20).map(|order| numbered(order, 1)).collect::<Vec<_>>()).await;
    until_done(&store, 40).await;
    assert_eq!((delivered(0), delivered(1)), (20, 20));
    first.shutdown().await;
}
