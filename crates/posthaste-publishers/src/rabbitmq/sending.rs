//! Sends a batch, and finds out what became of each message.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use lapin::options::BasicPublishOptions;
use lapin::protocol::{AMQPError, AMQPErrorKind, AMQPSoftError};
use lapin::types::{AMQPValue, FieldTable, ShortString, ShortStringError};
use lapin::{BasicProperties, Channel, Confirmation, ErrorKind, PublisherConfirm};
use tokio::time::{Instant, timeout, timeout_at};

use super::link::{Line, Link};
use super::options::RabbitOptions;
use super::{NO_EXCHANGE, SEPARATOR};
use crate::pauses::Round;
use crate::publisher::{Message, PublishError};

/// How long the broker has to answer a question when it has not confirmed something.
pub(super) const ANSWER: Duration = Duration::from_secs(2);

/// How long what a batch had no time for is put off.
const SOON: Duration = Duration::from_secs(1);

/// How often a wait looks whether the broker has stopped taking anything.
const LOOK: Duration = Duration::from_millis(100);

const BLOCKED: &str = "RabbitMQ takes no messages now, for lack of memory or disk (connection blocked)";

/// Whom letters are sent to, and how long it may take.
pub(super) struct Broker<'a> {
    pub(super) link: &'a Link,
    pub(super) options: &'a RabbitOptions,
    pub(super) until: Instant,
}

/// A message as it is sent.
pub(super) struct Letter {
    /// Which of the batch it is.
    pub(super) place: usize,
    id: ShortString,
    exchange: ShortString,
    routing_key: ShortString,
    properties: BasicProperties,
    /// How large the frame with its properties is, or a little less.
    head: usize,
    body: Bytes,
}

impl Letter {
    /// Fails for what the protocol has no room for: sent, it would end the connection of everybody.
    pub(super) fn new(place: usize, message: Message, options: &RabbitOptions) -> Result<Self, PublishError> {
        Self::fitting(place, message, options).map_err(|error| {
            PublishError::permanent(format!(
                "exchange, routing key, content type and names of headers have 255 bytes at most: {error}"
            ))
            .unasked()
        })
    }

    fn fitting(place: usize, message: Message, options: &RabbitOptions) -> Result<Self, ShortStringError> {
        let (exchange, routing_key) = message.to.split_once(SEPARATOR).unwrap_or((NO_EXCHANGE, &message.to));
        let (exchange, routing_key) = (ShortString::try_new(exchange)?, ShortString::try_new(routing_key)?);
        let id = ShortString::try_new(message.id.as_str())?;
        let content_type = ShortString::try_new(message.content_type)?;
        let mut head = 64 + id.as_str().len() + content_type.as_str().len();
        let mut headers = FieldTable::default();
        for (name, value) in message.headers.iter() {
            head += name.len() + value.len() + 6;
            headers.insert(ShortString::try_new(name)?, AMQPValue::LongString(value.into()));
        }
        let mut properties = BasicProperties::default()
            .with_message_id(id.clone())
            .with_content_type(content_type)
            .with_headers(headers)
            .with_delivery_mode(if options.persistent { 2 } else { 1 });
        if let Some(app_id) = &options.app_id {
            head += app_id.len();
            properties = properties.with_app_id(ShortString::try_new(app_id.as_str())?);
        }
        Ok(Self { place, id, exchange, routing_key, properties, head, body: message.body.into_bytes() })
    }
}

impl Letter {
    /// The letter, unless where it goes is left alone now.
    pub(super) fn put_off(self, ends: &mut Round<'_>) -> Result<Self, PublishError> {
        if ends.nobody_is_away() {
            return Ok(self);
        }
        match ends.enter(&[self.exchange.as_str(), &self.address()]) {
            Err(left) => Err(PublishError::deferred(self.not_confirmed(), left).unasked()),
            Ok(()) => Ok(self),
        }
    }

    fn address(&self) -> String {
        format!("{}{SEPARATOR}{}", self.exchange.as_str(), self.routing_key.as_str())
    }

    fn not_confirmed(&self) -> String {
        format!(
            "RabbitMQ is there and confirms nothing for the exchange {:?} and the routing key {:?}; is a queue away?",
            self.exchange.as_str(),
            self.routing_key.as_str(),
        )
    }
}

