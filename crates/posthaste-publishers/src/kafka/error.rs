//! What can go wrong with Kafka, and whose fault it is.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::producer::Refusal;
use crate::publisher::PublishErrorKind;

/// Why there is no connection to Kafka.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option that makes no sense.
    #[error("the option {option} of kafka is wrong: {reason}")]
    Option {
        /// Its name.
        option: &'static str,
        /// What would be right.
        reason: String,
    },
    /// A property of librdkafka that may not be set.
    #[error("the property {property} of librdkafka may not be set: {reason}")]
    Property {
        /// Its name.
        property: String,
        /// Why not.
        reason: &'static str,
    },
    /// librdkafka refused what it was told.
    #[error("librdkafka refused its configuration")]
    Client(#[source] KafkaError),
    /// Nobody answered in time.
    #[error("no kafka at {brokers}: {reason}; check the address and the login, or connect lazily if it may come later")]
    Unreachable {
        /// Where.
        brokers: String,
        /// What was heard last.
        reason: String,
    },
}

impl Error {
    /// What librdkafka refused, without the value: it may be a secret under a name with a slip in it.
    pub(super) fn client(error: KafkaError) -> Self {
        Self::Client(match error {
            KafkaError::ClientConfig(result, description, key, value) => {
                let description = if value.is_empty() { description } else { description.replace(&value, "…") };
                KafkaError::ClientConfig(result, description, key, "…".to_owned())
            }
            other => other,
        })
    }
}

/// What kind of failure a report is.
pub(super) fn kind(code: RDKafkaErrorCode) -> PublishErrorKind {
    use RDKafkaErrorCode::*;
    match code {
        // Nobody answers, or not in time, or whoever answers takes nothing from us at all.
        AllBrokersDown
        | Authentication
        | BrokerDestroy
        | BrokerNotAvailable
        | BrokerTransportFailure
        | ClusterAuthorizationFailed
        | CoordinatorLoadInProgress
        | CoordinatorNotAvailable
        | CriticalSystemResource
        | DestroyBroker
        | Fatal
        | Fenced
        | GaplessGuarantee
        | IllegalSASLState
        | InvalidProducerEpoch
        | InvalidProducerIdMapping
        | ISRInsufficient
        | KafkaStorageError
        | LeaderNotAvailable
        | MessageTimedOut
        | NetworkException
        | NotCoordinator
        | NotEnoughReplicas
        | NotEnoughReplicasAfterAppend
        | NotLeaderForPartition
        | OperationTimedOut
        | OutOfOrderSequenceNumber
        | ProducerFenced
        | PurgeInflight
        | PurgeQueue
        | QueueFull
        | ReplicaNotAvailable
        | RequestTimedOut
        | Resolve
        | SaslAuthenticationFailed
        | SecurityDisabled
        | SSL
        | ThrottlingQuotaExceeded
        | TimedOutQueue
        // The broker does not know what is the matter with itself; of a message it would.
        | Unknown
        | UnknownProducerId
        | UnsupportedSASLMechanism
        | UnsupportedVersion => PublishErrorKind::Outage,
        // Another try would be the same.
        InvalidMessageSize | InvalidRecord | InvalidTopic | MessageBatchTooLarge | MessageSizeTooLarge
        | PolicyViolation => PublishErrorKind::Permanent,
        // Somebody may create the topic, or allow us to write to it.
        _ => PublishErrorKind::Retryable,
    }
}

/// Whether it may be the topic that is away, or one of its partitions, and not Kafka.
pub(super) fn may_be_the_topic(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode::*;
    matches!(
        code,
        ISRInsufficient
            | KafkaStorageError
            | LeaderNotAvailable
            | MessageTimedOut
            | NotEnoughReplicas
            | NotEnoughReplicasAfterAppend
            | NotLeaderForPartition
            | OperationTimedOut
            | ReplicaNotAvailable
            | RequestTimedOut
            | TimedOutQueue
            | Unknown
    )
}

/// Whether a broker may have refused a message for what others in the same request are like.
pub(super) fn may_be_the_fault_of_others(refusal: Refusal) -> bool {
    use RDKafkaErrorCode::*;
    let refused_together = [InvalidDifferentRecord, InvalidRecord, MessageBatchTooLarge, MessageSizeTooLarge];
    !refusal.at_once && refused_together.contains(&refusal.code)
}

/// Whether it was the size of a request.
pub(super) fn is_about_size(code: RDKafkaErrorCode) -> bool {
    matches!(code, RDKafkaErrorCode::MessageBatchTooLarge | RDKafkaErrorCode::MessageSizeTooLarge)
}

/// Whether a producer that said this should not go on.
pub(super) fn ends_a_producer(code: RDKafkaErrorCode) -> bool {
    matches!(code, RDKafkaErrorCode::Fatal | RDKafkaErrorCode::MessageTimedOut)
}

/// Whether it is said of everything that a producer has, when it takes nothing more.
pub(super) fn is_about_the_producer(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode::*;
    matches!(code, Fatal | GaplessGuarantee | OutOfOrderSequenceNumber | PurgeInflight | PurgeQueue)
}

/// Whether brokers refuse who we are, which waiting does not change.
pub(super) fn is_about_us(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode::*;
    matches!(
        code,
        Authentication
            | ClusterAuthorizationFailed
            | IllegalSASLState
            | SaslAuthenticationFailed
            | SecurityDisabled
            | UnsupportedSASLMechanism
    )
}

/// What to do about it, where the user can do something.
pub(super) fn advice(code: RDKafkaErrorCode) -> &'static str {
    use RDKafkaErrorCode::*;
    match code {
        UnknownTopic | UnknownTopicOrPartition | UnknownPartition => "; create the topic",
        TopicAuthorizationFailed => "; allow this user to write to the topic",
        ClusterAuthorizationFailed => "; allow this user idempotent writes",
        MessageSizeTooLarge | MessageBatchTooLarge => {
            "; make the payload smaller, or allow more here (max_message_bytes) and at the topic (max.message.bytes)"
        }
        QueueFull => "; the queue of the client was full all the time",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_kind_that_the_table_says() {
        use RDKafkaErrorCode::*;
        for code in
            [AllBrokersDown, MessageTimedOut, SaslAuthenticationFailed, ClusterAuthorizationFailed, Fatal, Unknown]
        {
            assert_eq!(kind(code), PublishErrorKind::Outage, "{code}");
        }
        for code in [UnknownTopic, UnknownTopicOrPartition, TopicAuthorizationFailed, InvalidDifferentRecord] {
            assert_eq!(kind(code), PublishErrorKind::Retryable, "{code}");
        }
        for code in [MessageSizeTooLarge, InvalidRecord, InvalidTopic] {
            assert_eq!(kind(code), PublishErrorKind::Permanent, "{code}");
        }
    }
}
