//! Where events go: a table for each destination.

use posthaste::publishers::{Envelope, NdjsonOptions, Template};

use super::fault::{Fault, Origin, without};
use super::value::{Kind, Table, Value};

/// What the lists of a message are made with.
const TYPES: &str = "file, kafka, mqtt, nats, rabbitmq, redis, stdout, webhook";

/// What the only destination is called where there is none.
const STDOUT: &str = "stdout";

/// A destination, as it was set.
pub(crate) struct Destination {
    pub(crate) name: String,
    pub(crate) origin: Origin,
    pub(crate) target: Target,
    /// The address: topic, subject, stream, queue, routing key or URL, as a template.
    #[cfg_attr(
        not(any(
            feature = "kafka",
            feature = "mqtt",
            feature = "nats",
            feature = "rabbitmq",
            feature = "redis",
            feature = "webhook"
        )),
        allow(dead_code, reason = "lines have no address")
    )]
    pub(crate) to: String,
    /// The exchange of RabbitMQ, as a template.
    #[cfg_attr(not(feature = "rabbitmq"), expect(dead_code, reason = "no other destination has one"))]
    pub(crate) exchange: Option<String>,
    /// What has to stay in order, as a template.
    pub(crate) key: Option<String>,
    pub(crate) envelope: Envelope,
    pub(crate) max_batch: Option<usize>,
    /// Whether it is not waited for at the start.
    pub(crate) lazy: bool,
    secrets: Vec<String>,
}

/// What is at the other end, with its own settings.
pub(crate) enum Target {
    Lines(NdjsonOptions),
    #[cfg(feature = "kafka")]
    Kafka(posthaste::publishers::KafkaOptions),
    #[cfg(feature = "mqtt")]
    Mqtt(posthaste::publishers::MqttOptions),
    #[cfg(feature = "nats")]
    Nats(posthaste::publishers::NatsOptions),
    #[cfg(feature = "rabbitmq")]
    Rabbit(posthaste::publishers::RabbitOptions),
    #[cfg(feature = "redis")]
    Redis(posthaste::publishers::RedisOptions),
    #[cfg(feature = "webhook")]
    Webhook(posthaste::publishers::WebhookOptions),
}

/// All destinations. Without any, events are printed.
pub(super) fn all(given: Option<&Value>, faults: &mut Vec<Fault>) -> Vec<Destination> {
    let Some(given) = given else { return vec![Destination::stdout()] };
    let Some(tables) = given.as_table() else {
        let message = "write a table for each destination, such as [destination.orders]";
        faults.push(Fault::new(&given.origin, "destination", message));
        return Vec::new();
    };
    if tables.is_empty() {
        return vec![Destination::stdout()];
    }
    let mut destinations = Vec::new();
    for (name, origin, value) in tables.iter() {
        let field = format!("destination.{name}");
        destinations.extend(value.read_through(&field, faults, |value| Destination::of(name, origin, value)));
    }
    destinations
}

/// What all destinations are called, in the same order, whether they are right or not.
pub(super) fn names(given: Option<&Value>) -> Vec<(&str, &Origin)> {
    let tables = given.and_then(Value::as_table).into_iter().flat_map(Table::iter);
    let names: Vec<_> = tables.map(|(name, origin, _)| (name, origin)).collect();
    if names.is_empty() { vec![(STDOUT, &Origin::Default)] } else { names }
}

impl Destination {
    /// What is wrong with it, in words that may have an address in them, which may be a secret.
    pub(crate) fn fault(&self, message: String) -> Fault {
        Fault::new(&self.origin, format!("destination.{}", self.name), self.told(message))
    }

    /// What was said at its other end, or of it, as it may be told: whatever comes from there goes through this.
    pub(crate) fn told(&self, message: String) -> String {
        self.secrets.iter().fold(message, |message, secret| without(message, secret))
    }

    /// Whether somebody has set it, and not there is one because there has to be.
    pub(crate) fn is_given(&self) -> bool {
        self.origin != Origin::Default
    }

    fn stdout() -> Self {
        Self {
            name: STDOUT.to_owned(),
            origin: Origin::Default,
            target: Target::Lines(NdjsonOptions::stdout()),
            to: String::new(),
            exchange: None,
            key: None,
            envelope: Envelope::default(),
            max_batch: None,
            lazy: false,
            secrets: Vec::new(),
        }
    }

