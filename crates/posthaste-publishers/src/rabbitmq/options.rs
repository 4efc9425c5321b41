//! How to reach a broker, and what it should have.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use jiff::fmt::serde::unsigned_duration::friendly::compact;
use lapin::ExchangeKind as Kind;
use lapin::types::{AMQPValue, FieldTable, ShortString, ShortStringError};
use serde::{Deserialize, Serialize};

/// How to reach a RabbitMQ, and how to send to it.
///
/// ```
/// use posthaste_publishers::rabbitmq::{QueueOptions, RabbitOptions};
///
/// let options = RabbitOptions::new("amqp://shop:secret@127.0.0.1:5672/%2f")
///     .app_id("shop")
///     .declare_topic_exchange("shop")
///     .declare_queue(QueueOptions::quorum("billing"))
///     .bind("billing", "shop", "Order.#");
/// assert!(!format!("{options:?}").contains("secret"));
/// ```
///
/// What is serialised is without addresses, logins and secrets: it is to be shown.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RabbitOptions {
    #[serde(skip_serializing)]
    pub(super) url: String,
    #[serde(default = "default_name")]
    pub(super) name: String,
    #[serde(default)]
    pub(super) app_id: Option<String>,
    #[serde(default = "yes")]
    pub(super) mandatory: bool,
    #[serde(default = "yes")]
    pub(super) persistent: bool,
    #[serde(default)]
    pub(super) lazy: bool,
    #[serde(default)]
    pub(super) ca_file: Option<PathBuf>,
    #[serde(default = "connect_timeout", with = "compact::required")]
    pub(super) connect_timeout: Duration,
    #[serde(default = "confirm_timeout", with = "compact::required")]
    pub(super) confirm_timeout: Duration,
    #[serde(default = "heartbeat", with = "compact::required")]
    pub(super) heartbeat: Duration,
    #[serde(default, skip_serializing)]
    pub(super) exchanges: Vec<ExchangeOptions>,
    #[serde(default, skip_serializing)]
    pub(super) queues: Vec<QueueOptions>,
    #[serde(default, skip_serializing)]
    pub(super) bindings: Vec<BindingOptions>,
    #[serde(skip, default = "yes")]
    pub(super) declaring: bool,
}

fn default_name() -> String {
    "rabbitmq".to_owned()
}

fn yes() -> bool {
    true
}

fn connect_timeout() -> Duration {
    Duration::from_secs(10)
}

fn confirm_timeout() -> Duration {
    Duration::from_secs(20)
}

fn heartbeat() -> Duration {
    Duration::from_secs(20)
}

impl RabbitOptions {
    /// A broker at such an address: `amqp://user:password@host:5672/vhost`, or `amqps://…` with the feature `rabbitmq-tls`.
    ///
    /// The virtual host is percent-encoded: `/%2f`, or nothing at all behind the port, is the one called `/`.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            name: default_name(),
            app_id: None,
            mandatory: true,
            persistent: true,
            lazy: false,
            ca_file: None,
            connect_timeout: connect_timeout(),
            confirm_timeout: confirm_timeout(),
            heartbeat: heartbeat(),
            exchanges: Vec::new(),
            queues: Vec::new(),
            bindings: Vec::new(),
            declaring: true,
        }
    }

    /// Sets what it is called in logs, in metrics, and among the connections of the broker. Default `rabbitmq`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the application id that messages carry. Default: none.
    #[must_use]
    pub fn app_id(mut self, id: impl Into<String>) -> Self {
        self.app_id = Some(id.into());
        self
    }

    /// Sets whether a message that no queue gets counts as not delivered. Default true: an exchange acknowledges what nobody is
    /// bound for, and the event would be DONE without having been anywhere.
    #[must_use]
    pub fn mandatory(mut self, mandatory: bool) -> Self {
        self.mandatory = mandatory;
        self
    }

    /// Sets whether durable queues keep messages on disk. Default true: otherwise what was acknowledged is gone after a restart.
    #[must_use]
    pub fn persistent(mut self, persistent: bool) -> Self {
        self.persistent = persistent;
        self
    }

    /// Sets whether to connect with the first batch instead of at once. Default false: who cannot connect should know when it is
    /// started. With it, a broker that is away is an outage like any other.
    #[must_use]
    pub fn lazy(mut self, lazy: bool) -> Self {
        self.lazy = lazy;
        self
    }

    /// Trusts the authorities in that file of PEM, beside those that browsers trust.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Sets how long connecting and declaring may take. Default 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Sets how long the broker may take to acknowledge what it was sent. Default 20 s, well below the time limit of listeners:
    /// who is silent for longer is away, and the connection is made anew.
    #[must_use]
    pub fn confirm_timeout(mut self, limit: Duration) -> Self {
        self.confirm_timeout = limit;
        self
    }

    /// Sets after how long a silent connection is looked at, in whole seconds. Default 20 s: one that is dead is noticed after
    /// twice as long.
    #[must_use]
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = interval;
        self
    }

    /// Sets whether exchanges, queues and bindings are declared with each connection. Default true. Whoever only looks at a broker
    /// makes nothing there without.
    #[must_use]
    pub fn declaring(mut self, declaring: bool) -> Self {
        self.declaring = declaring;
        self
    }

    /// Declares an exchange with every connection.
    #[must_use]
    pub fn declare_exchange(mut self, exchange: ExchangeOptions) -> Self {
        self.exchanges.push(exchange);
        self
    }

    /// Declares a durable topic exchange with every connection.
    #[must_use]
    pub fn declare_topic_exchange(self, name: impl Into<String>) -> Self {
        self.declare_exchange(ExchangeOptions::new(name, ExchangeKind::Topic))
    }

    /// Declares a queue with every connection.
    #[must_use]
    pub fn declare_queue(mut self, queue: QueueOptions) -> Self {
        self.queues.push(queue);
        self
    }

    /// Binds a queue to an exchange with every connection.
    #[must_use]
    pub fn bind(
        mut self,
        queue: impl Into<String>,
        exchange: impl Into<String>,
        routing_key: impl Into<String>,
    ) -> Self {
        let (queue, exchange, routing_key) = (queue.into(), exchange.into(), routing_key.into());
        self.bindings.push(BindingOptions { queue, exchange, routing_key });
        self
    }
}

