//! What a batch sends to one endpoint, and what became of it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use posthaste_core::EventId;
use tokio::time::Instant;

use super::batch::{SHORT_SPELL, Spell};
use super::endpoint::{Away, Endpoint, Vain};
use super::request::Request;
use super::signature::Secret;
use crate::publisher::{PublishError, Results};

/// What is sent to one endpoint of a batch.
pub(super) struct Round<'a> {
    pub(super) endpoint: &'a Endpoint,
    pub(super) secrets: &'a [Secret],
    pub(super) results: &'a Results,
    /// When the last request is begun.
    until: Instant,
    /// The same if it is slow and others wait for it.
    until_if_slow: Instant,
    pub(super) absence: Mutex<Option<Absence>>,
    pub(super) in_vain: Mutex<Vec<InVain>>,
}

/// Nobody is there, or nobody who takes anything.
pub(super) struct Absence {
    pub(super) away: Away,
    pub(super) reason: String,
    /// How long the endpoint asks to be left alone.
    pub(super) pause: Option<Duration>,
}

/// A request to which there was no answer, or that it is not available. Whose fault that is, is known when all have been sent.
pub(super) struct InVain {
    pub(super) place: usize,
    pub(super) id: EventId,
    pub(super) error: PublishError,
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It was noted, and somebody was there.
    Answered,
    /// It was noted, and shows nothing of the endpoint.
    PutOff,
    /// Somebody was there, in vain.
    InVain,
    /// Nobody was there. What that means is known when all have been sent.
    Away,
    /// It was not even sent, since others had found nobody.
    Untried,
}

impl<'a> Round<'a> {
    pub(super) fn new(endpoint: &'a Endpoint, secrets: &'a [Secret], results: &'a Results, spell: Spell) -> Self {
        let (absence, in_vain) = (Mutex::default(), Mutex::default());
        let Spell { until, until_if_slow } = spell;
        Self { endpoint, secrets, results, until, until_if_slow, absence, in_vain }
    }

    /// Until when requests are begun.
    pub(super) fn until(&self) -> Instant {
        if self.endpoint.pace.is_slow() { self.until_if_slow } else { self.until }
    }

    /// Until when a place is waited for. Where events choose the endpoint nobody waits for a slow one, and not long for others.
    pub(super) fn wait_until(&self, is_chosen: bool) -> Instant {
        match is_chosen {
            true if self.endpoint.pace.is_slow() => Instant::now(),
            true => self.until.min(Instant::now() + SHORT_SPELL),
            false => self.until,
        }
    }

    /// Nobody was asked.
    pub(super) fn put_off(&self, request: &Request, reason: &str, pause: Duration) -> Fate {
        self.results.note(request.place, Err(PublishError::deferred(reason, pause).unasked()));
        Fate::PutOff
    }

    /// Somebody was there, and had no answer for that event.
    pub(super) fn in_vain(&self, request: &Request, error: PublishError) -> Fate {
        match self.endpoint.in_vain(&request.id) {
            // It says nothing of others.
            Vain::Blamed => {
                self.results.note(request.place, Err(error.unasked()));
                return Fate::PutOff;
            }
            Vain::Alone => {}
            Vain::Everybody => {
                let (away, reason, pause) = (Away::InVain, error.to_string(), error.pause());
                lock(&self.absence).get_or_insert(Absence { away, reason, pause });
            }
        }
        lock(&self.in_vain).push(InVain { place: request.place, id: request.id.clone(), error });
        Fate::InVain
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
