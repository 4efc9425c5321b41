//! `posthaste relay --once`: delivers what is due, and ends.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use posthaste::event::EventId;
use posthaste::poller::{ClaimHandler, Poller};
use posthaste::store::{
    Action, BoxFuture, Claim, Claimed, Cursor, Error, Filter, Key, Lease, Page, RelayStore, Settled, Settlement, Store,
};
use posthaste::{Closed, Dispatcher, Event, Outbox, Registry};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::obstacle::{Obstacle, Obstacles, PUT_OFF};
use super::{Signals, until_second};
use crate::database::Database;
use crate::exit::{Failed, Status};

/// What is put off for longer than that is left.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often it is looked whether what is in hand has ended.
const LOOK: Duration = Duration::from_millis(2);

/// How often it is looked whether something can go on, where the table has to be asked.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How long to wait after the database could not be asked.
const PAUSE: Duration = Duration::from_millis(500);

/// A relay that delivers what is due, and ends.
pub(super) struct Once<'a> {
    pub(super) obstacles: Obstacles<'a>,
    /// How long a destination that is away is waited for.
    pub(super) wait: Duration,
    pub(super) database: &'a Database,
}

impl Once<'_> {
    /// Delivers what is due, and what will be in a moment. Says whether something is left that is paused, or whose destination is
    /// away.
    pub(super) async fn drain(
        &self,
        store: Arc<dyn RelayStore>,
        registry: Registry,
        signals: &mut Signals,
    ) -> Result<(Closed, bool), Failed> {
        let store = Arc::new(Watched::new(store));
        let could_not = |error| Failed::new(Status::CouldNotRun, error);
        let (relay, options): (Arc<dyn RelayStore>, _) = (store.clone(), &self.obstacles.settings.relay);
        let dispatcher = Dispatcher::builder(Arc::clone(&relay), registry).options(options.clone());
        let dispatcher = dispatcher.start().map_err(could_not)?;
        let poller = Poller::builder(relay, Arc::clone(&dispatcher) as Arc<_>).options(options.clone());
        let poller = poller.build().map_err(could_not)?;
        let is_over = tokio::select! {
            claimed = self.until_nothing_is_due(&store, &poller, &dispatcher) => {
                info!(claimed, "nothing more is to be done");
                true
            }
            signal = signals.next() => {
                info!(signal, in_hand = dispatcher.in_flight(), "ending");
                false
            }
        };
        let closed = until_second(signals, dispatcher.close(), || dispatcher.close_now()).await;
        // Whoever is told to end leaves what he is told to.
        Ok((closed, is_over && self.obstacles.tell_of_left(self.database).await?))
    }

    /// The same in order: rows are owned by lanes, so nothing is claimed. It is over when nothing is in hand, and everything that is
    /// pending is put off, paused, parked, or behind such an event. What is in lanes of other relays is waited for.
    pub(super) async fn drain_in_order<S: Store>(
        &self,
        store: S,
        registry: Registry,
        signals: &mut Signals,
    ) -> Result<(Closed, bool), Failed> {
        let outbox = super::outbox(store, registry, self.obstacles.settings).start().await;
        let outbox = outbox.map_err(|error| Failed::new(Status::CouldNotRun, error))?;
        let is_over = tokio::select! {
            () = self.until_nothing_can_go_on(&outbox) => {
                info!("nothing more is to be done");
                true
            }
            signal = signals.next() => {
                info!(signal, in_hand = outbox.in_flight(), "ending");
                false
            }
        };
        let closed = until_second(signals, outbox.shutdown(), || outbox.shutdown_now()).await;
        Ok((closed, is_over && self.obstacles.tell_of_left(self.database).await?))
    }

    /// Claims until there is nothing to claim and nothing in hand, or nothing that could be delivered. Says how many rows were
    /// claimed.
    async fn until_nothing_is_due(&self, store: &Watched, poller: &Poller, dispatcher: &Arc<Dispatcher>) -> usize {
        let (mut claimed, mut away) = (0, Away::default());
        let half = self.obstacles.settings.relay.cold_queue.div_ceil(2).max(1);
        loop {
            let idle = dispatcher.in_flight() == 0;
            let left = self.wait.saturating_sub(away.so_far(self.obstacles.is_any_away()));
            if idle && self.goes_in_circles(store, left) {
                return claimed;
            }
            let polled = match poller.poll(dispatcher.capacity().max(1)).await {
                Ok(polled) => polled,
                Err(error) => {
                    warn!(error = crate::text_of(&error), "the database could not be asked; trying again");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            claimed += polled.claimed;
            if polled.no_room {
                tokio::select! {
                    _ = timeout(LOOK_AGAIN, dispatcher.room_for(half)) => {}
                    // It is not the queue that is full: every route is paused, or its destination is away.
                    () = nothing_in_hand(dispatcher) => {
                        if self.obstacles.is_all_paused() || timeout(left, dispatcher.room_for(1)).await.is_err() {
                            return claimed;
                        }
                    }
                }
            } else if polled.full {
                // As a poller does: a claim of few rows is not worth its trip, and while it is under way the others are worked on.
                let _ = timeout(LOOK_AGAIN, dispatcher.room_for(half)).await;
            } else if polled.claimed > 0 {
                continue;
            } else if !idle {
                nothing_in_hand(dispatcher).await;
            } else {
                match store.next_in() {
                    Some(next_in) if next_in <= PATIENCE => sleep(next_in.max(LOOK)).await,
                    // It may be put off because its destination is away, and that may be back.
                    Some(next_in) if self.obstacles.is_any_away() && next_in <= left => sleep(next_in).await,
                    _ => return claimed,
                }
            }
        }
    }

    /// Whether only those come that were put off before: of many events that are paused, or away, some are always due.
    fn goes_in_circles(&self, store: &Watched, left: Duration) -> bool {
        let is_waited_for = self.obstacles.is_any_away() && !left.is_zero();
        let is_in_the_way = self.obstacles.is_any_away() || self.obstacles.is_any_paused();
        is_in_the_way && !is_waited_for && store.without_news() > 2 * PATIENCE
    }

    async fn until_nothing_can_go_on<S: Store>(&self, outbox: &Outbox<S>) {
        let mut away = Away::default();
        loop {
            while outbox.in_flight() > 0 {
                sleep(LOOK).await;
            }
            match self.outlook().await {
                // What is in hand by now was seen as pending.
                Ok(Outlook::Over) if outbox.in_flight() == 0 => return,
                Ok(Outlook::Away) if away.so_far(true) >= self.wait && outbox.in_flight() == 0 => return,
                Ok(outlook) => {
                    if outlook == Outlook::GoesOn {
                        away = Away::default();
                    }
                    sleep(LOOK_AGAIN).await;
                }
                Err(error) => {
                    warn!(error = crate::text(&error.error), "the database could not be asked; trying again");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Whether some event is due, or will be in a moment, and waits for no other that is not.
    async fn outlook(&self) -> Result<Outlook, Failed> {
        // That of the database, which events are due by: the one of this machine may be wrong.
        let (now, admin) = (self.database.now().await?, self.database.admin());
        let mut waiting: HashSet<Key> = admin
            .closed_keys(usize::MAX)
            .await?
            .into_iter()
            .filter(|closed| !closed.reopened)
            .map(|closed| closed.key)
            .collect();
        let pending = Filter { statuses: vec![posthaste::Status::New, posthaste::Status::Retry], ..Filter::default() };
        let (mut page, mut outlook) = (Page { limit: 500, ..Page::default() }, Outlook::Over);
        loop {
            let records = admin.list(&pending, &page).await?;
            let Some(last) = records.last() else { return Ok(outlook) };
            page.after = Some(Cursor::from(last));
            for record in &records {
                let ordered = self.obstacles.settings.order.ordered.as_ref();
                let ordered = |event: &Event| ordered.is_some_and(|ordered| ordered.includes(event.aggregate_type()));
                let event = record.event.as_ref().ok();
                let key = event.filter(|event| ordered(event)).and_then(Key::of);
                if key.as_ref().is_some_and(|key| waiting.contains(key)) {
                    continue;
                }
                match event.and_then(|event| self.obstacles.of(event)) {
                    None if record.state.available_at <= now + PATIENCE => return Ok(Outlook::GoesOn),
                    Some(Obstacle::Away(_)) if record.state.available_at <= now + PUT_OFF => outlook = Outlook::Away,
                    _ => {}
                }
                waiting.extend(key);
            }
        }
    }
}

/// What is to be expected of the events that are pending.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outlook {
    /// Some will be delivered.
    GoesOn,
    /// All that could be are for destinations that are away.
    Away,
    /// None will be.
    Over,
}

/// Since when a destination is away.
#[derive(Default)]
struct Away(Option<Instant>);

impl Away {
    /// For how long, if one is.
    fn so_far(&mut self, is_away: bool) -> Duration {
        match is_away {
            true => self.0.get_or_insert_with(Instant::now).elapsed(),
            false => {
                self.0 = None;
                Duration::ZERO
            }
        }
    }
}

async fn nothing_in_hand(dispatcher: &Dispatcher) {
    while dispatcher.in_flight() > 0 {
        sleep(LOOK).await;
    }
}

const NEVER: u64 = u64::MAX;

/// A store that remembers when its last claim said that the next row is due, and when something last happened to a row.
struct Watched {
    inner: Arc<dyn RelayStore>,
    /// In microseconds.
    next_in: AtomicU64,
    /// When a row was last settled in another way than to be put off once more.
    news_at: Mutex<Instant>,
    /// Which rows were put off, by a hash of their ids: there may be very many.
    put_off: Mutex<HashSet<u64>>,
    hasher: RandomState,
}

impl Watched {
    fn new(inner: Arc<dyn RelayStore>) -> Self {
        let (next_in, news_at) = (AtomicU64::new(NEVER), Mutex::new(Instant::now()));
        Self { inner, next_in, news_at, put_off: Mutex::default(), hasher: RandomState::new() }
    }

    /// For how long nothing happened but that rows were put off once more.
    fn without_news(&self) -> Duration {
        self.news_at.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    fn hear(&self, settlements: &[Settlement]) {
        let mut put_off = self.put_off.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_news = |settlement: &&Settlement| match settlement.action {
            Action::Defer { .. } => put_off.insert(self.hasher.hash_one(&settlement.id)),
            Action::Release => false,
            _ => true,
        };
        if settlements.iter().filter(|settlement| is_news(settlement)).count() > 0 {
            *self.news_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
    }

    fn next_in(&self) -> Option<Duration> {
        match self.next_in.load(Ordering::Acquire) {
            NEVER => None,
            micros => Some(Duration::from_micros(micros)),
        }
    }
}

impl RelayStore for Watched {
    fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed, Error>> {
        Box::pin(async move {
            let claimed = self.inner.claim(claim).await?;
            let micros = claimed.next_in.map_or(NEVER, |next_in| u64::try_from(next_in.as_micros()).unwrap_or(NEVER));
            self.next_in.store(micros, Ordering::Release);
            Ok(claimed)
        })
    }

    fn settle<'a>(&'a self, settlements: &'a [Settlement]) -> BoxFuture<'a, Result<Vec<Settled>, Error>> {
        self.hear(settlements);
        self.inner.settle(settlements)
    }

    fn renew<'a>(&'a self, leases: &'a [(EventId, Lease)]) -> BoxFuture<'a, Result<Vec<bool>, Error>> {
        self.inner.renew(leases)
    }

    fn release_all(&self) -> BoxFuture<'_, Result<u64, Error>> {
        self.inner.release_all()
    }
}
