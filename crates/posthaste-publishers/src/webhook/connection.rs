//! Connections to an endpoint. Who sends over one also drives it.

use std::collections::BTreeMap;
use std::error::Error;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use std::vec;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Request, Response, Uri};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, lookup_host};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};
use tower_service::Service;

use super::address::{NotPublic, is_public};
use super::options::WebhookOptions;
use crate::tls;

/// How long a connection is kept that nobody uses.
const IDLE: Duration = Duration::from_secs(60);

/// How many connections that nobody uses are kept, to all endpoints together: there may be thousands of these.
const MOST_IDLE: usize = 256;

/// How often it is looked which of them are to be closed.
const LOOK: Duration = Duration::from_secs(10);

/// How often the system asks whether the other end is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// An error of whatever kind, with its causes.
pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// Connects to endpoints, with TLS or without. Goes nowhere by itself: no proxies of the environment.
pub(super) struct Connector {
    https: HttpsConnector<HttpConnector<Resolver>>,
    time_limit: Duration,
}

impl Connector {
    /// # Errors
    /// When the file of authorities cannot be read.
    pub(super) fn new(options: &WebhookOptions) -> Result<Self, BoxError> {
        let mut tls = tls::client_config(options.ca_file.as_deref(), None)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Who is not there has to be told from who has no answer.
        let time_limit = options.connect_timeout.min(options.time_limit * 3 / 4);
        let mut http = HttpConnector::new_with_resolver(Resolver { private_too: options.allow_private_addresses });
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_keepalive(Some(KEEP_ALIVE));
        http.set_connect_timeout(Some(time_limit));
        Ok(Self { https: HttpsConnector::from((http, tls)), time_limit })
    }

    /// Connects to the host of that URI. Nothing is sent yet, but what TLS takes.
    ///
    /// # Errors
    /// When nobody is there in time, or he cannot be trusted; [`NotPublic`] among the causes when he is where nothing may be sent.
    pub(super) async fn connect(&self, to: &Uri) -> Result<Connection, BoxError> {
        let mut https = self.https.clone();
        let connecting = async {
            poll_fn(|context| https.poll_ready(context)).await?;
            let (sender, driver) = http1::handshake(https.call(to.clone()).await?).await?;
            Ok(Connection { sender, driver: Some(Box::new(driver)), idle_since: Instant::now(), ticket: 0 })
        };
        let too_late = |_| format!("nobody has answered within {:?}", self.time_limit);
        timeout(self.time_limit, connecting).await.map_err(too_late)?
    }
}

/// Finds the addresses of a name, and leaves out those that are not public unless they are allowed.
///
/// The connection is made to what it gives, so that a name cannot lead elsewhere after it was looked at.
#[derive(Clone)]
struct Resolver {
    private_too: bool,
}

impl Service<Name> for Resolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let private_too = self.private_too;
        Box::pin(async move {
            let mut found = lookup_host((name.as_str(), 0)).await?.collect::<Vec<_>>();
            found.retain(|address| private_too || is_public(address.ip()));
            if found.is_empty() {
                return Err(NotPublic::new(name.as_str()).into());
            }
            Ok(found.into_iter())
        })
    }
}

type Driver = http1::Connection<MaybeHttpsStream<TokioIo<TcpStream>>, Full<Bytes>>;

/// A connection, over which one request after the other is sent.
///
/// It is not a task of its own, as is usual: to hand a request to one and to be woken by it for the answer costs about as much as
/// everything else. So nothing happens on it but while somebody waits for an answer, or looks whether it can be used again.
pub(super) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    /// Taken when it has ended. Large, and handed on with every request.
    driver: Option<Box<Driver>>,
    idle_since: Instant,
    /// What it is known by while nobody uses it.
    ticket: u64,
}

/// Why there is no answer.
struct Unanswered {
    error: hyper::Error,
    /// The request, if nothing of it was sent.
    unsent: Option<Request<Full<Bytes>>>,
}

