//! The ends that webhooks go to: which are away, and which are gone for good.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use posthaste_core::EventId;
use reqwest::Url;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::breaker::{Breaker, BreakerState};

/// How many are remembered.
const MOST: usize = 10_000;

/// How many are left when there were too many.
const LEFT: usize = 9_000;

/// How many different events have to hear that it is not available until it counts as away.
const UNAVAILABLE: usize = 5;

/// A scheme, a host and a port.
pub(super) struct Endpoint {
    pub(super) breaker: Breaker,
    /// For requests at once.
    pub(super) places: Semaphore,
    /// When it was asked for last, counted in such questions.
    used: AtomicU64,
    /// It has a URL that is the same for all events.
    fixed: AtomicBool,
    health: Mutex<Health>,
}

/// What is known of an endpoint since it last answered.
#[derive(Default)]
struct Health {
    away_since: Option<Instant>,
    /// The events to which it was not available.
    unavailable_to: Vec<EventId>,
}

impl Endpoint {
    /// Somebody is there and says something.
    pub(super) fn answered(&self) {
        *lock(&self.health) = Health::default();
    }

    /// Nobody is there.
    pub(super) fn is_away(&self) {
        lock(&self.health).away_since.get_or_insert_with(Instant::now);
    }

    /// For how long nobody has been there.
    pub(super) fn away_for(&self) -> Duration {
        lock(&self.health).away_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Takes down that it was not available, and says whether it is so to everybody. One event that breaks it is not enough.
    pub(super) fn is_unavailable_to(&self, event: &EventId) -> bool {
        let unavailable_to = &mut lock(&self.health).unavailable_to;
        if unavailable_to.len() < UNAVAILABLE && !unavailable_to.contains(event) {
            unavailable_to.push(event.clone());
        }
        unavailable_to.len() >= UNAVAILABLE
    }
}

/// All that were sent to.
pub(super) struct Endpoints {
    name: String,
    concurrency: usize,
    asked: AtomicU64,
    by_origin: Mutex<HashMap<String, Arc<Endpoint>>>,
    /// URLs that are the same for all events.
    fixed: Mutex<BTreeSet<String>>,
    /// URLs that answered 410.
    gone: Mutex<BTreeSet<String>>,
}

impl Endpoints {
    pub(super) fn new(name: &str, concurrency: usize) -> Self {
        let (name, concurrency) = (name.to_owned(), concurrency.clamp(1, Semaphore::MAX_PERMITS));
        let (by_origin, fixed, gone) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { name, concurrency, asked: AtomicU64::new(0), by_origin, fixed, gone }
    }

    /// The endpoint of a URL.
    pub(super) fn of(&self, url: &Url) -> Arc<Endpoint> {
        let origin = url.origin().ascii_serialization();
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        let mut by_origin = lock(&self.by_origin);
        if by_origin.len() >= MOST && !by_origin.contains_key(&origin) {
            forget_some(&mut by_origin);
        }
        let new = |origin: &String| {
            let breaker = Breaker::one_of_many(format!("{} {origin}", self.name), &self.name);
            Arc::new(Endpoint {
                breaker,
                places: Semaphore::new(self.concurrency),
                used: AtomicU64::new(asked),
                fixed: AtomicBool::new(false),
                health: Mutex::default(),
            })
        };
        let endpoint = by_origin.entry(origin).or_insert_with_key(new);
        endpoint.used.store(asked, Ordering::Relaxed);
        Arc::clone(endpoint)
    }

    /// The endpoint of a URL that is the same for all events.
    pub(super) fn fix(&self, url: &Url) -> Arc<Endpoint> {
        let endpoint = self.of(url);
        endpoint.fixed.store(true, Ordering::Relaxed);
        endpoint.breaker.stand_alone();
        lock(&self.fixed).insert(url.to_string());
        endpoint
    }

