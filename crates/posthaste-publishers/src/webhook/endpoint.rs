//! The ends that webhooks go to: which are away, and which are gone for good.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use posthaste_core::EventId;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use url::Url;

use super::connection::{Idle, IdleEverywhere};
use super::pace::Pace;
use super::signature::{Secret, Signing};
use crate::breaker::{Breaker, BreakerState};

/// How many are remembered.
const MOST: usize = 10_000;

/// How many are left when there were too many.
const LEFT: usize = 9_000;

/// How many different events in a row have to ask in vain until it counts as away.
const IN_VAIN: usize = 5;

/// How many events that asked in vain are remembered.
const REMEMBERED: usize = 100;

/// How many events are remembered that asked in vain while others did not.
const BLAMED: usize = 1_000;

/// How often an event has to do so to be to blame. Once it may have been the moment when the endpoint went.
const TO_BLAME: u32 = 2;

/// A scheme, a host and a port.
pub(super) struct Endpoint {
    pub(super) breaker: Breaker,
    /// For requests at once.
    pub(super) places: Semaphore,
    /// No more of them than places.
    pub(super) idle: Idle,
    pub(super) pace: Pace,
    /// What requests are signed with; nothing if they are to be signed, and there is no secret for it.
    pub(super) secrets: Option<Arc<[Secret]>>,
    /// When it was asked for last, counted in such questions.
    used: AtomicU64,
    /// It has a URL that is the same for all events.
    fixed: AtomicBool,
    health: Mutex<Health>,
}

/// What is known of an endpoint.
#[derive(Default)]
struct Health {
    /// Since when it is away, and in which way.
    away_since: Option<(Instant, Away)>,
    /// The events that asked in vain since it last answered: it said that it is not available, or nothing.
    in_vain: VecDeque<EventId>,
    /// Those that did while it answered others, and how often.
    blamed: VecDeque<(EventId, u32)>,
}

/// In which way an endpoint is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Away {
    /// Nobody is there.
    Nobody,
    /// Somebody is, and has no answer for anybody.
    InVain,
    /// Somebody is, and says to everybody that there are too many.
    TooMany,
}

/// What it means that an event asked in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vain {
    /// It has done so while others did not, again and again: nothing of the endpoint.
    Blamed,
    /// Nothing yet.
    Alone,
    /// There are enough of those that do: there is no use in going on now.
    Everybody,
}

impl Endpoint {
    /// Somebody is there, and has an answer.
    pub(super) fn answered(&self) {
        let mut health = lock(&self.health);
        health.away_since = None;
        health.in_vain.clear();
    }

    /// It has answered, and taken that event, which is to blame for nothing.
    pub(super) fn took(&self, event: &EventId) {
        let mut health = lock(&self.health);
        health.away_since = None;
        health.in_vain.clear();
        health.blamed.retain(|(blamed, _)| blamed != event);
    }

    /// It has answered that it gets too many requests, which is nobody's fault.
    pub(super) fn got_too_many(&self) {
        lock(&self.health).in_vain.clear();
        self.is_away(Away::TooMany);
    }

    /// It is away, in that way.
    pub(super) fn is_away(&self, away: Away) {
        let away_since = &mut lock(&self.health).away_since;
        if away_since.is_none_or(|(_, known)| known != away) {
            *away_since = Some((Instant::now(), away));
        }
    }

    /// For how long it has been away in the same way.
    pub(super) fn away_for(&self) -> Duration {
        lock(&self.health).away_since.map_or(Duration::ZERO, |(since, _)| since.elapsed())
    }

    /// Takes down that an event asked in vain. One that breaks the endpoint is not enough, and one that was taken down before is
    /// no news: others are tried behind it.
    pub(super) fn in_vain(&self, event: &EventId) -> Vain {
        let mut health = lock(&self.health);
        // Somebody is there.
        health.away_since.take_if(|(_, away)| *away == Away::Nobody);
        if health.blamed.iter().any(|(blamed, times)| blamed == event && *times >= TO_BLAME) {
            return Vain::Blamed;
        }
        if health.in_vain.contains(event) {
            return Vain::Alone;
        }
        if health.in_vain.len() >= REMEMBERED {
            health.in_vain.pop_front();
        }
        health.in_vain.push_back(event.clone());
        // Also where it seems so already a few more are tried each time: they may have an answer.
        if health.in_vain.len().is_multiple_of(IN_VAIN) { Vain::Everybody } else { Vain::Alone }
    }

