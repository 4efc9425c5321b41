//! What the cases about order share: numbered events, and who has seen which of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::listener::Delivery;
use posthaste_core::store::{AdminStore, Key, Store};
use posthaste_core::{Event, Options, Ordered, Outbox, OutboxBuilder};

use crate::meter::Meter;
use crate::rows::counts;
use crate::wait::eventually;

/// A lease that is over soon enough to wait for, and long enough for a busy machine.
pub(crate) const LANE_LEASE: Duration = Duration::from_secs(3);

pub(crate) fn options() -> Options {
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
pub(crate) fn numbered(order: impl std::fmt::Display, number: u32) -> Event {
    let event = Event::builder("Changed").aggregate("Order", order.to_string()).header("number", number.to_string());
    event.json_text("{}").build().unwrap()
}

pub(crate) fn number_of(event: &Event) -> u32 {
    event.header("number").unwrap().parse().unwrap()
}

pub(crate) fn key(order: &str) -> Key {
    Key { aggregate_type: "Order".into(), aggregate_id: order.into() }
}

pub(crate) async fn ordered<S: Store>(
    store: S,
    options: Options,
    more: impl FnOnce(OutboxBuilder<S>) -> OutboxBuilder<S>,
) -> (Outbox<S>, Meter) {
    let meter = Meter::new();
    let builder = Outbox::builder(store).options(options).metrics(meter.clone()).ordered(Ordered::all());
    (more(builder).start().await.unwrap(), meter)
}

/// Writes events through an outbox, each in a transaction of its own, as those of one aggregate are.
pub(crate) async fn write_each<S: Store>(outbox: &Outbox<S>, events: impl IntoIterator<Item = Event>) {
    for event in events {
        let mut tx = outbox.begin().await.unwrap();
        tx.write(event).await.unwrap();
        tx.commit().await.unwrap();
    }
}

/// What the listeners of all relays have seen, in the order in which they saw it.
#[derive(Clone, Default)]
pub(crate) struct Course(Arc<Mutex<Seen>>);

#[derive(Default)]
pub(crate) struct Seen {
    /// Of each order, how often each number was begun, and which were acknowledged.
    begun: BTreeMap<String, BTreeMap<u32, u32>>,
    acknowledged: BTreeMap<String, BTreeSet<u32>>,
    wrong: Vec<String>,
}

impl Course {
    pub(crate) fn begins(&self, event: &Event) {
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

    pub(crate) fn acknowledges(&self, event: &Event) {
        let mut seen = self.0.lock().unwrap();
        seen.acknowledged.entry(event.aggregate_id().unwrap().to_owned()).or_default().insert(number_of(event));
    }

    /// A listener that is done with everything, after it has let others run.
    pub(crate) fn listener(
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
    pub(crate) fn acknowledged(&self) -> usize {
        self.0.lock().unwrap().acknowledged.values().map(BTreeSet::len).sum()
    }

    /// How often each number of an order was begun.
    pub(crate) fn begun(&self, order: &str) -> Vec<u32> {
        self.0.lock().unwrap().begun[order].values().copied().collect()
    }

    pub(crate) fn assert_in_order(&self) {
        let seen = self.0.lock().unwrap();
        assert!(seen.wrong.is_empty(), "out of order: {:#?}", seen.wrong);
    }

    pub(crate) fn assert_each_once(&self, count: usize) {
        let seen = self.0.lock().unwrap();
        let begun: Vec<_> = seen.begun.values().flatten().collect();
        assert_eq!(begun.len(), count);
        let twice: Vec<_> = begun.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "more than once: {twice:?}");
    }
}

pub(crate) async fn until_done<S: AdminStore>(store: &S, done: u64) {
    eventually("all are done", async || counts(store).await.done >= done).await;
}

pub(crate) fn told(deliveries: &[Delivery], order: &str) -> Vec<u32> {
    deliveries.iter().filter(|event| event.aggregate_id() == Some(order)).map(|event| number_of(event)).collect()
}
