//! Addresses: which ones a protocol has, and what of them is fit to be shown.

use std::borrow::Cow;

use crate::envelope::Binding;
use crate::publisher::PublishError;
use crate::template::Places;

/// The longest text of AMQP 0.9.1 that names something, in bytes.
const LONGEST_OF_AMQP: usize = 255;

/// The longest name of a topic of Kafka.
const LONGEST_OF_KAFKA: usize = 249;

/// The longest text of MQTT, in bytes.
const LONGEST_OF_MQTT: usize = 65_535;

/// Between exchange and routing key, where an address of AMQP has both.
const BETWEEN_OF_AMQP: char = '\0';

impl Binding {
    /// What places of addresses may bring.
    pub(crate) const fn places(self) -> Places {
        match self {
            Self::Nats | Self::Amqp => Places::Words('.'),
            Self::Mqtt => Places::Words('/'),
            Self::Http => Places::Url,
            Self::Kafka | Self::Fields => Places::Free,
        }
    }

    /// Whether the protocol has such addresses.
    pub(crate) fn check_address(self, address: &str) -> Result<(), PublishError> {
        let mistake = match self {
            Self::Kafka => no_topic_of_kafka(address),
            Self::Nats => no_subject(address),
            Self::Amqp => no_address_of_amqp(address),
            Self::Mqtt => no_topic_of_mqtt(address),
            Self::Http | Self::Fields => None,
        };
        match mistake {
            None => Ok(()),
            Some(mistake) => {
                let address = address.replace(BETWEEN_OF_AMQP, " / ");
                Err(PublishError::permanent(format!("the address {address:?} cannot be used: {mistake}")))
            }
        }
    }
}

fn no_topic_of_kafka(address: &str) -> Option<&'static str> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let is_topic = !matches!(address, "." | "..") && address.len() <= LONGEST_OF_KAFKA && address.chars().all(allowed);
    (!is_topic).then_some("a topic of Kafka has letters, digits, '.', '_' and '-', and 249 of them at most")
}

fn no_subject(address: &str) -> Option<&'static str> {
    let is_word = |word: &str| {
        !matches!(word, "" | "*" | ">") && !word.contains(|sign: char| sign.is_whitespace() || sign.is_control())
    };
    (!address.split('.').all(is_word))
        .then_some("a subject of NATS to publish to is words with full stops between, without spaces and wildcards")
}

fn no_address_of_amqp(address: &str) -> Option<&'static str> {
    let (exchange, routing_key) = address.split_once(BETWEEN_OF_AMQP).unwrap_or(("", address));
    if exchange.len() > LONGEST_OF_AMQP || routing_key.len() > LONGEST_OF_AMQP {
        return Some("names of exchanges and queues and routing keys have 255 bytes at most");
    }
    (exchange.is_empty() && routing_key.is_empty()).then_some("without an exchange, give the name of a queue")
}

fn no_topic_of_mqtt(address: &str) -> Option<&'static str> {
    let is_topic =
        address.len() <= LONGEST_OF_MQTT && !address.contains(|c: char| matches!(c, '#' | '+') || c.is_control());
    (!is_topic).then_some("a topic of MQTT to publish to has no wildcards and no control characters")
}

/// Of a URL the scheme and the host, since what follows may be secret, as may what is before the host. Anything else as it is.
///
/// Of HTTP it is a URL also without the slashes, or with more of them: who reads it finds the host behind them.
pub(crate) fn brief(address: &str) -> Cow<'_, str> {
    let of_http = address
        .split_once(':')
        .filter(|(scheme, _)| ["http", "https"].iter().any(|http| scheme.trim_start().eq_ignore_ascii_case(http)));
    let (scheme, rest) = match (of_http, address.split_once("://")) {
        (Some((scheme, rest)), _) => (scheme, rest.trim_start_matches(['/', '\\'])),
        (None, Some((scheme, rest))) => (scheme, rest),
        (None, None) => return Cow::Borrowed(address),
    };
    let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
    let host = rest[..end].rsplit('@').next().unwrap_or_default();
    let more = if rest[end..].len() > 1 { "/…" } else { &rest[end..] };
    Cow::Owned(format!("{scheme}://{host}{more}"))
}

/// The addresses of servers, several with commas between, without what is secret in them: `redis://user:secret@host` becomes
/// `redis://…@host`.
#[cfg(any(feature = "mqtt", feature = "nats", feature = "redis"))]
pub(crate) fn shown(urls: &str) -> String {
    // A comma may be in a password. Where the next address begins it is followed by a scheme.
    let mut parts: Vec<String> = Vec::new();
    for part in urls.split(',') {
        let is_next = part.trim_start().split_once("://").is_some_and(|(scheme, _)| is_scheme(scheme));
        match parts.last_mut() {
            Some(last) if !is_next && (last.contains("://") || part.contains('@')) => {
                last.push(',');
                last.push_str(part);
            }
            _ => parts.push(part.to_owned()),
        }
    }
    parts.iter().map(|part| one_shown(part)).collect::<Vec<_>>().join(",")
}

