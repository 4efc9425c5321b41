//! What the server says when it does not add an entry, and what kind of failure that is.

use ::redis::{ErrorKind, RedisError, RedisResult};

use crate::publisher::{Message, PublishError};

/// What an answer makes of a message.
pub(super) fn judged(message: &Message, answer: RedisResult<Option<String>>) -> Result<(), PublishError> {
    let to = &message.to;
    let error = match answer {
        Ok(Some(_)) => return Ok(()),
        Ok(None) => {
            let reason =
                format!("there is no stream {to:?}, and none is to be made; add to it, or allow create_streams");
            return Err(PublishError::retryable(reason));
        }
        Err(error) => error,
    };
    let text = format!("Redis did not add to the stream {to:?}: {}", said(&error));
    Err(match error.code() {
        Some(
            "LOADING" | "READONLY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "BUSY" | "MISCONF" | "NOREPLICAS"
            | "OOM" | "NOAUTH" | "WRONGPASS",
        ) => PublishError::outage(text),
        Some("WRONGTYPE") => PublishError::permanent(text),
        Some("MOVED" | "ASK") => {
            PublishError::retryable(format!("{text}; clusters are not followed: connect to the node that has it"))
        }
        // Who has not logged in may not even say much.
        _ if is_of_the_protocol(&error) && text.contains("unauthenticated") => PublishError::outage(text),
        _ if is_of_the_protocol(&error) => {
            PublishError::retryable(format!("{text}; raise its proto-max-bulk-len, or send less"))
        }
        _ if error.is_io_error() || error.kind() == ErrorKind::AuthenticationFailed => PublishError::outage(text),
        _ => PublishError::retryable(text),
    })
}

/// Whether the server could not read what it was sent.
pub(super) fn is_of_the_protocol(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.starts_with("Protocol error"))
}

/// What the server said, in its own words.
pub(super) fn said(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use posthaste_core::EventId;

    use super::*;

    fn message() -> Message {
        let (id, headers) = (EventId::new("id").unwrap(), crate::Headers::default());
        Message { id, to: "s".into(), key: None, content_type: "text/plain".into(), headers, body: "x".into() }
    }

    /// What a server writes, and what it makes of a message.
    #[test]
    fn refusals_are_put_into_their_kinds() {
        use crate::publisher::PublishErrorKind::{Outage, Permanent, Retryable};
        for (wire, kind) in [
            ("LOADING Redis is loading the dataset in memory", Outage),
            ("READONLY You can't write against a read only replica.", Outage),
            ("MASTERDOWN Link with MASTER is down", Outage),
            ("CLUSTERDOWN The cluster is down", Outage),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Outage),
            ("BUSY Redis is busy running a script.", Outage),
            ("MISCONF Redis is configured to save RDB snapshots", Outage),
            ("NOREPLICAS Not enough good replicas to write.", Outage),
            ("OOM command not allowed when used memory > 'maxmemory'.", Outage),
            ("NOAUTH Authentication required.", Outage),
            ("WRONGPASS invalid username-password pair", Outage),
            ("ERR Protocol error: unauthenticated multibulk length", Outage),
            ("ERR Protocol error: invalid bulk length", Retryable),
            ("NOPERM this user has no permissions", Retryable),
            ("MOVED 3999 127.0.0.1:6381", Retryable),
            ("ASK 3999 127.0.0.1:6381", Retryable),
            ("ERR syntax error", Retryable),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Permanent),
        ] {
            let value = ::redis::parse_redis_value(format!("-{wire}\r\n").as_bytes()).unwrap();
            let error = value.extract_error().unwrap_err();
            assert_eq!(judged(&message(), Err(error)).unwrap_err().kind(), kind, "{wire}");
        }
    }
}
