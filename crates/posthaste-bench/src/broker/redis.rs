//! Redis Streams.

use anyhow::Context;
use posthaste_core::EventId;
use posthaste_publishers::redis::{Redis, RedisOptions};
use posthaste_publishers::{Destination, Message};
use redis::AsyncTypedCommands as _;
use redis::aio::MultiplexedConnection;

use super::{Broker, at_once, batches};
use crate::versions;

/// Entries in a request of the loop by hand, and requests on their way.
const REQUEST: usize = 500;
const AT_ONCE: usize = 4;

pub(crate) struct RedisBroker {
    publisher: Redis,
    bare: MultiplexedConnection,
    about: String,
}

impl RedisBroker {
    pub(crate) async fn connect(url: &str) -> anyhow::Result<Self> {
        let publisher = Redis::connect(RedisOptions::new(url)).await?;
        let mut bare = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
        let server: String = redis::cmd("INFO").arg("server").query_async(&mut bare).await?;
        let version = server.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or_default();
        let config = async |name: &str| {
            let mut bare = bare.clone();
            let answer: Vec<String> = redis::cmd("CONFIG").arg("GET").arg(name).query_async(&mut bare).await?;
            answer.into_iter().nth(1).with_context(|| format!("no {name} in its configuration"))
        };
        let about = format!(
            "Redis {version}; appendonly {}, appendfsync {}",
            config("appendonly").await?,
            config("appendfsync").await?
        );
        Ok(Self { publisher, bare, about })
    }
}

impl Broker for RedisBroker {
    type Publisher = Redis;

    fn description(&self) -> String {
        format!("{}; {}", self.about, versions::of("redis"))
    }

    fn publisher(&self) -> &Redis {
        &self.publisher
    }

    async fn fresh(&self) -> anyhow::Result<String> {
        Ok(format!("posthaste-bench-{}", EventId::generate()))
    }

    fn destination(&self, stream: &str) -> Destination<Redis> {
        self.publisher.stream(stream)
    }

    async fn publish_by_hand(&self, messages: Vec<Message>) -> anyhow::Result<()> {
        let bare = self.bare.clone();
        at_once(AT_ONCE, batches(messages, REQUEST), move |request| add(bare.clone(), request)).await
    }

    async fn count(&self, stream: &str, _: u64) -> anyhow::Result<u64> {
        Ok(redis::cmd("XLEN").arg(stream).query_async(&mut self.bare.clone()).await?)
    }

    async fn delete(&self, stream: &str) -> anyhow::Result<()> {
        self.bare.clone().del(stream).await?;
        Ok(())
    }
}

async fn add(mut connection: MultiplexedConnection, messages: Vec<Message>) -> anyhow::Result<()> {
    let mut pipeline = redis::pipe();
    for message in &messages {
        let command = pipeline.cmd("XADD").arg(message.to.as_str()).arg("*");
        for (name, value) in message.headers.iter() {
            command.arg(name).arg(value);
        }
        command.arg("content-type").arg(message.content_type.as_ref()).arg("payload").arg(&message.body[..]);
    }
    let _ids: Vec<String> = pipeline.query_async(&mut connection).await?;
    Ok(())
}
