//! The connection to a broker, made anew when it is lost.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lapin::options::{ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::tcp::{AMQPUriTcpExt, OwnedTLSConfig};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Channel, Connection, ConnectionProperties};
use tokio::sync;
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::options::{RabbitOptions, table};
use crate::publisher::PublishError;

/// How many channels that nobody uses are kept open.
const IDLE_CHANNELS: usize = 8;

/// What AMQP calls refusals.
const ACCESS_REFUSED: u16 = 403;
const PRECONDITION_FAILED: u16 = 406;
const NOT_ALLOWED: u16 = 530;

/// How long closing may take.
const CLOSING: Duration = Duration::from_secs(5);

/// Keeps one connection, and makes another when it is lost.
pub(super) struct Link {
    options: RabbitOptions,
    address: AMQPUri,
    state: sync::Mutex<State>,
}

enum State {
    /// When it was last tried in vain, and why.
    Apart(Option<(Instant, String)>),
    Together(Arc<Line>),
    Closed,
}

/// One connection, and its channels.
pub(super) struct Line {
    connection: Connection,
    idle: Mutex<Vec<Channel>>,
}

impl Link {
    /// A link that is not connected yet.
    pub(super) fn new(options: RabbitOptions) -> Result<Self, PublishError> {
        let mut address: AMQPUri = options
            .url
            .parse()
            // What was wrong may have the password in it.
            .map_err(|_| {
                PublishError::permanent("the address of RabbitMQ must look like amqp://user:password@host:5672/%2f")
            })?;
        // The parser takes an address of IPv6 for none, and goes to localhost instead.
        if let Some(host) = ipv6(&options.url) {
            host.clone_into(&mut address.authority.host);
        }
        if address.scheme == AMQPScheme::AMQPS && !cfg!(feature = "rabbitmq-tls") {
            return Err(PublishError::permanent("amqps:// needs the feature `rabbitmq-tls`"));
        }
        if address.scheme == AMQPScheme::AMQP && options.ca_file.is_some() {
            return Err(PublishError::permanent("ca_file is for TLS, and the address is without; write amqps://"));
        }
        if options.app_id.as_ref().is_some_and(|id| ShortString::try_new(id.as_str()).is_err()) {
            return Err(PublishError::permanent("app_id has more than 255 bytes, which AMQP has no room for"));
        }
        if let Some(path) = &options.ca_file {
            authorities(path).map_err(PublishError::permanent)?;
        }
        let seconds = options.heartbeat.as_secs().clamp(1, 3600);
        address.query.heartbeat.get_or_insert(u16::try_from(seconds).unwrap_or(u16::MAX));
        Ok(Self { options, address, state: sync::Mutex::new(State::Apart(None)) })
    }

    /// The connection; a new one, if there was none or it is lost. What keeps it from being made is an outage, or permanent where
    /// the broker refuses us or what we declare.
    pub(super) async fn line(&self) -> Result<Arc<Line>, PublishError> {
        let asked_at = Instant::now();
        let mut state = self.state.lock().await;
        match &*state {
            State::Together(line) if line.connection.status().connected() => return Ok(Arc::clone(line)),
            State::Closed => return Err(PublishError::outage("the connection to RabbitMQ was closed by this program")),
            // Who waited for somebody's attempt does not begin another.
            State::Apart(Some((failed_at, reason))) if *failed_at >= asked_at => {
                return Err(PublishError::outage(reason.clone()));
            }
            State::Together(_) | State::Apart(_) => *state = State::Apart(None),
        }
        let limit = self.options.connect_timeout;
        let error = match timeout(limit, self.connect()).await {
            Ok(Ok(connection)) => {
                let line = Arc::new(Line { connection, idle: Mutex::default() });
                debug!(destination = self.options.name, "connected to RabbitMQ");
                *state = State::Together(Arc::clone(&line));
                return Ok(line);
            }
            Ok(Err(error)) => error,
            Err(_) => PublishError::outage(format!("RabbitMQ did not answer within {limit:?}")),
        };
        *state = State::Apart(Some((Instant::now(), error.to_string())));
        Err(error)
    }

