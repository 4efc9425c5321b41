//! Addresses of brokers, fit to be shown.

/// The address without what is secret in it: `redis://user:secret@host` becomes `redis://…@host`.
pub(crate) fn shown(url: &str) -> String {
    let part = |part: &str| {
        let (scheme, rest) = part.split_once("://").map_or(("", part), |(scheme, rest)| (scheme, rest));
        // A sign in the path or behind it is none of the address; one in a password makes what is hidden longer.
        let end = rest.find('/').unwrap_or(rest.len());
        let hidden = match rest[..end].rfind('@').or_else(|| rest.rfind('@')) {
            Some(at) => format!("…{}", &rest[at..]),
            None => rest.to_owned(),
        };
        if scheme.is_empty() { hidden } else { format!("{scheme}://{hidden}") }
    };
    url.split(',').map(part).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn secrets_are_not_shown() {
        for (url, safe) in [
            ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
            ("127.0.0.1:4222", "127.0.0.1:4222"),
            ("nats://me:secret@a:1,nats://token@b:2", "nats://…@a:1,nats://…@b:2"),
            ("redis://:sec@ret@127.0.0.1/0", "redis://…@127.0.0.1/0"),
            ("redis://:sec/ret@127.0.0.1/0", "redis://…@127.0.0.1/0"),
            ("me:secret@host", "…@host"),
        ] {
            assert_eq!(shown(url), safe);
        }
    }
}
