//! What can be set about a connection to Kafka.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use jiff::fmt::serde::unsigned_duration::friendly::compact;
use rdkafka::ClientConfig;
use serde::{Deserialize, Serialize};

use super::Error;

/// Where Kafka is, how to log in there, and how long it may take.
///
/// In files, lengths of time are written as `20s` or `500ms`:
///
/// ```
/// use posthaste_publishers::kafka::{Compression, KafkaOptions, Sasl, Tls};
///
/// let in_code = KafkaOptions::new("kafka-1:9093,kafka-2:9093")
///     .compression(Compression::Lz4)
///     .tls(Tls::new().ca("/etc/ssl/kafka.pem"))
///     .sasl(Sasl::scram_sha_512("shop", "secret"))
///     .property("linger.ms", "5");
///
/// let in_a_file: KafkaOptions = toml::from_str(
///     r#"
///     brokers = "kafka-1:9093,kafka-2:9093"
///     compression = "lz4"
///     delivery_timeout = "15s"
///     tls = { ca = "/etc/ssl/kafka.pem" }
///     sasl = { mechanism = "SCRAM-SHA-512", username = "shop", password = "secret" }
///     properties = { "linger.ms" = "5" }
///     "#,
/// )?;
/// assert!(!format!("{in_code:?} {in_a_file:?}").contains("secret"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// What is serialised is without addresses, logins and secrets: it is to be shown.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KafkaOptions {
    #[serde(skip_serializing)]
    brokers: String,
    #[serde(default = "default_name")]
    name: String,
    #[serde(default)]
    compression: Compression,
    #[serde(default = "default_delivery_timeout", with = "compact::required")]
    delivery_timeout: Duration,
    #[serde(default = "default_connect_timeout", with = "compact::required")]
    connect_timeout: Duration,
    #[serde(default)]
    lazy: bool,
    #[serde(default = "default_max_message_bytes")]
    max_message_bytes: usize,
    #[serde(default, skip_serializing)]
    tls: Option<Tls>,
    #[serde(default, skip_serializing)]
    sasl: Option<Sasl>,
    #[serde(default, skip_serializing)]
    properties: BTreeMap<String, String>,
}

fn default_name() -> String {
    "kafka".to_owned()
}

fn default_delivery_timeout() -> Duration {
    Duration::from_secs(20)
}

fn default_connect_timeout() -> Duration {
    Duration::from_secs(10)
}

fn default_max_message_bytes() -> usize {
    1_000_000
}

/// How messages are compressed on their way and in the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// Small, and slow to make.
    Gzip,
    /// Quick.
    Snappy,
    /// Quick, and mostly smaller than Snappy.
    Lz4,
}

/// How the connection is encrypted. Needs the feature `kafka-tls`.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    key_password: Option<String>,
}

/// Who logs in.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sasl {
    mechanism: Mechanism,
    username: String,
    password: String,
}

/// How somebody proves who he is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[non_exhaustive]
pub enum Mechanism {
    /// The password as it is: for encrypted connections.
    #[serde(rename = "PLAIN")]
    Plain,
    /// Needs the feature `kafka-tls`.
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    /// Needs the feature `kafka-tls`.
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
}

