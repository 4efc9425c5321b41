//! Webhooks: requests of HTTP to whoever wants to know, signed by the rules of
//! [Standard Webhooks](https://www.standardwebhooks.com).
//!
//! ```no_run
//! use posthaste_core::{MemoryStore, Outbox};
//! use posthaste_publishers::webhook::{Webhook, WebhookOptions};
//!
//! # async fn start() -> Result<(), Box<dyn std::error::Error>> {
//! let options = WebhookOptions::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").derive_secrets(true);
//! let webhook = Webhook::new(options)?;
//! let outbox = Outbox::builder(MemoryStore::new())
//!     .listen("Order", "*", webhook.url("https://partner.example/hooks/{event_type}"))
//!     .listen("Invoice", "*", webhook.url("{headers.callback}"))
//!     .start()
//!     .await?;
//! # Ok(()) }
//! ```
//!
//! # What is promised
//!
//! | | |
//! |---|---|
//! | DONE means | the endpoint has answered 2xx |
//! | repeats | possible. `webhook-id` is the id of the event, the same each time: by this a receiver tells them |
//! | order | events of one batch with the same key one after the other; where one fails, those behind it may have arrived |
//! | at once | [a few](WebhookOptions::concurrency) requests for an endpoint |
//!
//! A request is a `POST` with the headers `webhook-id`, `webhook-timestamp` (of this attempt) and `webhook-signature` (`v1,` and
//! the HMAC-SHA256 of `id.timestamp.body`, for each secret), those of the envelope, and `content-type`. Of an id that is not
//! printable ASCII `webhook-id` is the percent-encoded form, and that is what is signed. What an event would like
//! to say about the connection itself (`host`, `content-length` and the like) is left out, and so are `authorization` and `cookie`
//! [unless allowed](WebhookOptions::allow_credentials).
//!
//! What an event brings into a place of the URL is percent-encoded; in the host it is letters, digits and hyphens. Only a place at
//! the beginning, such as the whole of `{headers.callback}`, may lead anywhere.
//!
//! # Whose secret
//!
//! Who checks a signature could also have made it. So where events choose the endpoint, the same secret for all of them would let each
//! receiver write to the others in your name. A template with a place in the host, such as `{headers.callback}`, is refused at the start
//! unless endpoints have secrets of their own, or it is said that it does not matter:
//!
//! | option | what signs |
//! |---|---|
//! | [`derive_secrets`](WebhookOptions::derive_secrets) | a secret that is made for each endpoint of the one that is given; [`Webhook::secrets_of`] says it, to be told to the receiver |
//! | [`secret_for`](WebhookOptions::secret_for) | the secret that is given for this endpoint |
//! | [`allow_shared_secret`](WebhookOptions::allow_shared_secret) | the same for all |
//!
//! # What goes wrong
//!
//! | answer | counts as |
//! |---|---|
//! | no connection: no such name, refused, TLS that cannot be trusted, no answer within the time for connecting | outage of that endpoint |
//! | no answer within the [time limit](WebhookOptions::time_limit), or a connection that breaks while it is awaited; 502, 503, 504 | retryable: it may be this event that it cannot bear |
//! | the same for five different events in a row, and no other answer between or behind them | outage of that endpoint. One that had none twice while others had another is retryable from then on, whatever becomes of the others |
//! | 429 | put off, and so is what else goes to that endpoint: for as long as `Retry-After` says, 1 s at least and 5 min at most; without it for 1 s, then longer each time, up to 30 s. No attempt is used up |
//! | 408, 425, other 5xx | retryable, by the retry policy, and not before `Retry-After` says, up to a day |
//! | any failure with `Retry-After` | what it counts as otherwise; and what else goes to that endpoint is put off for that long, 5 min at most, which uses up no attempt |
//! | 3xx | retryable. Redirects are not followed, since they may lead anywhere |
//! | 410 | nothing is sent to this URL any more, see below |
//! | any other 4xx | permanent |
//! | no secret for the endpoint, where there are some for others | retryable; nothing is sent |
//! | the address is not public | retryable; nothing is sent. [Unless allowed](WebhookOptions::allow_private_addresses) |
//!
//! Addresses are looked at after the name was resolved, and the connection is made to just these. What is wrong with a URL, as far
//! as it is the same for all events, is said when the outbox is started.
//!
//! # Endpoints
//!
//! An endpoint is a scheme, a host and a port, and has a breaker of its own. One that is away does not keep events from the others:
//! its events are put off and use up no attempt, and after a pause one of them is tried. After [a day](WebhookOptions::patience)
//! in the same way (nobody there, no answer for anybody, 429 for everybody) those that were tried use up attempts: a name that
//! somebody mistyped would be tried for ever otherwise. Where the URL is the same for all events the breaker is that of the destination, nothing is claimed while it is open, and an outage may last.
//!
//! Where events choose the host, a slow endpoint does not keep events from the others either. A batch that goes to several begins
//! requests for one and a half seconds, and what has not begun by then is put off. One that needs more than a second for an answer
//! gets requests of one batch at a time, together with all others that are as slow.
//!
//! A URL that answers 410 is asking to be left alone. Its events, this one included, wait: they use up no attempt, and
//! look every [ten minutes](WebhookOptions::gone_pause) whether it is used again. [`Webhook::disabled`] lists such URLs and
//! [`Webhook::enable`] uses one again. They are kept in memory: a new process tries each once.

