//! RabbitMQ, or another broker of AMQP 0.9.1 with publisher confirms.
//!
//! ```no_run
//! use posthaste_core::{MemoryStore, Outbox};
//! use posthaste_publishers::rabbitmq::{QueueOptions, Rabbit, RabbitOptions};
//!
//! # async fn start() -> Result<(), Box<dyn std::error::Error>> {
//! let options = RabbitOptions::new("amqp://guest:guest@127.0.0.1:5672/%2f")
//!     .declare_topic_exchange("shop")
//!     .declare_queue(QueueOptions::quorum("billing"))
//!     .bind("billing", "shop", "Order.#");
//! let rabbit = Rabbit::connect(options).await?;
//! let outbox = Outbox::builder(MemoryStore::new())
//!     .listen("Order", "*", rabbit.exchange("shop").routing_key("{aggregate_type}.{event_type}"))
//!     .start()
//!     .await?;
//! # Ok(()) }
//! ```
//!
//! # What is promised
//!
//! | | |
//! |---|---|
//! | DONE means | the broker has confirmed the message: every queue it was routed to has it, durable queues on disk (of most nodes, in a quorum queue) |
//! | nobody is bound | not delivered: messages are [mandatory](RabbitOptions::mandatory), and one that comes back is tried again |
//! | repeats | possible. The message id is the id of the event, the same each time; RabbitMQ itself drops no repeats |
//! | order | messages of one batch in theirs, on one channel. Where one fails, those behind it may have arrived |
//!
//! A message has the properties `message_id`, `content_type`, `delivery_mode` (2, persistent) and, if it is set, `app_id`. Its
//! headers are those of the envelope.
//!
//! # What goes wrong
//!
//! | what | counts as |
//! |---|---|
//! | the broker cannot be reached, refuses the login or a declaration, or ends the connection | outage. To [`check`](Publisher::check) and [`Rabbit::connect`] a refusal is permanent |
//! | it is low on memory or disk (connection blocked) | outage. What was on its way then may arrive later and once more |
//! | it does not answer within the [time limit](RabbitOptions::confirm_timeout) | outage; the connection is made anew |
//! | it answers, but a message is not confirmed within that time, or that of [its batch](Destination::time_limit) if it is shorter, because its queue has no majority, say | put off: no attempt is used up. The exchange, or where others of it were confirmed the routing key, is left alone for a second, then longer each time, up to 30 s; then ten messages try it, and others wait for how that goes |
//! | no queue is bound for the message | retryable: a binding can be made |
//! | the exchange does not exist, or may not be written to | retryable: it can be made, or the right given |
//! | a queue refuses it (nack), because it is full, say | retryable |
//! | the message is larger than the broker allows | permanent |
//! | exchange, routing key, content type or the name of a header have more than 255 bytes, headers do not fit into a frame | permanent |
//!
//! For a missing exchange, a missing right and a message too large the broker closes the channel without saying which message it
//! was. Those that had no answer by then are sent again on another channel, one at first and then more each time, until the
//! one to blame is found; of the others some may arrive twice.
//!
//! The client logs what is returned, with its body, as a warning of the target `lapin::returned_messages`. Filter that target out
//! if payloads must not be in logs.

mod link;
mod options;
mod sending;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::RwLock;
use tokio::time::{Instant, timeout};

use crate::breaker::Breaker;
use crate::destination::Destination;
use crate::durability::Concern;
use crate::envelope::Binding;
use crate::pauses::Pauses;
use crate::publisher::{Message, PublishError, Publisher, Results};
use crate::template::Template;

use link::Link;
use sending::{Broker, Letter};

pub use options::{Argument, BindingOptions, ExchangeKind, ExchangeOptions, QueueOptions, RabbitOptions};

/// Between exchange and routing key in an address. No text of an event has it in it.
const SEPARATOR: char = '\0';

/// The exchange without a name, to which every queue is bound by its name.
const NO_EXCHANGE: &str = "";

/// How much longer than its messages a batch may take as a whole.
const LATE: Duration = Duration::from_secs(5);

/// How long before the end of its time a batch is told what is known by then.
const EARLY: Duration = Duration::from_millis(500);

/// How long messages on their way are waited for when it is closed.
const FINISHING: Duration = Duration::from_secs(5);

/// A connection to RabbitMQ. Clones share it.
#[derive(Clone)]
pub struct Rabbit(Arc<Inner>);

struct Inner {
    options: RabbitOptions,
    link: Link,
    breaker: Breaker,
    /// Exchanges and queues that say nothing while others do.
    pauses: Pauses,
    /// Held by those who send, and taken by who closes.
    under_way: RwLock<()>,
}

impl Rabbit {
    /// Connects, and declares what the options say.
    ///
    /// # Errors
    /// When the options are wrong; and unless they say [lazy](RabbitOptions::lazy), when the broker cannot be reached, refuses
    /// the login or the declarations.
    pub async fn connect(options: RabbitOptions) -> Result<Self, PublishError> {
        let (link, breaker) = (Link::new(options.clone())?, Breaker::new(options.name.as_str()));
        if !options.lazy {
            link.line().await?;
        }
        let (pauses, under_way) = (Pauses::default(), RwLock::default());
        Ok(Self(Arc::new(Inner { options, link, breaker, pauses, under_way })))
    }

