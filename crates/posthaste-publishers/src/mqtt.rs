//! MQTT 5.
//!
//! ```no_run
//! use posthaste_core::{MemoryStore, Outbox};
//! use posthaste_publishers::mqtt::{Mqtt, MqttOptions};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let mqtt = Mqtt::connect(MqttOptions::new("mqtt://127.0.0.1:1883")).await?;
//! let builder = Outbox::builder(MemoryStore::new()).listen("Order", "*", mqtt.topic("shop/{aggregate_type}/{event_type}"));
//! # Ok(())
//! # }
//! ```
//!
//! What the envelope says are user properties; the content type is that of the message.
//!
//! | | |
//! |---|---|
//! | acknowledgement | PUBACK (or PUBCOMP with [quality of service 2](MqttOptions::exactly_once)) with a reason that is none of failure: the broker has the message. Who has no session there and is not connected does not get it, and without any subscriber it is thrown away; see [`require_subscriber`](MqttOptions::require_subscriber) |
//! | power loss | whatever the broker does: Mosquitto keeps messages in memory, and writes them down now and then if its `persistence` is on |
//! | repeats | nothing is dropped: where an acknowledgement is lost, the message is sent again, in another session. Subscribers tell repeats by the property `event-id` |
//! | order | messages of one batch are sent in their order, and brokers keep it for each topic |
//! | at once | as many as the broker takes (its `receive maximum`) |
//!
//! The connection is not encrypted.
//!
//! | what happens | kind |
//! |---|---|
//! | no connection, or lost, or no answer in time; the broker refuses the connection | outage |
//! | not authorised for the topic; a quota is exceeded; nobody has subscribed, if somebody has to; any other failure | retryable |
//! | a topic, a property or a body that MQTT or the broker cannot carry | permanent |
//!
//! Brokers may end the connection when they refuse something, as Mosquitto 2.0.11 does for a topic that is not permitted. What
//! was behind it is an outage then, and with it the refused message itself, if the refusal was lost with the connection: that is
//! a matter of chance with quality of service 1, and seems to be so always with 2. Until the topic is permitted, such a message
//! can come again and again without using up an attempt.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::fmt::serde::unsigned_duration::friendly::compact;
use rumqttc::{
    AsyncClient, ConnAck, Event, Packet, PubAckReason, PubCompReason, PubRecReason, PublishNotice, PublishNoticeError,
    PublishOptions, PublishProperties, PublishResult, QoS,
};
use serde::Deserialize;
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::address;
use crate::breaker::Breaker;
use crate::destination::Destination;
use crate::envelope::Binding;
use crate::publisher::{Message, PublishError, Publisher};

/// How long closing may take.
const CLOSE: Duration = Duration::from_secs(5);

/// The longest string that the protocol can carry.
const LONGEST: usize = 65_535;

/// How many messages wait to be sent, behind those that wait for their acknowledgement.
const QUEUE: usize = 100;

/// How to reach a broker that speaks MQTT 5, and how to publish there.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MqttOptions {
    url: String,
    #[serde(default = "default_name")]
    name: String,
    client_id: Option<String>,
    user: Option<String>,
    password: Option<String>,
    #[serde(default)]
    exactly_once: bool,
    #[serde(default)]
    retain: bool,
    #[serde(default)]
    require_subscriber: bool,
    max_payload: Option<usize>,
    #[serde(default = "default_ack_timeout", with = "compact::required")]
    ack_timeout: Duration,
    #[serde(default = "default_connect_timeout", with = "compact::required")]
    connect_timeout: Duration,
    #[serde(default)]
    lazy: bool,
}

fn default_name() -> String {
    "mqtt".to_owned()
}

fn default_ack_timeout() -> Duration {
    Duration::from_secs(5)
}

fn default_connect_timeout() -> Duration {
    Duration::from_secs(5)
}

