//! Why there is no acknowledgement, and of which kind that is.

use std::time::Duration;

use async_nats::client;
use async_nats::jetstream::{self, ErrorCode};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::publisher::PublishError;

/// The stream is offline, as a server says that does not know all of its settings.
const STREAM_OFFLINE: ErrorCode = ErrorCode(10118);
const STREAM_OFFLINE_REASON: ErrorCode = ErrorCode(10194);

/// The stream is about to store a message with this id, which was sent before.
const DUPLICATE_IN_PROCESS: ErrorCode = ErrorCode(10158);

/// How long a message waits that its stream cannot take now, which is not its fault.
const AGAIN: Duration = Duration::from_secs(1);

/// Why there is no acknowledgement.
pub(super) enum Trouble {
    /// The server or the connection said so.
    Told(PublishError),
    /// Nobody said anything.
    Silence,
    /// Nobody listens to the subject now: there is no stream, or it has no leader.
    Nobody,
    /// It was to be stored right behind another message, and was not.
    NotBehind,
    /// It was not sent, since the one that it has to be behind was not.
    NotSent,
}

/// What JetStream answers to a message.
#[derive(Deserialize)]
struct Answer {
    error: Option<jetstream::Error>,
    stream: Option<IgnoredAny>,
    seq: Option<u64>,
    #[serde(default)]
    duplicate: bool,
}

/// What an answer means: the message is stored, and was before or not, or it was refused.
pub(super) fn answered(subject: &str, answer: &[u8]) -> Result<bool, Trouble> {
    if is_stored(answer) {
        return Ok(false);
    }
    match serde_json::from_slice(answer) {
        Ok(Answer { error: None, stream: Some(_), seq: Some(_), duplicate }) => Ok(duplicate),
        Ok(Answer { error: Some(said), .. }) => Err(refused(subject, &said)),
        Ok(_) | Err(_) => Err(Trouble::Told(PublishError::retryable(format!(
            "publishing to {subject:?} failed: somebody answered who is not JetStream"
        )))),
    }
}

/// Whether an answer is what nearly all are, and means that a new message is stored: `{"stream":"ORDERS", "seq":42}`. What it is
/// otherwise has to be read.
fn is_stored(answer: &[u8]) -> bool {
    let seq = || -> Option<&[u8]> {
        let name = answer.strip_prefix(b"{\"stream\":\"")?;
        let end = name.iter().position(|byte| matches!(byte, b'"' | b'\\' | ..b' ' | 0x80..))?;
        let rest = name[end..].strip_prefix(b"\",")?;
        rest.strip_prefix(b" ").unwrap_or(rest).strip_prefix(b"\"seq\":")?.strip_suffix(b"}")
    };
    // As many digits as every number of theirs may have.
    seq().is_some_and(
        |seq| matches!(seq, [b'1'..=b'9', rest @ ..] if rest.len() < 19 && rest.iter().all(u8::is_ascii_digit)),
    )
}

/// What kind of refusal it was.
fn refused(subject: &str, said: &jetstream::Error) -> Trouble {
    let text = format!("JetStream refused a message on {subject:?}: {said}");
    Trouble::Told(match said.error_code() {
        ErrorCode::STREAM_WRONG_LAST_MESSAGE_ID => return Trouble::NotBehind,
        ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => {
            PublishError::permanent(text)
        }
        ErrorCode::CLUSTER_NOT_AVAILABLE
        | ErrorCode::CLUSTER_NOT_LEADER
        | ErrorCode::CLUSTER_NOT_ACTIVE
        | ErrorCode::JETSTREAM_NOT_ENABLED
        | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT
        | ErrorCode::INSUFFICIENT_RESOURCES
        | ErrorCode::STREAM_TOO_MANY_REQUESTS => PublishError::outage(text),
        STREAM_OFFLINE | STREAM_OFFLINE_REASON | DUPLICATE_IN_PROCESS => PublishError::deferred(text, AGAIN),
        _ => PublishError::retryable(text),
    })
}

/// It was too large to be sent.
pub(super) fn too_large(error: &client::PublishError) -> PublishError {
    PublishError::permanent(format!("{error}; raise max_payload of the server, or send less and redrive the event"))
}