impl KafkaOptions {
    /// Kafka at these addresses: `host:port`, several of them with commas between.
    pub fn new(brokers: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            name: default_name(),
            compression: Compression::None,
            delivery_timeout: default_delivery_timeout(),
            connect_timeout: default_connect_timeout(),
            lazy: false,
            max_message_bytes: default_max_message_bytes(),
            tls: None,
            sasl: None,
            properties: BTreeMap::new(),
        }
    }

    /// Sets what it is called in logs and metrics. Default `kafka`; for a second cluster.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets how messages are compressed. Default: not at all, since small payloads hardly shrink.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Sets how long a message may wait in this process and on its way until it counts as not delivered. Default 20 s:
    /// long enough for a broker to be restarted or replaced, short enough to say soon that Kafka is away.
    ///
    /// A batch that finds the queue of the client full may wait as long again. The time limit of its listener follows
    /// from this; the one of the outbox is not looked at.
    #[must_use]
    pub fn delivery_timeout(mut self, timeout: Duration) -> Self {
        self.delivery_timeout = timeout;
        self
    }

    /// Sets how long [`connect`](super::Kafka::connect) and [`check`](crate::Publisher::check) wait for an answer.
    /// Default 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets whether [`connect`](super::Kafka::connect) does not wait for Kafka. Default: it does, since a wrong address
    /// is best found at the start. Otherwise a Kafka that is not there counts as an outage.
    #[must_use]
    pub fn lazy(mut self, lazy: bool) -> Self {
        self.lazy = lazy;
        self
    }

    /// Sets the size of the largest message, with its key and headers. Default 1,000,000 bytes, a bit below what a
    /// broker takes by default. What is larger is DEAD at once, without being sent.
    #[must_use]
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// Sets that the connection is encrypted. Default: it is not.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets who logs in. Default: nobody.
    #[must_use]
    pub fn sasl(mut self, sasl: Sasl) -> Self {
        self.sasl = Some(sasl);
        self
    }

    /// Sets a [property of librdkafka](https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md). It
    /// wins over what is set here otherwise. Those that would let something count as delivered that is not, or break
    /// the order, are refused.
    #[must_use]
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.insert(name.into(), value.into());
        self
    }

    pub(super) fn brokers(&self) -> &str {
        &self.brokers
    }

    pub(super) fn label(&self) -> &str {
        &self.name
    }

    pub(super) fn timeout(&self) -> Duration {
        self.delivery_timeout
    }

    pub(super) fn patience(&self) -> Duration {
        self.connect_timeout
    }

    pub(super) fn is_lazy(&self) -> bool {
        self.lazy
    }

    /// What librdkafka is told.
    pub(super) fn config(&self) -> Result<ClientConfig, Error> {
        self.validate()?;
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.brokers)
            .set("client.id", "posthaste")
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("message.timeout.ms", millis(self.delivery_timeout))
            // A topic that is missing is to be told from a broker that is away.
            .set("topic.metadata.propagation.max.ms", millis((self.delivery_timeout / 4).min(MISSING)))
            .set("message.max.bytes", self.max_message_bytes.to_string())
            // The same partition for a key as from the clients in Java.
            .set("partitioner", "murmur2_random")
            .set("compression.codec", self.compression.name())
            // Batches come whole, so that there is little to wait for.
            .set("linger.ms", "1");
        let protocol = match (&self.tls, &self.sasl) {
            (None, None) => "plaintext",
            (Some(_), None) => "ssl",
            (None, Some(_)) => "sasl_plaintext",
            (Some(_), Some(_)) => "sasl_ssl",
        };
        config.set("security.protocol", protocol);
        if let Some(tls) = &self.tls {
            tls.set(&mut config)?;
        }
        if let Some(sasl) = &self.sasl {
            config.set("sasl.mechanisms", sasl.mechanism.name());
            config.set("sasl.username", &sasl.username).set("sasl.password", &sasl.password);
        }
        for (name, value) in &self.properties {
            config.set(name, value);
        }
        Ok(config)
    }

    fn validate(&self) -> Result<(), Error> {
        let wrong = |option, reason: &str| Err(Error::Option { option, reason: reason.to_owned() });
        if self.brokers.split(',').all(|broker| broker.trim().is_empty()) {
            return wrong("brokers", "it is empty; give host:port, several of them with commas between");
        }
        if !SENSIBLE.contains(&self.delivery_timeout) {
            return wrong("delivery_timeout", "it must be from 1s to 5m");
        }
        if !SENSIBLE.contains(&self.connect_timeout) {
            return wrong("connect_timeout", "it must be from 1s to 5m");
        }
        if !(1_000..=1_000_000_000).contains(&self.max_message_bytes) {
            return wrong("max_message_bytes", "it must be from 1000 to 1000000000");
        }
        if !cfg!(feature = "kafka-tls") {
            if self.tls.is_some() {
                return wrong("tls", "this was built without TLS; build it with the feature kafka-tls");
            }
            if self.sasl.as_ref().is_some_and(|sasl| sasl.mechanism != Mechanism::Plain) {
                return wrong("sasl", "this was built without SCRAM; build it with the feature kafka-tls");
            }
        }
        match self.properties.keys().find_map(|name| refusal(name).map(|reason| (name, reason))) {
            Some((name, reason)) => Err(Error::Property { property: name.clone(), reason }),
            None => Ok(()),
        }
    }
}

const SENSIBLE: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(300);

/// How long a topic may be missing until that is said, at most.
const MISSING: Duration = Duration::from_secs(5);

