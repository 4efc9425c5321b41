//! Webhooks, to a receiver that does nothing but count. It is a server of hyper, in a thread of its own.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, ensure};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use posthaste_core::EventId;
use posthaste_publishers::webhook::{Webhook, WebhookOptions};
use posthaste_publishers::{Destination, Message};
use reqwest::Client;
use reqwest::header::CONTENT_TYPE;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::{Broker, at_once, batches};
use crate::versions;

/// Requests at once in the loop by hand: as many as the publisher makes by default.
const AT_ONCE: usize = 8;

/// Messages that one of them takes at a time.
const SHARE: usize = 100;

/// For signatures, which the publisher always makes.
const SECRET: &str = "whsec_cG9zdGhhc3RlLWJlbmNoLXBvc3RoYXN0ZS1iZW5jaA==";

pub(crate) struct Receiver {
    publisher: Webhook,
    bare: Client,
    url: String,
    counts: Counts,
    // The receiver ends when it is dropped.
    _stop: oneshot::Sender<()>,
}

/// Requests by the last part of their path.
#[derive(Clone, Default)]
struct Counts(Arc<Mutex<HashMap<String, u64>>>);

impl Counts {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Receiver {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let options = WebhookOptions::new(SECRET).allow_private_addresses(true).allow_http(true);
        let publisher = Webhook::new(options)?;
        // It makes ready for TLS, which nobody speaks here.
        rustls::crypto::ring::default_provider().install_default().ok();
        let bare = Client::builder().http1_only().no_proxy().pool_max_idle_per_host(AT_ONCE).build()?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", listener.local_addr()?);
        let (counts, (stop, stopped)) = (Counts::default(), oneshot::channel());
        let receiving = counts.clone();
        // Neither contestant has it among its own tasks.
        thread::Builder::new().name("receiver".to_owned()).spawn(move || receive(listener, &receiving, stopped))?;
        Ok(Self { publisher, bare, url, counts, _stop: stop })
    }
}

impl Broker for Receiver {
    type Publisher = Webhook;

    fn description(&self) -> String {
        format!(
            "webhooks to a receiver that only counts, in a thread of its own, over HTTP/1.1 without TLS; {}, {}",
            versions::of("reqwest"),
            versions::of("hyper")
        )
    }

    fn publisher(&self) -> &Webhook {
        &self.publisher
    }

    async fn fresh(&self) -> anyhow::Result<String> {
        let path = EventId::generate().to_string();
        self.counts.lock().insert(path.clone(), 0);
        Ok(path)
    }

    fn address(&self, path: &str) -> String {
        format!("{}/{path}", self.url)
    }

    fn destination(&self, path: &str) -> Destination<Webhook> {
        self.publisher.url(&self.address(path))
    }

    async fn publish_by_hand(&self, messages: Vec<Message>) -> anyhow::Result<()> {
        let bare = self.bare.clone();
        at_once(AT_ONCE, batches(messages, SHARE), move |messages| post(bare.clone(), messages)).await
    }

    async fn count(&self, path: &str, _: u64) -> anyhow::Result<u64> {
        Ok(self.counts.lock().get(path).copied().unwrap_or_default())
    }

    async fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.counts.lock().remove(path);
        Ok(())
    }
}

async fn post(client: Client, messages: Vec<Message>) -> anyhow::Result<()> {
    for message in messages {
        let mut request = client.post(message.to.as_str()).header(CONTENT_TYPE, message.content_type.as_ref());
        request = request.header("webhook-id", message.id.as_str());
        for (name, value) in message.headers.iter() {
            request = request.header(name, value);
        }
        request.body(message.body.into_bytes()).send().await?.error_for_status()?.bytes().await?;
    }
    Ok(())
}

/// Answers every request with 204.
fn receive(listener: TcpListener, counts: &Counts, stopped: oneshot::Receiver<()>) -> anyhow::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (mut connections, mut stopped) = (JoinSet::new(), pin!(stopped));
        loop {
            let (stream, _) = tokio::select! {
                accepted = listener.accept() => accepted?,
                _ = &mut stopped => return Ok(()),
            };
            stream.set_nodelay(true)?;
            let counts = counts.clone();
            connections.spawn(async move {
                let answer = service_fn(|request| answer(request, &counts));
                // A connection ends in whatever way; who sent something and got no answer says so.
                http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await.ok();
            });
        }
    })
}

async fn answer(request: Request<Incoming>, counts: &Counts) -> anyhow::Result<Response<String>> {
    let (head, body) = request.into_parts();
    let (mut body, mut bytes) = (pin!(body), 0);
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        bytes += frame?.data_ref().map_or(0, hyper::body::Bytes::len);
    }
    ensure!(bytes > 0, "no body");
    *counts.lock().get_mut(head.uri.path().trim_start_matches('/')).context("no such path")? += 1;
    let mut response = Response::new(String::new());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}