impl Connection {
    /// Sends a request and waits for the head of its answer.
    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Unanswered> {
        let answer = self.sender.try_send_request(request);
        drive(&mut self.driver, answer).await.map_err(|mut failed| {
            let unsent = failed.take_message();
            Unanswered { error: failed.into_error(), unsent }
        })
    }

    /// The next piece of an answer, if there is one.
    pub(super) async fn piece(&mut self, body: &mut Incoming) -> hyper::Result<Option<Bytes>> {
        while let Some(frame) = drive(&mut self.driver, body.frame()).await {
            // It may be trailers, in which nothing of interest is.
            if let Ok(piece) = frame?.into_data() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }

    /// Whether another request can be sent.
    fn is_ready(&self) -> bool {
        self.driver.is_some() && self.sender.is_ready()
    }

    /// Waits until all of the request is sent: who has answered before that may go on reading.
    pub(super) async fn finish(&mut self) {
        if self.driver.is_some() && !self.sender.is_ready() {
            // What goes wrong now is no news: there is an answer.
            let _ = drive(&mut self.driver, self.sender.ready()).await;
        }
    }

    /// Looks what has happened on it, without waiting: the other end may have left.
    async fn look(&mut self) {
        drive(&mut self.driver, async {}).await;
    }
}

/// How one who sends request after request to an endpoint reaches it.
pub(super) struct Line<'a> {
    connector: &'a Connector,
    idle: &'a Idle,
    /// Stays at hand between two requests.
    connection: Option<Connection>,
}

/// Why a request has no answer.
pub(super) enum Failure {
    /// There is no connection.
    Away(BoxError),
    /// It may have arrived.
    Broken(hyper::Error),
}

impl<'a> Line<'a> {
    pub(super) fn new(connector: &'a Connector, idle: &'a Idle) -> Self {
        Self { connector, idle, connection: None }
    }

    /// Sends a request, over a connection that is there or a new one. Gives the head of the answer, and where the rest comes from:
    /// that is to be [handed back](Line::hand_back) when all was read.
    pub(super) async fn send(
        &mut self,
        to: &Uri,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(Response<Incoming>, Connection), Failure> {
        loop {
            let known = match self.connection.take() {
                None => self.idle.take().await,
                at_hand => at_hand,
            };
            let is_new = known.is_none();
            let mut connection = match known {
                Some(connection) => connection,
                None => self.connector.connect(to).await.map_err(Failure::Away)?,
            };
            match connection.send(request).await {
                Ok(answer) => return Ok((answer, connection)),
                // The other end had left, and nobody has seen it yet.
                Err(Unanswered { unsent: Some(unsent), .. }) if !is_new => request = unsent,
                Err(Unanswered { error, .. }) => return Err(Failure::Broken(error)),
            }
        }
    }

    /// Keeps a connection at hand, if another request can be sent over it.
    pub(super) async fn hand_back(&mut self, mut connection: Connection) {
        if !connection.is_ready() {
            connection.look().await;
        }
        self.connection = Some(connection).filter(Connection::is_ready);
    }

    /// Leaves the connection at hand to others.
    pub(super) fn leave(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.idle.keep(connection);
        }
    }
}

/// Waits for something that comes over the connection.
async fn drive<T>(driver: &mut Option<Box<Driver>>, awaited: impl Future<Output = T>) -> T {
    let mut awaited = pin!(awaited);
    poll_fn(|context| {
        // First, so that what it brings is seen at once. What it fails with is told to who waits for an answer.
        if driver.as_mut().is_some_and(|driver| Pin::new(&mut **driver).poll(context).is_ready()) {
            *driver = None;
        }
        awaited.as_mut().poll(context)
    })
    .await
}

/// Connections to one endpoint that nobody uses just now.
pub(super) struct Idle {
    kept: Arc<Mutex<Kept>>,
    everywhere: Arc<IdleEverywhere>,
}

