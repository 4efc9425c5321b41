//! How to reach a broker, and how to publish there.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use jiff::fmt::serde::unsigned_duration::friendly::compact;
use serde::{Deserialize, Serialize};

use crate::address;
use crate::options::{connection_setters, five_seconds};

/// The most messages that are handed over and not acknowledged yet, also where the broker would take more. Their client writes all that
/// it was handed before it reads an answer, so that many large ones would be taken for silence.
pub(super) const WINDOW: u16 = 100;

/// How to reach a broker that speaks MQTT 5, and how to publish there.
///
/// What is serialised is without addresses, logins and secrets: it is to be shown.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MqttOptions {
    #[serde(skip_serializing)]
    pub(super) url: String,
    #[serde(default = "default_name")]
    pub(super) name: String,
    #[serde(skip_serializing)]
    client_id: Option<String>,
    #[serde(skip_serializing)]
    user: Option<String>,
    #[serde(skip_serializing)]
    password: Option<String>,
    ca_file: Option<PathBuf>,
    certificate_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    #[serde(default)]
    pub(super) exactly_once: bool,
    #[serde(default)]
    pub(super) retain: bool,
    #[serde(default)]
    pub(super) require_subscriber: bool,
    pub(super) max_payload: Option<usize>,
    #[serde(default = "five_seconds", with = "compact::required")]
    pub(super) ack_timeout: Duration,
    #[serde(default = "five_seconds", with = "compact::required")]
    pub(super) connect_timeout: Duration,
    #[serde(default)]
    pub(super) lazy: bool,
}

fn default_name() -> String {
    "mqtt".to_owned()
}

impl MqttOptions {
    /// The broker at that address, such as `mqtt://127.0.0.1:1883`, or `mqtts://…` with TLS (feature `mqtt-tls`). User and
    /// password are not part of it.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            name: default_name(),
            client_id: None,
            user: None,
            password: None,
            ca_file: None,
            certificate_file: None,
            key_file: None,
            exactly_once: false,
            retain: false,
            require_subscriber: false,
            max_payload: None,
            ack_timeout: five_seconds(),
            connect_timeout: five_seconds(),
            lazy: false,
        }
    }

    /// Sets the id of the client. Default: a random one. A broker ends the connection of another client with the same id, so
    /// every process needs its own.
    #[must_use]
    pub fn client_id(mut self, id: impl Into<String>) -> Self {
        self.client_id = Some(id.into());
        self
    }

    /// Sets user and password.
    #[must_use]
    pub fn user_and_password(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        (self.user, self.password) = (Some(user.into()), Some(password.into()));
        self
    }

    /// Sets a file with certificates of authorities to trust beside those that browsers trust.
    #[cfg(feature = "mqtt-tls")]
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Sets the files of a certificate to show to the broker, and of its key.
    #[cfg(feature = "mqtt-tls")]
    #[must_use]
    pub fn client_certificate(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        (self.certificate_file, self.key_file) = (Some(certificate.into()), Some(key.into()));
        self
    }

    /// Whether to publish with quality of service 2 instead of 1. Default false: it takes two round trips, and a message whose
    /// acknowledgement was lost is sent again all the same.
    #[must_use]
    pub fn exactly_once(mut self, exactly_once: bool) -> Self {
        self.exactly_once = exactly_once;
        self
    }

    /// Whether the broker keeps the last message of each topic for who subscribes later. Default false.
    #[must_use]
    pub fn retain(mut self, retain: bool) -> Self {
        self.retain = retain;
        self
    }

    /// Whether a message that nobody has subscribed to has failed, and is tried again. Default false. With quality of service 1
    /// only, and with brokers that say so, as Mosquitto does.
    #[must_use]
    pub fn require_subscriber(mut self, require: bool) -> Self {
        self.require_subscriber = require;
        self
    }

    /// Sets how many bytes a body may have. Default: what the broker says of packets when it accepts the connection. Some have
    /// another limit (`message_size_limit` of Mosquitto), and end the connection over it.
    #[must_use]
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = Some(bytes);
        self
    }

    connection_setters!(
        name: "mqtt",
        ack_timeout: "to wait when no further acknowledgement comes",
        connect: "Mqtt::connect"
    );

    /// What their client has to know, if the options go together.
    pub(super) fn client_options(&self) -> Result<rumqttc::MqttOptions, String> {
        if self.require_subscriber && self.exactly_once {
            let reason =
                "require_subscriber goes with quality of service 1 only: with 2 the client does not hear of it";
            return Err(reason.to_owned());
        }
        let shown = address::shown(&self.url);
        let (rest, port) = match self.url.split_once("://") {
            Some(("mqtt" | "tcp", rest)) => (rest, 1883),
            Some(("mqtts" | "ssl", rest)) => (rest, 8883),
            None => (self.url.as_str(), 1883),
            Some(_) => return Err(format!("{shown:?} is no address of MQTT: it begins with mqtt:// or mqtts://")),
        };
        if rest.contains('@') {
            return Err(format!("the address {shown} has a user in it; set user and password beside it"));
        }
        let (host, port) = match rest.trim_end_matches('/').rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => {
                // It may be a password, and the host forgotten.
                let no_port = |_| "what is behind the last colon of the address of MQTT is no port; it is such as mqtt://127.0.0.1:1883";
                (host, port.parse().map_err(no_port)?)
            }
            _ => (rest.trim_end_matches('/'), port),
        };
        if host.is_empty() || host.contains('/') {
            return Err(format!("{shown:?} is no address of MQTT, such as mqtt://127.0.0.1:1883"));
        }
        let id = self.client_id.clone().unwrap_or_else(|| format!("posthaste-{:016x}", fastrand::u64(..)));
        let mut options = rumqttc::MqttOptions::new(id, rumqttc::Broker::tcp(host.trim_matches(['[', ']']), port));
        options.set_clean_start(true).set_connect_timeout(self.connect_timeout);
        // What is handed over together is written together; by default each message is a write of its own.
        options.set_request_channel_capacity(usize::from(WINDOW)).set_max_request_batch(usize::from(WINDOW));
        let mut network = options.network_options();
        network.set_tcp_nodelay(true);
        options.set_network_options(network);
        match (&self.user, &self.password) {
            (Some(user), Some(password)) => {
                options.set_credentials(user, password.clone());
            }
            (Some(user), None) => {
                options.set_username(user);
            }
            (None, Some(_)) => return Err("there is a password for MQTT, but no user; set both".to_owned()),
            (None, None) => {}
        }
        options.validate().map_err(|error| error.to_string())?;
        let with_tls = self.url.starts_with("mqtts://") || self.url.starts_with("ssl://");
        if with_tls {
            self.encrypt(&mut options)?;
        } else if self.ca_file.is_some() || self.certificate_file.is_some() || self.key_file.is_some() {
            return Err(format!("{shown} is without TLS, but there are files for it; begin it with mqtts://"));
        }
        Ok(options)
    }

    #[cfg(feature = "mqtt-tls")]
    fn encrypt(&self, options: &mut rumqttc::MqttOptions) -> Result<(), String> {
        let certificate = match (&self.certificate_file, &self.key_file) {
            (Some(certificate), Some(key)) => Some((certificate.as_path(), key.as_path())),
            (None, None) => None,
            _ => return Err("certificate_file and key_file for MQTT belong together; set both".to_owned()),
        };
        let config =
            crate::tls::client_config(self.ca_file.as_deref(), certificate).map_err(|error| error.to_string())?;
        let config = rumqttc::TlsConfiguration::Rustls(std::sync::Arc::new(config));
        options.set_transport(rumqttc::Transport::tls_with_config(config));
        Ok(())
    }

    #[cfg(not(feature = "mqtt-tls"))]
    fn encrypt(&self, _: &mut rumqttc::MqttOptions) -> Result<(), String> {
        Err(format!("{} is with TLS: build with the feature mqtt-tls", address::shown(&self.url)))
    }
}

