//! Where a relay sends traces and metrics, if anywhere.

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};
use jiff::fmt::serde::unsigned_duration::friendly::compact;
use serde::Deserialize;

use super::fault::{Fault, Origin};
use super::value::Value;

/// Where a relay sends traces and metrics, in the protocol of OpenTelemetry over HTTP.
#[derive(Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Telemetry {
    /// The address of a collector, such as `http://127.0.0.1:4318`. Nothing is sent if there is none.
    pub(crate) otlp: Option<String>,
    /// What the relay is called there.
    pub(crate) service_name: String,
    /// How often metrics are sent.
    #[serde(with = "compact::required")]
    pub(crate) interval: Duration,
    /// What is sent with every request.
    pub(crate) headers: BTreeMap<String, String>,
}

impl Default for Telemetry {
    fn default() -> Self {
        let (service_name, interval) = ("posthaste".to_owned(), Duration::from_secs(15));
        Self { otlp: None, service_name, interval, headers: BTreeMap::new() }
    }
}

impl Telemetry {
    pub(super) fn of(given: Option<&Value>) -> Result<Self, Fault> {
        let Some(given) = given else { return Ok(Self::default()) };
        let telemetry: Self = given.read("telemetry")?;
        let wrong = |key: &str, message: String| {
            let value = given.as_table().and_then(|table| table.get(key));
            let origin = value.map_or(&Origin::Default, |value| &value.origin);
            Fault::new(origin, format!("telemetry.{key}"), message)
        };
        if let Some(otlp) = &telemetry.otlp {
            if cfg!(not(feature = "otlp")) {
                let message = "this build has no OpenTelemetry; build posthaste-cli with the feature `otlp`";
                return Err(wrong("otlp", message.to_owned()));
            }
            let uri: Option<Uri> = otlp.parse().ok();
            let is_right = uri.is_some_and(|uri| uri.scheme_str() == Some("http") && uri.host().is_some());
            if !is_right {
                let message = format!(
                    "{otlp:?} is no address such as \"http://127.0.0.1:4318\"; for https, send to a collector of your own, which \
                     passes it on"
                );
                return Err(wrong("otlp", message));
            }
        }
        for (name, value) in &telemetry.headers {
            if HeaderName::try_from(name).is_err() || HeaderValue::try_from(value).is_err() {
                return Err(wrong("headers", format!("{name:?} is no header, or its value cannot be one")));
            }
        }
        if telemetry.interval < Duration::from_millis(100) {
            return Err(wrong("interval", "must be at least 100ms".to_owned()));
        }
        Ok(telemetry)
    }
}
