//! Sends a batch over one connection, and waits for its acknowledgements.

use std::time::Duration;

use rumqttc::{ClientError, PublishNotice, PublishNoticeError, PublishOptions, PublishProperties, QoS};
use tokio::time::timeout;

use super::MqttOptions;
use super::connection::Connection;
use super::error::{Dollar, End, Trouble, judged, no_topic, unfit};
use crate::publisher::{Message, PublishError};

/// Sends the messages, all at once, and gives a result for each. Each that the broker has is told of at once.
pub(super) async fn send(
    connection: &Connection,
    options: &MqttOptions,
    dollar: Dollar,
    messages: &[Message],
    stored: &(impl Fn(usize) + Sync),
) -> Vec<Result<(), Trouble>> {
    let mut sent = Vec::with_capacity(messages.len());
    for message in messages {
        // What comes behind the end would only wait for another.
        let behind = matches!(sent.last(), Some(Err(Trouble::Over(_))));
        sent.push(if behind {
            Err(Trouble::Over(End::Unsent))
        } else {
            handed_over(connection, options, dollar, message).await
        });
    }
    let (mut results, mut over) = (Vec::with_capacity(messages.len()), None);
    for (message, notice) in messages.iter().zip(sent) {
        let result = match notice {
            Ok(notice) => acknowledged(options, message, notice, over).await,
            Err(trouble) => Err(trouble),
        };
        match &result {
            Ok(()) => stored(results.len()),
            Err(Trouble::Over(end)) => over = over.or(Some(*end)),
            Err(Trouble::Told(_)) => {}
        }
        results.push(result);
    }
    results
}

/// Hands a message over to the connection, behind those before it.
async fn handed_over(
    connection: &Connection,
    options: &MqttOptions,
    dollar: Dollar,
    message: &Message,
) -> Result<PublishNotice, Trouble> {
    let permanent = |why: String| Err(Trouble::Told(PublishError::permanent(why).unasked()));
    if let Some(why) = dollar.refusal(&message.to) {
        return permanent(why);
    }
    if let Some(why) = unfit(message, options.max_payload, connection.max_packet) {
        return permanent(why);
    }
    let quality = if options.exactly_once { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
    let properties = PublishProperties {
        content_type: Some(message.content_type.clone().into_owned()),
        user_properties: message.headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        ..PublishProperties::default()
    };
    let publish = PublishOptions::new(quality).retain(options.retain).properties(properties);
    let sending = connection.client.publish_tracked(String::from(message.to.clone()), message.body.to_bytes(), publish);
    match timeout(options.ack_timeout, sending).await {
        Ok(Ok(notice)) => Ok(notice),
        Ok(Err(ClientError::InvalidRequest(_))) => permanent(no_topic(&message.to)),
        Ok(Err(_)) => Err(Trouble::Over(End::Unsent)),
        Err(_) => Err(Trouble::Over(End::Silent)),
    }
}

/// Waits for an acknowledgement; where it is known that none will come any more, only looks whether there was one.
async fn acknowledged(
    options: &MqttOptions,
    message: &Message,
    notice: PublishNotice,
    over: Option<End>,
) -> Result<(), Trouble> {
    let patience = if over.is_some() { Duration::ZERO } else { options.ack_timeout };
    match timeout(patience, notice.wait_async()).await {
        Ok(Ok(result)) => judged(&message.to, &result, options.require_subscriber).map_err(Trouble::Told),
        Ok(Err(PublishNoticeError::RetainNotSupported)) => {
            Err(Trouble::Told(PublishError::retryable("the broker keeps no messages; do not ask to retain them")))
        }
        Ok(Err(_)) => Err(Trouble::Over(End::Cut)),
        // Those behind one that was cut off were under way as well.
        Err(_) if over == Some(End::Cut) => Err(Trouble::Over(End::Cut)),
        Err(_) => Err(Trouble::Over(End::Silent)),
    }
}