impl fmt::Debug for MqttOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("MqttOptions");
        debug.field("url", &address::shown(&self.url)).field("name", &self.name).field("client_id", &self.client_id);
        debug.field("user", &self.user).field("exactly_once", &self.exactly_once).field("retain", &self.retain);
        debug.field("require_subscriber", &self.require_subscriber).field("max_payload", &self.max_payload);
        debug.field("ack_timeout", &self.ack_timeout).field("connect_timeout", &self.connect_timeout);
        debug.field("lazy", &self.lazy).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Mqtt;
    use super::*;

    #[tokio::test]
    async fn options_are_read_and_wrong_ones_refused_without_secrets() {
        let text = r#"{"url": "mqtt://127.0.0.1", "user": "me", "password": "pass-word", "retain": true}"#;
        let options: MqttOptions = serde_json::from_str(text).unwrap();
        let shown = format!("{options:?}");
        assert!(shown.contains("retain: true") && !shown.contains("pass-word"), "{shown}");
        assert!(serde_json::from_str::<MqttOptions>(r#"{"url": "x", "retains": true}"#).is_err());
        for (url, said) in [
            #[cfg(not(feature = "mqtt-tls"))]
            ("mqtts://a:8883", "feature mqtt-tls"),
            ("mqtt://me:secret@a", "has a user in it"),
            ("mqtt://a:port", "is no port"),
            ("mqtt://me:secret", "is no port"),
            ("mqtt://", "is no address"),
            ("http://a/b", "begins with mqtt://"),
        ] {
            let error = Mqtt::connect(MqttOptions::new(url)).await.unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains("secret"), "{url}: {error}");
        }
        let files: MqttOptions = serde_json::from_str(r#"{"url": "mqtt://a", "ca_file": "/x"}"#).unwrap();
        assert!(Mqtt::connect(files).await.unwrap_err().to_string().contains("begin it with mqtts://"));
    }
}