    fn of(name: &str, origin: &Origin, value: &Value) -> Result<Self, Fault> {
        let field = format!("destination.{name}");
        let Some(table) = value.as_table() else {
            return Err(Fault::new(origin, field, "this must be a table, with the type and what belongs to it"));
        };
        let mut table = table.clone();
        let Some(given) = table.take("type") else {
            return Err(Fault::new(origin, field, format!("the type is missing; it is one of {TYPES}")));
        };
        let kind: String = given.read(&format!("{field}.type"))?;
        let of = |key: &str| format!("{field}.{key}");
        let to = template(table.take("to"), &of("to"))?;
        let exchange = if kind == "rabbitmq" { template(table.take("exchange"), &of("exchange"))? } else { None };
        let key = template(table.take("key"), &of("key"))?;
        let envelope = envelope(table.take("envelope"), &of("envelope"))?;
        let max_batch: Option<Value> = table.take("max_batch");
        let max_batch = max_batch.map(|value| positive(&value, &of("max_batch"))).transpose()?;
        let (lazy, made_of) = (table.get("lazy").map(|value| value.read(&of("lazy"))).transpose()?, (name, origin));
        let target = Target::of(&kind, &given.origin, made_of, table, &field)
            .map_err(|fault| fault.with_more_fields(&field, of_every(&kind)))?;
        let is_lines = matches!(target, Target::Lines(_));
        let to = match to {
            None if is_lines => String::new(),
            None => return Err(Fault::new(origin, field, address_of(&kind))),
            Some((_, origin)) if is_lines => {
                return Err(Fault::new(&origin, of("to"), "lines have no address; leave it out"));
            }
            Some((to, _)) => to,
        };
        let plain = |template: Option<(String, Origin)>| template.map(|(text, _)| text);
        Ok(Self {
            name: name.to_owned(),
            origin: origin.clone(),
            target,
            to,
            exchange: plain(exchange),
            key: plain(key),
            envelope,
            max_batch,
            lazy: lazy.unwrap_or(false),
            secrets: value.secrets(),
        })
    }
}

/// What destinations have beside the settings of their type.
fn of_every(kind: &str) -> &'static str {
    match kind {
        "file" => "type, key, envelope and max_batch are settings, too",
        "rabbitmq" => "type, to, exchange, key, envelope and max_batch are settings, too",
        _ => "type, to, key, envelope and max_batch are settings, too",
    }
}

impl Target {
    /// What it is, in the words of the conventions of OpenTelemetry where they have one.
    #[cfg(feature = "otlp")]
    pub(crate) fn system(&self) -> &'static str {
        match self {
            Self::Lines(_) => "ndjson",
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => "kafka",
            #[cfg(feature = "mqtt")]
            Self::Mqtt(_) => "mqtt",
            #[cfg(feature = "nats")]
            Self::Nats(_) => "nats",
            #[cfg(feature = "rabbitmq")]
            Self::Rabbit(_) => "rabbitmq",
            #[cfg(feature = "redis")]
            Self::Redis(_) => "redis",
            #[cfg(feature = "webhook")]
            Self::Webhook(_) => "http",
        }
    }

    /// Its own settings with their values, but for secrets and addresses.
    pub(crate) fn shown(&self) -> serde_json::Result<serde_json::Value> {
        match self {
            // Standard output has none.
            Self::Lines(options) if options.path().is_none() => Ok(serde_json::json!({})),
            Self::Lines(options) => serde_json::to_value(options),
            #[cfg(feature = "kafka")]
            Self::Kafka(options) => serde_json::to_value(options),
            #[cfg(feature = "mqtt")]
            Self::Mqtt(options) => serde_json::to_value(options),
            #[cfg(feature = "nats")]
            Self::Nats(options) => serde_json::to_value(options),
            #[cfg(feature = "rabbitmq")]
            Self::Rabbit(options) => serde_json::to_value(options),
            #[cfg(feature = "redis")]
            Self::Redis(options) => serde_json::to_value(options),
            #[cfg(feature = "webhook")]
            Self::Webhook(options) => serde_json::to_value(options),
        }
    }

    /// What a type makes of the settings that are its own.
    fn of(
        kind: &str,
        at: &Origin,
        (name, origin): (&str, &Origin),
        mut table: Table,
        field: &str,
    ) -> Result<Self, Fault> {
        let whole = |table: Table| Value { origin: origin.clone(), kind: Kind::Table(table) };
        match kind {
            "stdout" => {
                if let Some((key, origin, _)) = table.iter().next() {
                    let message = "stdout has no such setting; it has type, key, envelope and max_batch";
                    return Err(Fault::new(origin, format!("{field}.{key}"), message));
                }
                return Ok(Self::Lines(NdjsonOptions::stdout().name(name)));
            }
            "file" if table.get("path").is_none() => {
                return Err(Fault::new(origin, field, "the path is missing: which file to write lines to"));
            }
            _ => {}
        }
        // Destinations are told apart in logs and metrics by what they are called here.
        if table.get("name").is_none() {
            table.set("name", Value::untyped(name, Origin::Default));
        }
        if kind == "file" {
            return Ok(Self::Lines(whole(table).read(field)?));
        }
        if kind == "webhook" {
            // There is nobody to ask before there is an event, so it never is waited for.
            table.take("lazy");
        } else {
            // Nobody is asked before all is checked.
            table.set("lazy", Value { origin: Origin::Default, kind: Kind::Bool(true) });
        }
        match kind {
            #[cfg(feature = "kafka")]
            "kafka" => Ok(Self::Kafka(whole(table).read(field)?)),
            #[cfg(feature = "mqtt")]
            "mqtt" => Ok(Self::Mqtt(whole(table).read(field)?)),
            #[cfg(feature = "nats")]
            "nats" => Ok(Self::Nats(whole(table).read(field)?)),
            #[cfg(feature = "rabbitmq")]
            "rabbitmq" => Ok(Self::Rabbit(whole(table).read(field)?)),
            #[cfg(feature = "redis")]
            "redis" => Ok(Self::Redis(whole(table).read(field)?)),
            #[cfg(feature = "webhook")]
            "webhook" => Ok(Self::Webhook(whole(table).read(field)?)),
            missing if TYPES.split(", ").any(|known| known == missing) => {
                let message = format!("this build has no {kind}; build posthaste-cli with the feature `{kind}`");
                Err(Fault::new(at, format!("{field}.type"), message))
            }
            _ => Err(Fault::new(at, format!("{field}.type"), format!("there is no such type; it is one of {TYPES}"))),
        }
    }
}

