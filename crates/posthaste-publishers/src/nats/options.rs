//! How to reach NATS, and how to publish there.

use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use async_nats::{ConnectOptions, ServerAddr};
use jiff::fmt::serde::unsigned_duration::friendly::compact;
use serde::{Deserialize, Serialize};

use super::sending::is_subject;
use crate::address;
use crate::options::{connection_setters, five_seconds};

/// How to reach NATS, and how to publish there.
///
/// What is serialised is without addresses, logins and secrets: it is to be shown.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NatsOptions {
    #[serde(skip_serializing)]
    pub(super) url: String,
    #[serde(default = "default_name")]
    pub(super) name: String,
    #[serde(skip_serializing)]
    user: Option<String>,
    #[serde(skip_serializing)]
    password: Option<String>,
    #[serde(skip_serializing)]
    token: Option<String>,
    #[serde(skip_serializing)]
    nkey_seed: Option<String>,
    #[serde(skip_serializing)]
    credentials_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    certificate_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    pub(super) expected_stream: Option<String>,
    #[serde(default = "default_max_in_flight")]
    pub(super) max_in_flight: usize,
    #[serde(default = "five_seconds", with = "compact::required")]
    pub(super) ack_timeout: Duration,
    #[serde(default = "five_seconds", with = "compact::required")]
    pub(super) connect_timeout: Duration,
    #[serde(default)]
    pub(super) lazy: bool,
}

fn default_name() -> String {
    "nats".to_owned()
}

fn default_max_in_flight() -> usize {
    4096
}

impl NatsOptions {
    /// The server at that address, such as `nats://127.0.0.1:4222`, or `tls://…`; several of a cluster are separated by commas.
    /// User and password are not part of it.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            name: default_name(),
            user: None,
            password: None,
            token: None,
            nkey_seed: None,
            credentials_file: None,
            ca_file: None,
            certificate_file: None,
            key_file: None,
            expected_stream: None,
            max_in_flight: default_max_in_flight(),
            ack_timeout: five_seconds(),
            connect_timeout: five_seconds(),
            lazy: false,
        }
    }

    /// Sets user and password.
    #[must_use]
    pub fn user_and_password(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        (self.user, self.password) = (Some(user.into()), Some(password.into()));
        self
    }

    /// Sets a token instead of a user.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Sets the seed of an nkey.
    #[must_use]
    pub fn nkey_seed(mut self, seed: impl Into<String>) -> Self {
        self.nkey_seed = Some(seed.into());
        self
    }

    /// Sets a file with credentials, as `nsc` makes it: a JWT and its seed.
    #[must_use]
    pub fn credentials_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.credentials_file = Some(path.into());
        self
    }

    /// Sets a file with certificates of authorities to trust beside those of the system, and demands TLS.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Sets the files of a certificate to show to the server, and of its key. The connection has to be encrypted then.
    #[must_use]
    pub fn client_certificate(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        (self.certificate_file, self.key_file) = (Some(certificate.into()), Some(key.into()));
        self
    }

    /// Sets the stream that has to store the events: another refuses them. Default: whichever listens to the subject.
    #[must_use]
    pub fn expected_stream(mut self, stream: impl Into<String>) -> Self {
        self.expected_stream = Some(stream.into());
        self
    }

    /// Sets how many messages wait for their acknowledgement at once, over all batches. Default 4096.
    #[must_use]
    pub fn max_in_flight(mut self, messages: usize) -> Self {
        self.max_in_flight = messages;
        self
    }

    connection_setters!(
        name: "nats",
        ack_timeout: "to wait when no further acknowledgement comes",
        connect: "Nats::connect"
    );

    /// The servers, if the options go together.
    pub(super) fn servers(&self) -> Result<Vec<ServerAddr>, String> {
        if self.password.is_some() && self.user.is_none() {
            return Err("there is a password for NATS, but no user; set both, or a token".to_owned());
        }
        if self.expected_stream.as_deref().is_some_and(|stream| !is_subject(stream) || stream.contains('.')) {
            return Err(format!(
                "{:?} is no name of a stream of NATS",
                self.expected_stream.as_deref().unwrap_or_default()
            ));
        }
        if self.certificate_file.is_some() != self.key_file.is_some() {
            return Err("certificate_file and key_file for NATS belong together; set both".to_owned());
        }
        let server = |url: &str| {
            let address: ServerAddr = url
                .trim()
                .parse()
                .map_err(|error| format!("{:?} is no address of NATS: {error}", address::shown(url)))?;
            if address.has_user_pass() {
                return Err(format!(
                    "the address {} has a user in it; set user and password, or token, beside it",
                    address::shown(url)
                ));
            }
            Ok(address)
        };
        self.url.split(',').map(server).collect()
    }

    /// Whether there is something that would be of no use without TLS.
    pub(super) fn demands_tls(&self) -> bool {
        self.ca_file.is_some() || self.certificate_file.is_some()
    }

    pub(super) async fn connect_options(&self) -> Result<ConnectOptions, String> {
        let mut options = ConnectOptions::new().name(&self.name).connection_timeout(self.connect_timeout);
        if let Some(user) = &self.user {
            options = options.user_and_password(user.clone(), self.password.clone().unwrap_or_default());
        }
        if let Some(token) = &self.token {
            options = options.token(token.clone());
        }
        if let Some(seed) = &self.nkey_seed {
            options = options.nkey(seed.clone());
        }
        if let Some(path) = &self.credentials_file {
            let unread = |error| format!("the credentials in {} cannot be read: {error}", path.display());
            options = options.credentials_file(path).await.map_err(unread)?;
        }
        // Their own error does not say which.
        for path in [&self.ca_file, &self.certificate_file, &self.key_file].into_iter().flatten() {
            File::open(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
        }
        if let Some(path) = &self.ca_file {
            options = options.add_root_certificates(path.clone()).require_tls(true);
        }
        if let (Some(certificate), Some(key)) = (&self.certificate_file, &self.key_file) {
            // Without TLS nobody would ask for it.
            options = options.add_client_certificate(certificate.clone(), key.clone()).require_tls(true);
        }
        Ok(options)
    }
}

impl fmt::Debug for NatsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("NatsOptions");
        debug.field("url", &address::shown(&self.url)).field("name", &self.name).field("user", &self.user);
        debug.field("expected_stream", &self.expected_stream).field("max_in_flight", &self.max_in_flight);
        debug.field("ack_timeout", &self.ack_timeout).field("connect_timeout", &self.connect_timeout);
        debug.field("lazy", &self.lazy).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_show_no_secrets() {
        let text = r#"{"url": "nats://127.0.0.1:4222", "user": "me", "password": "pass-word", "token": "to-ken",
            "nkey_seed": "se-ed", "expected_stream": "ORDERS", "ack_timeout": "200ms"}"#;
        let options: NatsOptions = serde_json::from_str(text).unwrap();
        assert_eq!((options.ack_timeout, options.max_in_flight), (Duration::from_millis(200), 4096));
        let shown = format!("{options:?}");
        assert!(shown.contains("ORDERS"), "{shown}");
        for secret in ["pass-word", "to-ken", "se-ed"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        let error = serde_json::from_str::<NatsOptions>(r#"{"url": "x", "pasword": "secret"}"#).unwrap_err();
        assert!(error.to_string().contains("unknown field `pasword`"), "{error}");
    }
}