impl fmt::Debug for RabbitOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address has a password in it.
        let mut debug = f.debug_struct("RabbitOptions");
        debug.field("name", &self.name).field("app_id", &self.app_id).field("mandatory", &self.mandatory);
        debug.field("persistent", &self.persistent).field("lazy", &self.lazy).field("exchanges", &self.exchanges);
        debug.field("queues", &self.queues).field("bindings", &self.bindings).finish_non_exhaustive()
    }
}

/// An exchange to declare. It is durable.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExchangeOptions {
    pub(super) name: String,
    #[serde(default)]
    pub(super) kind: ExchangeKind,
    #[serde(default)]
    pub(super) arguments: BTreeMap<String, Argument>,
}

/// By what an exchange finds queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ExchangeKind {
    /// By patterns of the routing key.
    #[default]
    Topic,
    /// By the routing key.
    Direct,
    /// All that are bound.
    Fanout,
    /// By headers.
    Headers,
}

impl ExchangeOptions {
    /// A durable exchange of that kind.
    pub fn new(name: impl Into<String>, kind: ExchangeKind) -> Self {
        Self { name: name.into(), kind, arguments: BTreeMap::new() }
    }

    /// Sets an argument, such as `alternate-exchange`.
    #[must_use]
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<Argument>) -> Self {
        self.arguments.insert(name.into(), value.into());
        self
    }
}

impl From<ExchangeKind> for Kind {
    fn from(kind: ExchangeKind) -> Self {
        match kind {
            ExchangeKind::Topic => Self::Topic,
            ExchangeKind::Direct => Self::Direct,
            ExchangeKind::Fanout => Self::Fanout,
            ExchangeKind::Headers => Self::Headers,
        }
    }
}

/// A queue to declare. It is durable.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueOptions {
    pub(super) name: String,
    #[serde(default)]
    pub(super) arguments: BTreeMap<String, Argument>,
}

impl QueueOptions {
    /// A durable queue of the kind that the broker takes for usual.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), arguments: BTreeMap::new() }
    }

    /// A queue that several nodes of a cluster keep: it acknowledges what most of them have on disk.
    pub fn quorum(name: impl Into<String>) -> Self {
        Self::new(name).argument("x-queue-type", "quorum")
    }

    /// Sets an argument, such as `x-max-length`.
    #[must_use]
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<Argument>) -> Self {
        self.arguments.insert(name.into(), value.into());
        self
    }
}

/// A binding to declare.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BindingOptions {
    pub(super) queue: String,
    pub(super) exchange: String,
    #[serde(default)]
    pub(super) routing_key: String,
}

/// A value in the arguments of an exchange or a queue.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Argument {
    /// Yes or no.
    Bool(bool),
    /// A whole number.
    Number(i64),
    /// A text.
    Text(String),
}

impl From<bool> for Argument {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i64> for Argument {
    fn from(value: i64) -> Self {
        Self::Number(value)
    }
}

impl From<&str> for Argument {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

/// Arguments as the protocol has them.
pub(super) fn table(arguments: &BTreeMap<String, Argument>) -> Result<FieldTable, ShortStringError> {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        let value = match value {
            Argument::Bool(value) => AMQPValue::Boolean(*value),
            Argument::Number(value) => AMQPValue::LongLongInt(*value),
            Argument::Text(value) => AMQPValue::LongString(value.as_str().into()),
        };
        table.insert(ShortString::try_new(name.as_str())?, value);
    }
    Ok(table)
}