/// What to say where the address is missing.
fn address_of(kind: &str) -> String {
    let what = match kind {
        "kafka" | "mqtt" => "the topic",
        "nats" => "the subject",
        "rabbitmq" => "the queue, or the routing key if there is an exchange",
        "redis" => "the stream",
        _ => "the URL",
    };
    format!("`to` is missing: {what}, such as to = \"orders.{{event_type}}\"")
}

pub(super) fn envelope(given: Option<Value>, field: &str) -> Result<Envelope, Fault> {
    let Some(given) = given else { return Ok(Envelope::default()) };
    let mut table = match given.as_table() {
        Some(table) => table.clone(),
        // The format alone will do.
        None => {
            let mut table = Table::default();
            table.set("format", given.clone());
            table
        }
    };
    // Read apart from the rest, so that what is wrong with either has its own place.
    let format = table.get("format").cloned();
    let Some(format) = format else {
        return Err(Fault::new(&given.origin, field, "the format is missing; it is one of ".to_owned() + FORMATS));
    };
    let name: String = format.read(&format!("{field}.format"))?;
    if !FORMATS.split(", ").any(|known| known == name) {
        let message = format!("there is no such format; it is one of {FORMATS}");
        return Err(Fault::new(&format.origin, format!("{field}.format"), message));
    }
    table.set("format", format);
    let envelope: Envelope = Value { origin: given.origin.clone(), kind: Kind::Table(table) }.read(field)?;
    envelope.check().map_err(|error| Fault::new(&given.origin, field, chain(&error)))?;
    Ok(envelope)
}

const FORMATS: &str = "plain, cloudevents-binary, cloudevents-structured, debezium";

fn template(given: Option<Value>, field: &str) -> Result<Option<(String, Origin)>, Fault> {
    let Some(given) = given else { return Ok(None) };
    let text: String = given.read(field)?;
    match text.parse::<Template>() {
        Ok(_) => Ok(Some((text, given.origin))),
        Err(error) => {
            let fault = Fault::new(&given.origin, field, error.to_string());
            Err(given.secrets().iter().fold(fault, |fault, secret| fault.without(secret)))
        }
    }
}

pub(super) fn positive(value: &Value, field: &str) -> Result<usize, Fault> {
    match value.read(field)? {
        0 => Err(Fault::new(&value.origin, field, "must be at least 1")),
        number => Ok(number),
    }
}

/// An error and its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}