    async fn connect(&self) -> Result<Connection, PublishError> {
        let cert_chain = self.options.ca_file.as_deref().map(authorities).transpose().map_err(PublishError::outage)?;
        let tls = OwnedTLSConfig { identity: None, cert_chain };
        let properties = ConnectionProperties::default().with_connection_name(self.options.name.as_str().into());
        let runtime = lapin::runtime::default_runtime().map_err(PublishError::outage)?;
        let limit = self.options.connect_timeout;
        // The client waits in a thread of its own, which would stay for as long as the system tries.
        let connection = Connection::connector(
            self.address.clone(),
            runtime,
            async move |address, runtime| match timeout(
                limit,
                address.connect_with_config_async(tls.as_ref(), &runtime),
            )
            .await
            {
                Ok(connected) => Ok(connected?),
                Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
            },
            properties,
        )
        .await
        .map_err(|error| unwelcome(&error, error.to_string()))?;
        self.declare(&connection).await?;
        Ok(connection)
    }

    async fn declare(&self, connection: &Connection) -> Result<(), PublishError> {
        let RabbitOptions { exchanges, queues, bindings, declaring, .. } = &self.options;
        if !declaring || (exchanges.is_empty() && queues.is_empty() && bindings.is_empty()) {
            return Ok(());
        }
        let channel = connection.create_channel().await.map_err(|error| unwelcome(&error, error.to_string()))?;
        let name = |text: &str| ShortString::try_new(text).map_err(PublishError::permanent);
        for exchange in exchanges {
            let arguments = table(&exchange.arguments).map_err(PublishError::permanent)?;
            let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
            let declared =
                channel.exchange_declare(name(&exchange.name)?, exchange.kind.into(), durable, arguments).await;
            declared.map_err(|error| {
                unwelcome(&error, format!("cannot declare the exchange {:?}: {error}", exchange.name))
            })?;
        }
        for queue in queues {
            let arguments = table(&queue.arguments).map_err(PublishError::permanent)?;
            let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
            let declared = channel.queue_declare(name(&queue.name)?, durable, arguments).await;
            declared
                .map_err(|error| unwelcome(&error, format!("cannot declare the queue {:?}: {error}", queue.name)))?;
        }
        for binding in bindings {
            let (queue, exchange, key) = (name(&binding.queue)?, name(&binding.exchange)?, name(&binding.routing_key)?);
            let bound =
                channel.queue_bind(queue, exchange, key, QueueBindOptions::default(), FieldTable::default()).await;
            bound.map_err(|error| {
                let (queue, exchange) = (&binding.queue, &binding.exchange);
                unwelcome(&error, format!("cannot bind the queue {queue:?} to the exchange {exchange:?}: {error}"))
            })?;
        }
        Ok(())
    }

    /// Gives a connection up that does not answer.
    pub(super) async fn lost(&self, line: &Arc<Line>) {
        let mut state = self.state.lock().await;
        if matches!(&*state, State::Together(now) if Arc::ptr_eq(now, line)) {
            *state = State::Apart(None);
        }
    }

    /// Closes the connection for good.
    pub(super) async fn close(&self) {
        let state = std::mem::replace(&mut *self.state.lock().await, State::Closed);
        if let State::Together(line) = state
            && line.connection.status().connected()
        {
            line.idle().clear();
            // While the broker has blocked it nothing is written, not even this.
            let _ = timeout(CLOSING, line.connection.close(200, "OK".into())).await;
        }
    }
}

impl Line {
    /// A channel for one user alone, on which the broker acknowledges.
    pub(super) async fn channel(&self) -> lapin::Result<Channel> {
        while let Some(channel) = { self.idle().pop() } {
            if channel.status().connected() {
                return Ok(channel);
            }
        }
        let channel = self.connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }

    /// Takes a channel back on which nothing is on its way.
    pub(super) fn keep(&self, channel: Channel) {
        let mut idle = self.idle();
        if channel.status().connected() && idle.len() < IDLE_CHANNELS {
            idle.push(channel);
        }
    }

    /// Whether the broker takes nothing from anybody now, for lack of memory or disk.
    pub(super) fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    /// How large a frame may be.
    pub(super) fn frame_max(&self) -> usize {
        match self.connection.configuration().frame_max() {
            0 => usize::MAX,
            bytes => bytes as usize,
        }
    }