/// What became of a letter.
type Fate = Result<(), PublishError>;

/// Sends letters in their order, and tells the fate of each by its place.
///
/// Where one of them makes the broker close the channel, those that had no answer yet are sent again on another: one alone, then
/// twice as many each time. So the one to blame is found, in order, and nobody is blamed for it or taken for delivered.
pub(super) async fn send(
    broker: &Broker<'_>,
    ends: &mut Round<'_>,
    mut open: Vec<Letter>,
    mut tell: impl FnMut(usize, Fate),
) {
    let (mut window, mut heard) = (usize::MAX, false);
    while !open.is_empty() {
        if heard && Instant::now() >= broker.until {
            let late = |letter: Letter| {
                let reason = "RabbitMQ took the time of the whole batch for others of it";
                tell(letter.place, Err(PublishError::deferred(reason, SOON).unasked()));
            };
            return open.into_iter().for_each(late);
        }
        let many = window.min(open.len());
        let (fates, end) = together(broker, &open[..many]).await;
        let (mut fates, before) = (fates.into_iter(), open.len());
        open.retain(|letter| match fates.next().flatten() {
            Some(fate) => {
                if fate.as_ref().err().is_none_or(PublishError::is_refusal) && !ends.nobody_is_away() {
                    ends.there(letter.exchange.as_str());
                    ends.there(&letter.address());
                }
                tell(letter.place, fate);
                heard = true;
                false
            }
            None => true,
        });
        let end = match end {
            Ok(end) => end,
            // Takes its time: what is known was told before.
            Err(unexplained) => unexplained.end(broker).await,
        };
        match end {
            End::Answered => window = many.saturating_mul(2),
            End::Silent { speaking } => {
                let silent = many - (before - open.len());
                for letter in open.drain(..silent) {
                    let exchange = letter.exchange.as_str();
                    let pause = match exchange == NO_EXCHANGE || speaking.contains(&letter.exchange) {
                        true => ends.away(&letter.address()),
                        false => ends.away(exchange),
                    };
                    tell(letter.place, Err(PublishError::deferred(letter.not_confirmed(), pause)));
                }
                window = many.saturating_mul(2);
            }
            End::Refused(error) if many == 1 && open.len() == before => {
                let culprit = open.remove(0);
                let also = |letter: &Letter| same_reason(&error, &culprit, letter);
                for letter in std::iter::once(&culprit).chain(open.iter().filter(|letter| also(letter))) {
                    tell(letter.place, Err(refusal(&error)));
                    ends.there(letter.exchange.as_str());
                }
                open.retain(|letter| !also(letter));
                heard = true;
            }
            End::Refused(_) => (window, heard) = (1, true),
            End::Away(reason) => {
                open.drain(..).for_each(|letter| tell(letter.place, Err(PublishError::outage(reason.clone()))));
            }
        }
    }
}

/// How it ended that letters were sent together.
enum End {
    /// With an answer for each.
    Answered,
    /// The broker answers, but not all of them. Others of these exchanges were confirmed.
    Silent { speaking: Vec<ShortString> },
    /// The broker closed the channel, because of one of them.
    Refused(AMQPError),
    /// The broker is not there, or takes nothing.
    Away(String),
}

/// Not all of them have an answer, and it is not known whether the broker is there.
struct Unexplained {
    silence: Silence,
    line: Arc<Line>,
    /// Others of these exchanges were confirmed.
    speaking: Vec<ShortString>,
}

impl Unexplained {
    /// Asks the broker.
    async fn end(self, broker: &Broker<'_>) -> End {
        let Self { silence, line, speaking } = self;
        match silence {
            Silence::Lasting(_) if matches!(answer(&line, ANSWER, line.ask()).await, Ok(Ok(()))) => {
                End::Silent { speaking }
            }
            silence => End::Away(silence.end(broker.link, &line).await),
        }
    }
}

/// What the broker says of an exchange, or of the right to write to it, holds for the others that go there.
fn same_reason(error: &AMQPError, culprit: &Letter, other: &Letter) -> bool {
    let exchange = culprit.exchange == other.exchange;
    match error.kind() {
        AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => exchange,
        // Rights may depend on the routing key.
        AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) => exchange && culprit.routing_key == other.routing_key,
        _ => false,
    }
}

