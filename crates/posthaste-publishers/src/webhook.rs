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
mod batch;
mod connection;
mod endpoint;
mod options;
mod pace;
mod request;
mod round;
mod sending;
mod signature;

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{RwLock, Semaphore};
use tokio::time::{Instant, timeout};
use url::Url;

use crate::breaker::{Breaker, BreakerState};
use crate::destination::{Destination, LONGEST_LIMIT};
use crate::envelope::Binding;
use crate::publisher::{Message, PublishError, Publisher, Results};
use crate::template::Template;

use address::not_public;
use batch::SPELL;
use connection::Connector;
use endpoint::{Endpoint, Endpoints};
use request::{Target, private};
use signature::Signing;

pub use options::WebhookOptions;

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
        let Inner { closed, under_way, .. } = &*self.inner;
        let _under_way = under_way.read().await;
        let why_nothing = match closed.load(Ordering::Relaxed) {
            true => Some("webhooks were closed by this program"),
            false => self.refused.then_some(SHARED),
        };
        if let Some(reason) = why_nothing {
            results.note_all(messages.iter().map(|_| Err(PublishError::outage(reason))));
            return;
        }
        self.to_endpoints(messages, results).await;
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

/// Whether the host of a URL is for events to say, or a part of it.
fn is_host_chosen(template: &Template) -> bool {
    let behind_scheme = template.as_str().split_once("://").map_or("", |(_, rest)| rest);
    let end_or_place = behind_scheme.find(['/', '?', '#', '\\', '{']);
    template.begins_with_place() || end_or_place.is_some_and(|at| behind_scheme[at..].starts_with('{'))
}

/// An error and its causes.
fn in_one_line(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
