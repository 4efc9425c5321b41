//! An outbox in the hands of a test.

use std::fmt::Display;
use std::future::Future;
use std::ops::Deref;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::listing::{Listing, rows};
use super::passing::PassTime;
use super::wait::PATIENCE;
use super::wanted::{Fit, Wanted};
use crate::dispatcher::Dispatcher;
use crate::event::{Event, EventId, TypedEvent};
use crate::listener::chain;
use crate::options::Options;
use crate::outbox::Outbox;
use crate::poller::Poller;
use crate::store::{Counts, Filter, Lease, Record, RelayStore, RowState, Status, Store};

/// How long a test sleeps before it looks at the table again.
const PAUSE: Duration = Duration::from_millis(2);

/// An [`Outbox`] in the hands of a test: the same outbox, and questions to its table.
///
/// It dereferences to the outbox, so it is handed to code that takes `&Outbox<S>` as it is, and `clone` gives the outbox
/// itself. Made by [`start_test`](crate::OutboxBuilder::start_test), or [`from`](Self::from) an outbox that runs already.
///
/// Every question that fails panics with what is in the table, payloads included, and with the line of the test.
#[derive(Debug)]
pub struct TestOutbox<S: Store> {
    outbox: Outbox<S>,
    patience: Duration,
}

impl<S: Store> From<Outbox<S>> for TestOutbox<S> {
    fn from(outbox: Outbox<S>) -> Self {
        Self { outbox, patience: PATIENCE }
    }
}

impl<S: Store> Deref for TestOutbox<S> {
    type Target = Outbox<S>;

    fn deref(&self) -> &Outbox<S> {
        &self.outbox
    }
}

impl<S: Store> TestOutbox<S> {
    /// For a service that keeps its outbox to itself: an outbox on the same store that only writes, for questions to the
    /// table.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::testing::TestOutbox;
    /// # use posthaste::{Delivery, Event, MemoryStore, Outbox};
    /// # async fn run_service(store: MemoryStore) {
    /// #     let outbox = Outbox::builder(store).listen_all(|_: Delivery| async {}).start().await.unwrap();
    /// #     let mut tx = outbox.begin().await.unwrap();
    /// #     tx.write(Event::of_json("ServiceStarted", "{}")).await.unwrap();
    /// #     tx.commit().await.unwrap();
    /// #     outbox.shutdown().await;
    /// # }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let store = MemoryStore::new();
    /// let table = TestOutbox::over(store.clone()).await;
    /// run_service(store).await;
    /// assert_eq!(table.admin().counts().await.unwrap().done, 1);
    /// # }
    /// ```
    pub async fn over(store: S) -> Self {
        Outbox::writer_only(store).start_test().await
    }