fn refusal(error: &AMQPError) -> PublishError {
    let text = format!("RabbitMQ refused the message: {}", error.get_message());
    match error.kind() {
        // Too large, or with properties that it does not take.
        AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED | AMQPSoftError::CONTENTTOOLARGE) => {
            PublishError::permanent(text)
        }
        // Somebody can create the exchange, or give the right.
        _ => PublishError::retryable(text),
    }
}

/// Sends letters on one channel, all at once. What has no fate is open.
async fn together(broker: &Broker<'_>, letters: &[Letter]) -> (Vec<Option<Fate>>, Result<End, Unexplained>) {
    let Broker { link, options, until, .. } = broker;
    let away = |reason: String| (Vec::new(), Ok(End::Away(reason)));
    let line = match timeout_at(*until, link.line()).await {
        Ok(Ok(line)) => line,
        Ok(Err(error)) => return away(error.to_string()),
        Err(_) => return away("RabbitMQ did not answer in time".to_owned()),
    };
    if line.is_blocked() {
        return away(BLOCKED.to_owned());
    }
    let channel = match answer(&line, broker.patience(), line.channel()).await {
        Ok(Ok(channel)) => channel,
        Ok(Err(error)) => {
            link.lost(&line).await;
            return away(error.to_string());
        }
        Err(silence) => return away(silence.end(link, &line).await),
    };

    let mut under_way: Vec<Option<Publish<'_>>> = Vec::with_capacity(letters.len());
    for letter in letters {
        under_way.push((letter.head <= line.frame_max()).then(|| Publish::begin(&channel, options, letter)));
    }
    let mut answers = Vec::with_capacity(letters.len());
    let mut silence = None;
    for publish in &mut under_way {
        answers.push(match publish {
            None => Answer::TooLarge,
            // That one is silent does not mean that the others are: what has come is heard.
            Some(publish) if silence.is_some() => publish.heard().unwrap_or(Answer::Open),
            Some(publish) => match answer(&line, broker.patience(), &mut *publish).await {
                Ok(confirmation) => Answer::of(confirmation),
                Err(said) => {
                    silence = Some(said);
                    Answer::Open
                }
            },
        });
    }
    if silence.is_some() {
        hear_again(&mut answers, |place| under_way[place].as_mut()?.heard());
    }
    drop(under_way);
    let confirmed = letters.iter().zip(&answers).filter(|(_, answer)| matches!(answer, Answer::Confirmed { .. }));
    let speaking = confirmed.map(|(letter, _)| letter.exchange.clone()).collect();
    let (fates, error) = judge(letters, answers);
    let end = match (silence, error) {
        (_, Some(error)) => match error.kind() {
            ErrorKind::ProtocolError(refused) if matches!(refused.kind(), AMQPErrorKind::Soft(_)) => {
                Ok(End::Refused(refused.clone()))
            }
            _ => {
                link.lost(&line).await;
                Ok(End::Away(error.to_string()))
            }
        },
        (None, None) => {
            line.keep(channel);
            Ok(End::Answered)
        }
        (Some(silence), None) => Err(Unexplained { silence, line, speaking }),
    };
    (fates, end)
}

impl Broker<'_> {
    /// How long an answer is waited for.
    fn patience(&self) -> Duration {
        self.options.confirm_timeout.min(self.until.saturating_duration_since(Instant::now()))
    }
}

/// Asks the broker something.
pub(super) async fn check(broker: &Broker<'_>) -> Fate {
    let line = broker.link.line().await?;
    if line.is_blocked() {
        return Err(PublishError::outage(BLOCKED));
    }
    match answer(&line, broker.patience(), line.ask()).await {
        Ok(answer) => answer.map_err(PublishError::outage),
        Err(silence) => Err(PublishError::outage(silence.end(broker.link, &line).await)),
    }
}

/// What was heard of one letter.
enum Answer {
    TooLarge,
    Confirmed {
        taken: bool,
        /// The client hangs a message that came back on the next acknowledgement, whosever that is.
        returned: Option<Returned>,
    },
    Error(lapin::Error),
    Open,
    /// What became of this one is open, but on its acknowledgement hung another.
    Carrier(Returned),
}

