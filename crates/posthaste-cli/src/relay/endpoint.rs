//! Where a relay answers questions about itself: `/healthz`, `/readyz` and `/metrics`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use subtle::ConstantTimeEq;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::condition::Condition;
use super::recorder::Recorder;
use crate::exit::{Failed, Status};
use crate::settings::Http;

/// How many may ask at once. Of more, those that came first and do not say what they want are cut off.
const AT_ONCE: usize = 32;

/// How long one question may take, with its answer.
const LONGEST: Duration = Duration::from_secs(10);

/// How long a request may take to say what it wants.
const HEADERS: Duration = Duration::from_secs(5);

/// How long to wait when the system has no connection left.
const PAUSE: Duration = Duration::from_millis(100);

/// What answers, until it is dropped.
pub(super) struct Endpoint(JoinHandle<()>);

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Endpoint {
    /// Listens, and answers from now on.
    pub(super) async fn open(
        settings: &Http,
        address: SocketAddr,
        condition: Arc<Condition>,
        recorder: Arc<Recorder>,
    ) -> Result<Self, Failed> {
        let listener = TcpListener::bind(address).await.map_err(|error| refused(address, &error))?;
        let address = listener.local_addr()?;
        info!(%address, token = settings.token.is_some(), "answering /healthz, /readyz and /metrics");
        let answering = Arc::new(Answering { token: settings.token.clone(), condition, recorder });
        Ok(Self(tokio::spawn(accept(listener, answering))))
    }
}

fn refused(address: SocketAddr, error: &std::io::Error) -> Failed {
    let advice = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "somebody listens there already, maybe another relay: give each its own with http.listen \
             (POSTHASTE_HTTP_LISTEN), port 0 for any that is free, or \"off\""
        }
        _ => "choose another with http.listen, or \"off\"",
    };
    Failed::new(Status::Listen, format!("http.listen: {address} cannot be listened on: {error}; {advice}"))
}

async fn accept(listener: TcpListener, answering: Arc<Answering>) {
    let (mut tasks, mut open) = (JoinSet::new(), VecDeque::<Open>::new());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                while tasks.try_join_next().is_some() {}
                open.retain(|one| !one.task.is_finished());
                make_room(&mut open);
                let (answering, has_asked) = (Arc::clone(&answering), Arc::new(AtomicBool::new(false)));
                let asked = Arc::clone(&has_asked);
                let task = tasks.spawn(async move {
                    if timeout(LONGEST, answering.answer_on(stream, &asked)).await.is_err() {
                        debug!("a question took too long, and was cut off");
                    }
                });
                open.push_back(Open { task, has_asked });
            }
            Err(error) => {
                warn!(%error, "a connection could not be taken");
                sleep(PAUSE).await;
            }
        }
    }
}

/// A connection, oldest first among others.
struct Open {
    task: AbortHandle,
    /// Whether its question is there.
    has_asked: Arc<AtomicBool>,
}

/// Whoever comes is answered at once: one of many that came before has to go, rather one that does not say what it wants.
fn make_room(open: &mut VecDeque<Open>) {
    while open.len() >= AT_ONCE {
        let silent = open.iter().position(|one| !one.has_asked.load(Ordering::Acquire));
        if let Some(one) = open.remove(silent.unwrap_or(0)) {
            debug!("a connection was cut off for others: there are too many");
            one.task.abort();
        }
    }
}

struct Answering {
    token: Option<String>,
    condition: Arc<Condition>,
    recorder: Arc<Recorder>,
}

impl Answering {
    /// One question for each connection: whoever asks does so every few seconds.
    async fn answer_on(&self, stream: TcpStream, has_asked: &AtomicBool) {
        let answer = service_fn(async move |request: Request<Incoming>| {
            has_asked.store(true, Ordering::Release);
            Ok::<_, Infallible>(self.answer(&request).await)
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEADERS).keep_alive(false);
        if let Err(error) = http.serve_connection(TokioIo::new(stream), answer).await {
            debug!(%error, "a question could not be answered");
        }
    }

    async fn answer<B>(&self, request: &Request<B>) -> Response<String> {
        if !self.lets_in(request.headers().get(AUTHORIZATION)) {
            let mut response = plain(StatusCode::UNAUTHORIZED, "a token is needed: Authorization: Bearer …");
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return response;
        }
        let path = request.uri().path();
        if !["/healthz", "/readyz", "/metrics"].contains(&path) {
            return plain(StatusCode::NOT_FOUND, "there are /healthz, /readyz and /metrics");
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "this can only be asked with GET");
        }
        match path {
            "/healthz" => plain(StatusCode::OK, "ok"),
            "/readyz" => match self.condition.ready().await {
                Ok(()) => plain(StatusCode::OK, "ready"),
                Err(reason) => plain(StatusCode::SERVICE_UNAVAILABLE, &reason),
            },
            _ => {
                self.condition.asked_for_metrics().await;
                let mut response = Response::new(self.recorder.render());
                let of_prometheus = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
                response.headers_mut().insert(CONTENT_TYPE, of_prometheus);
                response
            }
        }
    }

    /// Compared in a time that says nothing of how much of it was right.
    fn lets_in(&self, authorization: Option<&HeaderValue>) -> bool {
        let Some(token) = &self.token else { return true };
        let brought = authorization.and_then(|value| value.as_bytes().split_at_checked("Bearer ".len()));
        brought.is_some_and(|(scheme, brought)| {
            scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(brought.ct_eq(token.as_bytes()))
        })
    }
}

fn plain(status: StatusCode, text: &str) -> Response<String> {
    let mut response = Response::new(format!("{text}\n"));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