impl MqttOptions {
    /// The broker at that address, such as `mqtt://127.0.0.1:1883`. User and password are not part of it.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            name: default_name(),
            client_id: None,
            user: None,
            password: None,
            exactly_once: false,
            retain: false,
            require_subscriber: false,
            max_payload: None,
            ack_timeout: default_ack_timeout(),
            connect_timeout: default_connect_timeout(),
            lazy: false,
        }
    }

    /// Sets what it is called in logs and metrics. Default `mqtt`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the id of the client. Default: a random one. A broker ends the connection of another client with the same id, so
    /// every process needs its own.
    #[must_use]
    pub fn client_id(mut self, id: impl Into<String>) -> Self {
        self.client_id = Some(id.into());
        self
    }

    /// Sets user and password.
    #[must_use]
    pub fn user_and_password(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        (self.user, self.password) = (Some(user.into()), Some(password.into()));
        self
    }

    /// Whether to publish with quality of service 2 instead of 1. Default false: it takes two round trips, and a message whose
    /// acknowledgement was lost is sent again all the same.
    #[must_use]
    pub fn exactly_once(mut self, exactly_once: bool) -> Self {
        self.exactly_once = exactly_once;
        self
    }

    /// Whether the broker keeps the last message of each topic for who subscribes later. Default false.
    #[must_use]
    pub fn retain(mut self, retain: bool) -> Self {
        self.retain = retain;
        self
    }

    /// Whether a message that nobody has subscribed to has failed, and is tried again. Default false. With quality of service 1
    /// only, and with brokers that say so, as Mosquitto does.
    #[must_use]
    pub fn require_subscriber(mut self, require: bool) -> Self {
        self.require_subscriber = require;
        self
    }

    /// Sets how many bytes a body may have. Default: what the broker says of packets when it accepts the connection. Some have
    /// another limit (`message_size_limit` of Mosquitto), and end the connection over it.
    #[must_use]
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = Some(bytes);
        self
    }

    /// Sets how long to wait when no further acknowledgement comes. Default 5 s.
    #[must_use]
    pub fn ack_timeout(mut self, timeout: Duration) -> Self {
        self.ack_timeout = timeout;
        self
    }

    /// Sets how long connecting may take. Default 5 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Whether to connect with the first batch only. A broker that is away is then an outage and no error of
    /// [`Mqtt::connect`]. Default false: what is wrong is said at the start.
    #[must_use]
    pub fn lazy(mut self, lazy: bool) -> Self {
        self.lazy = lazy;
        self
    }

    /// What their client has to know, if the options go together.
    fn client_options(&self) -> Result<rumqttc::MqttOptions, String> {
        let shown = address::shown(&self.url);
        if self.url.starts_with("mqtts://") || self.url.starts_with("ssl://") {
            return Err(format!("{shown} is with TLS, which is not supported for MQTT"));
        }
        let rest = self.url.strip_prefix("mqtt://").or_else(|| self.url.strip_prefix("tcp://")).unwrap_or(&self.url);
        if rest.contains('@') {
            return Err(format!("the address {shown} has a user in it; set user and password beside it"));
        }
        let (host, port) = match rest.trim_end_matches('/').rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => {
                (host, port.parse().map_err(|_| format!("{shown:?} is no address of MQTT: {port:?} is no port"))?)
            }
            _ => (rest.trim_end_matches('/'), 1883),
        };
        if host.is_empty() || host.contains('/') {
            return Err(format!("{shown:?} is no address of MQTT, such as mqtt://127.0.0.1:1883"));
        }
        let id = self.client_id.clone().unwrap_or_else(|| format!("posthaste-{:016x}", fastrand::u64(..)));
        let mut options = rumqttc::MqttOptions::new(id, rumqttc::Broker::tcp(host.trim_matches(['[', ']']), port));
        options.set_clean_start(true).set_connect_timeout(self.connect_timeout).set_request_channel_capacity(QUEUE);
        let mut network = options.network_options();
        network.set_tcp_nodelay(true);
        options.set_network_options(network);
        match (&self.user, &self.password) {
            (Some(user), Some(password)) => {
                options.set_credentials(user, password.clone());
            }
            (Some(user), None) => {
                options.set_username(user);
            }
            (None, Some(_)) => return Err("there is a password for MQTT, but no user; set both".to_owned()),
            (None, None) => {}
        }
        options.validate().map_err(|error| error.to_string())?;
        Ok(options)
    }
}

impl fmt::Debug for MqttOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("MqttOptions");
        debug.field("url", &address::shown(&self.url)).field("name", &self.name).field("client_id", &self.client_id);
        debug.field("user", &self.user).field("exactly_once", &self.exactly_once).field("retain", &self.retain);
        debug.field("require_subscriber", &self.require_subscriber).field("max_payload", &self.max_payload);
        debug.field("ack_timeout", &self.ack_timeout).field("connect_timeout", &self.connect_timeout);
        debug.field("lazy", &self.lazy).finish_non_exhaustive()
    }
}

/// A connection to a broker. Clones share it.
#[derive(Clone)]
pub struct Mqtt(Arc<Inner>);

struct Inner {
    options: MqttOptions,
    client_options: rumqttc::MqttOptions,
    breaker: Breaker,
    connection: Mutex<Option<Arc<Connection>>>,
    closed: AtomicBool,
}

