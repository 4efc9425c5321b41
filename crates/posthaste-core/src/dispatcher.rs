//! Takes events from the queues, runs their listeners, and hands the outcomes to the settler.

pub(crate) mod caller;
pub(crate) mod close;
mod hot;
mod worker;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::event::EventId;
use crate::handback::Handback;
use crate::hook::WriteHook;
use crate::inflight::{InFlight, Token};
use crate::instrument::Instrument;
use crate::interceptor::{AnyInterceptor, Interceptor};
use crate::keeper::Keeper;
use crate::listener::{Delivery, Gates, Path, Room, call};
use crate::metrics::{self, Metrics, NoMetrics};
use crate::options::{self, Options};
use crate::poller::{ClaimHandler, Handled};
use crate::queue::Queues;
use crate::registry::Registry;
use crate::retry::Jitter;
use crate::settle::Settler;
use crate::store::{self, BoxFuture, ClaimedRow, Lease, Leases, RelayStore};
use crate::wake::Wake;

pub use close::Closed;
pub(crate) use hot::{HotPath, Overflow};

/// Delivers events: two bounded queues, a fixed number of workers, and one settler behind them.
///
/// Most programs never touch it: [`Outbox`](crate::Outbox) starts one. Dropping it without [`close`](Self::close) ends
/// its tasks where they are; nothing is lost, but what it had in hand waits until the leases run out.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use std::sync::Arc;
///
/// use posthaste::store::RelayStore;
/// use posthaste::{Delivery, Dispatcher, MemoryStore, Poller, Registry};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store: Arc<dyn RelayStore> = Arc::new(MemoryStore::new());
/// let mut registry = Registry::new();
/// registry.register_all(|event: Delivery| async move { println!("{}", event.id()) })?;
///
/// let dispatcher = Dispatcher::builder(Arc::clone(&store), registry).start()?;
/// let poller = Poller::builder(store, Arc::clone(&dispatcher) as Arc<_>).wake(dispatcher.poller_wake()).build()?;
/// poller.start();
/// # use posthaste::poller::Source;
/// # poller.close().await;
/// assert!(dispatcher.close().await.is_clean());
/// # Ok(())
/// # }
/// ```
pub struct Dispatcher {
    gates: Gates,
    queues: Arc<Queues<Work>>,
    in_flight: Arc<InFlight>,
    hot: Arc<HotPath>,
    metrics: Arc<dyn Metrics>,
    poller: Wake,
    keeper: Arc<Keeper>,
    tasks: close::Tasks,
}

/// An event in a queue.
pub(crate) struct Work {
    pub(crate) delivery: Delivery,
    /// The number of its row, unless it came hot.
    pub(crate) seq: Option<i64>,
    pub(crate) token: Token,
    pub(crate) queued_at: Instant,
    /// How long it had been available before it was queued.
    pub(crate) lag: Duration,
}

/// Builds a [`Dispatcher`].
#[must_use = "a builder does nothing until it is started"]
pub struct DispatcherBuilder {
    store: Arc<dyn RelayStore>,
    registry: Registry,
    options: Options,
    leases: Option<Arc<Leases>>,
    interceptors: Vec<Arc<dyn AnyInterceptor>>,
    instruments: Vec<Arc<dyn Instrument>>,
    metrics: Arc<dyn Metrics>,
    jitter: Jitter,
    poller: Wake,
}

impl Dispatcher {
    /// Starts to build a dispatcher for these listeners. They are complete before the first event can come, so no event
    /// is ever unroutable because its listener was not registered yet.
    pub fn builder(store: Arc<dyn RelayStore>, registry: Registry) -> DispatcherBuilder {
        DispatcherBuilder {
            store,
            registry,
            options: Options::default(),
            leases: None,
            interceptors: Vec::new(),
            instruments: Vec::new(),
            metrics: Arc::new(NoMetrics),
            jitter: Jitter::default(),
            poller: Wake::new(),
        }
    }

    /// How many events are queued, with a listener, or waiting for their settlement.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The handle that wakes the poller when there is something to claim: give it to a [`Poller`](crate::Poller).
    pub fn poller_wake(&self) -> Wake {
        self.poller.clone()
    }

    /// The hot path: a hook that leases what is written and delivers it after the commit. An [`Outbox`](crate::Outbox)
    /// has it built in; whoever writes by other means calls it around the insert and after the end of the transaction.
    pub fn write_hook(&self) -> Arc<dyn WriteHook> {
        Arc::clone(&self.hot) as Arc<_>
    }

    pub(crate) fn hot(&self) -> &Arc<HotPath> {
        &self.hot
    }

    /// Gives back, once more, the leases that nobody will use. For commits that come after the close.
    pub(crate) async fn give_back(&self) {
        self.keeper.give_back(self.hot.handback.take_all()).await;
    }
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

impl ClaimHandler for Dispatcher {
    fn capacity(&self) -> usize {
        let most = match self.gates.room() {
            Room::Open => usize::MAX,
            Room::Few(few) => few,
            _ => 0,
        };
        most.min(self.queues.cold_room())
    }