/// Why a property of librdkafka may not be set, if it may not.
fn refusal(property: &str) -> Option<&'static str> {
    Some(match property {
        "acks" | "request.required.acks" => "a message counts as delivered when all replicas in sync have it",
        "enable.idempotence"
        | "max.in.flight"
        | "max.in.flight.requests.per.connection"
        | "retries"
        | "message.send.max.retries"
        | "partitioner"
        | "queuing.strategy" => "the order within a key, and none twice by a repeat of the client, hang on it",
        "message.timeout.ms" | "delivery.timeout.ms" => "set the option delivery_timeout instead",
        "message.max.bytes" => "set the option max_message_bytes instead",
        "bootstrap.servers" | "metadata.broker.list" => "set the option brokers instead",
        // It would undo them, and send a password to whoever reads along.
        "security.protocol" => "set the options tls and sasl instead",
        "sasl.mechanism" | "sasl.mechanisms" => "set the option sasl instead, with its mechanism",
        "transactional.id" => "a producer of transactions shows nothing to readers before it commits",
        "enable.gapless.guarantee" => "one message that is refused would stop all others",
        "delivery.report.only.error" => "every message needs its report",
        "log.queue" => "it is set by the client",
        // With `test.mock.num.brokers` librdkafka asks nobody else any more: what it acknowledges itself would be DONE.
        _ if property.starts_with("test.") => {
            "with it librdkafka may acknowledge by itself what no broker has; leave it out, and name a broker of the tests in the \
             option brokers"
        }
        _ => return None,
    })
}

fn millis(time: Duration) -> String {
    time.as_millis().to_string()
}

impl Compression {
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
        }
    }
}

impl Mechanism {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

impl Tls {
    /// Encrypted, and the broker's certificate checked with the authorities of the system.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the file with the certificates of the authorities to trust, in PEM.
    #[must_use]
    pub fn ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca = Some(file.into());
        self
    }

    /// Sets the files with our own certificate and its key, in PEM.
    #[must_use]
    pub fn identity(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        (self.certificate, self.key) = (Some(certificate.into()), Some(key.into()));
        self
    }

    /// Sets what our key is encrypted with.
    #[must_use]
    pub fn key_password(mut self, password: impl Into<String>) -> Self {
        self.key_password = Some(password.into());
        self
    }

    fn set(&self, config: &mut ClientConfig) -> Result<(), Error> {
        let files = [
            ("ssl.ca.location", &self.ca),
            ("ssl.certificate.location", &self.certificate),
            ("ssl.key.location", &self.key),
        ];
        for (property, file) in files {
            if let Some(file) = file {
                let reason = || format!("the path {} is not UTF-8", file.display());
                config.set(property, file.to_str().ok_or_else(|| Error::Option { option: "tls", reason: reason() })?);
            }
        }
        if let Some(password) = &self.key_password {
            config.set("ssl.key.password", password);
        }
        Ok(())
    }
}

impl Sasl {
    /// Logs in with a name and a password, which is sent as it is: for encrypted connections.
    pub fn plain(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self::new(Mechanism::Plain, username, password)
    }

    /// Logs in by SCRAM-SHA-256. Needs the feature `kafka-tls`.
    pub fn scram_sha_256(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self::new(Mechanism::ScramSha256, username, password)
    }

    /// Logs in by SCRAM-SHA-512. Needs the feature `kafka-tls`.
    pub fn scram_sha_512(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self::new(Mechanism::ScramSha512, username, password)
    }

    /// Logs in by that mechanism.
    pub fn new(mechanism: Mechanism, username: impl Into<String>, password: impl Into<String>) -> Self {
        Self { mechanism, username: username.into(), password: password.into() }
    }
}

