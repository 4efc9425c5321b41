//! The connection to the server, and what it says over it beside its acknowledgements.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::client::{RequestErrorKind, SetServerPoolError};
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::{Client, ConnectError, ConnectErrorKind, Event, ServerAddr, ServerError};
use bytes::Bytes;
use tokio::sync::{Mutex, Semaphore, broadcast};
use tokio::time::timeout;

use super::NatsOptions;
use super::error::denied;
use super::inbox::Inboxes;
use crate::address;
use crate::publisher::PublishError;

/// How long a server has to say that it is there.
pub(super) const CHECK: Duration = Duration::from_secs(2);

/// How many words of the server wait for batches that are under way.
const NEWS: usize = 1024;

/// For how many acknowledgements there is room at least.
const FEWEST: usize = 65_536;

/// One connection, until it is lost: another is made then. So nothing that was given up is sent later, behind what came after it.
pub(super) struct Connection {
    pub(super) client: Client,
    /// To ask what there is.
    pub(super) jetstream: Context,
    pub(super) inboxes: Inboxes,
    lost: Arc<AtomicBool>,
    pub(super) news: broadcast::Sender<News>,
    /// Whose turn it is to send a batch in which messages have to be right behind each other.
    pub(super) turn: Mutex<()>,
}

/// Where nobody can be: no port is 0.
const NOBODY: &str = "nats://127.0.0.1:0";

/// Why there is no connection.
enum Failed {
    Connecting(ConnectError),
    Leaving(SetServerPoolError),
}

/// What the server says beside its acknowledgements.
#[derive(Clone, Debug)]
pub(super) enum News {
    /// Publishing to that subject is not permitted.
    Denied(String),
    /// The connection is lost.
    Lost,
}

impl Connection {
    /// What keeps it from being made is an outage, or permanent where the server refuses us or a file of ours cannot be used.
    pub(super) async fn dial(options: &NatsOptions, servers: &[ServerAddr]) -> Result<Self, PublishError> {
        let shown = address::shown(&options.url);
        let (news, lost) = (broadcast::Sender::new(NEWS), Arc::new(AtomicBool::new(false)));
        let (tell, gone) = (news.clone(), lost.clone());
        let servers_tried = servers.len();
        let connecting = options
            .connect_options()
            .await
            .map_err(PublishError::permanent)?
            // Its own attempts to connect again end soon: it is replaced. It finds nobody; see below.
            .max_reconnects(servers_tried)
            .ignore_discovered_servers()
            // Subjects are looked at before they are handed over.
            .skip_subject_validation(true)
            // Room for the acknowledgements of a batch: what finds none is dropped.
            .subscription_capacity(options.max_in_flight.clamp(FEWEST, Semaphore::MAX_PERMITS))
            .event_callback(move |event| {
                match event {
                    Event::Disconnected | Event::Closed => {
                        gone.store(true, Ordering::Release);
                        tell.send(News::Lost).ok();
                    }
                    Event::ServerError(ServerError::Other(text)) => {
                        if let Some(subject) = denied(&text) {
                            tell.send(News::Denied(subject.to_owned())).ok();
                        }
                    }
                    _ => {}
                }
                std::future::ready(())
            })
            .connect(servers);
        let connecting = async {
            let client = connecting.await.map_err(Failed::Connecting)?;
            // Once it is lost it must not come back: it would send what was given up, behind what came after it.
            client.set_server_pool(NOBODY).await.map_err(Failed::Leaving)?;
            Ok(client)
        };
        let limit = options.connect_timeout.saturating_mul(u32::try_from(servers_tried).unwrap_or(u32::MAX));
        let client = match timeout(limit, connecting).await {
            Ok(Ok(client)) => client,
            Ok(Err(Failed::Leaving(error))) => {
                return Err(PublishError::outage(format!("the connection to {shown} was lost at once: {error}")));
            }
            Ok(Err(Failed::Connecting(error))) => return Err(unwelcome(&error, &shown, options.demands_tls())),
            Err(_) => return Err(PublishError::outage(format!("no answer from {shown} within {limit:?}"))),
        };
        let jetstream = ContextBuilder::new().timeout(options.ack_timeout).build(client.clone());
        Ok(Self { client, jetstream, inboxes: Inboxes::default(), lost, news, turn: Mutex::default() })
    }

