//! `posthaste relay --once`: delivers what is due, and ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste::event::EventId;
use posthaste::poller::{ClaimHandler, Poller};
use posthaste::store::{BoxFuture, Claim, Claimed, Error, Lease, RelayStore, Settled, Settlement};
use posthaste::{Closed, Dispatcher, Registry};
use tokio::time::sleep;
use tracing::{info, warn};

use super::{Signals, until_second};
use crate::exit::{Failed, Status};
use crate::settings::Settings;

/// What is put off for longer than that is left.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often it is looked whether what is in hand has ended.
const LOOK: Duration = Duration::from_millis(2);

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
    tokio::select! {
        claimed = until_nothing_is_due(&store, &poller, &dispatcher) => info!(claimed, "nothing more is due"),
        signal = signals.next() => info!(signal, in_hand = dispatcher.in_flight(), "ending"),
    }
    Ok(until_second(signals, dispatcher.close(), || dispatcher.close_now()).await)
}

/// Claims until there is nothing to claim and nothing in hand. Says how many rows were claimed.
async fn until_nothing_is_due(store: &Watched, poller: &Poller, dispatcher: &Arc<Dispatcher>) -> usize {
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
        if polled.no_room {
            dispatcher.room_for(1).await;
            sleep(LOOK).await;
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
