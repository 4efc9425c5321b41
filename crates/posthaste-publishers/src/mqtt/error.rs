//! What cannot be carried, what an answer means, and what it means that there is none.

use rumqttc::{DisconnectReasonCode, PubAckReason, PubCompReason, PubRecReason, PublishResult};

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

/// Whose fault it is, to the broker, that it ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Its own, or that of all who send: no message was looked at.
    Nobodys,
    /// That of a message, it does not say how. Where nothing else was under way it is that message's, if it happens again.
    Somebodys,
    /// That of a message, which may be taken later.
    Retryable,
    /// That of a message, which is never taken.
    Permanent,
}

/// What the reason means that a broker gives with DISCONNECT.
pub(super) fn fault(reason: DisconnectReasonCode) -> Fault {
    use DisconnectReasonCode as Reason;
    match reason {
        Reason::NormalDisconnection
        | Reason::DisconnectWithWillMessage
        | Reason::ServerBusy
        | Reason::ServerShuttingDown
        | Reason::KeepAliveTimeout
        | Reason::SessionTakenOver
        | Reason::MessageRateTooHigh
        | Reason::QuotaExceeded
        | Reason::AdministrativeAction
        | Reason::UseAnotherServer
        | Reason::ServerMoved
        | Reason::ConnectionRateExceeded
        | Reason::MaximumConnectTime => Fault::Nobodys,
        Reason::NotAuthorized | Reason::RetainNotSupported | Reason::QoSNotSupported => Fault::Retryable,
        Reason::PacketTooLarge | Reason::TopicNameInvalid | Reason::PayloadFormatInvalid => Fault::Permanent,
        Reason::UnspecifiedError
        | Reason::MalformedPacket
        | Reason::ProtocolError
        | Reason::ImplementationSpecificError
        | Reason::ReceiveMaximumExceeded
        | Reason::TopicAliasInvalid
        // Of subscriptions, which there are none of.
        | Reason::TopicFilterInvalid
        | Reason::SharedSubscriptionNotSupported
        | Reason::SubscriptionIdentifiersNotSupported
        | Reason::WildcardSubscriptionsNotSupported => Fault::Somebodys,
    }
}

/// What to do about such a reason, where something can be done.
pub(super) fn advice(reason: DisconnectReasonCode) -> &'static str {
    use DisconnectReasonCode as Reason;
    match reason {
        Reason::NotAuthorized => "; the broker has to allow it to this user",
        Reason::PacketTooLarge => "; raise its limit, or send less",
        Reason::RetainNotSupported => "; do not ask to retain messages",
        Reason::QoSNotSupported => "; the broker has to allow it, or do not ask for exactly_once",
        Reason::SessionTakenOver => "; somebody else has connected with the same client id",
        Reason::QuotaExceeded | Reason::MessageRateTooHigh => "; the broker has to allow more to this user",
        Reason::UseAnotherServer | Reason::ServerMoved => "; connect to the other server",
        _ => "",
    }
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
    let text = || format!("the broker refused a message on {to:?}: {reason:?}");
    Err(match reason {
        Reason::Success => return Ok(()),
        Reason::NoMatchingSubscribers if !require_subscriber => return Ok(()),
        Reason::NoMatchingSubscribers => {
            PublishError::retryable(format!("nobody has subscribed to {to:?}; subscribe, or do not require it"))
        }
        Reason::TopicNameInvalid | Reason::PayloadFormatInvalid => PublishError::permanent(text()),
        Reason::PacketIdentifierInUse => PublishError::outage(text()),
        Reason::NotAuthorized => {
            PublishError::retryable(format!("{}; the broker has to allow it to this user", text()))
        }
        Reason::UnspecifiedError | Reason::ImplementationSpecificError | Reason::QuotaExceeded => {
            PublishError::retryable(text())
        }
    })
}

/// Whether topics may begin with `$`. Behind it brokers have what is theirs, such as `$CONTROL/dynamic-security/v1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dollar {
    Allowed,
    /// It would be for events to say.
    Refused,
}

impl Dollar {
    pub(super) fn refusal(self, to: &str) -> Option<String> {
        (self == Self::Refused && to.starts_with('$')).then(|| {
            format!(
                "{to:?} begins with a $, behind which brokers have what is theirs, and events may not choose it; if it is meant, \
                 begin the template with it"
            )
        })
    }
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
    for (name, value) in message.headers.iter() {
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
            headers: crate::Headers::default(),
            body: "x".into(),
        }
    }

    #[test]
    fn a_reason_to_end_the_connection_is_the_fault_of_a_message_or_of_nobody() {
        use DisconnectReasonCode as Reason;
        for (reason, expected) in [
            (Reason::ServerShuttingDown, Fault::Nobodys),
            (Reason::SessionTakenOver, Fault::Nobodys),
            (Reason::QuotaExceeded, Fault::Nobodys),
            (Reason::MessageRateTooHigh, Fault::Nobodys),
            (Reason::NotAuthorized, Fault::Retryable),
            (Reason::PacketTooLarge, Fault::Permanent),
            (Reason::TopicNameInvalid, Fault::Permanent),
            (Reason::UnspecifiedError, Fault::Somebodys),
            (Reason::MalformedPacket, Fault::Somebodys),
        ] {
            assert_eq!(fault(reason), expected, "{reason:?}");
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
        header.headers.push("x", "two\nlines");
        assert!(unfit(&header, None, None).unwrap().contains("\"x\""));
        assert!(unfit(&message("a"), Some(0), None).unwrap().contains("max_payload"));
        assert!(unfit(&message("a"), None, Some(10)).unwrap().contains("more than the broker takes"));
    }
}