    /// Asks the broker something, to see that it answers.
    pub(super) async fn ask(&self) -> lapin::Result<()> {
        let channel = self.connection.create_channel().await?;
        channel.close(200, "OK".into()).await
    }

    /// Whether a queue is durable; nothing if there is none.
    ///
    /// The protocol has no question for it. A queue that is there is declared once more, as durable, and with an argument that no queue
    /// can have: so the broker refuses it in any case, and makes none even if the queue is deleted meanwhile. What it says that it
    /// refuses it for is the answer: it compares what a queue is with what is declared before it looks at the values of arguments,
    /// and whether it is durable first of all. On channels of their own, which end with a refusal.
    pub(super) async fn is_durable(&self, queue: &str) -> lapin::Result<Option<bool>> {
        let name = ShortString::from(queue);
        let mut impossible = FieldTable::default();
        impossible.insert("x-expires".into(), AMQPValue::LongInt(0));
        for (passive, arguments) in [(true, FieldTable::default()), (false, impossible)] {
            let channel = self.connection.create_channel().await?;
            let options = QueueDeclareOptions { passive, durable: !passive, ..QueueDeclareOptions::default() };
            match channel.queue_declare(name.clone(), options, arguments).await {
                Ok(_) => channel.close(200, "OK".into()).await?,
                Err(error) if error.to_string().contains("NOT_FOUND") => return Ok(None),
                // It was deleted meanwhile: now the argument is looked at.
                Err(error) if error.to_string().contains("invalid arg") => return Ok(None),
                Err(error) if error.to_string().contains("inequivalent arg 'durable'") => return Ok(Some(false)),
                // Another argument is different, and the broker says which one first: this is not it.
                Err(error) if error.to_string().contains("inequivalent arg") => return Ok(Some(true)),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(true))
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Channel>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why there is no connection: the broker refuses who we are or what we declare, or it is away.
fn unwelcome(error: &lapin::Error, reason: String) -> PublishError {
    let lapin::ErrorKind::ProtocolError(said) = error.kind() else { return PublishError::outage(reason) };
    let text = said.get_message().as_str();
    let is_of_us = match said.get_id() {
        ACCESS_REFUSED | PRECONDITION_FAILED => true,
        // No such virtual host, or not for us. It says the same when there are too many connections, or it is just starting.
        NOT_ALLOWED => !text.contains("limit") && !text.contains("down"),
        _ => false,
    };
    if is_of_us { PublishError::permanent(reason) } else { PublishError::outage(reason) }
}

fn authorities(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read the authorities in {}: {error}", path.display()))
}

/// What is between the brackets of an address.
fn ipv6(url: &str) -> Option<&str> {
    let authority = url.split_once("://")?.1.split(['/', '?']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    Some(host.strip_prefix('[')?.split_once(']')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_ipv6_is_not_taken_for_localhost() {
        let host = |url: &str| Link::new(RabbitOptions::new(url)).map(|link| link.address.authority.host).unwrap();
        assert_eq!(host("amqp://u:p@[fd00::7]:5672/%2f"), "fd00::7");
        assert_eq!(host("amqp://[::1]"), "::1");
        assert_eq!(host("amqp://10.0.0.7/%2f"), "10.0.0.7");
        assert_eq!(host("amqp://u:a%5B@broker.example?heartbeat=5"), "broker.example");
    }

    #[test]
    fn authorities_that_cannot_be_read_are_said_at_once() {
        if cfg!(feature = "rabbitmq-tls") {
            let refused = Link::new(RabbitOptions::new("amqps://host").ca_file("/nowhere/ca.pem")).err().unwrap();
            assert!(refused.to_string().contains("/nowhere/ca.pem"), "{refused}");
        }
    }

    #[test]
    fn a_wrong_address_is_refused_without_its_password() {
        let refused = Link::new(RabbitOptions::new("http://u:secret@host")).err().unwrap();
        assert!(refused.to_string().contains("must look like amqp://") && !refused.to_string().contains("secret"));
    }
}