    /// The breakers of those that have a URL that is the same for all events.
    pub(super) fn fixed(&self) -> Vec<Breaker> {
        let by_origin = lock(&self.by_origin);
        let fixed = by_origin.values().filter(|endpoint| endpoint.fixed.load(Ordering::Relaxed));
        fixed.map(|endpoint| endpoint.breaker.clone()).collect()
    }

    /// Every breaker.
    pub(super) fn breakers(&self) -> Vec<Breaker> {
        lock(&self.by_origin).values().map(|endpoint| endpoint.breaker.clone()).collect()
    }

    /// Sends nothing to that URL any more.
    pub(super) fn disable(&self, url: &Url) {
        let mut gone = lock(&self.gone);
        if gone.len() < MOST {
            gone.insert(url.to_string());
        }
    }

    pub(super) fn is_disabled(&self, url: &Url) -> bool {
        let gone = lock(&self.gone);
        !gone.is_empty() && gone.contains(url.as_str())
    }

    pub(super) fn enable(&self, url: &Url) -> bool {
        lock(&self.gone).remove(url.as_str())
    }

    pub(super) fn disabled(&self) -> Vec<String> {
        lock(&self.gone).iter().cloned().collect()
    }

    /// How many URLs are disabled that are the same for all events.
    pub(super) fn disabled_and_fixed(&self) -> usize {
        lock(&self.gone).intersection(&lock(&self.fixed)).count()
    }
}

/// Forgets those that nobody uses: first those of which nothing is known, then those that were not asked for the longest time.
fn forget_some(by_origin: &mut HashMap<String, Arc<Endpoint>>) {
    let is_used = |endpoint: &Arc<Endpoint>| Arc::strong_count(endpoint) > 1 || endpoint.fixed.load(Ordering::Relaxed);
    by_origin.retain(|_, endpoint| is_used(endpoint) || endpoint.breaker.state() != BreakerState::Closed);
    let Some(too_many) = by_origin.len().checked_sub(LEFT) else { return };
    let unused = by_origin.values().filter(|endpoint| !is_used(endpoint));
    let mut used: Vec<u64> = unused.map(|endpoint| endpoint.used.load(Ordering::Relaxed)).collect();
    used.sort_unstable();
    if let Some(last) = used.get(too_many).or(used.last()).copied() {
        by_origin.retain(|_, endpoint| is_used(endpoint) || endpoint.used.load(Ordering::Relaxed) > last);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(host: usize) -> Url {
        format!("https://host-{host}.example/").parse().unwrap()
    }

    #[test]
    fn hosts_that_are_away_do_not_pile_up() {
        let endpoints = Endpoints::new("webhook", 1);
        let held = endpoints.of(&url(0));
        endpoints.fix(&url(1));
        for host in 2..3 * MOST {
            let pass = endpoints.of(&url(host)).breaker.enter().unwrap();
            pass.failed(None, &"no such name");
            assert!(lock(&endpoints.by_origin).len() <= MOST);
        }
        let newest = lock(&endpoints.by_origin).contains_key("https://host-29999.example");
        assert!(newest && Arc::ptr_eq(&held, &endpoints.of(&url(0))));
        assert_eq!(endpoints.fixed().len(), 1);
    }

    #[test]
    fn one_event_does_not_make_it_unavailable_to_others() {
        let endpoint = Endpoints::new("webhook", 1).of(&url(0));
        let [poison, other] = [EventId::generate(), EventId::generate()];
        for _ in 0..20 {
            assert!(!endpoint.is_unavailable_to(&poison) && !endpoint.is_unavailable_to(&other));
        }
        let others: Vec<_> = (0..3).map(|_| endpoint.is_unavailable_to(&EventId::generate())).collect();
        assert_eq!(others, [false, false, true]);
        assert!(endpoint.is_unavailable_to(&poison));
        endpoint.answered();
        assert!(!endpoint.is_unavailable_to(&other));
    }
}
