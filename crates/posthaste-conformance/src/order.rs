//! Part G: order within an aggregate, by lanes.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::listener::{Delivery, OfOneKey, batch};
use posthaste_core::store::{AdminStore, WriteStore};
use posthaste_core::{Event, Failure, Options, Ordered, Outbox, Outcome, Verdict};

use crate::course::{Course, LANE_LEASE, number_of, numbered, options, ordered, told, until_done, write_each};
use crate::fixture::Lanes;
use crate::meter::Meter;
use crate::rows::{counts, insert};
use crate::tap::Tap;
use crate::wait::{Gate, within};

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
        // With so much to do, renewals may be late.
        let options = Options { workers: 8, lane_lease: LANE_LEASE * 2, ..options() };
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
        if lost == 0 || held_up < lease / 3 {
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
        // Nobody waits for the end of a lease.
        let options = Options { lane_lease: LANE_LEASE * 5, ..options() };
        ordered(fixture.node().await, options, |builder| {
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

/// An event that waits for its moment holds up its order, and nobody else.
pub async fn case_92_delayed_head<F: Lanes>(fixture: F) {
    // On a busy machine a short delay may be over before the others are delivered: then with a longer one.
    for (seconds, is_last) in [(2, false), (10, false), (30, true)] {
        let (late, now) = (format!("late by {seconds}"), format!("beside {seconds}"));
        let delayed = numbered(&late, 0).to_builder().deliver_after(Duration::from_secs(seconds)).build().unwrap();
        insert(&fixture.store(), &[delayed, numbered(&late, 1), numbered(&now, 0)]).await;
        let (tap, mut inbox) = Tap::new();
        let (outbox, meter) = ordered(fixture.store(), options(), |builder| builder.listen_all(tap)).await;
        let mut deliveries = vec![inbox.next().await];
        write_each(&outbox, [numbered(&late, 2), numbered(&now, 1)]).await;
        meter.until("all are delivered", |tally| tally.delivered == 5).await;
        deliveries.extend(inbox.rest());
        outbox.shutdown().await;
        assert_eq!(told(&deliveries, &late), [0, 1, 2]);
        assert_eq!(told(&deliveries, &now), [0, 1]);
        let held_up = deliveries[..2].iter().any(|event| event.aggregate_id() == Some(&*late));
        if !held_up {
            return;
        }
        assert!(!is_last, "others waited as well");
    }
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

/// Of two writers of one order who do not wait for each other, the one that commits late is delivered late, and is not lost.
pub async fn case_93_writers_at_once<F: Lanes>(fixture: F) {
    if !F::WRITES_BESIDE {
        return;
    }
    let store = fixture.store();
    let (tap, mut inbox) = Tap::new();
    let (outbox, _) = ordered(fixture.node().await, options(), |builder| builder.listen_all(tap)).await;
    let mut open = store.begin().await.unwrap();
    store.insert(&mut open, &[posthaste_core::store::NewRow::new(numbered("both", 0))]).await.unwrap();
    insert(&store, &[numbered("both", 1)]).await;
    outbox.wake();
    assert_eq!(number_of(inbox.next().await.event()), 1);
    store.commit(open).await.unwrap();
    outbox.wake();
    assert_eq!(number_of(inbox.next().await.event()), 0);
    until_done(&store, 2).await;
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// What a commit of this process has written is delivered at once, although nobody polls.
pub async fn case_94_hot_by_reading<F: Lanes>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let options = Options { poll_interval: Duration::from_secs(3600), ..options() };
    let (outbox, meter) = ordered(fixture.store(), options, |builder| builder.listen_all(tap)).await;
    // Its lanes are leased, and it has read them to their end.
    write_each(&outbox, [numbered("first", 0)]).await;
    inbox.next().await;
    let begun_at = tokio::time::Instant::now();
    for number in 0..50 {
        write_each(&outbox, [numbered("hot", number)]).await;
        assert_eq!(number_of(inbox.next().await.event()), number);
    }
    // Sweeps, which come every five seconds, would bring them as well.
    assert!(begun_at.elapsed() < Duration::from_secs(60), "they were swept up, in {:?}", begun_at.elapsed());
    meter.until("all are settled", |tally| tally.delivered == 51).await;
    assert_eq!(counts(&fixture.store()).await.done, 51);
    outbox.shutdown().await;
}
