//! What cannot be carried, what an answer means, and what it means that there is none.

use rumqttc::{PubAckReason, PubCompReason, PubRecReason, PublishResult};

use crate::publisher::{Message, PublishError};

/// The longest string that the protocol can carry.
const LONGEST: usize = 65_535;

/// Why there is no acknowledgement.
pub(super) enum Trouble {
    /// The broker said so, or it was not even asked.
    Told(PublishError),
    /// The connection is over.
    Over(End),
}

/// How a connection ended for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Before the message was handed over to it.
    Unsent,
    /// The broker ended it, or the network, while the message was under way.
    Cut,
    /// Nothing came any more.
    Silent,
}

/// What an answer makes of a message.
pub(super) fn judged(to: &str, result: &PublishResult, require_subscriber: bool) -> Result<(), PublishError> {
    use PubAckReason as Reason;
    let reason = match result {
        PublishResult::Qos0Flushed => return Err(PublishError::retryable("sent without an acknowledgement")),
        PublishResult::Qos1(ack) => ack.reason,
        PublishResult::Qos2Completed(done) if done.reason == PubCompReason::Success => Reason::Success,
        PublishResult::Qos2Completed(_) => Reason::UnspecifiedError,
        PublishResult::Qos2PubRecRejected(rejected) => match rejected.reason {
            PubRecReason::Success => Reason::Success,
            PubRecReason::NoMatchingSubscribers => Reason::NoMatchingSubscribers,
            PubRecReason::UnspecifiedError => Reason::UnspecifiedError,
            PubRecReason::ImplementationSpecificError => Reason::ImplementationSpecificError,
            PubRecReason::NotAuthorized => Reason::NotAuthorized,
            PubRecReason::TopicNameInvalid => Reason::TopicNameInvalid,
            PubRecReason::PacketIdentifierInUse => Reason::PacketIdentifierInUse,
            PubRecReason::QuotaExceeded => Reason::QuotaExceeded,
            PubRecReason::PayloadFormatInvalid => Reason::PayloadFormatInvalid,
        },
    };
    let text = format!("the broker refused a message on {to:?}: {reason:?}");
    Err(match reason {
        Reason::Success => return Ok(()),
        Reason::NoMatchingSubscribers if !require_subscriber => return Ok(()),
        Reason::NoMatchingSubscribers => {
            PublishError::retryable(format!("nobody has subscribed to {to:?}; subscribe, or do not require it"))
        }
        Reason::TopicNameInvalid | Reason::PayloadFormatInvalid => PublishError::permanent(text),
        Reason::PacketIdentifierInUse => PublishError::outage(text),
        Reason::NotAuthorized => PublishError::retryable(format!("{text}; the broker has to allow it to this user")),
        Reason::UnspecifiedError | Reason::ImplementationSpecificError | Reason::QuotaExceeded => {
            PublishError::retryable(text)
        }
    })
}

pub(super) fn no_topic(text: &str) -> String {
    format!("{text:?} is no topic to publish to: text without wildcards and control characters")
}

pub(super) fn is_topic(text: &str) -> bool {
    !text.is_empty() && !text.contains(['#', '+']) && carried(text)
}

fn carried(text: &str) -> bool {
    text.len() <= LONGEST && !text.contains(is_forbidden)
}

/// Why a message cannot be carried: a broker would end the connection, with everything else on it.
pub(super) fn unfit(message: &Message, max_payload: Option<usize>, max_packet: Option<usize>) -> Option<String> {
    if !is_topic(&message.to) {
        return Some(no_topic(&message.to));
    }
    let mut bytes = message.to.len() + message.content_type.len() + message.body.len() + 20;
    if !carried(&message.content_type) {
        return Some("the content type has signs that MQTT cannot carry, or is too long".to_owned());
    }
    for (name, value) in &message.headers {
        if !carried(name) || !carried(value) {
            return Some(format!(
                "the header {name:?} has control characters, which MQTT cannot carry, or is too long"
            ));
        }
        bytes += name.len() + value.len() + 5;
    }
    if max_payload.is_some_and(|most| message.body.len() > most) {
        return Some(format!("a body of {} bytes, where max_payload is {}", message.body.len(), max_payload?));
    }
    if bytes > max_packet.unwrap_or(268_435_455) {
        return Some(format!("a packet of {bytes} bytes is more than the broker takes; raise its limit, or send less"));
    }
    None
}

/// Control characters and those that are none: brokers may take them for a broken packet.
fn is_forbidden(sign: char) -> bool {
    let code = sign as u32;
    sign.is_control() || code & 0xfffe == 0xfffe || (0xfdd0..=0xfdef).contains(&code)
}

#[cfg(test)]
mod tests {
    use posthaste_core::EventId;

    use super::*;

    fn message(to: &str) -> Message {
        let id = EventId::new("id").unwrap();
        Message {
            id,
            to: to.into(),
            key: None,
            content_type: "text/plain".into(),
            headers: Vec::new(),
            body: "x".into(),
        }
    }

    #[test]
    fn what_cannot_be_carried_is_found() {
        for good in ["a", "shop/größe/x y", "$x", "/"] {
            assert_eq!(unfit(&message(good), None, None), None, "{good}");
        }
        for bad in ["", "a/#", "a/+/b", "a\nb", "a\0", "\u{fffe}", &"x".repeat(LONGEST + 1)] {
            assert!(unfit(&message(bad), None, None).is_some(), "{bad:?}");
        }
        let mut header = message("a");
        header.headers.push(("x".into(), "two\nlines".into()));
        assert!(unfit(&header, None, None).unwrap().contains("\"x\""));
        assert!(unfit(&message("a"), Some(0), None).unwrap().contains("max_payload"));
        assert!(unfit(&message("a"), None, Some(10)).unwrap().contains("more than the broker takes"));
    }
}
