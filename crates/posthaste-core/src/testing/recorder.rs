//! A listener that remembers what it received, and does as it is told.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::listing::Name;
use super::wait::{Gate, PATIENCE};
use crate::event::{EventType, TypedEvent};
use crate::listener::{Delivery, Failure, Listener, Outcome, Verdict};

/// A listener that remembers what it received, and fails or waits when it is told to. Clones are the same listener.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::testing::{self, Recorder};
/// # use posthaste::event::{Kind, TypedEvent};
/// # #[derive(serde::Serialize, serde::Deserialize, PartialEq, Debug)]
/// # struct OrderPlaced { id: u64 }
/// # impl TypedEvent for OrderPlaced { const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1)]; }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mailer = Recorder::new();
/// let outbox = testing::outbox().listen_for::<OrderPlaced>(mailer.clone()).start_test().await;
///
/// mailer.fail_next(1);
/// let mut tx = outbox.begin().await?;
/// tx.write(OrderPlaced { id: 42 }).await?;
/// tx.commit().await?;
///
/// let deliveries = mailer.wait_for(2).await;
/// assert_eq!(deliveries[0].id(), deliveries[1].id());
/// assert_eq!(deliveries[1].attempt(), 2);
/// assert_eq!(mailer.received::<OrderPlaced>()[0], OrderPlaced { id: 42 });
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Recorder(Arc<Shared>);

#[derive(Default)]
struct Shared {
    deliveries: watch::Sender<Vec<Delivery>>,
    orders: Mutex<Orders>,
}

/// What it was told to do.
#[derive(Default)]
struct Orders {
    rules: Vec<Rule>,
    gate: Option<Gate>,
}

struct Rule {
    /// Only events of this type.
    of: Option<String>,
    left: u64,
    answer: Arc<Answer>,
}

type Answer = dyn Fn(&Delivery) -> Verdict + Send + Sync;

impl Recorder {
    /// A listener that is done with everything at once.
    pub fn new() -> Self {
        Self::default()
    }

    /// Fails with the next so many events, in a way that is tried again.
    pub fn fail_next(&self, times: u64) {
        self.answer_next(times, on_demand);
    }

    /// Fails with every event of this type from now on, in a way that is tried again.
    pub fn fail_type(&self, event_type: impl EventType) {
        self.answer_type(event_type, on_demand);
    }

    /// Answers the next so many events like this: any outcome, or a failure of any kind.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// # use posthaste::testing::Recorder;
    /// # use posthaste::Failure;
    /// Recorder::new().answer_next(1, |event| Err(Failure::permanent(format!("no customer for {}", event.id()))));
    /// ```
    pub fn answer_next(&self, times: u64, answer: impl Fn(&Delivery) -> Verdict + Send + Sync + 'static) {
        self.orders().rules.push(Rule { of: None, left: times, answer: Arc::new(answer) });
    }

    /// Answers every event of this type like this from now on.
    pub fn answer_type(
        &self,
        event_type: impl EventType,
        answer: impl Fn(&Delivery) -> Verdict + Send + Sync + 'static,
    ) {
        let of = Some(event_type.name().to_owned());
        self.orders().rules.push(Rule { of, left: u64::MAX, answer: Arc::new(answer) });
    }

    /// Holds every event from now on, once it is noted, until the gate is opened. Replaces the gate before.
    pub fn block(&self) -> Gate {
        self.orders().gate.insert(Gate::new()).clone()
    }

    /// Is done with everything at once again. Whoever waits at a gate goes on waiting for it.
    pub fn recover(&self) {
        *self.orders() = Orders::default();
    }

    /// Every delivery so far, failed ones as well, in the order in which they began.
    pub fn deliveries(&self) -> Vec<Delivery> {
        self.0.deliveries.borrow().clone()
    }

    /// How many deliveries there were so far.
    pub fn count(&self) -> usize {
        self.0.deliveries.borrow().len()
    }

    /// The payloads of what was received of this type, in the order of their deliveries, repeats as well. What is of
    /// another type, or does not decode, is left out.
    pub fn received<T: TypedEvent>(&self) -> Vec<T> {
        self.0.deliveries.borrow().iter().filter_map(|event| event.typed().ok()).collect()
    }

    /// Waits until there were so many deliveries, and gives all there were. Fails after 30 s, and says what was received.
    #[track_caller]
    pub fn wait_for(&self, count: usize) -> impl Future<Output = Vec<Delivery>> + Send + use<> {
        self.wait_for_within(count, PATIENCE)
    }

    /// Like [`wait_for`](Self::wait_for), for that long at most.
    #[track_caller]
    pub fn wait_for_within(
        &self,
        count: usize,
        patience: Duration,
    ) -> impl Future<Output = Vec<Delivery>> + Send + use<> {
        let at = Location::caller();
        let recorder = self.clone();
        async move {
            let mut deliveries = recorder.0.deliveries.subscribe();
            let reached = tokio::time::timeout(patience, deliveries.wait_for(|all| all.len() >= count)).await;
            if reached.is_err() {
                let received = Received(recorder.deliveries());
                panic!("waited {patience:?} in vain for {count} deliveries; {received}\nasked at {at}");
            }
            recorder.deliveries()
        }
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.0.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What to answer, and what to wait for before.
    fn order(&self, event: &Delivery) -> (Option<Arc<Answer>>, Option<Gate>) {
        let mut orders = self.orders();
        let concerns = |of: &Option<String>| of.as_ref().is_none_or(|of| of == event.event_type());
        let rule = orders.rules.iter_mut().find(|rule| rule.left > 0 && concerns(&rule.of));
        let answer = rule.map(|rule| {
            rule.left -= 1;
            Arc::clone(&rule.answer)
        });
        (answer, orders.gate.clone())
    }
}

fn on_demand(_: &Delivery) -> Verdict {
    Err(Failure::retryable("failed on demand"))
}

impl Listener for Recorder {
    async fn on_event(&self, event: &Delivery) -> Verdict {
        let (answer, gate) = self.order(event);
        self.0.deliveries.send_modify(|deliveries| deliveries.push(event.clone()));
        if let Some(gate) = gate {
            gate.pass().await;
        }
        answer.map_or(Ok(Outcome::Done), |answer| answer(event))
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("deliveries", &self.count()).finish_non_exhaustive()
    }
}

/// What was received, for the message of a test that fails.
struct Received(Vec<Delivery>);

impl fmt::Display for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            0 => return f.write_str("there were none"),
            1 => f.write_str("there was 1:")?,
            count => write!(f, "there were {count}:")?,
        }
        for event in &self.0 {
            write!(f, "\n  {}, attempt {}", Name(event), event.attempt())?;
        }
        Ok(())
    }
}