    /// Waits that long before it gives up, instead of 30 s.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Every event of this type in the table, whatever became of it, in the order of the inserts.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// # use posthaste::testing;
    /// # use posthaste::event::{Kind, TypedEvent};
    /// # #[derive(serde::Serialize, serde::Deserialize, PartialEq, Debug)]
    /// # struct OrderPlaced { id: u64, total: u32 }
    /// # impl TypedEvent for OrderPlaced { const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1)]; }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let outbox = testing::writer().await;
    /// let mut tx = outbox.begin().await?;
    /// tx.write(OrderPlaced { id: 1, total: 3 }).await?;
    /// tx.commit().await?;
    /// assert_eq!(outbox.written::<OrderPlaced>().await, [OrderPlaced { id: 1, total: 3 }]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn written<T: TypedEvent>(&self) -> impl Future<Output = Vec<T>> + Send {
        let at = Location::caller();
        async move {
            let wanted = Wanted::typed::<T>(|_| true);
            let rows = self.rows(at).await;
            let unreadable = |record: &Record| {
                record.event.as_ref().is_ok_and(|event| matches!(wanted.fit(event), Fit::Unreadable(_)))
            };
            if rows.iter().any(unreadable) {
                fail(format_args!("{wanted} was written, but not all of it decodes"), &rows, Some(&wanted), at);
            }
            fitting(&rows, &wanted).filter_map(|(event, _)| event.typed().ok()).collect()
        }
    }

    /// Fails unless an event of this type was written and committed for which the closure says yes. Gives the first one.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// # use posthaste::testing;
    /// # use posthaste::event::{Kind, TypedEvent};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct OrderPlaced { id: u64, total: u32 }
    /// # impl TypedEvent for OrderPlaced { const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1)]; }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let outbox = testing::writer().await;
    /// let mut tx = outbox.begin().await?;
    /// tx.write(OrderPlaced { id: 42, total: 3 }).await?;
    /// tx.commit().await?;
    /// outbox.assert_written::<OrderPlaced>(|order| order.total == 3).await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// What became of it since does not matter. Only a store that deletes what is done has nothing to show.
    #[track_caller]
    pub fn assert_written<'a, T: TypedEvent>(
        &'a self,
        fits: impl Fn(&T) -> bool + Send + Sync + 'a,
    ) -> impl Future<Output = Event> + Send {
        self.assert_written_event(Wanted::typed::<T>(fits))
    }

    /// Fails unless an event was written and committed that is wanted, as often as it is wanted. Gives the first one.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// # use posthaste::{Event, testing};
    /// use posthaste::testing::Wanted;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let outbox = testing::writer().await;
    /// let mut tx = outbox.begin().await?;
    /// tx.write(Event::builder("OrderPlaced").aggregate("Order", 42).json_text(r#"{"total":3}"#)).await?;
    /// tx.commit().await?;
    ///
    /// let placed = Wanted::event("OrderPlaced").aggregate("Order", 42).json(|order| order["total"] == 3);
    /// outbox.assert_written_event(placed.times(1)).await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// Also when it is wanted no times: ask with [`assert_not_written`](Self::assert_not_written).
    #[track_caller]
    pub fn assert_written_event<'a>(&'a self, wanted: Wanted<'a>) -> impl Future<Output = Event> + Send {
        let at = Location::caller();
        async move {
            let rows = self.rows(at).await;
            let found: Vec<_> = fitting(&rows, &wanted).collect();
            match (found.first(), wanted.count()) {
                (Some((event, _)), _) if wanted.is_satisfied_by(found.len()) => (*event).clone(),
                (_, Some(times)) => {
                    let found = found.len();
                    fail(
                        format_args!("{wanted} was written {found} times instead of {times}"),
                        &rows,
                        Some(&wanted),
                        at,
                    )
                }
                (_, None) => fail(format_args!("{wanted} was not written"), &rows, Some(&wanted), at),
            }
        }
    }

    /// Fails if an event was written and committed that fits.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// # use posthaste::testing;
    /// use posthaste::testing::Wanted;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let outbox = testing::writer().await;
    /// outbox.assert_not_written(Wanted::event("OrderPlaced")).await;
    /// # }
    /// ```
    #[track_caller]
    pub fn assert_not_written<'a>(&'a self, wanted: impl Into<Wanted<'a>>) -> impl Future<Output = ()> + Send {
        let at = Location::caller();
        let wanted = wanted.into();
        async move {
            let rows = self.rows(at).await;
            if fitting(&rows, &wanted).next().is_some() {
                fail(format_args!("{wanted} was written"), &rows, None, at);
            }
        }
    }

    /// Fails if anything at all was written and committed.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// # use posthaste::{Event, testing};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let outbox = testing::writer().await;
    /// let mut tx = outbox.begin().await?;
    /// tx.write(Event::of_json("OrderPlaced", "{}")).await?;
    /// tx.rollback().await?;
    /// outbox.assert_nothing_written().await;
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn assert_nothing_written(&self) -> impl Future<Output = ()> + Send {
        let at = Location::caller();
        async move {
            let rows = self.rows(at).await;
            if !rows.is_empty() {
                fail(format_args!("nothing should have been written"), &rows, None, at);
            }
        }
    }

    /// Waits until what is wanted is delivered: an event by its id, or everything that fits, which is at least one event,
    /// or as many as are wanted. Fails when one of them is DEAD, or when patience has run out, and says where each stands
    /// and why it failed last.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::testing::{self, Recorder, Wanted};
    /// # use posthaste::Event;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let outbox = testing::outbox().listen_all(Recorder::new()).start_test().await;
    /// let mut tx = outbox.begin().await?;
    /// let id = tx.write(Event::of_json("OrderPlaced", "{}")).await?.expect("no hook takes it away");
    /// tx.write(Event::of_json("OrderPlaced", "{}")).await?;
    /// tx.commit().await?;
    ///
    /// outbox.wait_delivered(&id).await;
    /// outbox.wait_delivered(Wanted::event("OrderPlaced").times(2)).await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Asks the poller to look at the table, so that what others inserted is found at once. Retries are waited
    /// for, within the patience; [`advance`](Self::advance) before it for those that come later. Needs a store that keeps what is done.
    #[track_caller]
    pub fn wait_delivered<'a>(&'a self, wanted: impl Into<Wanted<'a>>) -> impl Future<Output = ()> + Send {
        let at = Location::caller();
        let wanted = wanted.into();
        async move {
            let until = Instant::now() + self.patience;
            self.wake();
            loop {
                let rows = self.rows(at).await;
                let found: Vec<_> = fitting(&rows, &wanted).map(|(_, state)| state.status).collect();
                if found.contains(&Status::Dead) {
                    fail(format_args!("{wanted} is DEAD"), &rows, Some(&wanted), at);
                }
                if wanted.is_satisfied_by(found.len()) && found.iter().all(|status| *status == Status::Done) {
                    return;
                }
                if Instant::now() >= until {
                    let done = found.iter().filter(|status| **status == Status::Done).count();
                    let times = wanted.count().map_or_else(String::new, |times| format!(" of {times}"));
                    let (waited, found) = (self.patience, found.len());
                    let what = format!(
                        "waited {waited:?} in vain until {wanted} is delivered; {found}{times} written, {done} delivered"
                    );
                    fail(what, &rows, Some(&wanted), at);
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Delivers everything that is due now, and returns when nothing is due or in hand any more, with how many rows of
    /// each status there are then. What is NEW or RETRY waits for its moment, or is leased to another process.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::testing::{self, Recorder};
    /// # use posthaste::Event;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mailer = Recorder::new();
    /// let outbox = testing::outbox().listen_all(mailer.clone()).start_test().await;
    /// mailer.fail_type("OrderCancelled");
    ///
    /// let mut tx = outbox.begin().await?;
    /// tx.write_all([Event::of_json("OrderPlaced", "{}"), Event::of_json("OrderCancelled", "{}")]).await?;
    /// tx.commit().await?;
    ///
    /// let counts = outbox.drain_now().await;
    /// assert_eq!((counts.done, counts.retry, counts.dead), (1, 1, 0));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// An outbox that only writes, or was shut down, delivers nothing, and this fails at once.
    #[track_caller]
    pub fn drain_now(&self) -> impl Future<Output = Counts> + Send {
        let at = Location::caller();
        async move {
            let Some(dispatcher) = self.outbox.dispatcher().filter(|dispatcher| !dispatcher.hot().is_closed()) else {
                panic!("the outbox only writes or was shut down, so there is nothing to drain\nasked at {at}");
            };
            let poller = self.poller(dispatcher);
            let until = Instant::now() + self.patience;
            let mut problem = None;
            // Twice the same with nothing in hand, and nothing claimed in between: nothing is due.
            let mut before = None;
            loop {
                match poller.poll(usize::MAX).await {
                    Ok(polled) if polled.claimed == 0 && !polled.no_room => {}
                    Ok(_) => before = None,
                    Err(error) => (before, problem) = (None, Some(chain(&error))),
                }
                let pending = self.idle(dispatcher, at).await;
                if pending.is_some() && pending == before {
                    return self.admin().counts().await.unwrap_or_else(|error| no_answer(&error, at));
                }
                before = pending;
                if Instant::now() >= until {
                    let reason = problem.map_or_else(String::new, |problem| format!("; a claim failed: {problem}"));
                    let (waited, in_hand) = (self.patience, dispatcher.in_flight());
                    let what = format!(
                        "waited {waited:?} in vain until everything due is delivered; {in_hand} in hand{reason}"
                    );
                    fail(what, &self.rows(at).await, None, at);
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Where every pending row stands, if this process has none of them in hand.
    async fn idle(&self, dispatcher: &Dispatcher, at: &Location<'_>) -> Option<Vec<(EventId, RowState)>> {
        let filter = Filter { statuses: vec![Status::New, Status::Retry], ..Filter::default() };
        let pending = rows(self.admin(), &filter).await.unwrap_or_else(|error| no_answer(&error, at));
        let owner = dispatcher.hot().leases.owner();
        let ours =
            |record: &Record| record.state.lease.as_ref().is_some_and(|(lease, _)| Lease::owner_of(lease) == owner);
        let idle = dispatcher.in_flight() == 0 && !pending.iter().any(ours);
        idle.then(|| pending.into_iter().map(|record| (record.id, record.state)).collect())
    }

    /// A poller beside that of the outbox, which polls when it is told to and says what it found.
    fn poller(&self, dispatcher: &Arc<Dispatcher>) -> Poller {
        let hot = dispatcher.hot();
        let store: Arc<dyn RelayStore> = Arc::new(self.store().clone());
        let options = Options { lease: hot.lease_duration, settle_linger: Duration::ZERO, ..Options::default() };
        let poller = Poller::builder(store, Arc::clone(dispatcher) as Arc<_>).options(options);
        poller.leases(Arc::clone(&hot.leases)).build().expect("the outbox has started with this lease")
    }

    async fn rows(&self, at: &Location<'_>) -> Vec<Record> {
        rows(self.admin(), &Filter::default()).await.unwrap_or_else(|error| no_answer(&error, at))
    }
}

impl<S: Store + PassTime> TestOutbox<S> {
    /// Makes time pass: retries and delayed events become due, leases of processes that are gone run out. Nothing is
    /// waited for; follow it with [`drain_now`](Self::drain_now) or [`wait_delivered`](Self::wait_delivered).
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use std::time::Duration;
    /// use posthaste::testing::{self, Recorder};
    /// # use posthaste::Event;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let outbox = testing::outbox().listen_all(Recorder::new()).start_test().await;
    /// let tomorrow = Duration::from_secs(24 * 3600);
    /// let mut tx = outbox.begin().await?;
    /// tx.write(Event::builder("TrialEnds").json_text("{}").deliver_after(tomorrow)).await?;
    /// tx.commit().await?;
    ///
    /// assert_eq!(outbox.drain_now().await.done, 0);
    /// outbox.advance(tomorrow).await;
    /// assert_eq!(outbox.drain_now().await.done, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// With the memory store and tokio's clock paused (`#[tokio::test(start_paused = true)]`), time passes for the whole
    /// program: everything on the way happens at its own moment, leases in hand are renewed, time limits of listeners
    /// end. With a clock that goes, or with a database, the rows alone grow older.
    pub async fn advance(&self, length: Duration) {
        self.store().pass_time(length).await;
        self.wake();
    }
}

/// The events that are wanted, with where they stand.
fn fitting<'a>(rows: &'a [Record], wanted: &'a Wanted<'_>) -> impl Iterator<Item = (&'a Event, &'a RowState)> {
    let events = rows.iter().filter_map(|record| Some((record.event.as_ref().ok()?, &record.state)));
    events.filter(|(event, _)| matches!(wanted.fit(event), Fit::Fits))
}

fn fail(what: impl Display, rows: &[Record], wanted: Option<&Wanted<'_>>, at: &Location<'_>) -> ! {
    panic!("{what}; {}\nasked at {at}", Listing { rows, wanted })
}

fn no_answer(error: &crate::store::Error, at: &Location<'_>) -> ! {
    panic!("the table could not be looked at: {}\nasked at {at}", chain(error))
}