impl fmt::Debug for KafkaOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("KafkaOptions");
        debug.field("brokers", &self.brokers).field("name", &self.name).field("compression", &self.compression);
        debug.field("delivery_timeout", &self.delivery_timeout).field("connect_timeout", &self.connect_timeout);
        debug.field("lazy", &self.lazy).field("max_message_bytes", &self.max_message_bytes);
        debug.field("tls", &self.tls).field("sasl", &self.sasl);
        // Some of their values are secrets.
        debug.field("properties", &self.properties.keys()).finish()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Tls");
        debug.field("ca", &self.ca).field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl fmt::Debug for Sasl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Sasl");
        debug.field("mechanism", &self.mechanism).field("username", &self.username).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(options: &KafkaOptions, property: &str) -> Option<String> {
        options.config().unwrap().get(property).map(str::to_owned)
    }

    #[test]
    fn acknowledgement_by_all_and_idempotence_are_always_on() {
        let options = KafkaOptions::new("127.0.0.1:9092");
        for (property, value) in [
            ("acks", "all"),
            ("enable.idempotence", "true"),
            ("message.timeout.ms", "20000"),
            ("topic.metadata.propagation.max.ms", "5000"),
            ("security.protocol", "plaintext"),
        ] {
            assert_eq!(set(&options, property).as_deref(), Some(value), "{property}");
        }
    }

    #[test]
    fn properties_pass_through_except_those_that_break_a_promise() {
        let options = KafkaOptions::new("127.0.0.1:9092").property("linger.ms", "7").property("client.id", "shop");
        assert_eq!(set(&options, "linger.ms").as_deref(), Some("7"));
        assert_eq!(set(&options, "client.id").as_deref(), Some("shop"));
        for property in [
            "acks",
            "enable.idempotence",
            "retries",
            "message.timeout.ms",
            "partitioner",
            "transactional.id",
            "queuing.strategy",
            "test.mock.broker.rtt",
        ] {
            let refused = options.clone().property(property, "1").config().unwrap_err().to_string();
            assert!(refused.contains(property), "{refused}");
        }
    }

    /// Brokers within the process keep nothing, and say that they do.
    #[test]
    fn no_property_puts_a_mock_into_the_place_of_the_brokers() {
        let options = KafkaOptions::new("127.0.0.1:1").property("test.mock.num.brokers", "3");
        let refused = options.config().unwrap_err().to_string();
        let said = "the property test.mock.num.brokers of librdkafka may not be set";
        assert!(refused.starts_with(said) && refused.contains("the option brokers"), "{refused}");
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let options = KafkaOptions::new("127.0.0.1:9092");
        for (options, named) in [
            (KafkaOptions::new(" , "), "brokers"),
            (options.clone().delivery_timeout(Duration::from_millis(10)), "delivery_timeout"),
            (options.clone().connect_timeout(Duration::from_secs(3600)), "connect_timeout"),
            (options.clone().max_message_bytes(0), "max_message_bytes"),
        ] {
            let refused = options.config().unwrap_err().to_string();
            assert!(refused.contains(named), "{refused}");
        }
    }

    #[test]
    fn properties_do_not_undo_encryption_and_login() {
        let options = KafkaOptions::new("127.0.0.1:9092").sasl(Sasl::plain("shop", "secret"));
        for (property, option) in [
            ("security.protocol", "options tls and sasl"),
            ("sasl.mechanism", "option sasl"),
            ("sasl.mechanisms", "option sasl"),
        ] {
            let refused = options.clone().property(property, "plaintext").config().unwrap_err().to_string();
            assert!(refused.contains(property) && refused.contains(option), "{refused}");
        }
    }

    #[test]
    fn a_login_needs_what_was_built_in() {
        let options = KafkaOptions::new("127.0.0.1:9092").sasl(Sasl::plain("shop", "secret"));
        assert_eq!(set(&options, "security.protocol").as_deref(), Some("sasl_plaintext"));
        assert_eq!(set(&options, "sasl.mechanisms").as_deref(), Some("PLAIN"));
        let scram = options.sasl(Sasl::scram_sha_256("shop", "secret")).tls(Tls::new().ca("/ca.pem"));
        if cfg!(feature = "kafka-tls") {
            assert_eq!(set(&scram, "security.protocol").as_deref(), Some("sasl_ssl"));
            assert_eq!(set(&scram, "sasl.mechanisms").as_deref(), Some("SCRAM-SHA-256"));
            assert_eq!(set(&scram, "ssl.ca.location").as_deref(), Some("/ca.pem"));
        } else {
            assert!(scram.config().unwrap_err().to_string().contains("kafka-tls"));
        }
    }

    #[test]
    fn a_file_fills_them_and_a_slip_in_it_is_named() {
        let options: KafkaOptions = toml::from_str("brokers = 'a:1'\ndelivery_timeout = '5s'\nlazy = true").unwrap();
        assert_eq!((options.timeout(), options.is_lazy(), options.brokers()), (Duration::from_secs(5), true, "a:1"));
        let slip = toml::from_str::<KafkaOptions>("brokers = 'a:1'\ndelivery_time = '5s'").unwrap_err().to_string();
        assert!(slip.contains("delivery_time"), "{slip}");
    }

    #[test]
    fn secrets_are_not_shown() {
        let options = KafkaOptions::new("a:1").sasl(Sasl::plain("shop", "hush")).tls(Tls::new().key_password("hush"));
        let shown = format!("{:?}", options.property("ssl.key.pem", "hush"));
        assert!(shown.contains("shop") && shown.contains("ssl.key.pem") && !shown.contains("hush"), "{shown}");
    }
}