/// One connection and session, until it is lost: another is made then. So nothing that was given up is sent later.
struct Connection {
    client: AsyncClient,
    /// The most bytes of a packet that the broker takes.
    max_packet: Option<usize>,
    /// Ends when the connection does.
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Mqtt {
    /// Connects.
    ///
    /// # Errors
    /// When an option is wrong, or the broker is away or refuses the connection.
    pub async fn connect(options: MqttOptions) -> Result<Self, PublishError> {
        let client_options = options.client_options().map_err(PublishError::permanent)?;
        let mqtt = Self(Arc::new(Inner {
            breaker: Breaker::new(&options.name),
            client_options,
            connection: Mutex::new(None),
            closed: AtomicBool::new(false),
            options,
        }));
        if !mqtt.0.options.lazy {
            mqtt.check().await?;
        }
        Ok(mqtt)
    }

    /// Events go to the topic that the template makes of each.
    pub fn topic(&self, template: &str) -> Destination<Self> {
        Destination::new(Arc::new(self.clone()), self.0.breaker.clone(), template)
    }

    /// The breaker of the connection.
    pub fn breaker(&self) -> &Breaker {
        &self.0.breaker
    }

    /// The connection, which is made if there is none.
    async fn connection(&self) -> Result<Arc<Connection>, PublishError> {
        let mut slot = self.0.connection.lock().await;
        if self.0.closed.load(Ordering::Acquire) {
            return Err(PublishError::outage(format!("the connection to {} is closed", self.shown())));
        }
        match slot.as_ref().filter(|connection| !connection.driver.is_finished()) {
            Some(connection) => Ok(connection.clone()),
            None => {
                *slot = None;
                let connection = Arc::new(self.dial().await?);
                *slot = Some(connection.clone());
                Ok(connection)
            }
        }
    }

    async fn dial(&self) -> Result<Connection, PublishError> {
        let failed = |reason: String| PublishError::outage(format!("cannot connect to {}: {reason}", self.shown()));
        let (client, mut events) = AsyncClient::builder(self.0.client_options.clone())
            .try_build()
            .map_err(|error| failed(error.to_string()))?;
        let (tell, told) = oneshot::channel::<Result<ConnAck, String>>();
        let name = self.0.options.name.clone();
        let driver = tokio::spawn(async move {
            let mut tell = Some(tell);
            // Their client would connect again by itself, and repeat what was given up.
            loop {
                match events.poll().await {
                    Ok(Event::Incoming(Packet::ConnAck(accepted))) => {
                        if let Some(tell) = tell.take() {
                            tell.send(Ok(accepted)).ok();
                        }
                    }
                    Ok(_) => {}
                    Err(error) => {
                        match tell.take() {
                            Some(tell) => drop(tell.send(Err(error.to_string()))),
                            None => tracing::debug!(destination = name, %error, "connection ended"),
                        }
                        return;
                    }
                }
            }
        });
        let mut connection = Connection { client, max_packet: None, driver };
        let limit = self.0.options.connect_timeout;
        let accepted = match timeout(limit, told).await {
            Ok(Ok(accepted)) => accepted.map_err(failed)?,
            Ok(Err(_)) => return Err(failed("the connection ended".to_owned())),
            Err(_) => return Err(failed(format!("no answer within {limit:?}"))),
        };
        let packet = accepted.properties.and_then(|properties| properties.max_packet_size);
        connection.max_packet = packet.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        Ok(connection)
    }

    /// Leaves a connection that does not answer.
    async fn leave(&self, connection: &Arc<Connection>) {
        connection.driver.abort();
        self.0.connection.lock().await.take_if(|current| Arc::ptr_eq(current, connection));
    }

    fn shown(&self) -> String {
        address::shown(&self.0.options.url)
    }

    /// Hands a message over to the connection, behind those before it.
    async fn sent(&self, connection: &Connection, message: &Message) -> Result<PublishNotice, PublishError> {
        let options = &self.0.options;
        unfit(message, options.max_payload, connection.max_packet)
            .map_or(Ok(()), |why| Err(PublishError::permanent(why)))?;
        let quality = if options.exactly_once { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
        let properties = PublishProperties {
            content_type: Some(message.content_type.clone().into_owned()),
            user_properties: message.headers.iter().map(|(name, value)| (name.to_string(), value.clone())).collect(),
            ..PublishProperties::default()
        };
        let publish = PublishOptions::new(quality).retain(options.retain).properties(properties);
        let sending = connection.client.publish_tracked(message.to.clone(), message.body.clone(), publish);
        match timeout(options.ack_timeout, sending).await {
            Ok(Ok(notice)) => Ok(notice),
            Ok(Err(rumqttc::ClientError::InvalidRequest(_))) => Err(PublishError::permanent(no_topic(&message.to))),
            Ok(Err(_)) => Err(self.lost()),
            Err(_) => Err(self.silent()),
        }
    }

    async fn acknowledged(
        &self,
        message: &Message,
        notice: PublishNotice,
        patience: Duration,
    ) -> Result<(), PublishError> {
        match timeout(patience, notice.wait_async()).await {
            Ok(Ok(result)) => judged(&message.to, &result, self.0.options.require_subscriber),
            Ok(Err(PublishNoticeError::RetainNotSupported)) => {
                Err(PublishError::retryable(format!("{} keeps no messages; do not ask to retain them", self.shown())))
            }
            Ok(Err(_)) => Err(self.lost()),
            Err(_) => Err(self.silent()),
        }
    }

    fn lost(&self) -> PublishError {
        PublishError::outage(format!("the connection to {} was lost before the acknowledgement", self.shown()))
    }

    fn silent(&self) -> PublishError {
        let limit = self.0.options.ack_timeout;
        PublishError::outage(format!("no acknowledgement from {} within {limit:?}", self.shown()))
    }
}

impl Publisher for Mqtt {
    const BINDING: Binding = Binding::Mqtt;

    fn name(&self) -> &str {
        &self.0.options.name
    }

    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), PublishError>> {
        let connection = match self.connection().await {
            Ok(connection) => connection,
            Err(error) => {
                return messages.iter().map(|_| Err(PublishError::new(error.kind(), error.to_string()))).collect();
            }
        };
        let is_outage = |error: &PublishError| error.kind() == crate::publisher::PublishErrorKind::Outage;
        let mut sent = Vec::with_capacity(messages.len());
        for message in &messages {
            // What comes behind an outage would only wait for another.
            let behind = matches!(sent.last(), Some(Err(error)) if is_outage(error));
            sent.push(if behind { Err(self.lost()) } else { self.sent(&connection, message).await });
        }
        let mut results: Vec<Result<(), PublishError>> = Vec::with_capacity(messages.len());
        let mut patience = self.0.options.ack_timeout;
        for (message, notice) in messages.iter().zip(sent) {
            let result = match notice {
                Ok(notice) => self.acknowledged(message, notice, patience).await,
                Err(error) => Err(error),
            };
            // Then the others are lost as well, or have been acknowledged already.
            if !patience.is_zero() && result.as_ref().is_err_and(is_outage) {
                self.leave(&connection).await;
                patience = Duration::ZERO;
            }
            results.push(result);
        }
        results
    }

    /// Whether there is a connection; nothing is asked over it.
    async fn check(&self) -> Result<(), PublishError> {
        self.connection().await.map(drop)
    }

    async fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
        let closing = async {
            if let Some(connection) = self.0.connection.lock().await.take() {
                connection.client.disconnect().await.ok();
                while !connection.driver.is_finished() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        };
        timeout(CLOSE, closing).await.ok();
    }
}

impl fmt::Debug for Mqtt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mqtt")
            .field("options", &self.0.options)
            .field("breaker", &self.0.breaker)
            .finish_non_exhaustive()
    }
}

