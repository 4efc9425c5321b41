//! Secrets, which stand in the environment or in files of their own, and are never shown.

use std::path::Path;

use super::fault::{Fault, Origin};
use super::value::{Kind, Table, Value};

/// Resolves `env:NAME` and `file:PATH` where secrets may be, and refuses secrets that stand there themselves.
///
/// Paths are seen from the directory of the file with the settings.
pub(super) fn resolve(table: &mut Table, home: &Path, faults: &mut Vec<Fault>) {
    let mut secrets = Secrets { home, faults };
    if let Some(Kind::Table(database)) = table.get_mut("database").map(|value| &mut value.kind)
        && let Some(url) = database.get_mut("url")
    {
        secrets.resolve(url, "database.url", false);
    }
    if let Some(Kind::Table(http)) = table.get_mut("http").map(|value| &mut value.kind)
        && let Some(token) = http.get_mut("token")
    {
        secrets.resolve(token, "http.token", true);
    }
    if let Some(Kind::Table(telemetry)) = table.get_mut("telemetry").map(|value| &mut value.kind) {
        if let Some(address) = telemetry.get_mut("otlp") {
            secrets.resolve(address, "telemetry.otlp", false);
        }
        if let Some(Kind::Table(headers)) = telemetry.get_mut("headers").map(|value| &mut value.kind) {
            for (name, value) in headers.iter_mut() {
                secrets.resolve(value, &format!("telemetry.headers.{name}"), true);
            }
        }
    }
    if let Some(destinations) = table.get_mut("destination") {
        secrets.resolve(destinations, "destination", false);
    }
}

struct Secrets<'a> {
    home: &'a Path,
    faults: &'a mut Vec<Fault>,
}

impl Secrets<'_> {
    fn resolve(&mut self, value: &mut Value, field: &str, is_secret: bool) {
        let text = match &mut value.kind {
            Kind::Table(table) => {
                for (key, value) in table.iter_mut() {
                    // In a table of secrets each is one, whatever it is for.
                    self.resolve(value, &format!("{field}.{key}"), is_secret || is_secret_key(key));
                }
                return;
            }
            Kind::List(list) => {
                for (place, value) in (1..).zip(list) {
                    self.resolve(value, &format!("{field}[{place}]"), is_secret);
                }
                return;
            }
            Kind::Text(text) | Kind::Untyped(text) => text.clone(),
            _ => return,
        };
        let found = if let Some(name) = text.strip_prefix("env:") {
            std::env::var(name).map_err(|_| format!("the variable {name} is not set, or is no text"))
        } else if let Some(path) = text.strip_prefix("file:") {
            let path = self.home.join(path);
            let read = std::fs::read_to_string(&path);
            read.map(|text| text.trim_end_matches(['\r', '\n']).to_owned())
                .map_err(|error| format!("{} cannot be read: {error}", path.display()))
        } else {
            // What a variable says is in the environment already.
            let is_open = !matches!(value.origin, Origin::Variable(_));
            let is_secret = is_secret || password(&text).is_some() || has_secret(&text) || is_of_a_user(field, &text);
            if is_open && is_secret {
                let message = "a secret does not stand here: give it as \"env:NAME\" or \"file:PATH\"";
                self.faults.push(Fault::new(&value.origin, field, message));
            }
            return;
        };
        match found {
            Ok(found) => value.kind = Kind::Secret { text: found, reference: text },
            Err(message) => self.faults.push(Fault::new(&value.origin, field, message)),
        }
    }
}

/// Whether what is called so is a secret.
pub(super) fn is_secret_key(key: &str) -> bool {
    let key = key.to_ascii_lowercase().replace('-', "_");
    SECRETS.iter().any(|secret| key.ends_with(secret))
}

/// How the names of secrets end: those of our own settings, and those that clients of brokers have among their properties.
const SECRETS: [&str; 13] = [
    "password",
    "passphrase",
    "secret",
    "secrets",
    "secrets_for",
    "token",
    "seed",
    "private_key",
    "api_key",
    "authorization",
    "key.pem",
    "jaas.config",
    "oauthbearer.config",
];

