//! RabbitMQ.

use anyhow::ensure;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Queue};
use posthaste_core::EventId;
use posthaste_publishers::rabbitmq::{Rabbit, RabbitOptions};
use posthaste_publishers::{Destination, Message};

use super::Broker;
use crate::versions;

/// Messages on their way in the loop by hand.
const IN_FLIGHT: usize = 2000;

pub(crate) struct RabbitBroker {
    publisher: Rabbit,
    channel: Channel,
    // Ends when it is dropped.
    _connection: Connection,
    about: String,
}

impl RabbitBroker {
    pub(crate) async fn connect(url: &str, about: Option<&str>) -> anyhow::Result<Self> {
        let publisher = Rabbit::connect(RabbitOptions::new(url)).await?;
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let about = about.unwrap_or("RabbitMQ").to_owned();
        Ok(Self { publisher, channel, _connection: connection, about })
    }

    async fn declare(&self, queue: &str, passive: bool) -> anyhow::Result<Queue> {
        let options = QueueDeclareOptions { durable: true, passive, ..QueueDeclareOptions::default() };
        Ok(self.channel.queue_declare(ShortString::try_new(queue)?, options, FieldTable::default()).await?)
    }

    async fn confirmed(&self, message: Message) -> anyhow::Result<()> {
        let mut headers = FieldTable::default();
        for (name, value) in message.headers.iter() {
            headers.insert(ShortString::try_new(name)?, AMQPValue::LongString(value.into()));
        }
        let properties = BasicProperties::default()
            .with_message_id(ShortString::try_new(message.id.as_str())?)
            .with_content_type(ShortString::try_new(message.content_type)?)
            .with_headers(headers)
            .with_delivery_mode(2);
        let queue = ShortString::try_new(message.to.trim_start_matches('\0'))?;
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let confirm = self.channel.basic_publish("".into(), queue, options, &message.body, properties).await?;
        let confirmation = confirm.await?;
        ensure!(confirmation.is_ack() && confirmation.take_message().is_none(), "a message was not taken");
        Ok(())
    }
}

impl Broker for RabbitBroker {
    type Publisher = Rabbit;

    fn description(&self) -> String {
        format!("{}; a durable classic queue, persistent messages, confirms; {}", self.about, versions::of("lapin"))
    }

    fn publisher(&self) -> &Rabbit {
        &self.publisher
    }

    async fn fresh(&self) -> anyhow::Result<String> {
        let name = format!("posthaste-bench-{}", EventId::generate());
        self.declare(&name, false).await?;
        Ok(name)
    }

    /// Without an exchange between.
    fn address(&self, queue: &str) -> String {
        format!("\0{queue}")
    }

    fn destination(&self, queue: &str) -> Destination<Rabbit> {
        self.publisher.queue(queue)
    }

    /// Each publish is polled once and the next begun: whoever awaits them one by one waits for a write each time.
    async fn publish_by_hand(&self, messages: Vec<Message>) -> anyhow::Result<()> {
        let sending = stream::iter(messages).map(|message| self.confirmed(message)).buffer_unordered(IN_FLIGHT);
        sending.try_for_each(async |()| Ok(())).await
    }

    async fn count(&self, queue: &str, _: u64) -> anyhow::Result<u64> {
        Ok(self.declare(queue, true).await?.message_count().into())
    }

    async fn delete(&self, queue: &str) -> anyhow::Result<()> {
        self.channel.queue_delete(ShortString::try_new(queue)?, QueueDeleteOptions::default()).await?;
        Ok(())
    }
}