/// What an answer makes of a message.
fn judged(to: &str, result: &PublishResult, require_subscriber: bool) -> Result<(), PublishError> {
    use PubAckReason as Reason;
    let reason = match result {
        PublishResult::Qos0Flushed => return Err(PublishError::retryable("sent without an acknowledgement")),
        PublishResult::Qos1(ack) => ack.reason,
        PublishResult::Qos2Completed(done) if done.reason == PubCompReason::Success => Reason::Success,
        PublishResult::Qos2Completed(_) => Reason::UnspecifiedError,
        PublishResult::Qos2PubRecRejected(rejected) => match rejected.reason {
            PubRecReason::Success => Reason::Success,
            PubRecReason::NoMatchingSubscribers => Reason::NoMatchingSubscribers,
            PubRecReason::UnspecifiedError => Reason::UnspecifiedError,
            PubRecReason::ImplementationSpecificError => Reason::ImplementationSpecificError,
            PubRecReason::NotAuthorized => Reason::NotAuthorized,
            PubRecReason::TopicNameInvalid => Reason::TopicNameInvalid,
            PubRecReason::PacketIdentifierInUse => Reason::PacketIdentifierInUse,
            PubRecReason::QuotaExceeded => Reason::QuotaExceeded,
            PubRecReason::PayloadFormatInvalid => Reason::PayloadFormatInvalid,
        },
    };
    let text = format!("the broker refused a message on {to:?}: {reason:?}");
    Err(match reason {
        Reason::Success => return Ok(()),
        Reason::NoMatchingSubscribers if !require_subscriber => return Ok(()),
        Reason::NoMatchingSubscribers => {
            PublishError::retryable(format!("nobody has subscribed to {to:?}; subscribe, or do not require it"))
        }
        Reason::TopicNameInvalid | Reason::PayloadFormatInvalid => PublishError::permanent(text),
        Reason::PacketIdentifierInUse => PublishError::outage(text),
        Reason::NotAuthorized => PublishError::retryable(format!("{text}; the broker has to allow it to this user")),
        Reason::UnspecifiedError | Reason::ImplementationSpecificError | Reason::QuotaExceeded => {
            PublishError::retryable(text)
        }
    })
}

