//! Part F: from the write to the delivery, on one node and on several.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::listener::{Delivery, Path};
use posthaste_core::{Options, Outbox, Status};

use crate::faulty::{Call, Faulty};
use crate::fixture::Fixture;
use crate::meter::Meter;
use crate::outboxes::{no_interval, start, write, write_all};
use crate::rows::{LEASE, assert_at, counts, event, event_with_id, events, ids_of, insert, state};
use crate::tap::Tap;
use crate::wait::{Gate, eventually, settle_down, within};

/// How often each event was delivered, by anybody.
#[derive(Clone, Default)]
struct Deliveries(Arc<Mutex<HashMap<String, u32>>>);

impl Deliveries {
    fn listener(&self) -> impl Fn(Delivery) -> std::future::Ready<()> + Send + Sync + 'static {
        let deliveries = self.clone();
        move |event| {
            *deliveries.0.lock().unwrap().entry(event.id().to_string()).or_default() += 1;
            std::future::ready(())
        }
    }

    fn assert_each_once(&self, count: usize) {
        let deliveries = self.0.lock().unwrap();
        assert_eq!(deliveries.len(), count);
        let twice: Vec<_> = deliveries.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "more than once: {twice:?}");
    }
}

/// Two nodes on one table, both writing, both claiming: every event once.
pub async fn case_59_two_nodes<F: Fixture>(fixture: F) {
    insert(&fixture.store(), &events(200)).await;
    let deliveries = Deliveries::default();
    let options = || Options { poll_interval: Duration::from_millis(1), poll_batch: 7, ..Options::default() };
    let mut nodes = Vec::new();
    for _ in 0..2 {
        nodes.push(start(fixture.node().await, options(), deliveries.listener()).await);
    }
    let mut writers = tokio::task::JoinSet::new();
    for (outbox, _) in &nodes {
        let outbox = outbox.clone();
        writers.spawn(async move {
            for _ in 0..15 {
                write_all(&outbox, events(10)).await;
            }
        });
    }
    within("all are written", writers.join_all()).await;
    eventually("all are delivered", || async { counts(&fixture.store()).await.done == 500 }).await;
    for (outbox, meter) in &nodes {
        assert!(outbox.shutdown().await.is_clean());
        assert_eq!(meter.tally().lease_lost, 0);
    }
    deliveries.assert_each_once(500);
}

/// A node dies with events claimed and events of its own: another delivers them when the leases have run out.
pub async fn case_60_node_dies<F: Fixture>(fixture: F) {
    let cold = events(5);
    insert(&fixture.store(), &cold).await;
    let (tap, mut inbox) = Tap::new();
    let (dying, meter) = start(fixture.node().await, no_interval(), tap.behind(&Gate::new())).await;
    let hot = write(&dying, event("Hot")).await;
    meter.until("all are in hand", |tally| tally.cold_enqueued == 5 && tally.hot_enqueued == 1).await;
    inbox.next().await;
    drop(dying);

    let (store, faults) = Faulty::new(fixture.node().await);
    let (tap, mut inbox) = Tap::new();
    let (heir, meter) = start(store, no_interval(), tap).await;
    faults.until(Call::Claim, 1).await;
    eventually("the poll is over", || async { !meter.tally().oldest_lag.is_empty() }).await;
    settle_down().await;
    inbox.assert_empty();
    fixture.advance(LEASE).await;
    heir.wake();
    let mut delivered = inbox.ids(6).await;
    delivered.sort_unstable();
    let mut expected = ids_of(&cold);
    expected.push(hot.to_string());
    assert_eq!(delivered, expected);
    meter.until("all are delivered", |tally| tally.delivered == 6).await;
    assert_eq!(counts(heir.store()).await.done, 6);
    heir.shutdown().await;
}

/// While one node delivers hot another polls all the time, without any delay: each event is delivered once, hot.
pub async fn case_61_hot_here_cold_there<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let (writer, meter) = start(fixture.node().await, no_interval(), tap).await;
    let (store, faults) = Faulty::new(fixture.node().await);
    let (greedy_tap, mut greedy_inbox) = Tap::new();
    let options =
        Options { poll_interval: Duration::from_millis(1), poll_skip_recent: Duration::ZERO, ..no_interval() };
    let (greedy, _) = start(store, options, greedy_tap).await;
    for _ in 0..40 {
        let polls = faults.count(Call::Claim);
        write_all(&writer, events(5)).await;
        faults.until(Call::Claim, polls + 1).await;
    }
    meter.until("all are delivered", |tally| tally.delivered == 200).await;
    greedy.shutdown().await;
    writer.shutdown().await;
    greedy_inbox.assert_empty();
    let delivered = inbox.rest();
    assert_eq!(delivered.len(), 200);
    assert!(delivered.iter().all(|delivery| delivery.path() == Path::Hot));
}