    /// Whether it was lost, or left.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    pub(super) fn set_lost(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// Asks whether JetStream is there and works.
    pub(super) async fn check(&self, options: &NatsOptions) -> Result<(), PublishError> {
        let subject = match &options.expected_stream {
            None => "$JS.API.INFO".to_owned(),
            Some(stream) => format!("$JS.API.STREAM.INFO.{stream}"),
        };
        match self.ask(options, subject, Bytes::new()).await.map_err(PublishError::outage)? {
            Some(answer) => understood(&answer, options).map_err(PublishError::outage),
            // Who may not ask may publish all the same; the server is there.
            None => Ok(()),
        }
    }

    /// Whether there is a stream for the subject, whether it answers or not. Nothing without the right to ask.
    pub(super) async fn has_stream(&self, options: &NatsOptions, subject: &str) -> Result<Option<bool>, PublishError> {
        let wanted = serde_json::json!({ "subject": subject }).to_string();
        let answer = self.ask(options, "$JS.API.STREAM.NAMES".to_owned(), wanted.into()).await;
        let Some(answer) = answer.map_err(PublishError::outage)? else { return Ok(None) };
        match (&answer["error"], answer["streams"].as_array()) {
            (serde_json::Value::Null, streams) => Ok(Some(streams.is_some_and(|streams| !streams.is_empty()))),
            (error, _) => Err(PublishError::outage(format!("JetStream is not ready: {}", error["description"]))),
        }
    }

    /// What JetStream answers to a question, if we may ask it.
    async fn ask(
        &self,
        options: &NatsOptions,
        subject: String,
        question: Bytes,
    ) -> Result<Option<serde_json::Value>, String> {
        let (mut news, shown) = (self.news.subscribe(), address::shown(&options.url));
        let asking = async {
            // Their types for the answers know newer servers only.
            let answer = self.jetstream.client().request(subject, question).await;
            let answer = answer.map_err(|error| match error.kind() {
                RequestErrorKind::NoResponders => {
                    format!("JetStream is not enabled at {shown}; start the server with -js")
                }
                _ => format!("JetStream does not answer at {shown}: {error}"),
            })?;
            let read = serde_json::from_slice(&answer.payload);
            read.map(Some).map_err(|error| format!("{shown} answers something else than JetStream does: {error}"))
        };
        let word = async {
            loop {
                match news.recv().await {
                    Ok(News::Denied(subject)) if subject.starts_with("$JS.API.") => return Ok(None),
                    Ok(News::Denied(_)) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Ok(News::Lost) | Err(broadcast::error::RecvError::Closed) => {
                        return Err(format!("the connection to {shown} is lost"));
                    }
                }
            }
        };
        let answered = async {
            tokio::select! {
                answer = asking => answer,
                word = word => word,
            }
        };
        let late = |_| Err(format!("no answer from JetStream at {shown} within {CHECK:?}"));
        timeout(CHECK, answered).await.unwrap_or_else(late)
    }
}

/// Why there is no connection. A login that is refused stays so, and a file stays as it is, for as long as nobody changes them.
fn unwelcome(error: &ConnectError, shown: &str, demands_tls: bool) -> PublishError {
    let text = |hint: &str| format!("cannot connect to {shown}: {error}{hint}");
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation => PublishError::permanent(text(
            "; the server does not know the user, token or key, or its password is another",
        )),
        // Nothing was sent as yet: what we were to prove who we are with is of no use.
        ConnectErrorKind::Authentication => PublishError::permanent(text("; look at the seed, or at the credentials")),
        // A handshake that fails is of another kind.
        ConnectErrorKind::Tls => PublishError::permanent(text("; look at the files for TLS")),
        ConnectErrorKind::Io if demands_tls => {
            PublishError::outage(text("; there are files for TLS, so the server has to speak it"))
        }
        _ => PublishError::outage(text("")),
    }
}

/// Whether an answer is that of a JetStream that works.
fn understood(answer: &serde_json::Value, options: &NatsOptions) -> Result<(), String> {
    let shown = address::shown(&options.url);
    match (&answer["error"], &options.expected_stream) {
        (serde_json::Value::Null, _) => Ok(()),
        (error, Some(stream)) if error["err_code"] == ErrorCode::STREAM_NOT_FOUND.0 => {
            Err(format!("there is no stream {stream:?} at {shown}; make it, or expect another"))
        }
        (error, _) => Err(format!("JetStream at {shown} is not ready: {}", error["description"])),
    }
}
