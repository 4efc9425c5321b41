//! Sends what a batch has for one endpoint.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use super::batch::Spell;
use super::connection::Line;
use super::endpoint::{Away, Endpoint};
use super::request::{Answer, Limit, Request};
use super::round::{Absence, Fate, InVain, Round, lock};
use super::{Inner, NO_SECRET, Webhook, in_one_line};
use crate::publisher::{PublishError, Results};

/// How long what found no time waits.
const BUSY: Duration = Duration::from_secs(1);

/// How long a place of an endpoint is kept for the next request of the same batch. Whoever waits for one has to be woken up, which
/// costs as much as a quick request. What takes longer is to leave places to others.
const TURN: Duration = Duration::from_millis(100);

/// Why something is put off.
const RESTS: &str = "the endpoint has asked to be left alone for a while";
pub(super) const SLOW: &str = "the endpoint is slow, and others were first";

/// Why nothing is sent to a URL.
const GONE: &str = "the endpoint has answered 410 and is disabled";

impl Webhook {
    /// Sends what goes to one endpoint, unless it is away.
    pub(super) async fn to_endpoint(
        &self,
        endpoint: Arc<Endpoint>,
        mut requests: Vec<Request>,
        spell: Spell,
        results: &Results,
    ) {
        let Some(secrets) = endpoint.secrets.as_deref() else {
            for request in requests {
                results.note(request.place, Err(PublishError::retryable(NO_SECRET).unasked()));
            }
            return;
        };
        if endpoint.pace.is_resting() {
            for request in requests {
                results.note(request.place, Err(PublishError::deferred(RESTS, endpoint.pace.put_off()).unasked()));
            }
            return;
        }
        let ours = self.only.is_none();
        let pass = if ours { endpoint.breaker.enter() } else { None };
        if ours && pass.is_none() {
            for (request, pause) in requests.iter().zip(endpoint.breaker.put_off(requests.len())) {
                results.note(request.place, Err(PublishError::deferred("the endpoint is away", pause).unasked()));
            }
            return;
        }
        let round = Round::new(&endpoint, secrets, results, spell);
        // The first shows whether it is back.
        let probing = pass.as_ref().is_some_and(|pass| pass.most() < usize::MAX);
        let behind = if probing { requests.split_off(1) } else { Vec::new() };
        let mut fates = self.in_lanes(&round, requests).await;
        fates.extend(self.in_lanes(&round, behind).await);
        let with = |wanted: Fate| fates.iter().filter(move |(_, fate)| *fate == wanted).map(|(place, _)| *place);
        let (mut away, untried): (Vec<_>, Vec<_>) = (with(Fate::Away).collect(), with(Fate::Untried).collect());
        let (mut answered, mut absence) = (with(Fate::Answered).count() > 0, lock(&round.absence).take());
        for InVain { place, id, error } in std::mem::take(&mut *lock(&round.in_vain)) {
            if endpoint.is_in_vain_for_all(&id) {
                endpoint.is_away(Away::InVain);
                let reason = || Absence { away: Away::InVain, reason: error.to_string(), pause: error.pause() };
                absence.get_or_insert_with(reason);
                away.push(place);
            } else {
                answered = true;
                results.note(place, Err(error));
            }
        }
        // Others may have had an answer after it seemed that nobody has one.
        match (absence.filter(|absence| absence.away == Away::Nobody || !away.is_empty()), pass) {
            (Some(absence), Some(pass)) => {
                pass.failed(absence.pause, &absence.reason);
                let too_long = endpoint.away_for() >= self.inner.options.patience;
                let pauses = endpoint.breaker.put_off(away.len() + untried.len());
                let tried = away.iter().map(|place| (*place, too_long));
                for ((place, counts), pause) in tried.chain(untried.into_iter().map(|place| (place, false))).zip(pauses)
                {
                    let reason = absence.reason.clone();
                    let error = if counts {
                        PublishError::retryable(reason).retry_after(pause)
                    } else {
                        PublishError::deferred(reason, pause)
                    };
                    results.note(place, Err(error.unasked()));
                }
            }
            // The breaker is that of the destination, which will be told.
            (Some(absence), None) => {
                for place in away.into_iter().chain(untried) {
                    let error = PublishError::outage(absence.reason.clone());
                    results.note(place, Err(error.retry_after(absence.pause.unwrap_or_default())));
                }
            }
            (None, pass) => {
                for place in untried {
                    results.note(
                        place,
                        Err(PublishError::deferred("the endpoint had no answer for others", BUSY).unasked()),
                    );
                }
                if let Some(pass) = pass.filter(|_| answered) {
                    pass.succeeded();
                }
            }
        }
    }

