//! The builder of an outbox.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;

use super::after::AfterWrite;
use super::{Engine, Inner, Outbox, Relay};
use crate::dispatcher::Dispatcher;
use crate::event::{AggregateType, EventType, TypedEvent};
use crate::hook::{Hooks, WriteHook};
use crate::instrument::Instrument;
use crate::interceptor::{AnyInterceptor, Interceptor};
use crate::lanes;
use crate::lanes::share::listed;
use crate::listener::chain;
use crate::listener::{AnyListener, Delivery, Handle, HandleFn, IntoVerdict, typed};
use crate::metrics::{self, Metrics, NoMetrics};
use crate::options::{self, Options};
use crate::order::{OnDead, Ordered};
use crate::poller::{Poller, Source};
use crate::registry::{self, Registry};
use crate::retention::Retention;
use crate::retry::Jitter;
use crate::signal::Signals;
use crate::store::{self, LaneStore, Leases, RelayStore, Store};

/// How an outbox shares its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scenario {
    /// Alone: takes over at its start what its predecessor had leased.
    SingleNode,
    /// With any number of others.
    ManyNodes,
    /// Writes only; others deliver.
    WriterOnly,
}

/// How often a relay without lanes looks whether others have begun to have some.
const LOOK_FOR_LANES: Duration = Duration::from_secs(60);

/// Why an outbox could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An option is wrong.
    #[error(transparent)]
    Options(#[from] options::Error),
    /// A listener could not be registered.
    #[error(transparent)]
    Registry(#[from] registry::Error),
    /// Nobody listens.
    #[error(
        "no listener is registered, so every event would be dead as unroutable; register one with on, listen or \
         listen_all, or use Outbox::writer_only if another process delivers"
    )]
    NoListener,
    /// The store cannot deliver in order.
    #[error("this store cannot deliver in order; use one that can, or leave out `ordered`")]
    NoLanes,
    /// The table is not ready for ordered delivery, or could not be asked.
    #[error("the outbox cannot deliver in order")]
    Lanes(#[source] store::Error),
    /// The store cannot keep the aggregate of an event that is DEAD from going on.
    #[error(
        "this store cannot park aggregates; say with on_dead, for the outbox and for its listeners, whether an event that \
         cannot be delivered blocks those behind it or is skipped"
    )]
    NoParking,
    /// A listener has a policy for ordered delivery, and nothing is delivered in order.
    #[error("on_dead is given, which only means something for events in order; say which ones are with `ordered`")]
    NotOrdered,
    /// Relays of the same table deliver other events in order, or none. If all went on, they would break each other's order.
    #[error(
        "other relays of this table are there that deliver otherwise: {}; this one would deliver in order: {mine}; stop them \
         first, or give all the same `ordered` (one that has crashed is forgotten after its `lane_lease`)",
        listed(others)
    )]
    OtherSettings {
        /// What this one would deliver in order.
        mine: String,
        /// Who else is there.
        others: Vec<store::RelayOfLanes>,
    },
    /// The database could not be asked.
    #[error("the outbox could not take over what its predecessor left")]
    Store(#[from] store::Error),
}

/// Builds an [`Outbox`]: listeners, hooks, options. Ends with [`start`](Self::start).
#[must_use = "a builder does nothing until it is started"]
pub struct OutboxBuilder<S> {
    store: S,
    scenario: Scenario,
    registry: Result<Registry, registry::Error>,
    interceptors: Vec<Arc<dyn AnyInterceptor>>,
    instruments: Vec<Arc<dyn Instrument>>,
    hooks: Hooks,
    options: Options,
    metrics: Arc<dyn Metrics>,
    jitter: Jitter,
    ordered: Option<Ordered>,
    on_dead: Option<OnDead>,
}

impl<S: Store> OutboxBuilder<S> {
    pub(super) fn new(store: S, scenario: Scenario) -> Self {
        Self {
            store,
            scenario,
            registry: Ok(Registry::new()),
            interceptors: Vec::new(),
            instruments: Vec::new(),
            hooks: Hooks::default(),
            options: Options::default(),
            metrics: Arc::new(NoMetrics),
            jitter: Jitter::default(),
            ordered: None,
            on_dead: None,
        }
    }