/// Whether a secret is in it that can be told by its looks, whatever it is called.
fn has_secret(text: &str) -> bool {
    text.contains("PRIVATE KEY-----") || text.to_ascii_lowercase().contains("password=")
}

/// Where the password of a URL is, if it has one.
fn password(url: &str) -> Option<std::ops::Range<usize>> {
    let start = url.find("://")? + 3;
    let (before, rest) = url.split_at(start);
    // The first of several addresses may have none.
    let scheme = before.trim_end_matches("://").rsplit([',', ' ']).next().unwrap_or_default();
    // A password may have any sign in it, so the last of these counts. One in a path makes what is hidden longer.
    let at = rest.rfind('@')?;
    let begin = match OF_NATS.iter().any(|of_nats| scheme.eq_ignore_ascii_case(of_nats)) {
        true => 0,
        false => rest[..at].find(':')? + 1,
    };
    (begin < at).then_some(start + begin..start + at)
}

/// How addresses of NATS begin, in which a user without a password is a token.
const OF_NATS: [&str; 4] = ["nats", "tls", "ws", "wss"];

/// Whether it is an address without a scheme, as clients of NATS take them, behind a token or a user and his password.
fn is_of_a_user(field: &str, text: &str) -> bool {
    // The first of several addresses may be such a one.
    let first = text.split("://").next().unwrap_or_default();
    is_url(field) && !text.starts_with("sqlite:") && first.contains('@')
}

fn is_url(field: &str) -> bool {
    field.rsplit('.').next() == Some("url")
}

/// An address without the password that may be in it, nor what follows a question mark.
pub(crate) fn shown(url: &str) -> String {
    shown_up_to(url, &['?'])
}

/// The same, and nothing that follows one of these signs.
fn shown_up_to(url: &str, signs: &[char]) -> String {
    let mut shown = url.to_owned();
    if let Some(password) = password(url) {
        // What was taken for the end of a password may be in the middle of something behind such a sign.
        let is_all = url[password.clone()].contains(signs);
        let end = if is_all { url.len() } else { password.end };
        shown.replace_range(password.start..end, "…");
    }
    let start = shown.find("://").map_or(0, |colon| colon + 3);
    if let Some(sign) = shown[start..].find(signs) {
        shown.truncate(start + sign);
    }
    shown
}

/// What a value in a table counts as: in one of secrets each is a secret.
fn named<'a>(table: &'a str, name: &'a str) -> &'a str {
    if is_secret_key(table) { table } else { name }
}

/// A value as it may be shown: what was resolved as what it refers to, and no secret that a variable brought.
pub(crate) fn hidden(key: &str, value: &Value) -> String {
    match &value.kind {
        Kind::Text(text) | Kind::Untyped(text) if is_secret_key(key) || has_secret(text) => "\"…\"".to_owned(),
        Kind::Text(text) | Kind::Untyped(text) if is_of_a_user(key, text) => {
            format!("\"…@{}\"", text.rsplit('@').next().unwrap_or_default())
        }
        // Whoever takes webhooks may know their senders by the path alone.
        Kind::Untyped(text) if is_of_http(text) => format!("{:?}", host(text)),
        Kind::Text(text) | Kind::Untyped(text) if text.contains("://") || is_url(key) => format!("{:?}", shown(text)),
        Kind::List(list) => {
            let items: Vec<String> = list.iter().map(|value| hidden(key, value)).collect();
            format!("[{}]", items.join(", "))
        }
        Kind::Table(table) => {
            let entries: Vec<String> =
                table.iter().map(|(name, _, value)| format!("{name} = {}", hidden(named(key, name), value))).collect();
            format!("{{ {} }}", entries.join(", "))
        }
        _ => value.to_string(),
    }
}

fn is_of_http(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| {
        ["http", "https"].iter().any(|of_http| scheme.trim_start().eq_ignore_ascii_case(of_http))
    })
}

