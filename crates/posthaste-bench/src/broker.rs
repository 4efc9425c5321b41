//! A broker to publish to, and what the same work takes with its bare client.

#[cfg(feature = "brokers")]
pub(crate) mod kafka;
#[cfg(feature = "brokers")]
pub(crate) mod mqtt;
#[cfg(feature = "brokers")]
pub(crate) mod nats;
#[cfg(feature = "brokers")]
pub(crate) mod private;
#[cfg(feature = "brokers")]
pub(crate) mod rabbitmq;
#[cfg(feature = "brokers")]
pub(crate) mod redis;
#[cfg(feature = "brokers")]
pub(crate) mod webhook;

use std::str::FromStr;
#[cfg(feature = "brokers")]
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, ensure};
use clap::ValueEnum;
#[cfg(feature = "brokers")]
use posthaste_publishers::{Destination, Message, Publisher};
#[cfg(feature = "brokers")]
use tokio::task::JoinSet;

/// Which broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// What speaks Kafka's protocol: tansu, if it is started for the run.
    Kafka,
    /// MQTT 5: Mosquitto, if it is started for the run.
    Mqtt,
    /// NATS JetStream.
    Nats,
    /// RabbitMQ.
    Rabbitmq,
    /// Redis Streams.
    Redis,
    /// Requests over HTTP, to a receiver that only counts.
    Webhook,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::Mqtt => "mqtt",
            Self::Nats => "nats",
            Self::Rabbitmq => "rabbitmq",
            Self::Redis => "redis",
            Self::Webhook => "webhook",
        }
    }

    /// The script in `scripts/brokers` that starts one.
    #[cfg(feature = "brokers")]
    fn script(self) -> &'static str {
        match self {
            Self::Mqtt => "mosquitto",
            Self::Kafka | Self::Nats | Self::Rabbitmq | Self::Redis | Self::Webhook => self.name(),
        }
    }
}

/// A broker of the user's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    kind: Kind,
    url: String,
}

impl FromStr for Given {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (name, url) = text.split_once('=').context("must be NAME=URL, such as nats=nats://127.0.0.1:4222")?;
        let kind = Kind::from_str(name, true).ok().with_context(|| {
            let known: Vec<&str> = Kind::value_variants().iter().map(|kind| kind.name()).collect();
            format!("there is no broker `{name}`; those are {}", known.join(", "))
        })?;
        ensure!(kind != Kind::Webhook, "webhooks go to a receiver of the run's own, which counts them");
        ensure!(!url.is_empty(), "there is no URL behind `{name}=`");
        Ok(Self { kind, url: url.to_owned() })
    }
}

/// A broker that is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "brokers"), allow(dead_code, reason = "without the feature it is only checked"))]
pub(crate) struct Chosen {
    pub(crate) kind: Kind,
    /// Where it is, unless one is started for the run.
    pub(crate) url: Option<String>,
}

/// Those that are named, or else those that are given, or else all.
pub(crate) fn chosen(named: &[Kind], given: &[Given]) -> anyhow::Result<Vec<Chosen>> {
    let mut chosen: Vec<Chosen> = Vec::new();
    for Given { kind, url } in given {
        ensure!(!chosen.iter().any(|other| other.kind == *kind), "--broker {}=… is given twice", kind.name());
        ensure!(
            named.is_empty() || named.contains(kind),
            "--broker {0}=… is given, but {0} is not among --brokers",
            kind.name()
        );
        chosen.push(Chosen { kind: *kind, url: Some(url.clone()) });
    }
    let others = if named.is_empty() && given.is_empty() { Kind::value_variants() } else { named };
    for kind in others {
        if !chosen.iter().any(|other| other.kind == *kind) {
            chosen.push(Chosen { kind: *kind, url: None });
        }
    }
    Ok(chosen)
}

/// A broker under test. What is done by hand is done through the same client, as well as it can be, and with the same
/// guarantees.
#[cfg(feature = "brokers")]
pub(crate) trait Broker {
    type Publisher: Publisher + Clone;

    /// What it is, how it stores, and with which client it is reached.
    fn description(&self) -> String;