    /// Registers the listener for one aggregate type and event type; `"*"` stands for any. A pair has one listener: for
    /// several, use a [`FanOut`](crate::listener::FanOut).
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Delivery, MemoryStore, Outbox};
    ///
    /// let builder = Outbox::builder(MemoryStore::new())
    ///     .listen("Order", "OrderPlaced", |event: Delivery| async move { println!("{}", event.id()) })
    ///     .listen("Order", "*", |_: Delivery| async { Err::<(), _>("what else happens to an order?") });
    /// ```
    pub fn listen(
        self,
        aggregate_type: impl AggregateType,
        event_type: impl EventType,
        listener: impl Into<AnyListener>,
    ) -> Self {
        self.registering(|registry| registry.register(aggregate_type, event_type, listener))
    }

    /// Registers an async function for a typed event, or for a family of them. It gets the decoded payload; what does
    /// not decode is DEAD, with a reason that names the field.
    ///
    /// It answers with what other listeners answer: nothing, an [`Outcome`](crate::Outcome), or a `Result` of either with
    /// any error. What the function works with is captured, or handed in by [`on_with`](Self::on_with). Captured:
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU32, Ordering};
    ///
    /// use posthaste::{MemoryStore, Outbox};
    /// # use posthaste::event::{Kind, TypedEvent};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct OrderPlaced { id: u64, total: u32 }
    /// # impl TypedEvent for OrderPlaced { const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1)]; }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let sum = Arc::new(AtomicU32::new(0));
    /// let outbox = Outbox::builder(MemoryStore::new())
    ///     .on::<OrderPlaced>({
    ///         let sum = sum.clone();
    ///         move |_event, order| {
    ///             // Every call gets a clone of its own, since calls outlive each other.
    ///             let sum = sum.clone();
    ///             async move { sum.fetch_add(order.total, Ordering::Relaxed); }
    ///         }
    ///     })
    ///     .start()
    ///     .await?;
    ///
    /// let mut tx = outbox.begin().await?;
    /// tx.write_all([OrderPlaced { id: 1, total: 20 }, OrderPlaced { id: 2, total: 22 }]).await?;
    /// tx.commit().await?;
    /// outbox.shutdown().await;
    /// assert_eq!(sum.load(Ordering::Relaxed), 42);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A time limit, a retry policy or an upcast of its own is given with [`typed`] and [`listen_for`](Self::listen_for).
    pub fn on<T: TypedEvent>(self, function: impl HandleFn<T>) -> Self {
        self.listen_for::<T>(typed::<T>(function))
    }

    /// Registers an async function for a typed event, and what it works with: a clone of it is handed to every call.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use std::sync::Arc;
    ///
    /// use posthaste::{Delivery, MemoryStore, Outbox};
    /// # use posthaste::event::{Kind, TypedEvent};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct OrderPlaced { id: u64 }
    /// # impl TypedEvent for OrderPlaced { const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1)]; }
    ///
    /// struct Mailer { from: String }
    ///
    /// impl Mailer {
    ///     async fn confirm(&self, order: OrderPlaced) -> std::io::Result<()> {
    ///         println!("{} confirms order {}", self.from, order.id);
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let mailer = Arc::new(Mailer { from: "shop".into() });
    /// let builder = Outbox::builder(MemoryStore::new())
    ///     .on_with(mailer, |mailer, _event, order: OrderPlaced| async move { mailer.confirm(order).await });
    /// ```
    ///
    /// With a time limit, a retry policy or a limit of its own: [`typed_with`](crate::listener::typed_with) and
    /// [`listen_for`](Self::listen_for).
    pub fn on_with<C, T, F, Fut>(self, state: C, function: F) -> Self
    where
        C: Clone + Send + Sync + 'static,
        T: TypedEvent,
        F: Fn(C, Delivery, T) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoVerdict> + Send + 'static,
    {
        self.registering(|registry| registry.on_with(state, function))
    }

    /// Registers a struct that handles a typed event. See [`Handle`] for an example.
    pub fn handle<T: TypedEvent>(self, handler: impl Handle<T>) -> Self {
        self.registering(|registry| registry.handle::<T>(handler))
    }

    /// Registers any listener for a typed event: for all types of its family, and for those that it accepts by upcasts.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::listener::{FanOut, typed};
    /// use posthaste::{Delivery, MemoryStore, Outbox};
    /// # use posthaste::event::{Kind, TypedEvent};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct OrderPlaced { id: u64 }
    /// # impl TypedEvent for OrderPlaced { const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1)]; }
    ///
    /// async fn mail(_event: Delivery, order: OrderPlaced) { println!("mail for {}", order.id) }
    /// async fn audit(event: Delivery, _order: OrderPlaced) { println!("{} seen", event.id()) }
    ///
    /// let builder = Outbox::builder(MemoryStore::new())
    ///     .listen_for::<OrderPlaced>(FanOut::new().and(typed(mail)).and(typed(audit)));
    /// ```
    pub fn listen_for<T: TypedEvent>(self, listener: impl Into<AnyListener>) -> Self {
        self.registering(|registry| registry.register_for::<T>(listener))
    }

    fn registering(mut self, register: impl FnOnce(&mut Registry) -> Result<(), registry::Error>) -> Self {
        self.registry = self.registry.and_then(|mut registry| {
            register(&mut registry)?;
            Ok(registry)
        });
        self
    }

    /// Registers the listener for every event that no other listener gets.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Delivery, MemoryStore, Outbox};
    ///
    /// let builder = Outbox::builder(MemoryStore::new())
    ///     .listen_all(|event: Delivery| async move { println!("{} {}", event.aggregate_type(), event.event_type()) });
    /// ```
    pub fn listen_all(self, listener: impl Into<AnyListener>) -> Self {
        self.listen(registry::ANY, registry::ANY, listener)
    }

    /// Adds what runs around every delivery, inside of what was added before.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Delivery, MemoryStore, Outbox, interceptor};
    ///
    /// let builder = Outbox::builder(MemoryStore::new())
    ///     .interceptor(interceptor::after(|event, verdict| {
    ///         println!("{} attempt {}: {verdict:?}", event.id(), event.attempt());
    ///         Ok(())
    ///     }))
    ///     .listen_all(|_: Delivery| async {});
    /// ```
    pub fn interceptor(mut self, interceptor: impl Interceptor) -> Self {
        self.interceptors.push(Arc::new(interceptor));
        self
    }

    /// Adds what measures every delivery, around its interceptors and its listener, inside of what was added before. See
    /// [`Instrument`] for an example.
    pub fn instrument(mut self, instrument: impl Instrument) -> Self {
        self.instruments.push(Arc::new(instrument));
        self
    }

    /// Adds what takes part in every write. See [`WriteHook`] for an example.
    pub fn hook(mut self, hook: impl WriteHook) -> Self {
        self.hooks.push(Arc::new(hook));
        self
    }

    /// Takes all listeners from a registry, instead of those registered before.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Delivery, MemoryStore, Outbox, Registry};
    ///
    /// let mut registry = Registry::new();
    /// for kind in ["OrderPlaced", "OrderPaid"] {
    ///     registry.register("Order", kind, |_: Delivery| async {})?;
    /// }
    /// let builder = Outbox::builder(MemoryStore::new()).registry(registry);
    /// # Ok::<(), posthaste::registry::Error>(())
    /// ```
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = Ok(registry);
        self
    }

    /// Sets all options.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Delivery, MemoryStore, Options, Outbox};
    ///
    /// let options = Options { workers: 8, ..Options::default() }.with_env("SHOP_OUTBOX_", std::env::vars())?;
    /// let builder = Outbox::builder(MemoryStore::new()).options(options).listen_all(|_: Delivery| async {});
    /// # Ok::<(), posthaste::options::Error>(())
    /// ```
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Sets where to report. See [`Metrics`] for an example.
    pub fn metrics(mut self, metrics: impl Metrics) -> Self {
        self.metrics = Arc::new(metrics);
        self
    }

    /// Delivers the events of an aggregate in the order in which they were written, in this process and in all others.
    ///
    /// No attempt at an event begins before each earlier event of its aggregate was acknowledged by its listener, or was given up;
    /// whoever retries, crashes, is paused or is shut down. Aggregates do not wait for each other. After a fault an event may be
    /// repeated behind later ones, which [`Delivery::seq`] tells. Writers of one aggregate have to wait for each other, by the row
    /// lock or the version check that they have anyway. What holds behind an event that cannot be delivered, [`OnDead`] says.
    ///
    /// Every process that delivers from a table needs the same order; processes that only write need nothing.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Delivery, Event, Listener, MemoryStore, OnDead, Ordered, Outbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    /// let listener = move |event: Delivery| {
    ///     let _ = tell.send(event.event_type().to_owned());
    ///     async {}
    /// };
    /// let outbox = Outbox::builder(MemoryStore::new())
    ///     .ordered(Ordered::all())
    ///     .listen("Order", "*", listener.on_dead(OnDead::Park))
    ///     .start()
    ///     .await?;
    ///
    /// let mut tx = outbox.begin().await?;
    /// tx.write(Event::builder("OrderPlaced").aggregate("Order", 42).json_text("{}")).await?;
    /// tx.write(Event::builder("OrderPaid").aggregate("Order", 42).json_text("{}")).await?;
    /// tx.commit().await?;
    /// assert_eq!(told.recv().await.as_deref(), Some("OrderPlaced"));
    /// assert_eq!(told.recv().await.as_deref(), Some("OrderPaid"));
    /// # outbox.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn ordered(mut self, ordered: Ordered) -> Self {
        self.ordered = Some(ordered);
        self
    }

    /// Sets what becomes of an aggregate with an event that cannot be delivered, where its listener does not say. Only together
    /// with [`ordered`](Self::ordered). Default: [`OnDead::Park`].
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Delivery, MemoryStore, OnDead, Ordered, Outbox};
    ///
    /// let builder = Outbox::builder(MemoryStore::new())
    ///     .ordered(Ordered::types(["Order"]))
    ///     .on_dead(OnDead::Skip)
    ///     .listen_all(|_: Delivery| async {});
    /// ```
    pub fn on_dead(mut self, policy: OnDead) -> Self {
        self.on_dead = Some(policy);
        self
    }

    /// Sets the randomness that spreads retries, so that a test can repeat it.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::retry::Jitter;
    /// use posthaste::{Delivery, MemoryStore, Outbox};
    ///
    /// let builder = Outbox::builder(MemoryStore::new()).jitter(Jitter::seeded(1)).listen_all(|_: Delivery| async {});
    /// ```
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// Starts delivering, on the current tokio runtime.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::outbox::StartError;
    /// use posthaste::{MemoryStore, Outbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // Mistakes are told before anything is delivered.
    /// let nobody = Outbox::builder(MemoryStore::new()).start().await;
    /// assert!(matches!(nobody, Err(StartError::NoListener)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When an option or a registration is wrong, when nobody listens, or when the database cannot be asked for what a
    /// predecessor left.
    pub async fn start(self) -> Result<Outbox<S>, StartError> {
        kill_point!("start.before");
        let tasks = TaskTracker::new();
        self.options.check()?;
        let registry = self.registry?;
        if self.scenario == Scenario::WriterOnly {
            let retention = Retention::start(self.store.clone(), &self.options, self.metrics, self.jitter.clone());
            let signals = self.store.signal().map(|signal| Arc::new(Signals::start(signal, None, self.jitter)));
            let after = Arc::new(AfterWrite::new(self.hooks, None, signals.clone(), tasks.clone()));
            return Ok(Outbox(Arc::new(Inner { store: self.store, after, relay: None, signals, retention, tasks })));
        }
        if registry.is_empty() {
            return Err(StartError::NoListener);
        }
        let on_dead = self.on_dead.unwrap_or_default();
        if self.ordered.is_none() && (self.on_dead.is_some() || registry.any_dead_policy(|policy| policy.is_some())) {
            return Err(StartError::NotOrdered);
        }
        let store: Arc<dyn RelayStore> = Arc::new(self.store.clone());
        let lanes = match &self.ordered {
            Some(_) => Some(lanes_of(&*store, &registry, on_dead).await?),
            None => {
                expect_no_lanes(&*store).await?;
                None
            }
        };
        if self.scenario == Scenario::SingleNode {
            kill_point!("take_over.before");
            let released = store.release_all().await?;
            kill_point!("take_over.after");
            if released > 0 {
                tracing::info!(released, "taken over what a predecessor had leased");
            }
        }
        let owner = self.options.new_owner();
        if let (Some(ordered), Some((lanes, _))) = (&self.ordered, &lanes) {
            let mine = ordered.settings();
            let others = lanes.agree(&owner, &mine, self.options.lane_lease).await.map_err(StartError::Lanes)?;
            if !others.is_empty() {
                return Err(StartError::OtherSettings { mine, others });
            }
        }
        let mut counting = JoinSet::new();
        if let Some(interval) = self.options.count_interval {
            let metrics = Arc::new(metrics::Contained(Arc::clone(&self.metrics)));
            counting.spawn(count_rows(self.store.clone(), metrics, interval));
        }
        let retention =
            Retention::start(self.store.clone(), &self.options, Arc::clone(&self.metrics), self.jitter.clone());
        let signal = self.store.signal();
        let signalled = |wake, jitter| signal.map(|signal| Arc::new(Signals::start(signal, Some(wake), jitter)));
        if let (Some(ordered), Some((store, lanes))) = (self.ordered, lanes) {
            let setup = lanes::Setup {
                store,
                lanes,
                owner,
                ordered,
                on_dead,
                registry,
                interceptors: self.interceptors,
                instruments: self.instruments,
                options: self.options,
                metrics: self.metrics,
                jitter: self.jitter.clone(),
            };
            let lanes = setup.start();
            let signals = signalled(lanes.wake(), self.jitter);
            let after = Arc::new(AfterWrite::of_lanes(self.hooks, Arc::clone(&lanes), signals.clone(), tasks.clone()));
            let relay = Some(Relay { engine: Engine::Lanes(lanes), _counting: counting });
            return Ok(Outbox(Arc::new(Inner { store: self.store, after, relay, signals, retention, tasks })));
        }
        if let Some(lanes) = store.lanes() {
            counting.spawn(look_for_lanes(lanes));
        }
        let leases = Arc::new(Leases::new(owner));
        let dispatcher = Dispatcher::builder(Arc::clone(&store), registry)
            .options(self.options.clone())
            .leases(Arc::clone(&leases))
            .interceptors(self.interceptors)
            .instruments(self.instruments)
            .metrics(Arc::clone(&self.metrics))
            .jitter(self.jitter.clone())
            .start()?;
        let poller = Poller::builder(store, Arc::clone(&dispatcher) as Arc<_>)
            .options(self.options.clone())
            .leases(leases)
            .metrics(self.metrics)
            .jitter(self.jitter.clone())
            .wake(dispatcher.poller_wake())
            .build()?;
        poller.start();
        let signals = signalled(dispatcher.poller_wake(), self.jitter);
        let dispatching = Some(Arc::clone(&dispatcher));
        let after = Arc::new(AfterWrite::new(self.hooks, dispatching, signals.clone(), tasks.clone()));
        let deadline = self.options.shutdown_deadline;
        let engine = Engine::Rows { dispatcher, source: Box::new(poller), deadline };
        let relay = Some(Relay { engine, _counting: counting });
        Ok(Outbox(Arc::new(Inner { store: self.store, after, relay, signals, retention, tasks })))
    }
}

