//! Why there is no acknowledgement, and of which kind that is.

use async_nats::client;
use async_nats::jetstream::{self, ErrorCode};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::publisher::PublishError;

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
    match serde_json::from_slice(answer) {
        Ok(Answer { error: None, stream: Some(_), seq: Some(_), duplicate }) => Ok(duplicate),
        Ok(Answer { error: Some(said), .. }) => Err(refused(subject, &said)),
        Ok(_) | Err(_) => Err(Trouble::Told(PublishError::retryable(format!(
            "publishing to {subject:?} failed: somebody answered who is not JetStream"
        )))),
    }
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
    use super::denied;

    #[test]
    fn the_subject_of_a_denial_is_found() {
        assert_eq!(denied("Permissions Violation for Publish to \"orders.x\""), Some("orders.x"));
        assert_eq!(denied("nats: Permissions Violation for Publish to \"a\" using queue"), Some("a"));
        assert_eq!(denied("Permissions Violation for Subscription to \"a\""), None);
    }
}