fn no_topic(text: &str) -> String {
    format!("{text:?} is no topic to publish to: text without wildcards and control characters")
}

/// Why a message cannot be carried: a broker would end the connection, with everything else on it.
fn unfit(message: &Message, max_payload: Option<usize>, max_packet: Option<usize>) -> Option<String> {
    let carried = |text: &str| text.len() <= LONGEST && !text.contains(is_forbidden);
    if message.to.is_empty() || message.to.contains(['#', '+']) || !carried(&message.to) {
        return Some(no_topic(&message.to));
    }
    let mut bytes = message.to.len() + message.content_type.len() + message.body.len() + 20;
    if !carried(&message.content_type) {
        return Some("the content type has signs that MQTT cannot carry, or is too long".to_owned());
    }
    for (name, value) in &message.headers {
        if !carried(name) || !carried(value) {
            return Some(format!(
                "the header {name:?} has control characters, which MQTT cannot carry, or is too long"
            ));
        }
        bytes += name.len() + value.len() + 5;
    }
    if max_payload.is_some_and(|most| message.body.len() > most) {
        return Some(format!("a body of {} bytes, where max_payload is {}", message.body.len(), max_payload?));
    }
    if bytes > max_packet.unwrap_or(268_435_455) {
        return Some(format!("a packet of {bytes} bytes is more than the broker takes; raise its limit, or send less"));
    }
    None
}

/// Control characters and those that are none: brokers may take them for a broken packet.
fn is_forbidden(sign: char) -> bool {
    let code = sign as u32;
    sign.is_control() || code & 0xfffe == 0xfffe || (0xfdd0..=0xfdef).contains(&code)
}

#[cfg(test)]
mod tests {
    use posthaste_core::EventId;

    use super::*;

    fn message(to: &str) -> Message {
        let id = EventId::new("id").unwrap();
        Message {
            id,
            to: to.into(),
            key: None,
            content_type: "text/plain".into(),
            headers: Vec::new(),
            body: "x".into(),
        }
    }

    #[test]
    fn what_cannot_be_carried_is_found() {
        for good in ["a", "shop/größe/x y", "$x", "/"] {
            assert_eq!(unfit(&message(good), None, None), None, "{good}");
        }
        for bad in ["", "a/#", "a/+/b", "a\nb", "a\0", "\u{fffe}", &"x".repeat(LONGEST + 1)] {
            assert!(unfit(&message(bad), None, None).is_some(), "{bad:?}");
        }
        let mut header = message("a");
        header.headers.push(("x".into(), "two\nlines".into()));
        assert!(unfit(&header, None, None).unwrap().contains("\"x\""));
        assert!(unfit(&message("a"), Some(0), None).unwrap().contains("max_payload"));
        assert!(unfit(&message("a"), None, Some(10)).unwrap().contains("more than the broker takes"));
    }

    #[tokio::test]
    async fn options_are_read_and_wrong_ones_refused_without_secrets() {
        let text = r#"{"url": "mqtt://127.0.0.1", "user": "me", "password": "pass-word", "retain": true}"#;
        let options: MqttOptions = serde_json::from_str(text).unwrap();
        let shown = format!("{options:?}");
        assert!(shown.contains("retain: true") && !shown.contains("pass-word"), "{shown}");
        assert!(serde_json::from_str::<MqttOptions>(r#"{"url": "x", "retains": true}"#).is_err());
        for (url, said) in [
            ("mqtts://a:8883", "TLS"),
            ("mqtt://me:secret@a", "has a user in it"),
            ("mqtt://a:port", "is no port"),
            ("mqtt://", "is no address"),
            ("http://a/b", "is no port"),
        ] {
            let error = Mqtt::connect(MqttOptions::new(url)).await.unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains("secret"), "{url}: {error}");
        }
    }
}