    /// An exchange to send to, as a template. Say next with which routing key.
    pub fn exchange(&self, template: &str) -> Exchange {
        Exchange { rabbit: self.clone(), template: template.to_owned() }
    }

    /// A destination that is a queue, by its name, as a template: without an exchange between.
    pub fn queue(&self, template: &str) -> Destination<Self> {
        self.destination(NO_EXCHANGE, template)
    }

    /// Asks whether a queue is there, and survives a restart of the broker.
    ///
    /// # Errors
    /// When the broker is away, or refuses to say.
    pub async fn concerns(&self, queue: &str) -> Result<Vec<Concern>, PublishError> {
        let line = self.0.link.line().await?;
        let refused = |error: lapin::Error| PublishError::retryable(format!("RabbitMQ does not say: {error}"));
        Ok(match line.is_durable(queue).await.map_err(refused)? {
            Some(true) => Vec::new(),
            Some(false) => vec![Concern::mistake(
                format!(
                    "the queue {queue:?} is not durable: it is gone, with its messages, when the broker is restarted"
                ),
                "delete it, and declare it with durable = true",
            )],
            None if self.0.options.queues.iter().any(|declared| declared.name == queue) => vec![Concern::choice(
                format!("there is no queue {queue:?} yet: whoever sends to it declares it, as these options say"),
                "start a relay, or declare it before",
            )],
            None => vec![Concern::mistake(
                format!("there is no queue {queue:?}: messages for it come back, and wait"),
                "declare it, with durable = true",
            )],
        })
    }

    /// The breaker of this connection.
    pub fn breaker(&self) -> &Breaker {
        &self.0.breaker
    }

    fn destination(&self, exchange: &str, routing_key: &str) -> Destination<Self> {
        let wrong = |template: &&str| !template.is_empty() && template.parse::<Template>().is_err();
        // A template that is wrong is shown alone, as it was written.
        let to = match [exchange, routing_key].into_iter().find(wrong) {
            Some(wrong) => wrong.to_owned(),
            None => format!("{exchange}{SEPARATOR}{routing_key}"),
        };
        let limit = self.longest() + sending::ANSWER + LATE;
        Destination::new(Arc::new(self.clone()), self.breaker().clone(), &to).time_limit(limit)
    }

    /// How long a batch takes at most until it is known what became of it, or that nothing is heard.
    fn longest(&self) -> Duration {
        self.0.options.connect_timeout + self.0.options.confirm_timeout
    }

    /// Sends a batch, waits for confirms until then, and tells what became of each message, by its place.
    async fn publish_telling(
        &self,
        messages: Vec<Message>,
        until: Instant,
        mut tell: impl FnMut(usize, Result<(), PublishError>) + Send,
    ) {
        let Inner { options, link, pauses, under_way, .. } = &*self.0;
        let _under_way = under_way.read().await;
        let (mut letters, mut ends) = (Vec::with_capacity(messages.len()), pauses.round());
        for (place, message) in messages.into_iter().enumerate() {
            match Letter::new(place, message, options).and_then(|letter| letter.put_off(&mut ends)) {
                Ok(letter) => letters.push(letter),
                Err(error) => tell(place, Err(error)),
            }
        }
        sending::send(&Broker { link, options, until }, &mut ends, letters, tell).await;
    }
}

impl Publisher for Rabbit {
    const BINDING: Binding = Binding::Amqp;

    fn name(&self) -> &str {
        &self.0.options.name
    }

    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), PublishError>> {
        let mut results: Vec<Option<Result<(), PublishError>>> = messages.iter().map(|_| None).collect();
        let until = Instant::now() + self.longest();
        self.publish_telling(messages, until, |place, fate| results[place] = Some(fate)).await;
        results.into_iter().map(|result| result.expect("a fate for every letter")).collect()
    }

    async fn publish_into(&self, messages: Vec<Message>, results: &Results) {
        let now = Instant::now();
        // What a confirm says of its own message is known when all have been listened to, which is to be before the time is over.
        let left = results.until().saturating_duration_since(now);
        let until = now + self.longest().min(left - (left / 10).min(EARLY));
        self.publish_telling(messages, until, |place, fate| results.note(place, fate)).await;
    }

    async fn check(&self) -> Result<(), PublishError> {
        let Inner { options, link, .. } = &*self.0;
        sending::check(&Broker { link, options, until: Instant::now() + self.longest() }).await
    }

    async fn close(&self) {
        let Inner { link, under_way, .. } = &*self.0;
        let _nobody = timeout(FINISHING, under_way.write()).await;
        link.close().await;
    }
}

impl fmt::Debug for Rabbit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rabbit").field("options", &self.0.options).field("breaker", &self.0.breaker).finish()
    }
}

/// An exchange to send to.
#[derive(Clone, Debug)]
pub struct Exchange {
    rabbit: Rabbit,
    template: String,
}

impl Exchange {
    /// The destination, with the routing key that the template makes of each event.
    pub fn routing_key(&self, template: &str) -> Destination<Rabbit> {
        self.rabbit.destination(&self.template, template)
    }

    /// The destination with an empty routing key, for exchanges that do not look at it.
    pub fn no_routing_key(&self) -> Destination<Rabbit> {
        self.routing_key("")
    }
}