/// Ten times more writes than the hot queue holds, with default settings: all are delivered once, and memory holds no
/// more than the queues do.
pub async fn case_62_burst<F: Fixture>(fixture: F) {
    const BURST: usize = 10_000;
    let deliveries = Deliveries::default();
    let gate = Gate::new();
    let listener = {
        let (gate, note) = (gate.clone(), deliveries.listener());
        move |event: Delivery| {
            let noted = note(event);
            let gate = gate.clone();
            async move {
                gate.pass().await;
                noted.await;
            }
        }
    };
    let (outbox, meter) = start(fixture.store(), Options::default(), listener).await;
    let defaults = Options::default();
    let held = defaults.hot_queue + defaults.cold_queue + defaults.workers;
    for _ in 0..BURST / 500 {
        write_all(&outbox, events(500)).await;
        assert!(outbox.in_flight() <= held, "{} in hand", outbox.in_flight());
    }
    let tally = meter.tally();
    assert!(tally.hot_dropped as usize >= BURST - held, "{} found the queue full", tally.hot_dropped);
    gate.open();
    meter.until("all are delivered", |tally| tally.delivered as usize == BURST).await;
    let tally = meter.tally();
    // Outcomes on their way to the database are in hand as well.
    let most = held + 3 * defaults.settle_batch;
    assert!(tally.in_flight.iter().all(|count| *count <= most), "more than {most} in hand");
    let depths = (defaults.hot_queue, defaults.cold_queue);
    assert!(tally.queue_depths.iter().all(|(hot, cold)| *hot <= depths.0 && *cold <= depths.1));
    outbox.shutdown().await;
    deliveries.assert_each_once(BURST);
}

/// Two databases in one process, each with its own outbox: what is written to one is delivered by it, and by it alone.
pub async fn case_63_two_databases<F: Fixture>(fixture: F) {
    let other = F::create().await;
    let (tap, mut inbox) = Tap::new();
    let (outbox, _) = start(fixture.store(), no_interval(), tap).await;
    let (other_tap, mut other_inbox) = Tap::new();
    let (other_outbox, _) = start(other.store(), no_interval(), other_tap).await;
    // The same id is another event in another database.
    let mut tx = outbox.begin().await.unwrap();
    let mut other_tx = other_outbox.begin().await.unwrap();
    tx.write(event_with_id("same")).await.unwrap();
    other_tx.write(event_with_id("same")).await.unwrap();
    tx.commit().await.unwrap();
    other_tx.rollback().await.unwrap();
    let mine = write(&outbox, event("Mine")).await;
    let theirs = write(&other_outbox, event("Theirs")).await;
    assert_eq!(other_inbox.next().await.id(), &theirs);
    let mut delivered = inbox.ids(2).await;
    delivered.sort_unstable();
    assert_eq!(delivered, [mine.to_string(), "same".to_owned()]);
    // The end of one is not the end of the other.
    outbox.shutdown().await;
    let theirs = write(&other_outbox, event("Theirs")).await;
    assert_eq!(other_inbox.next().await.id(), &theirs);
    other_outbox.shutdown().await;
    inbox.assert_empty();
    other_inbox.assert_empty();
    assert_eq!((counts(&fixture.store()).await.total(), counts(&other.store()).await.total()), (2, 2));
}

/// A thousand transactions of every ending, on one connection, with deliveries going on: none is left open, no
/// connection is lost, no place in a queue.
pub async fn case_64_thousand_cycles<F: Fixture>(_fixture: F) {
    let fixture = F::narrow().await;
    let deliveries = Deliveries::default();
    let options = Options { hot_queue: 50, ..no_interval() };
    let (outbox, meter) = start(fixture.store(), options, deliveries.listener()).await;
    let mut committed = 0;
    for cycle in 0..1000 {
        let mut tx = within("a connection is free", outbox.begin()).await.unwrap();
        tx.write(event("Cycle")).await.unwrap();
        match cycle % 4 {
            0 => tx.rollback().await.unwrap(),
            1 => drop(tx),
            2 => {
                // A request that is cancelled while it writes.
                crate::wait::cut_short(2, tx.write(event("Cut"))).await;
                drop(tx);
            }
            _ => {
                tx.commit().await.unwrap();
                committed += 1;
            }
        }
    }
    meter.until("all are delivered", |tally| tally.delivered == committed).await;
    fixture.assert_no_open_transaction().await;
    assert_eq!(outbox.in_flight(), 0);
    deliveries.assert_each_once(250);
    // No place in the hot queue was lost: as many as it has are free.
    let before = meter.tally().hot_dropped;
    write_all(&outbox, events(50)).await;
    meter.until("all are delivered", |tally| tally.delivered == committed + 50).await;
    assert_eq!(meter.tally().hot_dropped, before);
    outbox.shutdown().await;
    assert_eq!(counts(&fixture.store()).await.total(), 300);
}

/// Starting and ending outboxes leaves nothing behind either.
pub async fn case_64_outboxes_come_and_go<F: Fixture>(_fixture: F) {
    let fixture = F::narrow().await;
    for cycle in 0..50 {
        let (tap, mut inbox) = Tap::new();
        let (outbox, _) = start(fixture.store(), no_interval(), tap).await;
        let id = write(&outbox, event("Cycle")).await;
        assert_eq!(inbox.next().await.id(), &id);
        if cycle % 2 == 0 {
            within("it ends", outbox.shutdown()).await;
        }
        drop(outbox);
    }
    fixture.assert_no_open_transaction().await;
}

