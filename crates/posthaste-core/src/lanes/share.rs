//! Which lanes this relay holds: leases its share, renews it, and gives back what is more.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::keys::{Held, Keys};
use crate::listener::chain;
use crate::store::{LaneLease, LaneStore, RelayOfLanes, Renewed};
use crate::wake::Wake;

/// Of the lanes that are too many, which part is given back at a time: few of them stand still then.
const AT_ONCE: usize = 4;

/// Keeps the lanes of a relay.
pub(crate) struct Owner {
    pub(crate) store: Arc<dyn LaneStore>,
    pub(crate) owner: Box<str>,
    /// What all relays that are there must have alike.
    pub(crate) settings: String,
    pub(crate) keys: Arc<Keys>,
    pub(crate) lanes: usize,
    pub(crate) lane_lease: Duration,
    /// Wakes this task.
    pub(crate) wake: Wake,
    /// The permits of blocking calls, and how many there are when none is under way.
    pub(crate) blocking: Arc<Semaphore>,
    pub(crate) workers: usize,
}

impl Owner {
    pub(crate) async fn run(&self, stop: CancellationToken) {
        // A third of the lease: one renewal may fail and the next still comes in time.
        let interval = self.lane_lease / 3;
        // What failed, or was not to be had, is tried again sooner.
        let soon = self.lane_lease / 15;
        let (mut share, mut agrees) = (None, true);
        let (mut renew_at, mut lease_at) = (Instant::now(), Instant::now());
        while !stop.is_cancelled() {
            self.wake.reset();
            if Instant::now() >= renew_at {
                // Who has nothing, and is to have nothing, is not there for others.
                let is_there = agrees || !self.keys.leases().is_empty();
                let renewed = if is_there { self.renew().await } else { Some(Renewed::default()) };
                renew_at = Instant::now() + if renewed.is_some() { interval } else { soon };
                // What was agreed on stands while renewals come in time, so it is seldom asked for; and after the renewal, since
                // one relay at a time is answered, and leases wait for nobody.
                if !agrees || renewed.as_ref().is_some_and(|renewed| renewed.to_agree) {
                    agrees = self.agrees(agrees).await;
                    if agrees && !is_there {
                        renew_at = Instant::now();
                    }
                }
                if !agrees {
                    share = None;
                } else if let Some(Renewed { relays, .. }) = renewed.filter(|_| is_there) {
                    let next = share_of(&self.owner, &relays, self.lanes);
                    if share != Some(next) {
                        debug!(share = next, relays = relays.len(), lanes = self.lanes, "share of the lanes");
                        share = Some(next);
                        lease_at = Instant::now();
                    }
                }
            }
            self.give_back(self.keys.drained()).await;
            let mut is_short = false;
            if let Some(share) = share {
                self.give_up_surplus(share);
                is_short = self.held() < share;
                if is_short && Instant::now() >= lease_at {
                    self.lease(share - self.held()).await;
                    lease_at = Instant::now() + soon;
                    is_short = self.held() < share;
                }
            }
            let next = if is_short { renew_at.min(lease_at) } else { renew_at };
            tokio::select! {
                biased;
                () = self.wake.sleep_until(next) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    /// Cuts attempts short, for as long as it is let, before leases that were not renewed may be another's.
    pub(crate) async fn watch(keys: Arc<Keys>, lane_lease: Duration) {
        loop {
            let next = keys.run_out(Instant::now());
            // A lease that is taken meanwhile is not over before then.
            let latest = Instant::now() + lane_lease / 2;
            tokio::time::sleep_until(next.unwrap_or(latest).min(latest)).await;
        }
    }

    /// How long a lease certainly stands, by this process's clock, that was asked for at that moment.
    fn stands_until(&self, asked_at: Instant) -> Instant {
        asked_at + self.lane_lease - self.lane_lease / 10
    }

    /// How many lanes are held and not being given up.
    fn held(&self) -> usize {
        self.keys.to_read().len()
    }

    /// Whether all relays that are there have the same settings. If not, this one gives everything back, and has nothing until the
    /// others are gone: they began while nobody knew of it.
    async fn agrees(&self, did: bool) -> bool {
        match self.store.agree(&self.owner, &self.settings, self.lane_lease).await {
            Ok(others) if others.is_empty() => {
                if !did {
                    info!("relays with other settings are gone; this one goes on");
                }
                true
            }
            Ok(others) => {
                if did {
                    error!(others = %listed(&others), in_order = self.settings,
                        "relays with other settings are there; this one delivers nothing until they are gone");
                }
                for held in self.keys.leases() {
                    self.keys.give_up(held.lease);
                }
                false
            }
            Err(error) => {
                warn!(error = %chain(&error), "not known whether other relays have the same settings, asking again");
                did
            }
        }
    }

    /// Renews all leases, and says who is there.
    async fn renew(&self) -> Option<Renewed> {
        let held = self.keys.leases();
        let leases: Vec<_> = held.iter().map(|held| held.lease).collect();
        let asked_at = Instant::now();
        kill_point!("renew.before");
        match self.store.renew_lanes(&self.owner, &leases, self.lane_lease).await {
            Ok(renewed) => {
                kill_point!("renew.after");
                let until = self.stands_until(asked_at);
                for (held, stands) in held.iter().zip(renewed.held.iter().chain(std::iter::repeat(&false))) {
                    if *stands {
                        held.renewed(until);
                    } else {
                        warn!(lane = held.lease.lane.0, epoch = held.lease.epoch, "lane lost");
                        self.keys.lost(held.lease);
                    }
                }
                Some(renewed)
            }
            Err(error) => {
                warn!(error = %chain(&error), lanes = leases.len(), "lanes not renewed, trying again");
                None
            }
        }
    }

    async fn lease(&self, wanted: usize) {
        let asked_at = Instant::now();
        kill_point!("lease.before");
        match self.store.lease_lanes(&self.owner, wanted, self.lane_lease).await {
            Ok(leases) => {
                kill_point!("lease.after");
                if !leases.is_empty() {
                    debug!(lanes = leases.len(), wanted, "lanes leased");
                }
                for lease in leases {
                    self.keys.leased(lease, self.stands_until(asked_at));
                }
            }
            // If it was carried out all the same, these lanes run out.
            Err(error) => warn!(error = %chain(&error), "no lanes leased, trying again"),
        }
    }

    /// Begins to give back lanes that are more than the share, a part of them at a time.
    fn give_up_surplus(&self, share: usize) {
        let held = self.keys.leases();
        let draining = held.iter().filter(|held| held.drains()).count();
        let surplus = held.len().saturating_sub(share);
        let at_once = surplus.div_ceil(AT_ONCE).saturating_sub(draining);
        for held in held.iter().rev().filter(|held| !held.drains()).take(at_once) {
            self.keys.give_up(held.lease);
        }
    }

    /// Gives lanes back of which nothing is under way. If an attempt was cut short and may go on in a thread of its own, the lane
    /// runs out by itself instead.
    async fn give_back(&self, drained: Vec<Arc<Held>>) {
        let blocked = self.blocking.available_permits() < self.workers;
        let leases: Vec<LaneLease> =
            drained.iter().filter(|held| !(blocked && held.was_interrupted())).map(|held| held.lease).collect();
        if leases.is_empty() {
            return;
        }
        kill_point!("give_back.before");
        match self.store.give_back_lanes(&self.owner, &leases).await {
            Ok(()) => {
                kill_point!("give_back.after");
                debug!(lanes = leases.len(), "lanes given back");
            }
            Err(error) => {
                warn!(error = %chain(&error), lanes = leases.len(), "lanes not given back; they run out by themselves");
            }
        }
    }

    /// Gives back every lane of which nothing is under way, and says goodbye. The others run out by themselves.
    pub(crate) async fn leave(&self) {
        for held in self.keys.leases() {
            self.keys.give_up(held.lease);
        }
        self.give_back(self.keys.drained()).await;
        let left = self.keys.leases().len();
        if left > 0 {
            info!(lanes = left, "lanes with attempts that could not be cut short are left to run out");
        }
        if let Err(error) = self.store.renew_lanes(&self.owner, &[], Duration::ZERO).await {
            debug!(error = %chain(&error), "relay not signed off; others wait for it for a lease");
        }
    }
}

/// Relays as a text.
pub(crate) fn listed(relays: &[RelayOfLanes]) -> String {
    relays.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// How many lanes a relay is to have of so many, given who is there, by name.
fn share_of(owner: &str, relays: &[String], lanes: usize) -> usize {
    let count = relays.len().max(1);
    let number = relays.iter().filter(|relay| relay.as_str() < owner).count();
    lanes / count + usize::from(number < lanes % count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_differ_by_one_at_most() {
        for (lanes, count) in [(64, 1), (64, 3), (64, 64), (16, 5), (1, 2), (16, 20)] {
            let relays: Vec<String> = (0..count).map(|number| format!("relay-{number:03}")).collect();
            let shares: Vec<_> = relays.iter().map(|relay| share_of(relay, &relays, lanes)).collect();
            assert_eq!(shares.iter().sum::<usize>(), lanes);
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{shares:?}");
        }
    }
}