/// A message that no queue got.
struct Returned {
    id: Option<ShortString>,
    reason: ShortString,
}

impl Answer {
    fn of(confirmation: lapin::Result<Confirmation>) -> Self {
        let confirmation = match confirmation {
            Ok(confirmation) => confirmation,
            Err(error) => return Self::Error(error),
        };
        let taken = confirmation.is_ack();
        let returned = confirmation.take_message().map(|message| Returned {
            id: message.delivery.properties.message_id().clone(),
            reason: message.reply_text.clone(),
        });
        Self::Confirmed { taken, returned }
    }
}

/// Listens once more to those that were silent. While one after the other was asked, an acknowledgement may have come for one that
/// had been asked already, with a message on it that came back, and the acknowledgement of that one behind it. Whatever came back
/// before any of the answers is known now. What these late ones say of themselves is left open: for that they would have to be
/// listened to once more.
fn hear_again(answers: &mut [Answer], mut heard: impl FnMut(usize) -> Option<Answer>) {
    for (place, answer) in answers.iter_mut().enumerate() {
        if !matches!(answer, Answer::Open) {
            continue;
        }
        match heard(place) {
            Some(Answer::Confirmed { returned: Some(returned), .. }) => *answer = Answer::Carrier(returned),
            Some(Answer::Error(error)) => *answer = Answer::Error(error),
            _ => {}
        }
    }
}

/// What the answers mean for each letter, and what ended the channel if something did.
fn judge(letters: &[Letter], answers: Vec<Answer>) -> (Vec<Option<Fate>>, Option<lapin::Error>) {
    let complete = answers.iter().all(|answer| matches!(answer, Answer::TooLarge | Answer::Confirmed { .. }));
    let mut returned = Vec::new();
    let mut ended: Option<lapin::Error> = None;
    let mut heard = Vec::with_capacity(answers.len());
    for answer in answers {
        heard.push(match answer {
            Answer::TooLarge => {
                Some(Err(PublishError::permanent("its headers do not fit into a frame of AMQP").unasked()))
            }
            Answer::Confirmed { taken, returned: other } => {
                returned.extend(other);
                let nack = || PublishError::retryable("RabbitMQ could not take the message (nack)");
                Some(taken.then_some(()).ok_or_else(nack))
            }
            Answer::Error(error) => {
                // What comes after says only that the channel is closed.
                if ended.as_ref().is_none_or(|first| !first.is_amqp_error() && error.is_amqp_error()) {
                    ended = Some(error);
                }
                None
            }
            Answer::Open => None,
            Answer::Carrier(other) => {
                returned.push(other);
                None
            }
        });
    }
    let fates = letters.iter().zip(heard).map(|(letter, heard)| {
        match returned.iter().find(|returned| returned.id.as_ref() == Some(&letter.id)) {
            Some(Returned { reason, .. }) => Some(Err(PublishError::retryable(format!(
                "no queue got the message, which RabbitMQ returned: {reason} (exchange {:?}, routing key {:?})",
                letter.exchange.as_str(),
                letter.routing_key.as_str(),
            )))),
            // One that was returned as well may be behind an acknowledgement that has not come any more.
            None if !complete && !returned.is_empty() && matches!(heard, Some(Ok(()))) => None,
            None => heard,
        }
    });
    (fates.collect(), ended)
}

/// A message on its way.
enum Publish<'a> {
    Writing(Pin<Box<dyn Future<Output = lapin::Result<PublisherConfirm>> + Send + 'a>>),
    Written(PublisherConfirm),
    Failed(lapin::Error),
}

impl<'a> Publish<'a> {
    /// Puts a letter behind those before it. Nothing waits: so many letters go out in one write.
    fn begin(channel: &'a Channel, options: &RabbitOptions, letter: &'a Letter) -> Self {
        let mut publish = Box::pin(channel.basic_publish(
            letter.exchange.clone(),
            letter.routing_key.clone(),
            BasicPublishOptions { mandatory: options.mandatory, immediate: false },
            &letter.body,
            letter.properties.clone(),
        ));
        match publish.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(confirm)) => Self::Written(confirm),
            Poll::Ready(Err(error)) => Self::Failed(error),
            Poll::Pending => Self::Writing(publish),
        }
    }

    /// What has come of it until now.
    fn heard(&mut self) -> Option<Answer> {
        match Pin::new(self).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(confirmation) => Some(Answer::of(confirmation)),
            Poll::Pending => None,
        }
    }
}

