//! Sends a batch over one connection, and waits for its acknowledgements.

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt;
use rumqttc::{ClientError, PublishNoticeError, PublishOptions, PublishProperties, PublishResult, QoS};
use tokio::task::unconstrained;
use tokio::time::timeout;

use super::MqttOptions;
use super::connection::Connection;
use super::error::{Dollar, End, Trouble, judged, no_topic, unfit};
use crate::publisher::{Message, PublishError};

/// What the broker says of a message, or why it says nothing.
type Answer = Result<PublishResult, PublishNoticeError>;

/// The answer to come.
type Notice = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Sends the messages in their order, and gives a result for each. Each that the broker has is told of at once.
///
/// No more are handed over than the broker takes: otherwise their client would write to the socket for each answer that comes, one
/// message at a time. So all answers that are there are taken, and then as many messages handed over, which are written together.
pub(super) async fn send(
    connection: &Connection,
    options: &MqttOptions,
    dollar: Dollar,
    messages: &[Message],
    stored: &(impl Fn(usize) + Sync),
) -> Vec<Result<(), Trouble>> {
    let (mut results, mut over) = (Vec::with_capacity(messages.len()), None);
    let (mut waiting, mut open) = (messages.iter(), true);
    let mut under_way = VecDeque::new();
    loop {
        while open && let Some(message) = waiting.as_slice().first() {
            // Whoever has something under way waits for its answer, and not for room: two would wait for that of each other.
            let room = match under_way.is_empty() {
                true => connection.room.acquire().await.ok(),
                false => connection.room.try_acquire().ok(),
            };
            let Some(room) = room else { break };
            waiting.next();
            let handed = handed_over(connection, options, dollar, message).await;
            open = !matches!(handed, Err(Trouble::Over(_)));
            under_way.push_back((message, handed, room));
        }
        if under_way.is_empty() {
            break;
        }
        if waiting.as_slice().is_empty() {
            connection.prompt.acknowledge();
        }
        // One answer is waited for, and those that came with it are taken, too.
        let mut patience = over.is_none().then_some(options.ack_timeout);
        while let Some((message, handed, room)) = under_way.pop_front() {
            let result = match handed {
                Ok(mut notice) => match answered(&mut notice, patience).await {
                    Some(answer) => acknowledged(options, message, answer),
                    None if patience.is_none() && over.is_none() => {
                        under_way.push_front((message, Ok(notice), room));
                        break;
                    }
                    // Those behind one that was cut off were under way as well.
                    None => Err(Trouble::Over(over.filter(|end| *end == End::Cut).unwrap_or(End::Silent))),
                },
                Err(trouble) => Err(trouble),
            };
            match &result {
                Ok(()) => stored(results.len()),
                Err(Trouble::Over(end)) => {
                    open = false;
                    over = over.or(Some(*end));
                }
                Err(Trouble::Told(_)) => {}
            }
            results.push(result);
            patience = None;
        }
    }
    // What comes behind the end would only wait for another.
    results.extend(waiting.map(|_| Err(Trouble::Over(End::Unsent))));
    assert_eq!(results.len(), messages.len(), "each message has a result");
    results
}

/// Hands a message over to the connection, behind those before it.
async fn handed_over(
    connection: &Connection,
    options: &MqttOptions,
    dollar: Dollar,
    message: &Message,
) -> Result<Notice, Trouble> {
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
        Ok(Ok(notice)) => Ok(Box::pin(notice.wait_async())),
        Ok(Err(ClientError::InvalidRequest(_))) => permanent(no_topic(&message.to)),
        Ok(Err(_)) => Err(Trouble::Over(End::Unsent)),
        Err(_) => Err(Trouble::Over(End::Silent)),
    }
}

/// The answer to a message, if there is one within that time; without a time, if there is one already.
async fn answered(notice: &mut Notice, patience: Option<Duration>) -> Option<Answer> {
    // What is there is there, however many were looked at before.
    match (unconstrained(&mut *notice).now_or_never(), patience) {
        (None, Some(patience)) => timeout(patience, notice).await.ok(),
        (answer, _) => answer,
    }
}

/// What an answer says.
fn acknowledged(options: &MqttOptions, message: &Message, answer: Answer) -> Result<(), Trouble> {
    match answer {
        Ok(result) => judged(&message.to, &result, options.require_subscriber).map_err(Trouble::Told),
        Err(PublishNoticeError::RetainNotSupported) => {
            Err(Trouble::Told(PublishError::retryable("the broker keeps no messages; do not ask to retain them")))
        }
        Err(_) => Err(Trouble::Over(End::Cut)),
    }
}