/// The lanes of a store, and how many there are, if it can do what these listeners ask for.
async fn lanes_of(
    store: &dyn RelayStore,
    registry: &Registry,
    on_dead: OnDead,
) -> Result<(Arc<dyn LaneStore>, u16), StartError> {
    let lanes = store.lanes().ok_or(StartError::NoLanes)?;
    let parks = |policy: Option<OnDead>| policy.unwrap_or(on_dead) == OnDead::Park;
    if !lanes.closes_keys() && (parks(None) || registry.any_dead_policy(parks)) {
        return Err(StartError::NoParking);
    }
    let count = lanes.count_lanes().await.map_err(StartError::Lanes)?;
    Ok((lanes, count))
}

/// Who claims rows one by one takes no notice of lanes, and breaks the order of those who do.
async fn expect_no_lanes(store: &dyn RelayStore) -> Result<(), StartError> {
    let Some(lanes) = store.lanes() else { return Ok(()) };
    match lanes.relays().await {
        Ok(others) if others.is_empty() => Ok(()),
        Ok(others) => Err(StartError::OtherSettings { mine: "nothing".to_owned(), others }),
        // Whoever may not ask has nothing to do with lanes.
        Err(error) => {
            tracing::debug!(error = %chain(&error), "not known whether others deliver in order");
            Ok(())
        }
    }
}

/// Tells of relays that have begun to deliver in order beside this one, for as long as it is let.
async fn look_for_lanes(lanes: Arc<dyn LaneStore>) {
    loop {
        tokio::time::sleep(LOOK_FOR_LANES).await;
        if let Ok(others) = lanes.relays().await
            && !others.is_empty()
        {
            tracing::error!(
                others = listed(&others),
                "others deliver from this table in order, which this process breaks: stop it, or have it deliver in order, too"
            );
        }
    }
}

/// Reports the rows of each status, for as long as it is let.
async fn count_rows(store: impl Store, metrics: Arc<dyn Metrics>, interval: Duration) {
    loop {
        match store.counts().await {
            Ok(counts) => metrics.rows(counts),
            Err(error) => tracing::warn!(error = %chain(&error), "rows not counted"),
        }
        tokio::time::sleep(interval).await;
    }
}

impl<S> fmt::Debug for OutboxBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxBuilder")
            .field("scenario", &self.scenario)
            .field("registry", &self.registry)
            .field("ordered", &self.ordered)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