impl Future for Publish<'_> {
    type Output = lapin::Result<Confirmation>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut *self {
                Self::Writing(publish) => match publish.as_mut().poll(context) {
                    Poll::Ready(Ok(confirm)) => *self = Self::Written(confirm),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => return Poll::Pending,
                },
                Self::Written(confirm) => return Pin::new(confirm).poll(context),
                Self::Failed(error) => return Poll::Ready(Err(error.clone())),
            }
        }
    }
}

/// Why there is no answer.
enum Silence {
    Blocked,
    Lasting(Duration),
}

impl Silence {
    /// Says what it is; a connection on which nothing is heard is given up.
    async fn end(self, link: &Link, line: &Arc<Line>) -> String {
        match self {
            Self::Blocked => BLOCKED.to_owned(),
            Self::Lasting(limit) => {
                link.lost(line).await;
                format!("RabbitMQ did not answer within {limit:?}")
            }
        }
    }
}

/// Waits for an answer, as long as one can be expected.
async fn answer<T>(line: &Line, limit: Duration, of: impl Future<Output = T>) -> Result<T, Silence> {
    let mut of = pin!(of);
    let mut waited = Duration::ZERO;
    loop {
        let step = LOOK.min(limit - waited);
        match timeout(step, of.as_mut()).await {
            Ok(answer) => return Ok(answer),
            Err(_) if line.is_blocked() => return Err(Silence::Blocked),
            Err(_) => waited += step,
        }
        if waited >= limit {
            return Err(Silence::Lasting(limit));
        }
    }
}

#[cfg(test)]
mod tests {
    use posthaste_core::EventId;

    use super::*;

    fn letter(place: usize) -> Letter {
        let message = Message {
            id: EventId::new(place.to_string()).unwrap(),
            to: "shop\0yes".into(),
            key: None,
            content_type: "text/plain".into(),
            headers: crate::Headers::default(),
            body: "x".into(),
        };
        Letter::new(place, message, &RabbitOptions::new("amqp://127.0.0.1")).unwrap()
    }

    fn returned(place: usize) -> Returned {
        Returned { id: ShortString::try_new(place.to_string()).ok(), reason: "NO_ROUTE".into() }
    }

    fn confirmed(returned: Option<Returned>) -> Answer {
        Answer::Confirmed { taken: true, returned }
    }

    fn fates(letters: &[Letter], answers: Vec<Answer>) -> Vec<Option<bool>> {
        judge(letters, answers).0.into_iter().map(|fate| fate.map(|fate| fate.is_ok())).collect()
    }

    /// The first was silent when it was asked. Then its acknowledgement came, with the third on it that came back, and that of the
    /// third, which was asked after that.
    #[test]
    fn what_came_back_while_others_were_asked_is_not_taken_for_delivered() {
        let letters: Vec<_> = (0..4).map(letter).collect();
        let mut answers = vec![Answer::Open, confirmed(None), confirmed(None), Answer::Open];
        hear_again(&mut answers, |place| (place == 0).then(|| confirmed(Some(returned(2)))));
        // Of the second it is not known whether it hangs on one that has not come yet.
        assert_eq!(fates(&letters, answers), [None, None, Some(false), None]);
    }

    #[test]
    fn who_is_heard_late_is_heard_for_others_only() {
        let letters: Vec<_> = (0..3).map(letter).collect();
        let mut answers = vec![confirmed(None), Answer::Open, Answer::Open];
        let mut asked = Vec::new();
        hear_again(&mut answers, |place| {
            asked.push(place);
            (place == 2).then(|| confirmed(None))
        });
        assert_eq!(asked, [1, 2], "those that were silent");
        assert_eq!(fates(&letters, answers), [Some(true), None, None]);
    }
}
