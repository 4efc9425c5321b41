//! Keeps the leases of events in hand, and gives back those that nobody will use.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::dispatcher::Work;
use crate::handback::{Handback, Unused};
use crate::inflight::InFlight;
use crate::listener::chain;
use crate::metrics::Metrics;
use crate::queue::Queues;
use crate::store::{Action, RelayStore, Settled, Settlement};
use crate::wake::Wake;

/// How often gauges are told at least.
const GAUGES: Duration = Duration::from_secs(5);

/// Renews leases while their events are in hand, and gives back those that nobody will use.
pub(crate) struct Keeper {
    pub(crate) store: Arc<dyn RelayStore>,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) queues: Arc<Queues<Work>>,
    pub(crate) handback: Handback,
    pub(crate) metrics: Arc<dyn Metrics>,
    pub(crate) lease_duration: Duration,
    /// Wakes this keeper.
    pub(crate) wake: Wake,
    /// Wakes the poller, when there are rows to claim again.
    pub(crate) poller: Wake,
}

impl Keeper {
    pub(crate) async fn run(&self, stop: CancellationToken) {
        // A third of the lease: one renewal may fail and the next still comes in time.
        let interval = self.lease_duration / 3;
        let mut renew_at = Instant::now() + interval;
        while !stop.is_cancelled() {
            self.wake.reset();
            self.give_back(self.handback.take_due()).await;
            if Instant::now() >= renew_at {
                self.renew(interval).await;
                renew_at = Instant::now() + interval / 2;
            }
            // Also told with every settlement, but there may be none for long when listeners hang.
            let (hot, cold) = self.queues.depths();
            self.metrics.queue_depths(hot, cold);
            self.metrics.in_flight(self.in_flight.len());
            tokio::select! {
                biased;
                () = self.wake.sleep_until(renew_at.min(Instant::now() + GAUGES)) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    async fn renew(&self, age: Duration) {
        let leases = self.in_flight.to_renew(age);
        if leases.is_empty() {
            return;
        }
        let leased_at = Instant::now();
        kill_point!("renew.before");
        match self.store.renew(&leases).await {
            Ok(held) => {
                kill_point!("renew.after");
                let mut lost = 0_u64;
                for ((id, lease), held) in leases.iter().zip(held) {
                    if held {
                        self.in_flight.renewed(id, lease, leased_at);
                    } else {
                        self.in_flight.lost(id, lease);
                        lost += 1;
                    }
                }
                debug!(leases = leases.len(), lost, "leases renewed");
            }
            Err(error) => warn!(error = %chain(&error), leases = leases.len(), "leases not renewed, trying again"),
        }
    }

    /// Takes unused leases off their rows; a row that is not there yet is looked for again later.
    pub(crate) async fn give_back(&self, unused: Vec<Unused>) {
        if unused.is_empty() {
            return;
        }
        let releases: Vec<_> = unused
            .iter()
            .map(|unused| Settlement::new(unused.id.clone(), unused.lease.clone(), Action::Release))
            .collect();
        kill_point!("handback.before");
        match self.store.settle(&releases).await {
            Ok(results) => {
                kill_point!("handback.after");
                let mut released = 0;
                for (unused, settled) in unused.into_iter().zip(results) {
                    match settled {
                        Settled::Applied => released += 1,
                        Settled::Lost => self.handback.not_found(unused),
                    }
                }
                if released > 0 {
                    self.metrics.released(released);
                    self.poller.now();
                }
            }
            Err(error) => {
                warn!(error = %chain(&error), leases = unused.len(), "unused leases not given back, trying again");
                for unused in unused {
                    self.handback.again(unused);
                }
            }
        }
    }
}