mod address;
mod connection;
mod endpoint;
mod options;
mod pace;
mod request;
mod signature;

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use posthaste_core::EventId;
use posthaste_core::listener::{Gate, Room};
use tokio::sync::{RwLock, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::warn;
use url::Url;

use crate::breaker::{Breaker, BreakerState};
use crate::destination::{Destination, LONGEST_LIMIT};
use crate::envelope::Binding;
use crate::publisher::{Message, PublishError, Publisher, Results};
use crate::template::Template;

use address::not_public;
use connection::{Connector, Line};
use endpoint::{Away, Endpoint, Endpoints, Vain};
use request::{Answer, Limit, Request, Target, private};
use signature::{Secret, Signing};

pub use options::WebhookOptions;

/// How long a batch sends. What has not begun by then is put off.
const SPELL: Duration = Duration::from_secs(30);

/// How long it does so where events choose the endpoint, and others wait while one is slow.
const SHORT_SPELL: Duration = Duration::from_millis(1500);

/// How long what found no time waits.
const BUSY: Duration = Duration::from_secs(1);

/// How long a place of an endpoint is kept for the next request of the same batch. Whoever waits for one has to be woken up, which
/// costs as much as a quick request. What takes longer is to leave places to others.
const TURN: Duration = Duration::from_millis(100);

/// How long requests on their way are waited for when it is closed.
const FINISHING: Duration = Duration::from_secs(5);

/// Where nothing is sent.
const ANY_URL: &str = "https://host.invalid/";

/// Why nothing is sent to endpoints that events choose.
const SHARED: &str = "the host of the URL is for events to say, and one secret would sign what goes to all of them, so that each \
                      receiver could forge webhooks to the others; set derive_secrets = true, or give each host its own in \
                      secrets_for in place of secrets, or say allow_shared_secret = true if all of them are in one hand";

/// Why nothing is sent to an endpoint that has no secret.
const NO_SECRET: &str = "webhooks are signed, and there is no secret for this endpoint; give one in secrets_for";

/// Why something is put off.
const RESTS: &str = "the endpoint has asked to be left alone for a while";
const SLOW: &str = "the endpoint is slow, and others were first";

/// Why nothing is sent to a URL.
const GONE: &str = "the endpoint has answered 410 and is disabled";

/// Sends webhooks. Clones share connections, breakers and what is disabled.
#[derive(Clone)]
pub struct Webhook {
    inner: Arc<Inner>,
    /// Set where the destination keeps the breaker, because there is only one endpoint.
    only: Option<Arc<Endpoint>>,
    /// Whether the endpoint is for events to say, so that there are others.
    chosen: bool,
    /// Set where nothing is sent, because anybody could forge it.
    refused: bool,
}

struct Inner {
    options: WebhookOptions,
    connector: Connector,
    endpoints: Endpoints,
    /// Had by the batch that sends to slow endpoints that events chose. The others go on without these.
    slow: Semaphore,
    closed: AtomicBool,
    /// Held by those who send, and taken by who closes.
    under_way: RwLock<()>,
}

/// What is sent to one endpoint of a batch.
struct Round<'a> {
    endpoint: &'a Endpoint,
    secrets: &'a [Secret],
    results: &'a Results,
    /// When the last request is begun.
    until: Instant,
    /// The same if it is slow and others wait for it.
    until_if_slow: Instant,
    absence: Mutex<Option<Absence>>,
    in_vain: Mutex<Vec<InVain>>,
}

/// Nobody is there, or nobody who takes anything.
struct Absence {
    away: Away,
    reason: String,
    /// How long the endpoint asks to be left alone.
    pause: Option<Duration>,
}

