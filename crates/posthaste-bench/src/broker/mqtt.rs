//! MQTT 5.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context as _, bail};
use posthaste_core::EventId;
use posthaste_publishers::mqtt::{Mqtt, MqttOptions};
use posthaste_publishers::{Destination, Message};
use rumqttc::{
    AsyncClient, BrokerSessionResumePolicy, Event, EventLoop, Packet, PubAckReason, PublishNotice, PublishOptions,
    PublishProperties, PublishResult, QoS,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Broker;
use crate::versions;

/// Messages that are handed over in the loop by hand. How many of them are on their way is up to the broker, for the publisher as well.
const IN_FLIGHT: usize = 2000;

/// How long the next word of the broker may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// For how many seconds the broker keeps messages for a session whose client is away.
const KEPT: u32 = 3600;

/// Where Mosquitto says what it is.
const VERSION: &str = "$SYS/broker/version";

pub(crate) struct MqttBroker {
    publisher: Mqtt,
    bare: AsyncClient,
    // Ends when it is dropped.
    _driver: JoinSet<()>,
    host: String,
    port: u16,
    about: String,
}

impl MqttBroker {
    pub(crate) async fn connect(url: &str) -> anyhow::Result<Self> {
        let publisher = Mqtt::connect(MqttOptions::new(url)).await?;
        let rest = url.strip_prefix("mqtt://").context("the bare client is for addresses that begin with mqtt://")?;
        let rest = rest.trim_end_matches('/');
        let (host, port) = rest.rsplit_once(':').filter(|(_, port)| !port.contains(']')).unwrap_or((rest, "1883"));
        let (host, port) = (host.trim_matches(['[', ']']).to_owned(), port.parse().context("its port is none")?);
        let (bare, mut events) = session(&host, port, &unique(), Session::New).await?;
        let about = version(&bare, &mut events).await.unwrap_or_else(|| "a broker of MQTT 5".to_owned());
        let mut driver = JoinSet::new();
        driver.spawn(async move { while events.poll().await.is_ok() {} });
        Ok(Self { publisher, bare, _driver: driver, host, port, about })
    }

    /// The subscriber to a topic, who is called like it.
    async fn subscriber(&self, topic: &str, kind: Session) -> anyhow::Result<(AsyncClient, EventLoop)> {
        session(&self.host, self.port, topic, kind).await
    }
}

fn unique() -> String {
    format!("posthaste-bench-{}", EventId::generate())
}

/// What a client finds that comes again under its name.
#[derive(Clone, Copy, PartialEq)]
enum Session {
    /// Nothing, and nothing is left of it either.
    New,
    /// Nothing, and all that comes is kept from now on.
    Kept,
    /// What was kept.
    Again,
}

/// Connects under that name.
async fn session(host: &str, port: u16, name: &str, kind: Session) -> anyhow::Result<(AsyncClient, EventLoop)> {
    let mut options = rumqttc::MqttOptions::new(name, rumqttc::Broker::tcp(host, port));
    options.set_clean_start(kind != Session::Again).set_request_channel_capacity(IN_FLIGHT);
    // By default each message is a write to the socket.
    options.set_max_request_batch(IN_FLIGHT);
    options.set_session_expiry_interval((kind != Session::New).then_some(KEPT));
    options.set_broker_session_resume_policy(BrokerSessionResumePolicy::AllowBrokerOnly);
    let mut network = options.network_options();
    network.set_tcp_nodelay(true);
    options.set_network_options(network);
    let (client, mut events) = AsyncClient::builder(options).try_build()?;
    until(&mut events, |packet| matches!(packet, Packet::ConnAck(_)).then_some(())).await?;
    Ok((client, events))
}

/// Listens until this has come.
async fn until<T>(events: &mut EventLoop, wanted: impl Fn(&Packet) -> Option<T>) -> anyhow::Result<T> {
    let coming = async {
        loop {
            if let Event::Incoming(packet) = events.poll().await?
                && let Some(found) = wanted(&packet)
            {
                return anyhow::Ok(found);
            }
        }
    };
    timeout(PATIENCE, coming).await.context("the broker says nothing")?
}

async fn version(client: &AsyncClient, events: &mut EventLoop) -> Option<String> {
    client.subscribe(VERSION, QoS::AtMostOnce).await.ok()?;
    let said = |packet: &Packet| match packet {
        Packet::Publish(said) => Some(String::from_utf8_lossy(&said.payload).into_owned()),
        _ => None,
    };
    let version = until(events, said).await.ok()?;
    client.unsubscribe(VERSION).await.ok()?;
    Some(version)
}

/// Leaves, and is gone.
async fn leave(client: &AsyncClient, events: &mut EventLoop) -> anyhow::Result<()> {
    client.disconnect().await?;
    let gone = async { while events.poll().await.is_ok() {} };
    timeout(PATIENCE, gone).await.context("the connection does not end")
}

impl Broker for MqttBroker {
    type Publisher = Mqtt;

    fn description(&self) -> String {
        let client = versions::of("rumqttc-v5-next");
        format!("{}; quality of service 1, kept for a subscriber that is away; {client}", self.about)
    }

    fn publisher(&self) -> &Mqtt {
        &self.publisher
    }

    /// A topic that somebody has subscribed to: otherwise nothing is kept of it.
    async fn fresh(&self) -> anyhow::Result<String> {
        let topic = unique();
        let (client, mut events) = self.subscriber(&topic, Session::Kept).await?;
        client.subscribe(topic.as_str(), QoS::AtLeastOnce).await?;
        until(&mut events, |packet| matches!(packet, Packet::SubAck(_)).then_some(())).await?;
        leave(&client, &mut events).await?;
        Ok(topic)
    }

    fn destination(&self, topic: &str) -> Destination<Mqtt> {
        self.publisher.topic(topic)
    }

    async fn publish_by_hand(&self, messages: Vec<Message>) -> anyhow::Result<()> {
        let mut in_flight = VecDeque::with_capacity(IN_FLIGHT);
        for message in messages {
            if in_flight.len() == IN_FLIGHT
                && let Some(oldest) = in_flight.pop_front()
            {
                taken(oldest).await?;
            }
            let properties = PublishProperties {
                content_type: Some(message.content_type.into_owned()),
                user_properties: message
                    .headers
                    .iter()
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .collect(),
                ..PublishProperties::default()
            };
            let publish = PublishOptions::new(QoS::AtLeastOnce).properties(properties);
            in_flight.push_back(
                self.bare.publish_tracked(String::from(message.to), message.body.into_bytes(), publish).await?,
            );
        }
        for notice in in_flight {
            taken(notice).await?;
        }
        Ok(())
    }

    /// Reads them, as the subscriber who was away.
    async fn count(&self, topic: &str, enough: u64) -> anyhow::Result<u64> {
        let (_client, mut events) = self.subscriber(topic, Session::Again).await?;
        let mut count = 0;
        while count < enough
            && let Ok(event) = timeout(PATIENCE, events.poll()).await
        {
            count += u64::from(matches!(event?, Event::Incoming(Packet::Publish(_))));
        }
        Ok(count)
    }

    /// Nobody has subscribed any more.
    async fn delete(&self, topic: &str) -> anyhow::Result<()> {
        let (client, mut events) = self.subscriber(topic, Session::New).await?;
        leave(&client, &mut events).await
    }
}

async fn taken(notice: PublishNotice) -> anyhow::Result<()> {
    match notice.wait_async().await? {
        PublishResult::Qos1(ack) if ack.reason == PubAckReason::Success => Ok(()),
        other => bail!("a message was not taken: {other:?}"),
    }
}
