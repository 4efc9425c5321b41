//! The ends that webhooks go to: which are away, and which are gone for good.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use reqwest::Url;
use tokio::sync::Semaphore;

use crate::breaker::{Breaker, BreakerState};

/// How many are remembered.
const MOST: usize = 10_000;

/// A scheme, a host and a port.
pub(super) struct Endpoint {
    pub(super) breaker: Breaker,
    /// For requests at once.
    pub(super) places: Semaphore,
}

/// All that were sent to.
pub(super) struct Endpoints {
    name: String,
    concurrency: usize,
    by_origin: Mutex<HashMap<String, Arc<Endpoint>>>,
    /// URLs that answered 410.
    gone: Mutex<BTreeSet<String>>,
}

impl Endpoints {
    pub(super) fn new(name: &str, concurrency: usize) -> Self {
        let (name, concurrency) = (name.to_owned(), concurrency.clamp(1, Semaphore::MAX_PERMITS));
        Self { name, concurrency, by_origin: Mutex::default(), gone: Mutex::default() }
    }

    /// The endpoint of a URL.
    pub(super) fn of(&self, url: &Url) -> Arc<Endpoint> {
        let origin = url.origin().ascii_serialization();
        let mut by_origin = lock(&self.by_origin);
        if by_origin.len() >= MOST && !by_origin.contains_key(&origin) {
            by_origin.retain(|_, endpoint| {
                Arc::strong_count(endpoint) > 1 || endpoint.breaker.state() != BreakerState::Closed
            });
        }
        let new = |origin: &String| {
            let breaker = Breaker::new(format!("{} {origin}", self.name));
            Arc::new(Endpoint { breaker, places: Semaphore::new(self.concurrency) })
        };
        Arc::clone(by_origin.entry(origin).or_insert_with_key(new))
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
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