/// A node that is alone takes over at its start what its predecessor left; one of many does not.
pub async fn case_71_takeover_at_the_start<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    // It is deaf to signals, and its first poll is over: one that is still under way when it dies, such as that of a connection which has
    // begun to listen, could take the row from its heir and give it back when nobody looks.
    let (store, _) = Faulty::new(fixture.store());
    let (dying, dying_meter) = start(store, no_interval(), tap.behind(&Gate::new())).await;
    dying_meter.until("it has polled", |tally| !tally.oldest_lag.is_empty()).await;
    let id = write(&dying, event("Left behind")).await;
    inbox.next().await;
    drop(dying);
    assert!(state(&fixture.store(), &id).await.lease.is_some());

    let (tap, mut inbox) = Tap::new();
    let meter = Meter::new();
    let heir = Outbox::single_node(fixture.store())
        .options(no_interval())
        .metrics(meter.clone())
        .listen_all(tap)
        .start()
        .await
        .unwrap();
    assert_eq!(inbox.next().await.id(), &id);
    meter.until("it is delivered", |tally| tally.delivered == 1).await;
    heir.shutdown().await;
}

/// A node that was too slow finds its lease lost: what the other one settled stays, and is told apart.
pub async fn case_72_too_late<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let gate = Gate::new();
    let tap = tap.behind(&gate).answering(|_| Err(posthaste_core::Failure::permanent("too late")));
    // It is deaf to signals, and its first poll is over before there is anything to claim: otherwise it could take over
    // from itself.
    let (store, _) = Faulty::new(fixture.node().await);
    let (slow, slow_meter) = start(store, no_interval(), tap).await;
    slow_meter.until("it has polled", |tally| !tally.oldest_lag.is_empty()).await;
    let id = write(&slow, event("Contested")).await;
    inbox.next().await;
    fixture.advance(LEASE).await;
    let (tap, mut other_inbox) = Tap::new();
    let (quick, quick_meter) = start(fixture.node().await, no_interval(), tap).await;
    assert_eq!(other_inbox.next().await.id(), &id);
    quick_meter.until("it is delivered", |tally| tally.delivered == 1).await;
    let done = assert_at(&fixture.store(), &id, Status::Done, 0).await;
    gate.open();
    slow_meter.until("its lease is lost", |tally| tally.lease_lost == 1).await;
    assert_eq!(state(&fixture.store(), &id).await, done);
    assert_eq!((slow_meter.tally().dead, slow.in_flight()), (0, 0));
    slow.shutdown().await;
    quick.shutdown().await;
}

/// An outbox that is dropped takes its tasks and listeners with it, in the middle of a delivery or after a shutdown.
pub async fn case_73_dropped_outbox<F: Fixture>(fixture: F) {
    for shut_down in [false, true] {
        let gate = Gate::new();
        let (tap, mut inbox) = Tap::new();
        let options = Options { shutdown_deadline: Duration::from_millis(50), ..no_interval() };
        let (outbox, _) = start(fixture.store(), options, tap.behind(&gate)).await;
        write(&outbox, event("Hangs")).await;
        inbox.next().await;
        if shut_down {
            outbox.shutdown().await;
        }
        drop(outbox);
        within("the listener is gone", inbox.closed()).await;
    }
}

/// Transactions that commit while the outbox shuts down: each event is delivered, or free for others, and never both.
pub async fn case_66_commits_during_shutdown<F: Fixture>(fixture: F) {
    const WRITERS: u64 = 4;
    const WRITES: u64 = 40;
    let deliveries = Deliveries::default();
    let (outbox, meter) = start(fixture.store(), no_interval(), deliveries.listener()).await;
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..WRITERS {
        let outbox = outbox.clone();
        writers.spawn(async move {
            for _ in 0..WRITES {
                write(&outbox, event("Racing")).await;
            }
        });
    }
    meter.until("they are at it", |tally| tally.delivered >= WRITES).await;
    within("it ends", outbox.shutdown()).await;
    within("they end", writers.join_all()).await;
    let done = counts(&fixture.store()).await.done;
    let free = || async {
        let claim = crate::rows::claim_of(1000);
        let claimed = posthaste_core::store::RelayStore::claim(&fixture.store(), &claim).await.unwrap();
        let rows: Vec<_> = claimed.rows.iter().map(|row| (row.event.id().clone(), claim.lease.clone())).collect();
        for (id, lease) in &rows {
            crate::rows::settle(&fixture.store(), id, lease, posthaste_core::store::Action::Release).await;
            assert!(!deliveries.0.lock().unwrap().contains_key(id.as_str()), "{id} was delivered, and is free");
        }
        rows.len() as u64 + done == WRITERS * WRITES
    };
    eventually("what was not delivered is free", free).await;
    deliveries.assert_each_once(usize::try_from(done).unwrap());
}