    fn publisher(&self) -> &Self::Publisher;

    /// An empty topic, queue or stream.
    async fn fresh(&self) -> anyhow::Result<String>;

    /// Where a message has to go to, to be there.
    fn address(&self, place: &str) -> String {
        place.to_owned()
    }

    /// Sends what an outbox delivers there.
    fn destination(&self, place: &str) -> Destination<Self::Publisher>;

    /// Sends them with the bare client, until all are acknowledged.
    async fn publish_by_hand(&self, messages: Vec<Message>) -> anyhow::Result<()>;

    /// How many messages are there, as the broker counts them; or else as many as can be read back, up to that many.
    async fn count(&self, place: &str, enough: u64) -> anyhow::Result<u64>;

    /// Deletes it, so that the broker does not fill up.
    async fn delete(&self, place: &str) -> anyhow::Result<()>;
}

/// Messages in batches of that many.
#[cfg(feature = "brokers")]
pub(crate) fn batches(messages: Vec<Message>, size: usize) -> Vec<Vec<Message>> {
    let mut messages = messages.into_iter();
    let batch = || Some(messages.by_ref().take(size).collect::<Vec<_>>()).filter(|batch| !batch.is_empty());
    std::iter::from_fn(batch).collect()
}

/// Works on so many batches at once, in tasks of their own, until all are done.
#[cfg(feature = "brokers")]
pub(crate) async fn at_once<F>(
    many: usize,
    batches: Vec<Vec<Message>>,
    work: impl Fn(Vec<Message>) -> F + Clone + Send + 'static,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let batches = Arc::new(Mutex::new(batches.into_iter()));
    let mut workers = JoinSet::new();
    for _ in 0..many {
        let (batches, work) = (Arc::clone(&batches), work.clone());
        workers.spawn(async move {
            let next = || batches.lock().unwrap_or_else(PoisonError::into_inner).next();
            while let Some(batch) = next() {
                work(batch).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = workers.join_next().await {
        ended??;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &str) -> Given {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_broker_is_given_by_its_name_and_its_url() {
        assert_eq!(given("Kafka=127.0.0.1:9092"), Given { kind: Kind::Kafka, url: "127.0.0.1:9092".to_owned() });
        let rabbit = given("rabbitmq=amqp://guest:a=b@127.0.0.1/%2f");
        assert_eq!(rabbit.url, "amqp://guest:a=b@127.0.0.1/%2f");
        for (wrong, reason) in [
            ("kafka", "must be NAME=URL"),
            ("redis=", "there is no URL behind `redis=`"),
            ("pulsar=x", "there is no broker `pulsar`; those are kafka, mqtt, nats, rabbitmq, redis"),
            ("webhook=https://x", "webhooks go to a receiver of the run's own"),
        ] {
            let error = wrong.parse::<Given>().map_err(|error| error.to_string()).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn brokers_are_those_named_or_those_given_or_all() {
        let kinds = |named: &[Kind], texts: &[&str]| {
            let all: Vec<Given> = texts.iter().map(|text| given(text)).collect();
            let chosen = chosen(named, &all).map_err(|error| error.to_string())?;
            Ok::<_, String>(chosen.into_iter().map(|one| (one.kind.name(), one.url.is_some())).collect::<Vec<_>>())
        };
        let all = ["kafka", "mqtt", "nats", "rabbitmq", "redis", "webhook"].map(|name| (name, false));
        assert_eq!(kinds(&[], &[]), Ok(all.to_vec()));
        assert_eq!(kinds(&[Kind::Nats], &[]), Ok(vec![("nats", false)]));
        assert_eq!(kinds(&[], &["nats=x"]), Ok(vec![("nats", true)]));
        assert_eq!(kinds(&[Kind::Redis, Kind::Nats], &["nats=x"]), Ok(vec![("nats", true), ("redis", false)]));
        assert!(kinds(&[], &["nats=x", "nats=y"]).unwrap_err().contains("given twice"));
        assert!(kinds(&[Kind::Redis], &["nats=x"]).unwrap_err().contains("not among --brokers"));
    }
}
