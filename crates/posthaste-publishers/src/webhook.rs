//! Webhooks: requests of HTTP to whoever wants to know, signed by the rules of
//! [Standard Webhooks](https://www.standardwebhooks.com).
//!
//! ```no_run
//! use posthaste_core::{MemoryStore, Outbox};
//! use posthaste_publishers::webhook::{Webhook, WebhookOptions};
//!
//! # async fn start() -> Result<(), Box<dyn std::error::Error>> {
//! let webhook = Webhook::new(WebhookOptions::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))?;
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
//! the HMAC-SHA256 of `id.timestamp.body`, for each secret), those of the envelope, and `content-type`. What an event would like
//! to say about the connection itself (`host`, `content-length` and the like) is left out.
//!
//! # What goes wrong
//!
//! | answer | counts as |
//! |---|---|
//! | no connection: no such name, refused, TLS that cannot be trusted, no answer within the time for connecting | outage of that endpoint |
//! | no answer within the [time limit](WebhookOptions::time_limit), or a connection that breaks while it is awaited | retryable: it may be this event that it cannot bear |
//! | 408, 425, 429, 5xx | retryable, after as long as `Retry-After` says, up to a day |
//! | 3xx | retryable. Redirects are not followed, since they may lead anywhere |
//! | 410 | nothing is sent to this URL any more, see below |
//! | any other 4xx | permanent |
//! | the address is not public | retryable; nothing is sent. [Unless allowed](WebhookOptions::allow_private_addresses) |
//!
//! Addresses are looked at after the name was resolved, and the connection is made to just these. What is wrong with a URL that is
//! the same for all events is said when the outbox is started.
//!
//! # Endpoints
//!
//! An endpoint is a scheme, a host and a port, and has a breaker of its own. One that is away does not keep events from the others:
//! its events are put off and use up no attempt, and after a pause one of them is tried. Where the URL is the same for all events
//! the breaker is that of the destination, and nothing is claimed while it is open.
//!
//! A URL that answers 410 is asking to be left alone. Its events, this one included, wait: they use up no attempt, and
//! look every [ten minutes](WebhookOptions::gone_pause) whether it is used again. [`Webhook::disabled`] lists such URLs and
//! [`Webhook::enable`] uses one again. They are kept in memory: a new process tries each once.

mod address;
mod endpoint;
mod options;
mod request;
mod signature;

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use posthaste_core::listener::Room;
use reqwest::{Client, Url};
use tokio::sync::RwLock;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::warn;

use crate::breaker::{Breaker, BreakerState};
use crate::destination::Destination;
use crate::envelope::Binding;
use crate::publisher::{Message, PublishError, Publisher};
use crate::template::Template;
use crate::tls;

use address::PublicOnly;
use endpoint::{Endpoint, Endpoints};
use request::{Answer, Request};
use signature::Secret;

pub use options::WebhookOptions;

/// How long a batch sends. What has not begun by then is put off.
const SPELL: Duration = Duration::from_secs(30);

/// How long what found no time waits.
const BUSY: Duration = Duration::from_secs(1);

/// How long requests on their way are waited for when it is closed.
const FINISHING: Duration = Duration::from_secs(5);

/// Sends webhooks. Clones share connections, breakers and what is disabled.
#[derive(Clone)]
pub struct Webhook {
    inner: Arc<Inner>,
    /// Set where the destination keeps the breaker, because there is only one endpoint.
    only: Option<Arc<Endpoint>>,
}

struct Inner {
    options: WebhookOptions,
    secrets: Vec<Secret>,
    client: Client,
    endpoints: Endpoints,
    closed: AtomicBool,
    /// Held by those who send, and taken by who closes.
    under_way: RwLock<()>,
}

/// What became of a request, before it is known what that means for the breaker.
enum Sent {
    Judged(Result<(), PublishError>),
    PutOff(PublishError),
    Away(String),
}

