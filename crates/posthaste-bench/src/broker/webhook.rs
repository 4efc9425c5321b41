//! Webhooks, to a receiver that does nothing but count. It runs in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, ensure};
use posthaste_core::EventId;
use posthaste_publishers::webhook::{Webhook, WebhookOptions};
use posthaste_publishers::{Destination, Message};
use reqwest::Client;
use reqwest::header::CONTENT_TYPE;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::{Broker, at_once, batches, versions};

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
    // Ends when it is dropped.
    _tasks: JoinSet<()>,
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
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let (counts, mut tasks) = (Counts::default(), JoinSet::new());
        tasks.spawn(receive(listener, counts.clone()));
        Ok(Self { publisher, bare, url, counts, _tasks: tasks })
    }
}

impl Broker for Receiver {
    type Publisher = Webhook;

    fn description(&self) -> String {
        format!(
            "webhooks to a receiver in this process that only counts, over HTTP/1.1 without TLS; {}",
            versions::of("reqwest")
        )
    }

    fn publisher(&self) -> &Webhook {
        &self.publisher
    }

    async fn fresh(&self) -> anyhow::Result<String> {
        Ok(EventId::generate().to_string())
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
        let mut request = client.post(&message.to).header(CONTENT_TYPE, message.content_type.as_ref());
        request = request.header("webhook-id", message.id.as_str());
        for (name, value) in &message.headers {
            request = request.header(name.as_ref(), value);
        }
        request.body(message.body).send().await?.error_for_status()?.bytes().await?;
    }
    Ok(())
}

/// Answers every request with 204.
async fn receive(listener: TcpListener, counts: Counts) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let counts = counts.clone();
        // A connection ends in whatever way; who sent something and got no answer says so.
        connections.spawn(async move { answer(stream, &counts).await.ok() });
    }
}

async fn answer(stream: TcpStream, counts: &Counts) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::with_capacity(16 * 1024, stream);
    loop {
        let mut head = Vec::with_capacity(1024);
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        let head = String::from_utf8(head)?;
        let path = head.split(' ').nth(1).context("no path")?.trim_start_matches('/').to_owned();
        let length = head.lines().filter_map(|line| line.split_once(':')).find_map(|(name, value)| {
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>())
        });
        let mut body = vec![0; length.context("no content-length")??];
        stream.read_exact(&mut body).await?;
        ensure!(!body.is_empty(), "no body");
        *counts.lock().entry(path).or_default() += 1;
        stream.get_mut().write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await?;
    }
}
