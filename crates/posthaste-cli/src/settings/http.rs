//! Where a relay answers questions about itself.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use jiff::fmt::serde::unsigned_duration::friendly::compact;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::fault::{Fault, Origin};
use super::value::Value;

/// Where a relay answers if nobody says: on this machine alone.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9797);

/// The shortest token that is worth its name.
const SHORTEST_TOKEN: usize = 16;

/// Where a relay answers questions about itself, and to whom.
#[derive(Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Http {
    pub(crate) listen: Listen,
    /// What whoever asks has to bring.
    pub(crate) token: Option<String>,
    /// How often what is of the whole table is read for metrics, at most: only if somebody has asked since.
    #[serde(with = "compact::required")]
    pub(crate) sample_interval: Duration,
}

impl Default for Http {
    fn default() -> Self {
        Self { listen: Listen(Some(LISTEN)), token: None, sample_interval: Duration::from_secs(15) }
    }
}

/// An address, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listen(pub(crate) Option<SocketAddr>);

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || {
            D::Error::custom(format!("{text:?} is no address with a port, such as \"127.0.0.1:9797\", and not \"off\""))
        };
        match text.trim() {
            "off" => Ok(Self(None)),
            address => address.parse().map(|address| Self(Some(address))).map_err(|_| wrong()),
        }
    }
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(address) => write!(f, "{address}"),
            None => f.write_str("off"),
        }
    }
}

impl Http {
    /// Reads it. What other machines could reach needs a token.
    pub(super) fn of(given: Option<&Value>) -> Result<Self, Fault> {
        let Some(given) = given else { return Ok(Self::default()) };
        let http: Self = given.read("http")?;
        let origin = |key| {
            let value = given.as_table().and_then(|table| table.get(key));
            value.map_or(&Origin::Default, |value| &value.origin)
        };
        if let Some(token) = &http.token
            && token.len() < SHORTEST_TOKEN
        {
            let message = format!("the token is too short; it must have at least {SHORTEST_TOKEN} characters");
            return Err(Fault::new(origin("token"), "http.token", message));
        }
        if let Listen(Some(address)) = http.listen
            && !address.ip().to_canonical().is_loopback()
            && http.token.is_none()
        {
            let message = format!(
                "{address} can be reached from other machines, and there is no token; set http.token = \"env:NAME\" or \
                 \"file:PATH\", or listen on 127.0.0.1"
            );
            return Err(Fault::new(origin("listen"), "http.listen", message));
        }
        if http.sample_interval < Duration::from_millis(100) {
            let message = "must be at least 100ms: to count a table is work for the database";
            return Err(Fault::new(origin("sample_interval"), "http.sample_interval", message));
        }
        Ok(http)
    }
}