    fn room_for(&self, wanted: usize) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            while let Room::ShutFor(pause) = self.gates.room() {
                tokio::time::sleep(pause.max(Duration::from_millis(1))).await;
            }
            self.queues.cold_room_for(wanted).await;
        })
    }

    fn handle(&self, row: ClaimedRow, lease: &Lease, leased_at: Instant) -> Handled {
        if self.handle_all(vec![row], lease, leased_at).is_empty() { Handled::Accepted } else { Handled::Refused }
    }

    /// All of them are in hand before the first is with a worker: the settler then waits for the others, too.
    fn handle_all(&self, rows: Vec<ClaimedRow>, lease: &Lease, leased_at: Instant) -> Vec<EventId> {
        let queued_at = Instant::now();
        let in_hand =
            self.in_flight.acquire_all(rows.iter().map(|row| (row.event.id(), row.attempts)), lease, leased_at);
        let works = rows.into_iter().zip(in_hand).filter_map(|(row, token)| {
            // Without a token it is in hand under an older lease, and goes on under this one.
            let (token, delivery) = (token?, Delivery::new(row.event, row.attempts, Path::Cold));
            Some(Work { delivery, seq: Some(row.seq), token, queued_at, lag: row.lag })
        });
        let works: Vec<_> = works.collect();
        let count = works.len();
        let refused = self.queues.push_cold(works);
        if count > refused.len() {
            kill_point!("cold.enqueued");
            self.metrics.cold_enqueued((count - refused.len()) as u64);
        }
        let release = |work: Work| {
            self.in_flight.release(work.delivery.id(), work.token);
            work.delivery.id().clone()
        };
        refused.into_iter().map(release).collect()
    }
}

impl DispatcherBuilder {
    /// Sets all options.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Adds an interceptor around every delivery, inside those added before.
    pub fn interceptor(mut self, interceptor: impl Interceptor) -> Self {
        self.interceptors.push(Arc::new(interceptor));
        self
    }

    pub(crate) fn interceptors(mut self, interceptors: Vec<Arc<dyn AnyInterceptor>>) -> Self {
        self.interceptors = interceptors;
        self
    }

    /// Adds what measures every delivery, inside of what was added before.
    pub fn instrument(mut self, instrument: impl Instrument) -> Self {
        self.instruments.push(Arc::new(instrument));
        self
    }

    pub(crate) fn instruments(mut self, instruments: Vec<Arc<dyn Instrument>>) -> Self {
        self.instruments = instruments;
        self
    }

    pub(crate) fn leases(mut self, leases: Arc<Leases>) -> Self {
        self.leases = Some(leases);
        self
    }

    /// Sets where to report.
    pub fn metrics(mut self, metrics: Arc<dyn Metrics>) -> Self {
        self.metrics = metrics;
        self
    }

    /// Sets the randomness that spreads retries.
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// Starts the workers, the settler and the keeper of leases on the current tokio runtime.
    ///
    /// # Errors
    /// Names the option that is wrong.
    pub fn start(self) -> Result<Arc<Dispatcher>, options::Error> {
        self.options.check()?;
        let options = self.options;
        let leases = self.leases.unwrap_or_else(|| Arc::new(Leases::new(options.new_owner())));
        // After a lease an answer is of no use any more; the keeper has to hear in time to try again.
        let within = |limit| -> Arc<dyn RelayStore> { Arc::new(store::Contained::new(Arc::clone(&self.store), limit)) };
        let metrics: Arc<dyn Metrics> = Arc::new(metrics::Contained(self.metrics));
        let queues = Arc::new(Queues::new(options.hot_queue, options.cold_queue));
        let in_flight = Arc::new(InFlight::new(options.in_flight_ttl));
        let keeper_wake = Wake::new();
        let handback = Handback::new(options.lease, keeper_wake.clone());
        let hot = Arc::new(HotPath {
            queues: Arc::clone(&queues),
            in_flight: Arc::clone(&in_flight),
            leases,
            lease_duration: options.lease,
            handback: handback.clone(),
            poller: self.poller.clone(),
            metrics: Arc::clone(&metrics),
            overflow: Overflow::new(),
        });
        let keeper = Arc::new(Keeper {
            store: within(options.lease / 3),
            in_flight: Arc::clone(&in_flight),
            queues: Arc::clone(&queues),
            handback,
            metrics: Arc::clone(&metrics),
            lease_duration: options.lease,
            wake: keeper_wake,
            poller: self.poller.clone(),
        });
        let closing = CancellationToken::new();
        let settler = Settler {
            store: within(options.lease),
            in_flight: Arc::clone(&in_flight),
            queues: Arc::clone(&queues),
            metrics: Arc::clone(&metrics),
            wake: self.poller.clone(),
            jitter: self.jitter.clone(),
            max_batch: options.settle_batch,
            linger: options.settle_linger,
            patience: options.lease,
            closing: closing.clone(),
        };
        // One batch being written, one being gathered, and a place for every event that is with a listener.
        let gates = self.registry.gates();
        let with_listeners = options.workers * self.registry.largest_batch();
        let (outcomes, to_settle) = mpsc::channel(options.settle_batch * 2 + with_listeners);
        let worker = worker::Worker {
            queues: Arc::clone(&queues),
            in_flight: Arc::clone(&in_flight),
            caller: caller::Caller {
                registry: Arc::new(self.registry),
                interceptors: self.interceptors.into(),
                instruments: self.instruments.into(),
                retry: options.retry_policy(),
                time_limit: options.listener_time_limit,
                metrics: Arc::clone(&metrics),
                jitter: self.jitter,
            },
            lease_duration: options.lease,
            outcomes,
            poller: self.poller.clone(),
        };
        let tasks = close::Tasks::new(options.shutdown_deadline, closing);
        let blocking = Arc::new(Semaphore::new(options.workers));
        for _ in 0..options.workers {
            close::spawn(&tasks.workers, call::by_worker(Arc::clone(&blocking), worker.clone().run()));
        }
        // The settler ends when the last worker has gone, so nobody else may hold a sender.
        drop(worker);
        close::spawn(&tasks.settler, settler.run(to_settle));
        let stop = tasks.stop_keeper.clone();
        close::spawn(&tasks.keeper, {
            let keeper = Arc::clone(&keeper);
            async move { keeper.run(stop).await }
        });
        Ok(Arc::new(Dispatcher { gates, queues, in_flight, hot, metrics, poller: self.poller, keeper, tasks }))
    }
}
