//! `posthaste relay --once`: delivers what is due, and ends.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use posthaste::event::EventId;
use posthaste::poller::{ClaimHandler, Polled, Poller, Source};
use posthaste::store::{
    Action, BoxFuture, Claim, Claimed, Cursor, Error, Filter, Key, Lease, Page, RelayStore, Settled, Settlement, Store,
};
use posthaste::{Closed, Dispatcher, Event, Outbox, Registry};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::obstacle::{Obstacle, Obstacles, PUT_OFF};
use super::{Ended, Signals, start, until_second};
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
    /// How long destinations that are away are waited for.
    pub(super) wait: Duration,
    /// How long the database is, once it goes away.
    pub(super) patience: Duration,
    pub(super) database: &'a Database,
}

impl Once<'_> {
    /// Delivers what is due, and what will be in a moment.
    pub(super) async fn drain(
        &self,
        store: Arc<dyn RelayStore>,
        registry: Registry,
        signals: &mut Signals,
    ) -> Result<Ended, Failed> {
        let could_not = |error| Failed::new(Status::CouldNotRun, error);
        let (store, options) = (Arc::new(Watched::new(store)), &self.obstacles.settings.relay);
        let dispatcher = Dispatcher::builder(Arc::clone(&store) as Arc<_>, registry).options(options.clone());
        let dispatcher = dispatcher.start().map_err(could_not)?;
        let claims = Arc::new(Claims::new(Arc::clone(&store)));
        let poller = Poller::builder(Arc::clone(&claims) as Arc<_>, Arc::clone(&dispatcher) as Arc<_>);
        let poller = poller.options(options.clone()).build().map_err(could_not)?;
        let mut polls = Polls { poller: &poller, under_way: JoinSet::new() };
        let drained = tokio::select! {
            drained = self.until_nothing_is_due(&store, &claims, &mut polls, &dispatcher) => Some(drained),
            signal = signals.next() => {
                info!(signal, in_hand = dispatcher.in_flight(), "ending");
                None
            }
        };
        if let Some(Ok(())) = drained {
            info!(claimed = claims.claimed.load(Ordering::Acquire), "nothing more is to be done");
        }
        // What was given back before has come again since.
        claims.released.store(0, Ordering::Release);
        // What a claim under way still takes is given back.
        poller.stop();
        let in_order = async { tokio::join!(dispatcher.close(), polls.end(options.shutdown_deadline)).0 };
        let mut closed = until_second(signals, in_order, || dispatcher.close_now()).await;
        closed.released += claims.released.load(Ordering::Acquire);
        closed.abandoned += claims.abandoned.load(Ordering::Acquire);
        let is_claiming = polls.is_any_under_way();
        Ok(Ended { is_claiming, ..self.ended(closed, drained).await })
    }

    /// The same in order: rows are owned by lanes, so nothing is claimed. It is over when nothing is in hand, and everything that is
    /// pending is put off, paused, parked, or behind such an event. What is in lanes of other relays is waited for.
    pub(super) async fn drain_in_order<S: Store>(
        &self,
        store: S,
        registry: Registry,
        signals: &mut Signals,
    ) -> Result<Ended, Failed> {
        let build = || super::outbox(store.clone(), registry.clone(), self.obstacles.settings);
        let outbox = start::outbox(build, Some(self.patience), signals).await?;
        let Some(outbox) = outbox else { return Ok(Ended::default()) };
        let drained = tokio::select! {
            drained = self.until_nothing_can_go_on(&outbox) => Some(drained),
            signal = signals.next() => {
                info!(signal, in_hand = outbox.in_flight(), "ending");
                None
            }
        };
        if let Some(Ok(())) = drained {
            info!("nothing more is to be done");
        }
        let closed = until_second(signals, outbox.shutdown(), || outbox.shutdown_now()).await;
        Ok(self.ended(closed, drained).await)
    }

    /// What became of it. Whoever is told to end leaves what he is told to.
    async fn ended(&self, closed: Closed, drained: Option<Result<(), Failed>>) -> Ended {
        let (is_left, failed) = match drained {
            None => (false, None),
            Some(Err(failed)) => (false, Some(failed)),
            Some(Ok(())) => {
                let left = self.obstacles.tell_of_left(self.database).await.unwrap_or_else(|failed| {
                    let error = crate::text(&failed.error);
                    warn!(error, "what is paused, or away, may be left: the database cannot be asked");
                    true
                });
                (left, None)
            }
        };
        Ended { closed, is_left, failed, ..Ended::default() }
    }

    /// Claims until there is nothing to claim and nothing in hand, or nothing that could be delivered.
    async fn until_nothing_is_due(
        &self,
        store: &Watched,
        claims: &Claims,
        polls: &mut Polls<'_>,
        dispatcher: &Arc<Dispatcher>,
    ) -> Result<(), Failed> {
        let (mut away, mut lost) = (Away::default(), Away::default());
        let half = self.obstacles.settings.relay.cold_queue.div_ceil(2).max(1);
        loop {
            let idle = dispatcher.in_flight() == 0;
            let left = self.wait.saturating_sub(away.so_far(self.obstacles.is_any_away()));
            if idle && self.goes_in_circles(store, left) {
                return Ok(());
            }
            let polled = match polls.next(dispatcher.capacity().max(1)).await {
                Ok(polled) => polled,
                Err(error) if lost.so_far(true) >= self.patience => return Err(error.into()),
                Err(error) => {
                    warn!(error = crate::text_of(&error), "the database could not be asked; trying again");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            lost = Away::default();
            if polled.no_room {
                tokio::select! {
                    _ = timeout(LOOK_AGAIN, dispatcher.room_for(half)) => {}
                    // It is not the queue that is full: every route is paused, or its destination is away.
                    () = nothing_in_hand(dispatcher) => {
                        if self.obstacles.is_all_paused() || timeout(left, dispatcher.room_for(1)).await.is_err() {
                            return Ok(());
                        }
                    }
                }
            } else if polled.full {
                // As a poller does: a claim of few rows is not worth its trip, and while it is under way the others are worked on.
                let _ = timeout(LOOK_AGAIN, dispatcher.room_for(half)).await;
            } else if polled.claimed > 0 {
                continue;
            } else if !idle {
                // Meanwhile the database is asked now and then, so that it is noticed if it is away.
                let _ = timeout(LOOK_AGAIN, nothing_in_hand(dispatcher)).await;
            } else {
                match claims.next_in() {
                    Some(next_in) if next_in <= PATIENCE => sleep(next_in.max(LOOK)).await,
                    // It may be put off because its destination is away, and that may be back.
                    Some(next_in) if self.obstacles.is_any_away() && next_in <= left => sleep(next_in).await,
                    _ => return Ok(()),
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

    async fn until_nothing_can_go_on<S: Store>(&self, outbox: &Outbox<S>) -> Result<(), Failed> {
        let (mut away, mut lost) = (Away::default(), Away::default());
        loop {
            while outbox.in_flight() > 0 {
                sleep(LOOK).await;
            }
            match self.outlook().await {
                // What is in hand by now was seen as pending.
                Ok(Outlook::Over) if outbox.in_flight() == 0 => return Ok(()),
                Ok(Outlook::Away) if away.so_far(true) >= self.wait && outbox.in_flight() == 0 => return Ok(()),
                Ok(outlook) => {
                    lost = Away::default();
                    if outlook == Outlook::GoesOn {
                        away = Away::default();
                    }
                    sleep(LOOK_AGAIN).await;
                }
                Err(failed) if lost.so_far(true) >= self.patience => return Err(failed),
                Err(failed) => {
                    warn!(error = crate::text(&failed.error), "the database could not be asked; trying again");
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

/// Polls, each of which goes on when nobody waits for it any more: what was claimed would be in nobody's hands.
struct Polls<'a> {
    poller: &'a Poller,
    /// One at most.
    under_way: JoinSet<Result<Polled, Error>>,
}

impl Polls<'_> {
    async fn next(&mut self, limit: usize) -> Result<Polled, Error> {
        let poller = self.poller.clone();
        self.under_way.spawn(async move { poller.poll(limit).await });
        let polled = self.under_way.join_next().await.expect("it was just begun");
        polled.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    }

    /// Waits for the one that is under way, within a limit.
    async fn end(&mut self, deadline: Duration) {
        let _ = timeout(deadline, self.under_way.join_next()).await;
    }

    fn is_any_under_way(&mut self) -> bool {
        while self.under_way.try_join_next().is_some() {}
        !self.under_way.is_empty()
    }
}

const NEVER: u64 = u64::MAX;

/// What the poller has of the store. It remembers when the last claim said that the next row is due, and what became of rows that were
/// claimed and not wanted any more.
struct Claims {
    store: Arc<Watched>,
    /// In microseconds.
    next_in: AtomicU64,
    claimed: AtomicUsize,
    released: AtomicUsize,
    abandoned: AtomicUsize,
}

impl Claims {
    fn new(store: Arc<Watched>) -> Self {
        let [claimed, released, abandoned] = [0; 3].map(AtomicUsize::new);
        Self { store, next_in: AtomicU64::new(NEVER), claimed, released, abandoned }
    }

    fn next_in(&self) -> Option<Duration> {
        match self.next_in.load(Ordering::Acquire) {
            NEVER => None,
            micros => Some(Duration::from_micros(micros)),
        }
    }
}

impl RelayStore for Claims {
    fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed, Error>> {
        Box::pin(async move {
            let claimed = self.store.claim(claim).await?;
            let micros = claimed.next_in.map_or(NEVER, |next_in| u64::try_from(next_in.as_micros()).unwrap_or(NEVER));
            self.next_in.store(micros, Ordering::Release);
            self.claimed.fetch_add(claimed.rows.len() + claimed.malformed.len(), Ordering::AcqRel);
            Ok(claimed)
        })
    }

    fn settle<'a>(&'a self, settlements: &'a [Settlement]) -> BoxFuture<'a, Result<Vec<Settled>, Error>> {
        Box::pin(async move {
            let settled = self.store.settle(settlements).await;
            let given_back =
                settlements.iter().filter(|settlement| matches!(settlement.action, Action::Release)).count();
            let counter = if settled.is_ok() { &self.released } else { &self.abandoned };
            counter.fetch_add(given_back, Ordering::AcqRel);
            settled
        })
    }

    fn renew<'a>(&'a self, leases: &'a [(EventId, Lease)]) -> BoxFuture<'a, Result<Vec<bool>, Error>> {
        self.store.renew(leases)
    }

    fn release_all(&self) -> BoxFuture<'_, Result<u64, Error>> {
        self.store.release_all()
    }
}

/// A store that remembers when something last happened to a row.
struct Watched {
    inner: Arc<dyn RelayStore>,
    /// When a row was last settled in another way than to be put off once more.
    news_at: Mutex<Instant>,
    /// Which rows were put off, by a hash of their ids: there may be very many.
    put_off: Mutex<HashSet<u64>>,
    hasher: RandomState,
}

impl Watched {
    fn new(inner: Arc<dyn RelayStore>) -> Self {
        Self { inner, news_at: Mutex::new(Instant::now()), put_off: Mutex::default(), hasher: RandomState::new() }
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
}

impl RelayStore for Watched {
    fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed, Error>> {
        self.inner.claim(claim)
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