    /// Whether it has no answer for anybody since that event asked in vain. If it had one for others, the event may be to blame.
    pub(super) fn is_in_vain_for_all(&self, event: &EventId) -> bool {
        let mut health = lock(&self.health);
        if health.in_vain.contains(event) {
            return health.in_vain.len() >= IN_VAIN;
        }
        match health.blamed.iter_mut().find(|(blamed, _)| blamed == event) {
            Some((_, times)) => *times += 1,
            None => {
                if health.blamed.len() >= BLAMED {
                    health.blamed.pop_front();
                }
                health.blamed.push_back((event.clone(), 1));
            }
        }
        false
    }
}

/// All that were sent to.
pub(super) struct Endpoints {
    name: String,
    concurrency: usize,
    signing: Signing,
    idle: Arc<IdleEverywhere>,
    asked: AtomicU64,
    by_origin: Mutex<HashMap<String, Arc<Endpoint>>>,
    /// URLs that are the same for all events.
    fixed: Mutex<BTreeSet<String>>,
    /// URLs that answered 410.
    gone: Mutex<BTreeSet<String>>,
}

impl Endpoints {
    pub(super) fn new(name: &str, concurrency: usize, signing: Signing) -> Self {
        let (name, concurrency) = (name.to_owned(), concurrency.clamp(1, Semaphore::MAX_PERMITS));
        let (by_origin, fixed, gone, idle) = <(Mutex<_>, Mutex<_>, Mutex<_>, Arc<_>)>::default();
        Self { name, concurrency, signing, idle, asked: AtomicU64::new(0), by_origin, fixed, gone }
    }

    /// How requests are signed.
    pub(super) fn signing(&self) -> &Signing {
        &self.signing
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
                idle: Idle::new(&self.idle),
                pace: Pace::default(),
                secrets: self.signing.of(origin),
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
    let is_known = |endpoint: &Endpoint| endpoint.breaker.state() != BreakerState::Closed || endpoint.pace.is_resting();
    by_origin.retain(|_, endpoint| is_used(endpoint) || is_known(endpoint));
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
    use super::super::options::WebhookOptions;
    use super::*;

    fn endpoints() -> Endpoints {
        Endpoints::new("webhook", 1, Signing::new(&WebhookOptions::unsigned()).unwrap())
    }

    fn url(host: usize) -> Url {
        format!("https://host-{host}.example/").parse().unwrap()
    }

    #[test]
    fn hosts_that_are_away_do_not_pile_up() {
        let endpoints = endpoints();
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
        let endpoint = endpoints().of(&url(0));
        let [poison, other] = [EventId::generate(), EventId::generate()];
        for _ in 0..20 {
            assert_eq!((endpoint.in_vain(&poison), endpoint.in_vain(&other)), (Vain::Alone, Vain::Alone));
            assert!(!endpoint.is_in_vain_for_all(&poison));
        }
        let others: Vec<_> = (0..3).map(|_| endpoint.in_vain(&EventId::generate())).collect();
        assert_eq!(others, [Vain::Alone, Vain::Alone, Vain::Everybody]);
        assert_eq!(endpoint.in_vain(&poison), Vain::Alone, "no news");
        assert!(endpoint.is_in_vain_for_all(&poison));
        // Then others have an answer: those that have none again and again are to blame, until they have one.
        for expected in [Vain::Alone, Vain::Blamed] {
            endpoint.answered();
            assert!(!endpoint.is_in_vain_for_all(&poison));
            assert_eq!((endpoint.in_vain(&poison), endpoint.in_vain(&other)), (expected, Vain::Alone));
        }
        for _ in 0..IN_VAIN {
            endpoint.in_vain(&EventId::generate());
        }
        assert_eq!(endpoint.in_vain(&poison), Vain::Blamed, "whatever becomes of others");
        endpoint.answered();
        endpoint.took(&poison);
        assert_eq!(endpoint.in_vain(&poison), Vain::Alone);
    }

    #[tokio::test(start_paused = true)]
    async fn how_long_it_is_away_begins_anew_when_somebody_was_there() {
        let (endpoint, hour) = (endpoints().of(&url(0)), Duration::from_secs(3600));
        let event = EventId::generate();
        for meanwhile in [None, Some(&event)] {
            endpoint.is_away(Away::Nobody);
            tokio::time::sleep(hour).await;
            meanwhile.map(|event| endpoint.in_vain(event));
            endpoint.is_away(Away::Nobody);
            assert_eq!(endpoint.away_for(), if meanwhile.is_some() { Duration::ZERO } else { hour });
        }
        tokio::time::sleep(hour).await;
        endpoint.is_away(Away::InVain);
        assert_eq!(endpoint.away_for(), Duration::ZERO);
        tokio::time::sleep(hour).await;
        endpoint.in_vain(&event);
        endpoint.is_away(Away::InVain);
        assert_eq!(endpoint.away_for(), hour, "it is the same that lasts");
        endpoint.answered();
        assert_eq!(endpoint.away_for(), Duration::ZERO);
    }
}