pub(super) fn no_stream(subject: &str) -> PublishError {
    PublishError::retryable(format!(
        "no stream of JetStream listens to the subject {subject:?}; make one that does, or change the subject"
    ))
}

/// Nobody listens, and we may not ask whether there is a stream.
pub(super) fn nobody_to_ask(subject: &str) -> PublishError {
    PublishError::retryable(format!(
        "nobody listens to the subject {subject:?}: no stream has it, or its stream has no leader now, and this user may not ask \
         which; permit it to publish to $JS.API.STREAM.NAMES, so that a stream without a leader uses up no attempts"
    ))
}

pub(super) fn lost() -> PublishError {
    PublishError::outage("the connection to NATS was lost before the acknowledgement")
}

/// The subject of `Permissions Violation for Publish to "orders"`: the protocol has a text and nothing else for that.
pub(super) fn denied(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("Permissions Violation for Publish to \"")?;
    rest.split_once('"').map(|(subject, _)| subject)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publisher::PublishErrorKind;

    #[test]
    fn an_answer_means_the_same_however_it_is_read() {
        let read = |answer: &str| match serde_json::from_slice(answer.as_bytes()) {
            Ok(Answer { error: None, stream: Some(_), seq: Some(_), duplicate }) => Some(duplicate),
            _ => None,
        };
        let stored = [
            r#"{"stream":"ORDERS", "seq":42}"#,
            r#"{"stream":"ORDERS","seq":1}"#,
            r#"{"stream":"","seq":9999999999999999999}"#,
        ];
        let others = [
            r#"{"stream":"ORDERS","seq":18446744073709551615}"#,
            r#"{"stream":"ORDERS","seq":18446744073709551616}"#,
            r#"{"stream":"ORDERS","seq":0}"#,
            r#"{"stream":"ORDERS","seq":01}"#,
            r#"{"stream":"ORDERS","seq":}"#,
            r#"{"stream":"ORDERS","seq":1.5}"#,
            r#"{"stream":"ORDERS","seq":1,"duplicate":true}"#,
            r#"{"stream":"ORDERS","duplicate":true,"seq":1}"#,
            r#"{"stream":"ORDERS","domain":"hub","seq":1}"#,
            r#"{"stream":"a\"b","seq":1}"#,
            "{\"stream\":\"a\nb\",\"seq\":1}",
            r#"{"stream":"größe","seq":1}"#,
            r#"{"stream":"ORDERS","seq":1}}"#,
            r#" {"stream":"ORDERS","seq":1}"#,
            r#"{"error":{"code":400,"err_code":10077,"description":"no"},"stream":"ORDERS","seq":1}"#,
            r#"{"stream":"ORDERS"}"#,
            "+OK",
            "",
        ];
        for answer in stored.into_iter().chain(others) {
            assert_eq!(is_stored(answer.as_bytes()), stored.contains(&answer), "{answer}");
            assert_eq!(answered("s", answer.as_bytes()).ok(), read(answer), "{answer}");
        }
    }

    #[test]
    fn a_stream_that_is_offline_or_still_at_it_is_no_failure_of_an_event() {
        let kind = |code: u64| {
            let answer =
                format!(r#"{{"error":{{"code":503,"err_code":{code},"description":"no"}},"stream":"s","seq":0}}"#);
            match answered("s", answer.as_bytes()) {
                Err(Trouble::Told(error)) => Some(error.kind()),
                _ => None,
            }
        };
        for code in [10118, 10194, 10158] {
            assert_eq!(kind(code), Some(PublishErrorKind::Deferred), "{code}");
        }
        assert_eq!(kind(10077), Some(PublishErrorKind::Retryable));
        assert_eq!(kind(10054), Some(PublishErrorKind::Permanent));
    }

    #[test]
    fn the_subject_of_a_denial_is_found() {
        assert_eq!(denied("Permissions Violation for Publish to \"orders.x\""), Some("orders.x"));
        assert_eq!(denied("nats: Permissions Violation for Publish to \"a\" using queue"), Some("a"));
        assert_eq!(denied("Permissions Violation for Subscription to \"a\""), None);
    }
}
