//! How to send webhooks.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use jiff::fmt::serde::unsigned_duration::friendly::compact;
use serde::{Deserialize, Serialize};

/// How to send webhooks.
///
/// ```
/// use posthaste_publishers::webhook::WebhookOptions;
///
/// let options = WebhookOptions::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").concurrency(4);
/// assert!(!format!("{options:?}").contains("MfKQ9r8"));
/// ```
///
/// What is serialised is without addresses, logins and secrets: it is to be shown.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookOptions {
    #[serde(default, skip_serializing)]
    pub(super) secrets: Vec<String>,
    #[serde(default, skip_serializing)]
    pub(super) secrets_for: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    pub(super) derive_secrets: bool,
    #[serde(default)]
    pub(super) allow_shared_secret: bool,
    #[serde(default)]
    unsigned: bool,
    #[serde(default = "default_name")]
    pub(super) name: String,
    #[serde(default = "time_limit", with = "compact::required")]
    pub(super) time_limit: Duration,
    #[serde(default = "connect_timeout", with = "compact::required")]
    pub(super) connect_timeout: Duration,
    #[serde(default = "concurrency")]
    pub(super) concurrency: usize,
    #[serde(default = "gone_pause", with = "compact::required")]
    pub(super) gone_pause: Duration,
    #[serde(default = "patience", with = "compact::required")]
    pub(super) patience: Duration,
    #[serde(default)]
    pub(super) allow_credentials: bool,
    #[serde(default)]
    pub(super) allow_private_addresses: bool,
    #[serde(default)]
    pub(super) allow_http: bool,
    #[serde(default)]
    pub(super) ca_file: Option<PathBuf>,
}

fn default_name() -> String {
    "webhook".to_owned()
}

fn time_limit() -> Duration {
    Duration::from_secs(10)
}

fn connect_timeout() -> Duration {
    Duration::from_secs(5)
}

fn concurrency() -> usize {
    8
}

fn gone_pause() -> Duration {
    Duration::from_secs(600)
}

fn patience() -> Duration {
    Duration::from_secs(24 * 60 * 60)
}

impl WebhookOptions {
    /// Webhooks that are signed with a secret: base64 of 24 bytes at least, with `whsec_` before it or without.
    pub fn new(secret: impl Into<String>) -> Self {
        Self::unsigned().secret(secret)
    }

    /// Webhooks that nobody can tell from those of others. For receivers that know the sender by something else. In a file it takes
    /// `unsigned = true`, so that a secret that is missing there is noticed.
    pub fn unsigned() -> Self {
        Self {
            secrets: Vec::new(),
            secrets_for: BTreeMap::new(),
            derive_secrets: false,
            allow_shared_secret: false,
            unsigned: true,
            name: default_name(),
            time_limit: time_limit(),
            connect_timeout: connect_timeout(),
            concurrency: concurrency(),
            gone_pause: gone_pause(),
            patience: patience(),
            allow_credentials: false,
            allow_private_addresses: false,
            allow_http: false,
            ca_file: None,
        }
    }

    /// Signs with this secret as well, so that receivers can change over to it before the other is taken away.
    #[must_use]
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        self.secrets.push(secret.into());
        self.unsigned = false;
        self
    }

    /// Signs what goes to one endpoint with this secret, and with no other but those that are given here for the same one. It is
    /// known by its scheme, its host and, if that is not the usual one, its port: `https://partner.example`. In a file these are
    /// lists: `secrets_for = { "https://partner.example" = ["whsec_…"] }`.
    ///
    /// What goes to endpoints that have none here is signed with the secrets of all; if there are none, it is not sent.
    #[must_use]
    pub fn secret_for(mut self, origin: impl Into<String>, secret: impl Into<String>) -> Self {
        self.secrets_for.entry(origin.into()).or_default().push(secret.into());
        self.unsigned = false;
        self
    }

    /// Sets whether each endpoint has a secret of its own that is made of the secrets of all: the HMAC-SHA256 of its scheme, host
    /// and port, with such a secret as the key. Default false. What to tell a receiver is said by
    /// [`Webhook::secrets_of`](super::Webhook::secrets_of); the secrets that are given here are told to nobody then.
    #[must_use]
    pub fn derive_secrets(mut self, derive: bool) -> Self {
        self.derive_secrets = derive;
        self
    }

    /// Sets whether the same secret may sign what goes to endpoints that events choose. Default false: whoever receives such a
    /// webhook knows the secret of all others, and could send them whatever he likes in your name. Right where all of them are in
    /// one hand.
    #[must_use]
    pub fn allow_shared_secret(mut self, allow: bool) -> Self {
        self.allow_shared_secret = allow;
        self
    }

    /// Sets what it is called in logs and metrics. Default `webhook`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets how long one request may take. Default 10 s.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Sets how long connecting may take. Default 5 s.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Sets how many requests an endpoint gets at once, from this process; 0 counts as 1. Default 8.
    #[must_use]
    pub fn concurrency(mut self, requests: usize) -> Self {
        self.concurrency = requests;
        self
    }

    /// Sets how often events look whether a URL that answered 410 is used again. Default 10 min.
    #[must_use]
    pub fn gone_pause(mut self, pause: Duration) -> Self {
        self.gone_pause = pause;
        self
    }

    /// Sets how long an endpoint that events choose may be away before those that were tried use up attempts. Default 24 h: an outage
    /// is over by then, and a name that was mistyped is not. Where the URL is the same for all events there is no such limit.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets whether the headers `authorization` and `cookie` of events are sent. Default false: who writes events could otherwise use
    /// what this process may reach with keys of their own, and replace a user in the URL.
    #[must_use]
    pub fn allow_credentials(mut self, allow: bool) -> Self {
        self.allow_credentials = allow;
        self
    }

    /// Sets whether hosts may be reached that are not on the public internet. Default false: a URL that somebody else chose could
    /// otherwise lead into your own network.
    #[must_use]
    pub fn allow_private_addresses(mut self, allow: bool) -> Self {
        self.allow_private_addresses = allow;
        self
    }

    /// Sets whether URLs may begin with `http://`. Default false: everybody on the way could read along.
    #[must_use]
    pub fn allow_http(mut self, allow: bool) -> Self {
        self.allow_http = allow;
        self
    }

    /// Trusts the authorities in that file of PEM, beside those that browsers trust.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Whether webhooks have signatures.
    pub(super) fn is_signed(&self) -> bool {
        !self.secrets.is_empty() || !self.secrets_for.is_empty()
    }

    /// Whether webhooks are signed, or are meant not to be.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        match (self.secrets.is_empty(), self.secrets_for.is_empty(), self.unsigned) {
            (true, true, false) => {
                Err("webhooks have no secret to be signed with; give one in secrets, or say unsigned = true")
            }
            (false, _, true) | (_, false, true) => {
                Err("webhooks have secrets and unsigned = true; leave one of them out")
            }
            (true, ..) if self.derive_secrets => {
                Err("derive_secrets makes the secret of each endpoint of those in secrets, and there is none; give one")
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for WebhookOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("WebhookOptions");
        debug.field("secrets", &self.secrets.len()).field("secrets_for", &self.secrets_for.keys());
        debug
            .field("derive_secrets", &self.derive_secrets)
            .field("name", &self.name)
            .field("time_limit", &self.time_limit);
        debug.field("concurrency", &self.concurrency).field("allow_private_addresses", &self.allow_private_addresses);
        debug.field("allow_http", &self.allow_http).finish_non_exhaustive()
    }
}
