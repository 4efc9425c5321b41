//! Destinations that can be sent to.

use std::sync::Arc;

use posthaste::RetryPolicy;
use posthaste::listener::AnyListener;
use posthaste::publishers::{self, Breaker, BreakerState, Envelope, Ndjson, PublishError, Publisher};

use super::meter::{DestinationMeter, Metered};
use crate::exit::{Failed, Status};
use crate::settings::{Destination, Target};

/// What sends to a destination.
pub(crate) enum Connected {
    Lines(Ndjson),
    #[cfg(feature = "kafka")]
    Kafka(publishers::Kafka),
    #[cfg(feature = "mqtt")]
    Mqtt(publishers::Mqtt),
    #[cfg(feature = "nats")]
    Nats(publishers::Nats),
    #[cfg(feature = "rabbitmq")]
    Rabbit(publishers::Rabbit),
    #[cfg(feature = "redis")]
    Redis(publishers::Redis),
    #[cfg(feature = "webhook")]
    Webhook(publishers::Webhook),
}

/// Does the same with whichever publisher there is.
macro_rules! with_publisher {
    ($connected:expr, $publisher:ident => $do:expr) => {
        match $connected {
            Connected::Lines($publisher) => $do,
            #[cfg(feature = "kafka")]
            Connected::Kafka($publisher) => $do,
            #[cfg(feature = "mqtt")]
            Connected::Mqtt($publisher) => $do,
            #[cfg(feature = "nats")]
            Connected::Nats($publisher) => $do,
            #[cfg(feature = "rabbitmq")]
            Connected::Rabbit($publisher) => $do,
            #[cfg(feature = "redis")]
            Connected::Redis($publisher) => $do,
            #[cfg(feature = "webhook")]
            Connected::Webhook($publisher) => $do,
        }
    };
}

impl Connected {
    /// All of them, in their order. Checks their settings; nobody is asked yet, but files are opened.
    pub(crate) async fn all(destinations: &[Destination]) -> Result<Vec<Self>, Failed> {
        let mut connected = Vec::with_capacity(destinations.len());
        for destination in destinations {
            connected.push(Self::new(destination, true).await?);
        }
        Ok(connected)
    }

    /// One of them; if it is a file it need not be opened for a check.
    pub(crate) async fn new(destination: &Destination, for_use: bool) -> Result<Self, Failed> {
        #[allow(unused_variables, reason = "nobody needs it in a build that has lines alone")]
        let wrong = |error: &dyn std::error::Error| wrong(destination, error);
        Ok(match &destination.target {
            Target::Lines(_) if !for_use => Self::Lines(Ndjson::stdout()),
            Target::Lines(options) => {
                let lines = Ndjson::connect(options.clone()).await;
                Self::Lines(
                    lines.map_err(|error| Failed::new(Status::Destination, destination.fault(error.to_string())))?,
                )
            }
            #[cfg(feature = "kafka")]
            Target::Kafka(options) => {
                Self::Kafka(publishers::Kafka::connect(options.clone()).await.map_err(|error| wrong(&error))?)
            }
            #[cfg(feature = "mqtt")]
            Target::Mqtt(options) => {
                Self::Mqtt(publishers::Mqtt::connect(options.clone()).await.map_err(|error| wrong(&error))?)
            }
            #[cfg(feature = "nats")]
            Target::Nats(options) => {
                Self::Nats(publishers::Nats::connect(options.clone()).await.map_err(|error| wrong(&error))?)
            }
            #[cfg(feature = "rabbitmq")]
            Target::Rabbit(options) => {
                Self::Rabbit(publishers::Rabbit::connect(options.clone()).await.map_err(|error| wrong(&error))?)
            }
            #[cfg(feature = "redis")]
            Target::Redis(options) => {
                Self::Redis(publishers::Redis::connect(options.clone()).await.map_err(|error| wrong(&error))?)
            }
            #[cfg(feature = "webhook")]
            Target::Webhook(options) => {
                Self::Webhook(publishers::Webhook::new(options.clone()).map_err(|error| wrong(&error))?)
            }
        })
    }