impl Webhook {
    /// Makes what is needed to send. Nobody is asked yet.
    ///
    /// # Errors
    /// When a secret is none, or the file of authorities cannot be read.
    pub fn new(options: WebhookOptions) -> Result<Self, PublishError> {
        let secrets = options.secrets.iter().map(|secret| Secret::new(secret)).collect::<Result<_, _>>();
        let inner = Inner {
            secrets: secrets.map_err(PublishError::permanent)?,
            client: client(&options).map_err(PublishError::permanent)?,
            endpoints: Endpoints::new(&options.name, options.concurrency),
            closed: AtomicBool::new(false),
            under_way: RwLock::default(),
            options,
        };
        Ok(Self { inner: Arc::new(inner), only: None })
    }

    /// A destination: the URL that the template makes of each event.
    pub fn url(&self, template: &str) -> Destination<Self> {
        let parsed = template.parse::<Template>().ok();
        let fixed = parsed.as_ref().and_then(Template::fixed).and_then(|url| Url::parse(url).ok());
        let only = fixed.map(|url| self.inner.endpoints.of(&url));
        // Where there are many endpoints each has its own, and this one stays closed.
        let breaker =
            only.as_ref().map_or_else(|| Breaker::new(&*self.inner.options.name), |only| only.breaker.clone());
        let time_limit = SPELL + self.inner.options.time_limit + FINISHING;
        let sender = Self { inner: Arc::clone(&self.inner), only };
        Destination::new(Arc::new(sender), breaker, template).time_limit(time_limit)
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
    async fn to_endpoint(
        &self,
        endpoint: Arc<Endpoint>,
        mut requests: Vec<Request>,
        until: Instant,
    ) -> Vec<(usize, Result<(), PublishError>)> {
        let ours = self.only.is_none();
        let room = if ours { endpoint.breaker.enter() } else { Room::Open };
        let behind = match room {
            Room::Open => Vec::new(),
            // The first shows whether it is back.
            Room::Few(_) => requests.split_off(1),
            _ => {
                let put_off = |(request, pause): (Request, _)| {
                    (request.place, Err(PublishError::deferred("the endpoint is away", pause)))
                };
                let pauses = endpoint.breaker.put_off(requests.len());
                return requests.into_iter().zip(pauses).map(put_off).collect();
            }
        };
        let mut sent = self.in_lanes(&endpoint, requests, until).await;
        match away(&sent) {
            Some(reason) => sent.extend(behind.into_iter().map(|request| (request.place, Sent::Away(reason.clone())))),
            None => sent.extend(self.in_lanes(&endpoint, behind, until).await),
        }
        if ours {
            match away(&sent) {
                Some(reason) => endpoint.breaker.failed(None, &reason),
                None if sent.iter().any(|(_, sent)| matches!(sent, Sent::Judged(_))) => endpoint.breaker.succeeded(),
                None => {}
            }
        }
        let lost = sent.iter().filter(|(_, sent)| matches!(sent, Sent::Away(_))).count();
        let mut pauses = endpoint.breaker.put_off(if ours { lost } else { 0 }).into_iter();
        let mut fate = |sent| match sent {
            Sent::Judged(fate) => fate,
            Sent::PutOff(error) => Err(error),
            Sent::Away(reason) => Err(match pauses.next() {
                Some(pause) => PublishError::deferred(reason, pause),
                None => PublishError::outage(reason),
            }),
        };
        sent.into_iter().map(|(place, sent)| (place, fate(sent))).collect()
    }

    /// Sends at once what may overtake each other, and one after the other what may not.
    async fn in_lanes(&self, endpoint: &Endpoint, requests: Vec<Request>, until: Instant) -> Vec<(usize, Sent)> {
        let (mut lanes, mut by_key) = (Vec::<Vec<Request>>::new(), HashMap::new());
        for request in requests {
            let lane = match &request.key {
                Some(key) => *by_key.entry(key.clone()).or_insert(lanes.len()),
                None => lanes.len(),
            };
            match lanes.get_mut(lane) {
                Some(lane) => lane.push(request),
                None => lanes.push(vec![request]),
            }
        }
        let away = Mutex::new(None);
        let away = &away;
        let lanes = lanes.into_iter().map(|lane| async move {
            let mut sent = Vec::with_capacity(lane.len());
            for request in lane {
                sent.push((request.place, self.one(endpoint, &request, until, away).await));
            }
            sent
        });
        join_all(lanes).await.into_iter().flatten().collect()
    }

    async fn one(&self, endpoint: &Endpoint, request: &Request, until: Instant, away: &Mutex<Option<String>>) -> Sent {
        let Inner { options, secrets, client, endpoints, .. } = &*self.inner;
        let Ok(Ok(_place)) = timeout_at(until, endpoint.places.acquire()).await else {
            return Sent::PutOff(PublishError::deferred("the endpoint is slow, and others were first", BUSY));
        };
        // One that found nobody is enough.
        if let Some(reason) = lock(away).clone() {
            return Sent::Away(reason);
        }
        let gone = || PublishError::deferred("the endpoint has answered 410 and is disabled", options.gone_pause);
        if endpoints.is_disabled(&request.url) {
            return Sent::PutOff(gone());
        }
        match request.send(client, secrets).await {
            Answer::Judged(fate) => Sent::Judged(fate),
            Answer::Away(error) => {
                let reason = in_one_line(&error);
                *lock(away) = Some(reason.clone());
                Sent::Away(reason)
            }
            Answer::Gone => {
                let host = request.url.host_str().unwrap_or_default();
                warn!(destination = options.name, host, "an endpoint answered 410 and gets nothing any more");
                endpoints.disable(&request.url);
                Sent::PutOff(gone())
            }
        }
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
        let Inner { options, endpoints, closed, under_way, .. } = &*self.inner;
        let _under_way = under_way.read().await;
        if closed.load(Ordering::Relaxed) {
            return messages
                .iter()
                .map(|_| Err(PublishError::outage("webhooks were closed by this program")))
                .collect();
        }
        let mut results: Vec<Option<Result<(), PublishError>>> = messages.iter().map(|_| None).collect();
        let mut groups: Vec<(Arc<Endpoint>, Vec<Request>)> = Vec::new();
        for (place, message) in messages.into_iter().enumerate() {
            match Request::new(place, message, options) {
                Ok(request) => {
                    let endpoint = endpoints.of(&request.url);
                    match groups.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &endpoint)) {
                        Some((_, requests)) => requests.push(request),
                        None => groups.push((endpoint, vec![request])),
                    }
                }
                Err(error) => results[place] = Some(Err(error)),
            }
        }
        let until = Instant::now() + SPELL;
        let groups = groups.into_iter().map(|(endpoint, requests)| self.to_endpoint(endpoint, requests, until));
        for (place, fate) in join_all(groups).await.into_iter().flatten() {
            results[place] = Some(fate);
        }
        results.into_iter().map(|result| result.expect("a fate for every request")).collect()
    }

    fn check_address(&self, to: &str) -> Result<(), PublishError> {
        request::url(to, &self.inner.options).map(drop)
    }

    /// Nobody is asked, since there is no request without an event. Fails while an endpoint is away or disabled.
    async fn check(&self) -> Result<(), PublishError> {
        let away = self.breakers().into_iter().find(|breaker| breaker.state() != BreakerState::Closed);
        if let Some(breaker) = away {
            return Err(PublishError::outage(format!("{} is away", breaker.name())));
        }
        match self.disabled().len() {
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

fn away(sent: &[(usize, Sent)]) -> Option<String> {
    sent.iter().find_map(|(_, sent)| match sent {
        Sent::Away(reason) => Some(reason.clone()),
        _ => None,
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An error and its causes.
fn in_one_line(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Goes nowhere by itself: no redirects, no proxies of the environment, no second try.
fn client(options: &WebhookOptions) -> Result<Client, Box<dyn Error + Send + Sync>> {
    let mut tls = tls::client_config(options.ca_file.as_deref(), None)?;
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let mut client = Client::builder()
        .tls_backend_preconfigured(tls)
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .no_proxy()
        .referer(false)
        .user_agent(concat!("posthaste/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(options.connect_timeout)
        .timeout(options.time_limit)
        .pool_max_idle_per_host(options.concurrency.max(1));
    if !options.allow_private_addresses {
        client = client.dns_resolver(Arc::new(PublicOnly));
    }
    Ok(client.build()?)
}
