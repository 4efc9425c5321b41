//! How to reach Redis, and how to add to streams there.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use ::redis::{Client, IntoConnectionInfo, RedisError};
use jiff::fmt::serde::unsigned_duration::friendly::compact;
use serde::{Deserialize, Serialize};

use crate::address;
use crate::options::{connection_setters, five_seconds};

/// How to reach Redis, and how to add to streams there.
///
/// What is serialised is without addresses, logins and secrets: it is to be shown.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedisOptions {
    #[serde(skip_serializing)]
    pub(super) url: String,
    #[serde(default = "default_name")]
    pub(super) name: String,
    #[serde(skip_serializing)]
    user: Option<String>,
    #[serde(skip_serializing)]
    password: Option<String>,
    ca_file: Option<PathBuf>,
    pub(super) max_len: Option<u64>,
    #[serde(default = "default_create_streams")]
    pub(super) create_streams: bool,
    #[serde(default = "default_max_payload")]
    pub(super) max_payload: usize,
    #[serde(default = "five_seconds", with = "compact::required")]
    pub(super) ack_timeout: Duration,
    #[serde(default = "five_seconds", with = "compact::required")]
    pub(super) connect_timeout: Duration,
    #[serde(default)]
    pub(super) lazy: bool,
}

fn default_name() -> String {
    "redis".to_owned()
}

fn default_create_streams() -> bool {
    true
}

fn default_max_payload() -> usize {
    512 << 20
}

impl RedisOptions {
    /// The server at that address, such as `redis://127.0.0.1:6379/0`; `rediss://` is with TLS (feature `redis-tls`).
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            name: default_name(),
            user: None,
            password: None,
            ca_file: None,
            max_len: None,
            create_streams: default_create_streams(),
            max_payload: default_max_payload(),
            ack_timeout: five_seconds(),
            connect_timeout: five_seconds(),
            lazy: false,
        }
    }

    /// Sets the user. Default: that of the address, or the user called `default`.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Sets the password. Default: that of the address, if it has one.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Sets a file with certificates of authorities to trust instead of those of the system.
    #[cfg(feature = "redis-tls")]
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Sets about how many entries a stream keeps (`MAXLEN ~`); older ones are removed, read or not. Default: all.
    #[must_use]
    pub fn max_len(mut self, entries: u64) -> Self {
        self.max_len = Some(entries);
        self
    }

    /// Whether a stream that is not there is made. Default true, as Redis does it.
    #[must_use]
    pub fn create_streams(mut self, create: bool) -> Self {
        self.create_streams = create;
        self
    }

    /// Sets how many bytes a body may have. Default 512 MB, which is `proto-max-bulk-len` of the server unless that is set: it
    /// closes the connection when it gets more.
    #[must_use]
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = bytes;
        self
    }

    connection_setters!(name: "redis", ack_timeout: "one request may take", connect: "Redis::connect");

    pub(super) fn client(&self) -> Result<Client, String> {
        if cfg!(not(feature = "redis-tls")) && self.url.starts_with("rediss://") {
            return Err(format!("{} is with TLS: build with the feature redis-tls", address::shown(&self.url)));
        }
        let wrong = |error: RedisError| format!("{:?} is no address of Redis: {error}", address::shown(&self.url));
        let mut info = self.url.as_str().into_connection_info().map_err(wrong)?;
        let mut settings = info.redis_settings().clone();
        if let Some(user) = &self.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password);
        }
        info = info.set_redis_settings(settings);
        if self.ca_file.is_some() && !matches!(info.addr(), ::redis::ConnectionAddr::TcpTls { .. }) {
            let shown = address::shown(&self.url);
            return Err(format!("ca_file is for TLS, and {shown} is without; write rediss:// (feature redis-tls)"));
        }
        self.open(info)
    }

    #[cfg(feature = "redis-tls")]
    fn open(&self, info: ::redis::ConnectionInfo) -> Result<Client, String> {
        let failed = |error: RedisError| error.to_string();
        // With several implementations of cryptography in one program, there has to be a choice.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            rustls::crypto::ring::default_provider().install_default().ok();
        }
        let Some(path) = &self.ca_file else { return Client::open(info).map_err(failed) };
        let unread = |error| format!("the certificates in {} cannot be read: {error}", path.display());
        let root_cert = Some(std::fs::read(path).map_err(unread)?);
        Client::build_with_tls(info, ::redis::TlsCertificates { client_tls: None, root_cert }).map_err(failed)
    }

    #[cfg(not(feature = "redis-tls"))]
    fn open(&self, info: ::redis::ConnectionInfo) -> Result<Client, String> {
        if self.ca_file.is_some() {
            return Err("ca_file is for TLS: build with the feature redis-tls".to_owned());
        }
        Client::open(info).map_err(|error| error.to_string())
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("RedisOptions");
        debug.field("url", &address::shown(&self.url)).field("name", &self.name).field("user", &self.user);
        debug.field("ca_file", &self.ca_file).field("max_len", &self.max_len);
        debug.field("create_streams", &self.create_streams).field("max_payload", &self.max_payload);
        debug.field("ack_timeout", &self.ack_timeout).field("connect_timeout", &self.connect_timeout);
        debug.field("lazy", &self.lazy).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_show_no_secrets() {
        let text =
            r#"{"url": "redis://me:in-url@127.0.0.1", "password": "pass-word", "max_len": 1000, "ack_timeout": "2s"}"#;
        let options: RedisOptions = serde_json::from_str(text).unwrap();
        assert_eq!(
            (options.ack_timeout, options.max_len, options.create_streams),
            (Duration::from_secs(2), Some(1000), true)
        );
        let shown = format!("{options:?}");
        assert!(
            shown.contains("redis://…@127.0.0.1") && !shown.contains("in-url") && !shown.contains("pass-word"),
            "{shown}"
        );
        let error = serde_json::from_str::<RedisOptions>(r#"{"url": "x", "pasword": "secret"}"#).unwrap_err();
        assert!(error.to_string().contains("unknown field `pasword`"), "{error}");
    }
}
