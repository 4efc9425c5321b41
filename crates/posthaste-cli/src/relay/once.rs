//! `posthaste relay --once`: delivers what is due, and ends.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste::event::EventId;
use posthaste::poller::{ClaimHandler, Poller};
use posthaste::store::{
    AdminStore, BoxFuture, Claim, Claimed, Cursor, Error, Filter, Key, Lease, Page, RelayStore, Settled, Settlement,
    Store,
};
use posthaste::{Closed, Dispatcher, Event, Outbox, Registry, Timestamp};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::{Signals, until_second};
use crate::exit::{Failed, Status};
use crate::settings::Settings;

/// What is put off for longer than that is left.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often it is looked whether what is in hand has ended.
const LOOK: Duration = Duration::from_millis(2);

/// How often it is looked whether something can go on, where the table has to be asked.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How long to wait after the database could not be asked.
const PAUSE: Duration = Duration::from_millis(500);

/// Delivers what is due, and what will be in a moment.
pub(super) async fn drain(
    store: Arc<dyn RelayStore>,
    registry: Registry,
    settings: &Settings,
    signals: &mut Signals,
) -> Result<Closed, Failed> {
    let store = Arc::new(Watched { inner: store, next_in: AtomicU64::new(NEVER) });
    let could_not = |error| Failed::new(Status::CouldNotRun, error);
    let relay: Arc<dyn RelayStore> = store.clone();
    let dispatcher = Dispatcher::builder(Arc::clone(&relay), registry).options(settings.relay.clone());
    let dispatcher = dispatcher.start().map_err(could_not)?;
    let poller = Poller::builder(relay, Arc::clone(&dispatcher) as Arc<_>).options(settings.relay.clone());
    let poller = poller.build().map_err(could_not)?;
    let half = settings.relay.cold_queue.div_ceil(2).max(1);
    tokio::select! {
        claimed = until_nothing_is_due(&store, &poller, &dispatcher, half) => info!(claimed, "nothing more is due"),
        signal = signals.next() => info!(signal, in_hand = dispatcher.in_flight(), "ending"),
    }
    Ok(until_second(signals, dispatcher.close(), || dispatcher.close_now()).await)
}

/// The same in order: rows are owned by lanes, so nothing is claimed. It is over when nothing is in hand, and everything that is
/// pending is put off, parked, or behind such an event. What is in lanes of other relays is waited for.
pub(super) async fn drain_in_order<S: Store>(
    store: S,
    registry: Registry,
    settings: &Settings,
    signals: &mut Signals,
) -> Result<Closed, Failed> {
    let outbox = super::outbox(store, registry, settings).start().await;
    let outbox = outbox.map_err(|error| Failed::new(Status::CouldNotRun, error))?;
    tokio::select! {
        () = until_nothing_can_go_on(&outbox, settings) => info!("nothing more is due"),
        signal = signals.next() => info!(signal, in_hand = outbox.in_flight(), "ending"),
    }
    Ok(until_second(signals, outbox.shutdown(), || outbox.shutdown_now()).await)
}

async fn until_nothing_can_go_on<S: Store>(outbox: &Outbox<S>, settings: &Settings) {
    loop {
        while outbox.in_flight() > 0 {
            sleep(LOOK).await;
        }
        match can_go_on(outbox.admin(), settings).await {
            // What is in hand by now was seen as pending.
            Ok(false) if outbox.in_flight() == 0 => return,
            Ok(_) => sleep(LOOK_AGAIN).await,
            Err(error) => {
                warn!(error = crate::text(&error.error), "the database could not be asked; trying again");
                sleep(PAUSE).await;
            }
        }
    }
}

/// Whether some event is due, or will be in a moment, and waits for no other that is not.
async fn can_go_on(store: &dyn AdminStore, settings: &Settings) -> Result<bool, Failed> {
    let soon = Timestamp::now() + PATIENCE;
    let mut waiting: HashSet<Key> = store
        .closed_keys(usize::MAX)
        .await?
        .into_iter()
        .filter(|closed| !closed.reopened)
        .map(|closed| closed.key)
        .collect();
    let pending = Filter { statuses: vec![posthaste::Status::New, posthaste::Status::Retry], ..Filter::default() };
    let mut page = Page { limit: 500, ..Page::default() };
    loop {
        let records = store.list(&pending, &page).await?;
        let Some(last) = records.last() else { return Ok(false) };
        page.after = Some(Cursor::from(last));
        for record in &records {
            let ordered = |event: &Event| {
                settings.order.ordered.as_ref().is_some_and(|ordered| ordered.includes(event.aggregate_type()))
            };
            let key = record.event.as_ref().ok().filter(|event| ordered(event)).and_then(Key::of);
            match key {
                Some(key) if waiting.contains(&key) => {}
                _ if record.state.available_at <= soon => return Ok(true),
                Some(key) => drop(waiting.insert(key)),
                None => {}
            }
        }
    }
}

/// Claims until there is nothing to claim and nothing in hand. Says how many rows were claimed. `half` is of the room for rows that
/// wait.
async fn until_nothing_is_due(store: &Watched, poller: &Poller, dispatcher: &Arc<Dispatcher>, half: usize) -> usize {
    let mut claimed = 0;
    loop {
        let idle = dispatcher.in_flight() == 0;
        let polled = match poller.poll(dispatcher.capacity().max(1)).await {
            Ok(polled) => polled,
            Err(error) => {
                warn!(error = crate::text_of(&error), "the database could not be asked; trying again");
                sleep(PAUSE).await;
                continue;
            }
        };
        claimed += polled.claimed;
        if polled.no_room || polled.full {
            // As a poller does: a claim of few rows is not worth its trip, and while it is under way the others are worked on.
            let _ = timeout(LOOK_AGAIN, dispatcher.room_for(half)).await;
        } else if polled.claimed > 0 {
            continue;
        } else if !idle {
            while dispatcher.in_flight() > 0 {
                sleep(LOOK).await;
            }
        } else {
            match store.next_in() {
                Some(next_in) if next_in <= PATIENCE => sleep(next_in.max(LOOK)).await,
                _ => return claimed,
            }
        }
    }
}

const NEVER: u64 = u64::MAX;

/// A store that remembers when its last claim said that the next row is due.
struct Watched {
    inner: Arc<dyn RelayStore>,
    /// In microseconds.
    next_in: AtomicU64,
}

impl Watched {
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
        self.inner.settle(settlements)
    }

    fn renew<'a>(&'a self, leases: &'a [(EventId, Lease)]) -> BoxFuture<'a, Result<Vec<bool>, Error>> {
        self.inner.renew(leases)
    }

    fn release_all(&self) -> BoxFuture<'_, Result<u64, Error>> {
        self.inner.release_all()
    }
}