    /// Sends at once what may overtake each other, and one after the other what may not.
    async fn in_lanes(&self, round: &Round<'_>, requests: Vec<Request>) -> Vec<(usize, Fate)> {
        let (mut lanes, mut by_key) = (Vec::<Vec<Request>>::new(), HashMap::new());
        for mut request in requests {
            let lane = match request.key.take() {
                Some(key) => *by_key.entry(key).or_insert(lanes.len()),
                None => lanes.len(),
            };
            match lanes.get_mut(lane) {
                Some(lane) => lane.push(request),
                None => lanes.push(vec![request]),
            }
        }
        // No more of them than there are places: each goes from lane to lane.
        let hands = lanes.len().min(self.inner.options.concurrency.max(1));
        let lanes = Mutex::new(lanes.into_iter());
        let hands: FuturesUnordered<_> = (0..hands).map(|_| self.hand(round, &lanes)).collect();
        hands.concat().await
    }

    /// Sends lanes until there are none left, request by request.
    async fn hand(&self, round: &Round<'_>, lanes: &Mutex<impl Iterator<Item = Vec<Request>>>) -> Vec<(usize, Fate)> {
        let (mut fates, mut limit) = (Vec::new(), Limit::new(self.inner.options.time_limit));
        let mut line = Line::new(&self.inner.connector, &round.endpoint.idle);
        let mut place: Option<Place<'_>> = None;
        let next = || lock(lanes).next();
        while let Some(lane) = next() {
            for mut request in lane {
                if round.endpoint.pace.is_resting() {
                    fates.push((request.place, round.put_off(&request, RESTS, round.endpoint.pace.put_off())));
                    continue;
                }
                if place.as_ref().is_none_or(|place| place.taken_at.elapsed() >= TURN) {
                    // First given back: others are before us now.
                    line.leave();
                    drop(place.take());
                    place = Place::of(round.endpoint, round.wait_until(self.chosen)).await;
                }
                let fate = match place {
                    // A place that is free at once is given also to who comes too late.
                    Some(_) if Instant::now() < round.until() => {
                        self.one(round, &mut request, &mut line, &mut limit).await
                    }
                    _ => round.put_off(&request, SLOW, round.endpoint.pace.put_off()),
                };
                fates.push((request.place, fate));
            }
        }
        line.leave();
        fates
    }

    /// Sends one, and notes what became of it, unless nobody was there.
    async fn one(&self, round: &Round<'_>, request: &mut Request, line: &mut Line<'_>, limit: &mut Limit) -> Fate {
        let Inner { options, endpoints, .. } = &*self.inner;
        let Round { endpoint, secrets, .. } = round;
        // One that found nobody is enough.
        if lock(&round.absence).is_some() {
            return Fate::Untried;
        }
        if endpoints.is_disabled(&request.target.url) {
            return round.put_off(request, GONE, options.gone_pause);
        }
        let under_way = endpoint.pace.begin();
        let answer = request.send(line, secrets, limit).await;
        drop(under_way);
        let judged = |result| {
            round.results.note(request.place, result);
            Fate::Answered
        };
        match answer {
            Answer::Judged(result) => {
                match &result {
                    Ok(()) => {
                        endpoint.took(&request.id);
                        endpoint.pace.took();
                    }
                    Err(error) => {
                        endpoint.answered();
                        error.pause().into_iter().for_each(|pause| endpoint.pace.rest(pause));
                    }
                }
                judged(result)
            }
            Answer::TooMany(reason, pause) => {
                endpoint.got_too_many();
                endpoint.pace.too_many(pause);
                let pause = endpoint.pace.put_off();
                let too_long = self.only.is_none() && endpoint.away_for() >= options.patience;
                judged(Err(match too_long {
                    true => PublishError::retryable(reason).retry_after(pause),
                    false => PublishError::deferred(reason, pause),
                }))
            }
            Answer::Silence(error) => round.in_vain(request, error),
            Answer::Refused(error) => {
                round.results.note(request.place, Err(error.unasked()));
                Fate::PutOff
            }
            Answer::Unavailable(error) => {
                error.pause().into_iter().for_each(|pause| endpoint.pace.rest(pause));
                round.in_vain(request, error)
            }
            Answer::Away(error) => {
                endpoint.is_away(Away::Nobody);
                let reason = in_one_line(&*error);
                lock(&round.absence).get_or_insert(Absence { away: Away::Nobody, reason, pause: None });
                Fate::Away
            }
            Answer::Gone => {
                let host = request.target.url.host_str().unwrap_or_default();
                warn!(destination = options.name, host, "an endpoint answered 410 and gets nothing any more");
                endpoint.answered();
                endpoints.disable(&request.target.url);
                judged(Err(PublishError::deferred(GONE, options.gone_pause)))
            }
        }
    }
}

/// A place among those who send to an endpoint at once.
struct Place<'a> {
    _permit: SemaphorePermit<'a>,
    taken_at: Instant,
}

impl<'a> Place<'a> {
    /// One of that endpoint, unless there is none until then.
    async fn of(endpoint: &'a Endpoint, until: Instant) -> Option<Self> {
        let permit = match endpoint.places.try_acquire() {
            Ok(permit) => permit,
            Err(_) if until <= Instant::now() => return None,
            Err(_) => timeout_at(until, endpoint.places.acquire()).await.ok()?.ok()?,
        };
        Some(Self { _permit: permit, taken_at: Instant::now() })
    }
}