    /// One of them for whoever only looks: nothing is made at the other end, and nobody there is driven away.
    #[cfg_attr(
        not(any(feature = "kafka", feature = "mqtt", feature = "nats", feature = "rabbitmq", feature = "redis")),
        allow(dead_code, reason = "others are not asked by it")
    )]
    pub(crate) async fn to_look(destination: &Destination) -> Result<Self, Failed> {
        match &destination.target {
            #[cfg(feature = "mqtt")]
            Target::Mqtt(options) => {
                // A broker ends the connection of who has the same id.
                let options = options.clone().client_id(format!("posthaste-doctor-{:016x}", fastrand::u64(..)));
                Ok(Self::Mqtt(publishers::Mqtt::connect(options).await.map_err(|error| wrong(destination, &error))?))
            }
            #[cfg(feature = "rabbitmq")]
            Target::Rabbit(options) => {
                let options = options.clone().declaring(false);
                Ok(Self::Rabbit(
                    publishers::Rabbit::connect(options).await.map_err(|error| wrong(destination, &error))?,
                ))
            }
            _ => Self::new(destination, false).await,
        }
    }

    /// Asks the other end whether it is there.
    pub(crate) async fn check(&self) -> Result<(), PublishError> {
        with_publisher!(self, publisher => publisher.check().await)
    }

    /// Whether it did not answer last time, so that nothing is sent but to try whether it is back.
    pub(super) fn is_away(&self) -> bool {
        let is_away = |breaker: &Breaker| breaker.state() != BreakerState::Closed;
        match self {
            Self::Lines(lines) => is_away(lines.breaker()),
            #[cfg(feature = "kafka")]
            Self::Kafka(kafka) => is_away(kafka.breaker()),
            #[cfg(feature = "mqtt")]
            Self::Mqtt(mqtt) => is_away(mqtt.breaker()),
            #[cfg(feature = "nats")]
            Self::Nats(nats) => is_away(nats.breaker()),
            #[cfg(feature = "rabbitmq")]
            Self::Rabbit(rabbit) => is_away(rabbit.breaker()),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => is_away(redis.breaker()),
            #[cfg(feature = "webhook")]
            Self::Webhook(webhook) => webhook.breakers().iter().any(is_away),
        }
    }

    pub(crate) async fn close(&self) {
        with_publisher!(self, publisher => publisher.close().await);
    }

    /// What delivers there, for a route.
    pub(super) fn listener(
        &self,
        settings: &Destination,
        envelope: &Envelope,
        retry: &RetryPolicy,
        meter: Option<&Arc<DestinationMeter>>,
    ) -> AnyListener {
        let with = (envelope, retry, meter);
        match self {
            Self::Lines(lines) => finished(lines.lines(), settings, with),
            #[cfg(feature = "kafka")]
            Self::Kafka(kafka) => finished(kafka.topic(&settings.to), settings, with),
            #[cfg(feature = "mqtt")]
            Self::Mqtt(mqtt) => finished(mqtt.topic(&settings.to), settings, with),
            #[cfg(feature = "nats")]
            Self::Nats(nats) => finished(nats.subject(&settings.to), settings, with),
            #[cfg(feature = "rabbitmq")]
            Self::Rabbit(rabbit) => {
                let destination = match &settings.exchange {
                    Some(exchange) => rabbit.exchange(exchange).routing_key(&settings.to),
                    None => rabbit.queue(&settings.to),
                };
                finished(destination, settings, with)
            }
            #[cfg(feature = "redis")]
            Self::Redis(redis) => finished(redis.stream(&settings.to), settings, with),
            #[cfg(feature = "webhook")]
            Self::Webhook(webhook) => finished(webhook.url(&settings.to), settings, with),
        }
    }
}

/// What is wrong with the settings of a destination.
fn wrong(destination: &Destination, error: &dyn std::error::Error) -> Failed {
    Failed::from(destination.fault(crate::text_of(error)))
}

/// A destination with everything that was set of it.
fn finished<P: Publisher>(
    mut destination: publishers::Destination<P>,
    settings: &Destination,
    (envelope, retry, meter): (&Envelope, &RetryPolicy, Option<&Arc<DestinationMeter>>),
) -> AnyListener {
    destination = destination.envelope(envelope.clone()).retry(retry.clone());
    if let Some(key) = &settings.key {
        destination = destination.key(key);
    }
    if let Some(max_batch) = settings.max_batch {
        destination = destination.max_batch(max_batch);
    }
    destination.through(|publisher| Metered::new(publisher, meter.cloned())).into()
}
