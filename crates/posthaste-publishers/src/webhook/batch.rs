//! A batch: what of it goes to which endpoint, and how long it sends.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use posthaste_core::listener::{Gate, Room};
use tokio::sync::SemaphorePermit;
use tokio::time::Instant;

use super::endpoint::{Endpoint, Endpoints};
use super::request::{Request, Target};
use super::sending::SLOW;
use super::{FINISHING, Inner, Webhook};
use crate::publisher::{Message, PublishError, Results};

/// How long a batch sends. What has not begun by then is put off.
pub(super) const SPELL: Duration = Duration::from_secs(30);

/// How long it does so where events choose the endpoint, and others wait while one is slow.
pub(super) const SHORT_SPELL: Duration = Duration::from_millis(1500);

/// How long a batch sends.
#[derive(Clone, Copy)]
pub(super) struct Spell {
    pub(super) until: Instant,
    pub(super) until_if_slow: Instant,
}

impl Webhook {
    /// Sends a batch, to all of its endpoints at once.
    pub(super) async fn to_endpoints(&self, messages: Vec<Message>, results: &Results) {
        let Inner { options, endpoints, .. } = &*self.inner;
        let mut groups: Vec<(Arc<Endpoint>, Vec<Request>)> = Vec::new();
        // Most of a batch goes to the same URL, which is looked at once.
        let mut last: Option<Known> = None;
        for (place, message) in messages.into_iter().enumerate() {
            if last.as_ref().is_none_or(|known| known.text != message.to) {
                let target = Target::new(&message.to, options);
                last = match target.map(|target| Known::new(&message.to, target, endpoints, &mut groups)) {
                    Ok(known) => Some(known),
                    Err(error) => {
                        results.note(place, Err(error.unasked()));
                        None
                    }
                };
            }
            let Some(Known { target, group, .. }) = &last else { continue };
            match Request::new(place, Arc::clone(target), message, options) {
                Ok(request) => groups[*group].1.push(request),
                Err(error) => results.note(place, Err(error.unasked())),
            }
        }
        groups.retain(|(_, requests)| !requests.is_empty());
        let _turn = self.turn_for_slow(&mut groups, results);
        let spell = self.spell(results, groups.len());
        join_all(groups.into_iter().map(|(endpoint, requests)| self.to_endpoint(endpoint, requests, spell, results)))
            .await;
    }

    /// Until when requests are begun. They may take their time, and are known before the time of the batch is over.
    fn spell(&self, results: &Results, endpoints: usize) -> Spell {
        let now = Instant::now();
        let left = results.until().saturating_duration_since(now);
        let until = now + left.saturating_sub(self.inner.options.time_limit + FINISHING).max(left / 2).min(SPELL);
        let short = if self.chosen { until.min(now + SHORT_SPELL) } else { until };
        Spell { until: if endpoints > 1 { short } else { until }, until_if_slow: short }
    }

    /// The turn of a batch that has something for slow endpoints. If another has it, that is put off: at most one batch waits for
    /// them, however many workers there are, so that the others have time for the endpoints that are not.
    fn turn_for_slow(
        &self,
        groups: &mut Vec<(Arc<Endpoint>, Vec<Request>)>,
        results: &Results,
    ) -> Option<SemaphorePermit<'_>> {
        // What is away is put off for longer.
        let is_slow =
            |endpoint: &Endpoint| endpoint.pace.is_slow() && !matches!(endpoint.breaker.room(), Room::ShutFor(_));
        if !self.chosen || !groups.iter().any(|(endpoint, _)| is_slow(endpoint)) {
            return None;
        }
        let turn = self.inner.slow.try_acquire().ok();
        if turn.is_none() {
            for (endpoint, requests) in groups.extract_if(.., |(endpoint, _)| is_slow(endpoint)) {
                for request in requests {
                    results.note(request.place, Err(PublishError::deferred(SLOW, endpoint.pace.put_off()).unasked()));
                }
            }
        }
        turn
    }
}

/// A URL, and which group of a batch goes to its endpoint.
struct Known {
    text: String,
    target: Arc<Target>,
    group: usize,
}

impl Known {
    fn new(text: &str, target: Target, endpoints: &Endpoints, groups: &mut Vec<(Arc<Endpoint>, Vec<Request>)>) -> Self {
        let endpoint = endpoints.of(&target.url);
        let group = groups.iter().position(|(known, _)| Arc::ptr_eq(known, &endpoint)).unwrap_or_else(|| {
            groups.push((endpoint, Vec::new()));
            groups.len() - 1
        });
        Self { text: text.to_owned(), target: Arc::new(target), group }
    }
}