#[derive(Default)]
struct Kept {
    /// The last one is the one that was used last.
    connections: Vec<Connection>,
    /// Who closes those that nobody uses for too long.
    closer: Option<AbortHandle>,
}

/// Which connections nobody uses, to all endpoints. Whoever has the lock of an endpoint's may ask, and not the other way round.
#[derive(Default)]
pub(super) struct IdleEverywhere(Mutex<Known>);

#[derive(Default)]
struct Known {
    last: u64,
    /// By ticket, so that the first is the one that nobody has used for the longest time.
    kept_by: BTreeMap<u64, Weak<Mutex<Kept>>>,
}

impl IdleEverywhere {
    /// Notes one more, kept there. Closes those that are too many.
    fn add(&self, kept: &Arc<Mutex<Kept>>) -> u64 {
        let mut known = lock(&self.0);
        known.last += 1;
        let ticket = known.last;
        known.kept_by.insert(ticket, Arc::downgrade(kept));
        let too_many = known.kept_by.len().saturating_sub(MOST_IDLE);
        let oldest: Vec<_> = (0..too_many).filter_map(|_| known.kept_by.pop_first()).collect();
        drop(known);
        for (ticket, kept) in oldest {
            if let Some(kept) = kept.upgrade() {
                let closed = lock(&kept).connections.extract_if(.., |connection| connection.ticket == ticket).next();
                // Not under the lock.
                drop(closed);
            }
        }
        ticket
    }

    fn remove(&self, ticket: u64) {
        lock(&self.0).kept_by.remove(&ticket);
    }

    fn has(&self, ticket: u64) -> bool {
        lock(&self.0).kept_by.contains_key(&ticket)
    }
}

impl Idle {
    pub(super) fn new(everywhere: &Arc<IdleEverywhere>) -> Self {
        Self { kept: Arc::default(), everywhere: Arc::clone(everywhere) }
    }

    /// One that can be used. Those that the other end has left are closed.
    pub(super) async fn take(&self) -> Option<Connection> {
        loop {
            let mut connection = lock(&self.kept).connections.pop()?;
            self.everywhere.remove(connection.ticket);
            connection.look().await;
            if connection.is_ready() && connection.idle_since.elapsed() < IDLE {
                return Some(connection);
            }
        }
    }

    /// Keeps one for the next who sends, if it can be used again.
    pub(super) fn keep(&self, mut connection: Connection) {
        if !connection.is_ready() {
            return;
        }
        connection.idle_since = Instant::now();
        connection.ticket = self.everywhere.add(&self.kept);
        let mut kept = lock(&self.kept);
        kept.connections.push(connection);
        if kept.closer.as_ref().is_none_or(AbortHandle::is_finished) {
            let closing = close_unused(Arc::downgrade(&self.kept), Arc::clone(&self.everywhere));
            kept.closer = Some(tokio::spawn(closing).abort_handle());
        }
    }
}

/// Closes connections that nobody uses, or that the other end has left, until there are none.
async fn close_unused(idle: Weak<Mutex<Kept>>, everywhere: Arc<IdleEverywhere>) {
    loop {
        sleep(LOOK).await;
        let Some(idle) = idle.upgrade() else { return };
        let mut known = std::mem::take(&mut lock(&idle).connections);
        for connection in &mut known {
            connection.look().await;
        }
        let (mut known, closed): (Vec<_>, Vec<_>) =
            known.into_iter().partition(|connection| connection.is_ready() && connection.idle_since.elapsed() < IDLE);
        closed.iter().for_each(|connection| everywhere.remove(connection.ticket));
        let mut kept = lock(&idle);
        // Some may have been too many while they were looked at.
        known.retain(|connection| everywhere.has(connection.ticket));
        // Those that came meanwhile were used last.
        known.append(&mut kept.connections);
        kept.connections = known;
        if kept.connections.is_empty() {
            kept.closer = None;
            return;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