/// A URL of HTTP up to its host.
fn host(url: &str) -> String {
    let host = shown_up_to(url, &['/', '?', '#']);
    if host == url { host } else { format!("{host}/…") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_of_urls_are_found_and_not_shown() {
        for (url, safe) in [
            ("postgres://shop@localhost/shop", "postgres://shop@localhost/shop"),
            ("postgres://shop:secret@localhost/shop?sslmode=require", "postgres://shop:…@localhost/shop"),
            ("postgres://shop:se@cr/et@localhost/shop", "postgres://shop:…@localhost/shop"),
            ("mysql://root:@localhost/shop", "mysql://root:@localhost/shop"),
            ("sqlite:shop.db", "sqlite:shop.db"),
            ("https://hooks.example/a:b", "https://hooks.example/a:b"),
            ("postgres://localhost/shop?password=abc&t0k3n=x", "postgres://localhost/shop"),
            ("postgres://shop@db:5432/shop?password=Tr0ub@3xyz", "postgres://shop@db:…"),
            ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
            ("nats://token@127.0.0.1:4222", "nats://…@127.0.0.1:4222"),
            ("TLS://me:secret@a:1,tls://token@b:2", "TLS://…@b:2"),
            ("a:1,nats://token@b:2", "a:1,nats://…@b:2"),
            ("redis://shop@localhost", "redis://shop@localhost"),
        ] {
            assert_eq!(shown(url), safe);
        }
        assert!(password("postgres://shop:secret@localhost/shop").is_some());
        assert!(password("https://hooks.example/a:b").is_none());
    }

    #[test]
    fn secrets_are_known_by_their_names_and_by_their_looks() {
        for key in [
            "password",
            "nkey_seed",
            "ssl.key.pem",
            "ssl.keystore.password",
            "sasl.oauthbearer.client.secret",
            "X-Api-Key",
            "secrets_for",
        ] {
            assert!(is_secret_key(key), "{key}");
        }
        for key in ["key", "key_file", "credentials_file", "ssl.certificate.pem", "username", "to"] {
            assert!(!is_secret_key(key), "{key}");
        }
        let value = |text: &str| Value::untyped(text, Origin::Variable("X".to_owned()));
        assert_eq!(hidden("note", &value("-----BEGIN EC PRIVATE KEY-----\nMHc=")), "\"…\"");
        assert_eq!(hidden("dsn", &value("host=db Password=hunter2")), "\"…\"");
        assert_eq!(hidden("to", &value("orders")), "\"orders\"");
        assert_eq!(hidden("url", &value("redis://a/0?x=hunter2")), "\"redis://a/0\"");
        assert_eq!(hidden("url", &value("hunter2@bus:4222")), "\"…@bus:4222\"");
        assert_eq!(hidden("url", &value("me:hunter2@a:1,nats://b:2")), "\"…@a:1,nats://b:2\"");
        assert_eq!(hidden("url", &value("sqlite:a@b.db")), "\"sqlite:a@b.db\"");
        assert_eq!(hidden("database.url", &value("sqlite:shop.db?key=hunter2")), "\"sqlite:shop.db\"");
        // What a variable says of a webhook is nobody's business but for the host; what stands in the file is no secret.
        assert_eq!(hidden("to", &value("https://a.example/T0/hunter2")), "\"https://a.example/…\"");
        assert_eq!(hidden("to", &value("https://me:hunter2@a.example/")), "\"https://me:…@a.example/…\"");
        assert_eq!(hidden("to", &value("https://a.example:8443/T0/x@hunter2")), "\"https://a.example:…/…\"");
        assert_eq!(hidden("to", &value("https://a.example#hunter2")), "\"https://a.example/…\"");
        assert_eq!(hidden("to", &value("https://a.example")), "\"https://a.example\"");
        let open = Value { origin: Origin::Default, kind: Kind::Text("https://a.example/hooks?x=hunter2".to_owned()) };
        assert_eq!(hidden("to", &open), "\"https://a.example/hooks\"");
    }
}