#[cfg(any(feature = "mqtt", feature = "nats", feature = "redis"))]
fn is_scheme(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

#[cfg(any(feature = "mqtt", feature = "nats", feature = "redis"))]
fn one_shown(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    // A sign in the path or behind it is none of the address; one in a password makes what is hidden longer.
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let mut hidden = match rest[..end].rfind('@').or_else(|| rest.rfind('@')) {
        Some(at) => format!("…{}", &rest[at..]),
        None => rest.to_owned(),
    };
    if let Some(query) = hidden.find('?') {
        hidden.replace_range(query + 1.., "…");
    }
    if scheme.is_empty() { hidden } else { format!("{scheme}://{hidden}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(any(feature = "mqtt", feature = "nats", feature = "redis"))]
    fn secrets_are_not_shown() {
        for (url, safe) in [
            ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
            ("127.0.0.1:4222", "127.0.0.1:4222"),
            ("a:1,b:2", "a:1,b:2"),
            ("nats://a:1,b:2", "nats://a:1,b:2"),
            ("nats://me:secret@a:1,nats://token@b:2", "nats://…@a:1,nats://…@b:2"),
            ("nats://me:sec,ret@a:1, tls://to,ken@b:2", "nats://…@a:1, tls://…@b:2"),
            ("redis://:sec@ret@127.0.0.1/0", "redis://…@127.0.0.1/0"),
            ("redis://:sec/ret@127.0.0.1/0", "redis://…@127.0.0.1/0"),
            ("redis://:sec,ret@host", "redis://…@host"),
            ("redis://:sec?ret@host/0?x=y", "redis://…@host/0?…"),
            ("unix:///sock?pass=secret", "unix:///sock?…"),
            ("unix:///sock?user=me&pass=sec,r@et", "unix://…@et"),
            ("me:secret@host", "…@host"),
            ("me:sec,ret@host", "…@host"),
        ] {
            assert_eq!(shown(url), safe);
        }
    }

    #[test]
    fn of_a_url_the_host_is_shown() {
        for (url, safe) in [
            ("https://hooks.example", "https://hooks.example"),
            ("https://hooks.example/", "https://hooks.example/"),
            ("https://hooks.example/T0/secret", "https://hooks.example/…"),
            ("https://hooks.example?token=secret", "https://hooks.example/…"),
            ("https://me:se@cret@hooks.example:1/x", "https://hooks.example:1/…"),
            ("https:///hooks.example/T0/secret", "https://hooks.example/…"),
            ("HTTPS:/\\me:secret@hooks.example\\T0", "HTTPS://hooks.example/…"),
            ("https:me:secret@hooks.example/T0/secret", "https://hooks.example/…"),
            ("http:", "http://"),
            ("orders.{event_type}", "orders.{event_type}"),
            ("a/b", "a/b"),
            ("orders:new:2", "orders:new:2"),
        ] {
            assert_eq!(brief(url), safe);
        }
    }

    #[test]
    fn what_can_be_no_address_is_said() {
        let check = |binding: Binding, address: &str| binding.check_address(address).is_ok();
        let long = |bytes| "a".repeat(bytes);
        for (binding, good) in [
            (Binding::Kafka, "orders.x-1_x"),
            (Binding::Kafka, &*long(249)),
            (Binding::Nats, "orders.x"),
            (Binding::Nats, "bestellung.größe.a*b"),
            (Binding::Amqp, "orders\0"),
            (Binding::Amqp, "\0queue"),
            (Binding::Amqp, &*format!("{}\0{}", long(255), long(255))),
            (Binding::Mqtt, "orders/x/größe"),
            (Binding::Fields, "whatever * > # you like"),
        ] {
            assert!(check(binding, good), "{binding:?}: {good}");
        }
        for (binding, bad) in [
            (Binding::Kafka, "a b"),
            (Binding::Kafka, "größe"),
            (Binding::Kafka, ".."),
            (Binding::Kafka, &*long(250)),
            (Binding::Nats, "orders.>"),
            (Binding::Nats, "orders.*.x"),
            (Binding::Nats, "orders."),
            (Binding::Nats, "a b"),
            (Binding::Amqp, "\0"),
            (Binding::Amqp, &*format!("\0{}", long(256))),
            (Binding::Mqtt, "a/#"),
            (Binding::Mqtt, "a/+/x"),
        ] {
            assert!(!check(binding, bad), "{binding:?}: {bad}");
        }
    }
}
