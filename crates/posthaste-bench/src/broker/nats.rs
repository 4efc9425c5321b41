//! NATS JetStream.

use std::collections::VecDeque;

use anyhow::Context as _;
use async_nats::jetstream::{self, Context, message::PublishMessage, stream};
use posthaste_core::EventId;
use posthaste_publishers::nats::{Nats, NatsOptions};
use posthaste_publishers::{Destination, Message};

use super::Broker;
use crate::versions;

/// Messages on their way in the loop by hand.
const IN_FLIGHT: usize = 4000;

pub(crate) struct NatsBroker {
    publisher: Nats,
    bare: Context,
}

impl NatsBroker {
    pub(crate) async fn connect(url: &str) -> anyhow::Result<Self> {
        let publisher = Nats::connect(NatsOptions::new(url)).await?;
        Ok(Self { publisher, bare: jetstream::new(async_nats::connect(url).await?) })
    }

    /// The name of the stream is all of the subject, too.
    async fn ask(&self, what: &str, stream: &str) -> anyhow::Result<serde_json::Value> {
        // Their types for the answers know newer servers only.
        let answer = self.bare.client().request(format!("$JS.API.STREAM.{what}.{stream}"), "".into()).await?;
        let answer: serde_json::Value = serde_json::from_slice(&answer.payload)?;
        anyhow::ensure!(answer["error"].is_null(), "{stream}: {}", answer["error"]);
        Ok(answer)
    }
}

impl Broker for NatsBroker {
    type Publisher = Nats;

    fn description(&self) -> String {
        let server = self.bare.client().server_info().version;
        format!("NATS {server}; a stream in files, one replica; {}", versions::of("async-nats"))
    }

    fn publisher(&self) -> &Nats {
        &self.publisher
    }

    async fn fresh(&self) -> anyhow::Result<String> {
        let name = format!("posthaste-bench-{}", EventId::generate());
        let config = stream::Config { name: name.clone(), subjects: vec![name.clone()], ..stream::Config::default() };
        self.bare.create_stream(config).await?;
        Ok(name)
    }

    fn destination(&self, subject: &str) -> Destination<Nats> {
        self.publisher.subject(subject)
    }

    async fn publish_by_hand(&self, messages: Vec<Message>) -> anyhow::Result<()> {
        let mut in_flight = VecDeque::with_capacity(IN_FLIGHT);
        for message in messages {
            if in_flight.len() == IN_FLIGHT
                && let Some(oldest) = in_flight.pop_front()
            {
                IntoFuture::into_future(oldest).await?;
            }
            let mut publish =
                PublishMessage::build().payload(message.body.into_bytes()).message_id(message.id.as_str());
            for (name, value) in message.headers.iter() {
                publish = publish.header(name, value);
            }
            publish = publish.header("content-type", message.content_type.as_ref());
            in_flight.push_back(self.bare.send_publish(String::from(message.to), publish).await?);
        }
        for pending in in_flight {
            pending.await?;
        }
        Ok(())
    }

    async fn count(&self, stream: &str, _: u64) -> anyhow::Result<u64> {
        let info = self.ask("INFO", stream).await?;
        info["state"]["messages"].as_u64().context("no count of messages")
    }

    async fn delete(&self, stream: &str) -> anyhow::Result<()> {
        self.ask("DELETE", stream).await.map(drop)
    }
}