/// A request to which there was no answer, or that it is not available. Whose fault that is, is known when all have been sent.
struct InVain {
    place: usize,
    id: EventId,
    error: PublishError,
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
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

impl Webhook {
    /// Makes what is needed to send. Nobody is asked yet.
    ///
    /// # Errors
    /// When a secret is none, there is none at all and that was not said, or the file of authorities cannot be read.
    pub fn new(mut options: WebhookOptions) -> Result<Self, PublishError> {
        options.time_limit = options.time_limit.min(LONGEST_LIMIT);
        options.check().map_err(PublishError::permanent)?;
        let signing = Signing::new(&options).map_err(PublishError::permanent)?;
        let inner = Inner {
            connector: Connector::new(&options).map_err(PublishError::permanent)?,
            endpoints: Endpoints::new(&options.name, options.concurrency, signing),
            slow: Semaphore::new(1),
            closed: AtomicBool::new(false),
            under_way: RwLock::default(),
            options,
        };
        Ok(Self { inner: Arc::new(inner), only: None, chosen: true, refused: false })
    }

    /// A destination: the URL that the template makes of each event.
    ///
    /// Where the host is for events to say, endpoints need [secrets of their own](self#whose-secret).
    pub fn url(&self, template: &str) -> Destination<Self> {
        let parsed = template.parse::<Template>().ok();
        let is_shared = self.inner.endpoints.signing().is_shared() && !self.inner.options.allow_shared_secret;
        let chosen = parsed.as_ref().is_some_and(is_host_chosen);
        let refused = is_shared && chosen;
        // An address of which the beginning is not known is not looked at.
        let template = if refused { ANY_URL } else { template };
        let fixed = parsed.as_ref().and_then(Template::fixed).and_then(|url| Url::parse(url).ok());
        let only = fixed.map(|url| self.inner.endpoints.fix(&url));
        // Where there are many endpoints each has its own, and this one stays closed.
        let breaker =
            only.as_ref().map_or_else(|| Breaker::new(&*self.inner.options.name), |only| only.breaker.clone());
        let sender = Self { inner: Arc::clone(&self.inner), only, chosen, refused };
        Destination::new(Arc::new(sender), breaker, template).time_limit(self.longest())
    }

    /// How long a batch takes at most.
    fn longest(&self) -> Duration {
        SPELL + self.inner.options.time_limit + FINISHING
    }

    /// Connects to the host of a URL as a request would, TLS included, and leaves again: no request is sent. So it is known that
    /// somebody is there and is who he should be, and not what he says to an event.
    ///
    /// # Errors
    /// When nothing is sent to such URLs, as [`check_address`](Publisher::check_address) says; when nobody is there within the time
    /// for connecting, or he cannot be trusted; when the address is not public and that was not allowed.
    pub async fn reach(&self, url: &str) -> Result<(), PublishError> {
        let target = Target::new(url, &self.inner.options)?;
        match self.inner.connector.connect(target.whole()).await {
            Ok(_) => Ok(()),
            Err(error) => Err(match not_public(&*error) {
                Some(refused) => private(refused),
                None => PublishError::outage(in_one_line(&*error)),
            }),
        }
    }

    /// What the receiver at a URL checks signatures with: the secrets of its endpoint, as they stand in settings of receivers. None if
    /// webhooks are unsigned.
    ///
    /// ```
    /// use posthaste_publishers::webhook::{Webhook, WebhookOptions};
    ///
    /// let master = WebhookOptions::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").derive_secrets(true);
    /// let told = Webhook::new(master)?.secrets_of("https://partner.example/hooks")?;
    /// assert_eq!(told, ["whsec_bLMBfNNw3yHV/WO0Q7cD28kNq6GXvdXnU+tl0g/6S1E="]);
    /// # Ok::<(), posthaste_publishers::PublishError>(())
    /// ```
    ///
    /// # Errors
    /// When that is no URL.
    pub fn secrets_of(&self, url: &str) -> Result<Vec<String>, PublishError> {
        let wrong = |error| PublishError::permanent(format!("not a URL such as https://partner.example: {error}"));
        let origin = Url::parse(url).map_err(wrong)?.origin().ascii_serialization();
        Ok(self.inner.endpoints.signing().told_to(&origin, &self.inner.options))
    }

    /// The URLs that answered 410, to which nothing is sent any more.
    pub fn disabled(&self) -> Vec<String> {
        self.inner.endpoints.disabled()
    }

    /// Sends to a URL again that answered 410. Says whether it was one of these. Events that wait for it come when they look next.
    pub fn enable(&self, url: &str) -> bool {
        Url::parse(url).is_ok_and(|url| self.inner.endpoints.enable(&url))
    }

