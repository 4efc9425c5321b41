//! Publishers as listeners: how a backlog in a real table gets to a broker, counted at both ends of the publisher. The tests are beside
//! the others of each destination.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::listener::OfOneKey;
use posthaste_core::{Event, Outbox};
use posthaste_publishers::{Binding, Destination, Message, Places, PublishError, Publisher, Results};
use posthaste_sql::SqliteStore;
use posthaste_torture::proxy::Proxy;

/// How many events wait.
pub(crate) const EVENTS: usize = 10_000;

/// How many events there are at least for a batch, and for a round trip. Batches are of 500; a machine that is busy has them smaller, and
/// hands them over piece by piece. One by one, four workers have four events in a round trip at most.
const OF_A_BATCH: usize = 100;
const OF_A_TURN: u64 = 20;

/// How long each direction takes. On a machine without any distance an answer might come before the next message is said.
const DISTANCE: Duration = Duration::from_millis(20);

/// How events got to a broker.
#[derive(Debug)]
pub(crate) struct Sent {
    /// How many messages each batch had.
    batches: Vec<usize>,
    /// Round trips: how often the publisher spoke after the broker had. Known where there is a proxy between them.
    turns: u64,
}

impl Sent {
    /// Every event was sent once, and all of them in few batches and few round trips.
    pub(crate) fn is_in_batches(&self) {
        let (sent, batches) = (self.batches.iter().sum::<usize>(), self.batches.len());
        println!("{sent} events in {batches} batches and {} turns", self.turns);
        assert_eq!(sent, EVENTS, "{self:?}");
        assert!(batches <= EVENTS / OF_A_BATCH, "{batches} batches: {self:?}");
        assert!(self.turns <= EVENTS as u64 / OF_A_TURN, "{} turns: {self:?}", self.turns);
    }

    /// What that would not pass, so that it is known that it can fail.
    pub(crate) fn is_one_by_one(&self, events: usize) {
        println!("{events} events one by one in {} turns", self.turns);
        assert_eq!(self.batches, vec![1; events]);
        assert!(self.turns > events as u64 / 5, "{} turns", self.turns);
    }
}

/// Has so many events wait on SQLite, and an outbox with default options deliver them, by `listen` as in any program.
pub(crate) async fn delivered<P: Publisher>(events: usize, destination: Destination<P>, proxy: Option<&Proxy>) -> Sent {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("outbox.db")).await.unwrap();
    store.migrate().await.unwrap();
    let writer = Outbox::writer_only(store.clone()).start().await.unwrap();
    let event =
        |n: usize| Event::builder("Counted").id(format!("event-{n}")).aggregate("Test", n).json_text(n.to_string());
    let mut tx = writer.begin().await.unwrap();
    for first in (0..events).step_by(1_000) {
        tx.write_all((first..events.min(first + 1_000)).map(event)).await.unwrap();
    }
    tx.commit().await.unwrap();
    writer.shutdown().await;

    let turns = || proxy.map(|proxy| proxy.stats().turns).unwrap_or_default();
    let (before, batches) = (turns(), Arc::new(Mutex::new(Vec::new())));
    if let Some(proxy) = proxy {
        proxy.delay(Some(DISTANCE));
    }
    let counting = destination.through(|publisher| Counting { publisher, batches: Arc::clone(&batches) });
    let outbox = Outbox::builder(store).listen("Test", "*", counting).start().await.unwrap();
    let done = async {
        while outbox.admin().counts().await.unwrap().done < events as u64 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), done).await.expect("all events are DONE");
    let sent = Sent { batches: batches.lock().unwrap().clone(), turns: turns() - before };
    outbox.shutdown().await;
    if let Some(proxy) = proxy {
        proxy.delay(None);
    }
    sent
}

/// A publisher that counts what it is given.
struct Counting<P> {
    publisher: Arc<P>,
    batches: Arc<Mutex<Vec<usize>>>,
}

impl<P: Publisher> Publisher for Counting<P> {
    const BINDING: Binding = P::BINDING;
    const PLACES: Places = P::PLACES;
    const MAX_BATCH: usize = P::MAX_BATCH;
    const OF_ONE_KEY: OfOneKey = P::OF_ONE_KEY;

    fn name(&self) -> &str {
        self.publisher.name()
    }

    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), PublishError>> {
        self.batches.lock().unwrap().push(messages.len());
        self.publisher.publish(messages).await
    }

    async fn publish_into(&self, messages: Vec<Message>, results: &Results) {
        self.batches.lock().unwrap().push(messages.len());
        self.publisher.publish_into(messages, results).await;
    }

    fn check_address(&self, to: &str) -> Result<(), PublishError> {
        self.publisher.check_address(to)
    }

    async fn check(&self) -> Result<(), PublishError> {
        self.publisher.check().await
    }

    async fn close(&self) {
        self.publisher.close().await;
    }
}