    /// The breakers of all endpoints that were sent to.
    pub fn breakers(&self) -> Vec<Breaker> {
        self.inner.endpoints.breakers()
    }

    /// Sends what goes to one endpoint, unless it is away.
    async fn to_endpoint(&self, endpoint: Arc<Endpoint>, mut requests: Vec<Request>, spell: Spell, results: &Results) {
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
        let (absence, in_vain) = (Mutex::default(), Mutex::default());
        let Spell { until, until_if_slow } = spell;
        let round = Round { endpoint: &endpoint, secrets, results, until, until_if_slow, absence, in_vain };
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

/// How long a batch sends.
#[derive(Clone, Copy)]
struct Spell {
    until: Instant,
    until_if_slow: Instant,
}

/// Whether the host of a URL is for events to say, or a part of it.
fn is_host_chosen(template: &Template) -> bool {
    let behind_scheme = template.as_str().split_once("://").map_or("", |(_, rest)| rest);
    let end_or_place = behind_scheme.find(['/', '?', '#', '\\', '{']);
    template.begins_with_place() || end_or_place.is_some_and(|at| behind_scheme[at..].starts_with('{'))
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

impl Round<'_> {
    /// Until when requests are begun.
    fn until(&self) -> Instant {
        if self.endpoint.pace.is_slow() { self.until_if_slow } else { self.until }
    }

    /// Until when a place is waited for. Where events choose the endpoint nobody waits for a slow one, and not long for others.
    fn wait_until(&self, is_chosen: bool) -> Instant {
        match is_chosen {
            true if self.endpoint.pace.is_slow() => Instant::now(),
            true => self.until.min(Instant::now() + SHORT_SPELL),
            false => self.until,
        }
    }

    /// Nobody was asked.
    fn put_off(&self, request: &Request, reason: &str, pause: Duration) -> Fate {
        self.results.note(request.place, Err(PublishError::deferred(reason, pause).unasked()));
        Fate::PutOff
    }

    /// Somebody was there, and had no answer for that event.
    fn in_vain(&self, request: &Request, error: PublishError) -> Fate {
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

impl Publisher for Webhook {
    const BINDING: Binding = Binding::Http;

    // As many as can be sent while one waits.
    const MAX_BATCH: usize = 100;

    fn name(&self) -> &str {
        &self.inner.options.name
    }

    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), PublishError>> {
        let results = Results::new(messages.len(), Instant::now() + self.longest());
        self.publish_into(messages, &results).await;
        results.into_noted().into_iter().map(|result| result.expect("a fate for every request")).collect()
    }

    async fn publish_into(&self, messages: Vec<Message>, results: &Results) {
        let Inner { options, endpoints, closed, under_way, .. } = &*self.inner;
        let _under_way = under_way.read().await;
        let why_nothing = match closed.load(Ordering::Relaxed) {
            true => Some("webhooks were closed by this program"),
            false => self.refused.then_some(SHARED),
        };
        if let Some(reason) = why_nothing {
            results.note_all(messages.iter().map(|_| Err(PublishError::outage(reason))));
            return;
        }
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

    fn check_address(&self, to: &str) -> Result<(), PublishError> {
        if self.refused {
            return Err(PublishError::permanent(SHARED));
        }
        request::check(to, &self.inner.options)?;
        // Otherwise its host may be for events to say.
        let Some(only) = self.only.as_ref().filter(|only| only.secrets.is_none()) else { return Ok(()) };
        Err(PublishError::permanent(format!("{}: {NO_SECRET}", only.breaker.name())))
    }

    /// Nobody is asked, since there is no request without an event. Fails while a URL that is the same for all events is away or
    /// disabled. What events choose for themselves is told by [`breakers`](Webhook::breakers) and [`disabled`](Webhook::disabled).
    async fn check(&self) -> Result<(), PublishError> {
        let endpoints = &self.inner.endpoints;
        let away = endpoints.fixed().into_iter().find(|breaker| breaker.state() != BreakerState::Closed);
        if let Some(breaker) = away {
            return Err(PublishError::outage(format!("{} is away", breaker.name())));
        }
        match endpoints.disabled_and_fixed() {
            0 => Ok(()),
            some => Err(PublishError::outage(format!("{some} URLs have answered 410 and are disabled"))),
        }
    }

    async fn close(&self) {
        self.inner.closed.store(true, Ordering::Relaxed);
        let _nobody = timeout(FINISHING, self.inner.under_way.write()).await;
    }
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An error and its causes.
fn in_one_line(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
